import { Lightbulb } from "lucide-react";
import { useState } from "react";
import { bodyOf, http, type Schemas } from "@/api/client";
import type { Plan } from "@/api/queries";
import { useAct } from "@/app/act";
import { Button } from "@/ui/button";
import { CopyAs } from "@/ui/copy-as";
import { Dialog } from "@/ui/dialog";
import { PlanView } from "@/ui/plan";

/** One click shows what a recommendation would change; another applies it. */
export function AdviceButton({ advice }: { advice: Schemas["CapacityAdvice"] }) {
  const { busy, act } = useAct();
  const [plan, setPlan] = useState<Plan | null>(null);
  const { topic } = advice;
  const apply = (dry_run: boolean, done?: string) =>
    act(
      () =>
        http
          .POST("/api/v1/capacity/{name}/apply", {
            params: { path: { name: topic }, query: { dry_run } },
          })
          .then(bodyOf),
      done,
    );
  return (
    <>
      <Button
        size="sm"
        icon={Lightbulb}
        busy={busy}
        aria-label={`Preview the recommendation for ${topic}`}
        onClick={async () => {
          const found = await apply(true);
          if (found) setPlan(found as Plan);
        }}
      >
        Preview
      </Button>
      {plan && (
        <Dialog
          open
          onOpenChange={(open) => !open && setPlan(null)}
          title={`Recommended for ${topic}`}
          lead="Nothing has been changed yet."
          footer={
            <>
              <span className="mr-auto">
                <CopyAs
                  action={{
                    method: "POST",
                    path: `/api/v1/capacity/${encodeURIComponent(topic)}/apply`,
                  }}
                />
              </span>
              <Button onClick={() => setPlan(null)}>Cancel</Button>
              <Button
                look="primary"
                busy={busy}
                disabled={plan.action === "none"}
                onClick={async () => {
                  if (await apply(false, `${topic} has the recommended settings`)) setPlan(null);
                }}
              >
                Apply
              </Button>
            </>
          }
        >
          <Reasons of={advice} />
          <PlanView plan={plan} />
        </Dialog>
      )}
    </>
  );
}

export function Reasons({ of: { reasons } }: { of: Schemas["CapacityAdvice"] }) {
  return (
    <ul className="mb-3 flex list-disc flex-col gap-1 pl-4 text-sm">
      {reasons.map((reason) => (
        <li key={reason}>{reason}</li>
      ))}
    </ul>
  );
}
