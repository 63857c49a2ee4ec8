import { useQuery } from "@tanstack/react-query";
import { useNavigate } from "@tanstack/react-router";
import { Fragment, type ReactNode, useState } from "react";
import { bodyOf, http } from "@/api/client";
import type { Plan, Topic } from "@/api/queries";
import { useAct } from "@/app/act";
import { Button } from "@/ui/button";
import { Confirm } from "@/ui/confirm";
import { CopyAs } from "@/ui/copy-as";
import { PlanView } from "@/ui/plan";

function Row({
  title,
  children,
  action,
}: {
  title: string;
  children: ReactNode;
  action: ReactNode;
}) {
  return (
    <li className="flex flex-wrap items-center gap-4 px-4 py-3">
      <div className="min-w-60 flex-1">
        <h3 className="font-medium text-sm">{title}</h3>
        <p className="text-muted text-xs">{children}</p>
      </div>
      {action}
    </li>
  );
}

/** What cannot be undone asks for the topic's name. */
export function Danger({ topic }: { topic: Topic }) {
  const name = topic.metadata.name;
  const params = { path: { name } };
  const { busy, act } = useAct();
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
    <ul className="divide-y rounded-lg border border-bad/40 bg-panel">
      {topic.spec.mode === "durable" && (
        <Row
          title="Pause deliveries"
          action={
            <span className="flex items-center gap-1.5">
              {(["pause", "resume"] as const).map((verb) => (
                <Fragment key={verb}>
                  <Button
                    busy={busy}
                    onClick={() =>
                      act(
                        () =>
                          verb === "pause"
                            ? http.POST("/api/v1/topics/{name}/pause", { params })
                            : http.POST("/api/v1/topics/{name}/resume", { params }),
                        verb === "pause"
                          ? `Deliveries of ${name} are paused`
                          : `${name} is delivered again`,
                      )
                    }
                  >
                    {verb === "pause" ? "Pause" : "Resume"}
                  </Button>
                  <CopyAs small action={{ method: "POST", path: `${path}/${verb}` }} />
                </Fragment>
              ))}
            </span>
          }
        >
          To every subscription. Publishing goes on, and nothing is lost: it waits in the queues.
        </Row>
      )}
      {topic.spec.mode === "durable" && (
        <Row
          title="Purge its queues"
          action={
            <Button look="danger" onClick={() => setAsked("purge")}>
              Purge
            </Button>
          }
        >
          Deletes every stored message. Subscriptions go on with the next one.
        </Row>
      )}
      <Row
        title={locked ? "Deletion is protected" : "Delete the topic"}
        action={
          <Button look="danger" disabled={locked} onClick={() => setAsked("delete")}>
            Delete
          </Button>
        }
      >
        {locked
          ? "Switch the protection off in Edit first."
          : "Its publications and subscriptions end, and what it stored is gone."}
      </Row>
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
    </ul>
  );
}
