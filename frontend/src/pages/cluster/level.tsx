import { useQuery } from "@tanstack/react-query";
import { ArrowUpNarrowWide } from "lucide-react";
import { useState } from "react";
import { bodyOf, http } from "@/api/client";
import { type Cluster, clusterPlanQuery } from "@/api/queries";
import { useAct } from "@/app/act";
import { useTidecast } from "@/app/commands";
import { useMay } from "@/app/session";
import { dateTime, useZone } from "@/lib/time";
import { StateBadge } from "@/ui/badge";
import { Button } from "@/ui/button";
import { Confirm } from "@/ui/confirm";
import { PlanView } from "@/ui/plan";
import { Failed } from "@/ui/states";

/** The level that engines write, and what holds the next level back. */
export function LevelLine({ cluster }: { cluster: Cluster }) {
  const zone = useZone();
  const behind = cluster.level < cluster.level_max;
  return (
    <>
      <p className="flex flex-wrap items-center gap-x-2 px-3.5 pt-1 pb-2 text-sm">
        <b className="font-semibold">Level {cluster.level}</b>
        {!behind ? (
          <StateBadge state="good">the newest level of this service</StateBadge>
        ) : cluster.blocked_by.length > 0 ? (
          <StateBadge state="warn">level {cluster.level_max} is held back</StateBadge>
        ) : (
          <StateBadge state="info">
            every engine reads level {cluster.level_max}: it can be raised
          </StateBadge>
        )}
        {cluster.finalized_at && (
          <span className="text-faint text-xs">
            raised {dateTime(cluster.finalized_at, zone)} by {cluster.finalized_by}
          </span>
        )}
      </p>
      {cluster.blocked_by.length > 0 && (
        <ul
          aria-label={`What holds level ${cluster.level_max} back`}
          className="flex flex-col gap-1 px-3.5 pb-2 text-sm text-warn"
        >
          {cluster.blocked_by.map((reason) => (
            <li key={reason}>{reason}</li>
          ))}
        </ul>
      )}
    </>
  );
}

/** Raises the level to the newest of the service, once every engine reads it. */
export function RaiseButton({ cluster }: { cluster: Cluster }) {
  const may = useMay()("enrolments:write");
  const [raising, setRaising] = useState(false);
  if (!may || cluster.level >= cluster.level_max) return null;
  return (
    <>
      <Button
        size="sm"
        icon={ArrowUpNarrowWide}
        disabled={cluster.blocked_by.length > 0}
        onClick={() => setRaising(true)}
      >
        Raise the level
      </Button>
      {raising && <Raise cluster={cluster} onClose={() => setRaising(false)} />}
    </>
  );
}

/** The level is never lowered: the plan is shown, and the word typed, before it is raised. */
function Raise({ cluster, onClose }: { cluster: Cluster; onClose: () => void }) {
  const { act } = useAct();
  const tidecast = useTidecast();
  const level = cluster.level_max;
  const plan = useQuery(clusterPlanQuery(level));
  return (
    <Confirm
      open
      onOpenChange={(open) => !open && onClose()}
      title={`Raise the cluster to level ${level}?`}
      lead={`Every engine reads level ${level} and writes it from now on. Engines that do not read it are refused. The level is never lowered.`}
      word="cluster"
      verb={`Raise to level ${level}`}
      action={{
        method: "POST",
        path: `/api/v1/cluster/finalize?level=${level}`,
        cli: tidecast("cluster", "upgrade", "--finalize", "--level", String(level)),
      }}
      run={async () => {
        await http.POST("/api/v1/cluster/finalize", { params: { query: { level } } }).then(bodyOf);
        await act(async () => undefined, `The cluster is at level ${level}`);
      }}
    >
      {plan.isError && <Failed error={plan.error} />}
      {plan.data && <PlanView plan={plan.data} />}
    </Confirm>
  );
}
