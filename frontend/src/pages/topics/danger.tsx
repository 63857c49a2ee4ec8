import { useQuery } from "@tanstack/react-query";
import { useNavigate } from "@tanstack/react-router";
import { useState } from "react";
import { bodyOf, http } from "@/api/client";
import type { Plan, Topic } from "@/api/queries";
import { useAct } from "@/app/act";
import { ActionButton } from "@/ui/action-button";
import { Button } from "@/ui/button";
import { Confirm } from "@/ui/confirm";
import { DangerRow, DangerZone } from "@/ui/danger";
import { PlanView } from "@/ui/plan";

/** What cannot be undone asks for the topic's name. */
export function Danger({ topic }: { topic: Topic }) {
  const name = topic.metadata.name;
  const params = { path: { name } };
  const { act } = useAct();
  const navigate = useNavigate();
  const [asked, setAsked] = useState<"delete" | "purge" | null>(null);
  const plan = useQuery({
    queryKey: ["topics", "plan-delete", name],
    queryFn: () =>
      http
        .DELETE("/api/v1/topics/{name}", { params: { ...params, query: { dry_run: true } } })
        .then((answer) => bodyOf(answer as { data?: Plan })),
    enabled: asked === "delete",
    retry: false,
  });
  const path = `/api/v1/topics/${encodeURIComponent(name)}`;
  const locked = topic.metadata.deletion_protection;
  return (
    <DangerZone>
      {topic.spec.mode === "durable" && (
        <DangerRow
          title="Pause deliveries"
          action={
            <span className="flex items-center gap-1.5">
              {(["pause", "resume"] as const).map((verb) => (
                <ActionButton
                  key={verb}
                  size="md"
                  run={() =>
                    verb === "pause"
                      ? http.POST("/api/v1/topics/{name}/pause", { params })
                      : http.POST("/api/v1/topics/{name}/resume", { params })
                  }
                  done={`Deliveries of ${name} are ${verb}d`}
                  copy={{ method: "POST", path: `${path}/${verb}` }}
                >
                  {verb === "pause" ? "Pause" : "Resume"}
                </ActionButton>
              ))}
            </span>
          }
        >
          To every subscription. Publishing continues; messages wait in the queues.
        </DangerRow>
      )}
      {topic.spec.mode === "durable" && (
        <DangerRow
          title="Purge its queues"
          action={
            <Button look="danger" onClick={() => setAsked("purge")}>
              Purge
            </Button>
          }
        >
          Deletes every stored message. Subscriptions continue with the next message.
        </DangerRow>
      )}
      <DangerRow
        title={locked ? "Deletion is protected" : "Delete the topic"}
        action={
          <Button look="danger" disabled={locked} onClick={() => setAsked("delete")}>
            Delete
          </Button>
        }
      >
        {locked
          ? "Switch the protection off in Edit first."
          : "Its publications and subscriptions end; its stored messages are deleted."}
      </DangerRow>
      <Confirm
        open={asked === "delete"}
        onOpenChange={(open) => setAsked(open ? "delete" : null)}
        title={`Delete ${name}?`}
        lead="This cannot be undone."
        word={name}
        verb="Delete for good"
        action={{ method: "DELETE", path }}
        run={async () => {
          await http.DELETE("/api/v1/topics/{name}", { params });
          await navigate({ to: "/topics" });
          await act(async () => undefined, `${name} is deleted`);
        }}
      >
        {plan.data && <PlanView plan={plan.data} />}
      </Confirm>
      <Confirm
        open={asked === "purge"}
        onOpenChange={(open) => setAsked(open ? "purge" : null)}
        title={`Purge ${name}?`}
        lead="Every stored message of every queue is deleted. This cannot be undone."
        word={name}
        verb="Purge for good"
        action={{
          method: "POST",
          path: `${path}/purge?confirm=${encodeURIComponent(name)}`,
        }}
        run={async () => {
          await http.POST("/api/v1/topics/{name}/purge", {
            params: { ...params, query: { confirm: name } },
          });
          await act(async () => undefined, `${name} is empty`);
        }}
      />
    </DangerZone>
  );
}
