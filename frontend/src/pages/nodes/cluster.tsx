import { useQuery } from "@tanstack/react-query";
import { ArrowUpNarrowWide } from "lucide-react";
import { useState } from "react";
import { bodyOf, http } from "@/api/client";
import { type Cluster, type ClusterEngine, clusterPlanQuery, clusterQuery } from "@/api/queries";
import { useAct } from "@/app/act";
import { useTidecast } from "@/app/commands";
import { useMay } from "@/app/session";
import { ago, dateTime, useZone } from "@/lib/time";
import { Badge, StateBadge } from "@/ui/badge";
import { Button } from "@/ui/button";
import { Card } from "@/ui/card";
import { Confirm } from "@/ui/confirm";
import { PlanView } from "@/ui/plan";
import { Failed, Loading } from "@/ui/states";
import { type Column, Table } from "@/ui/table";

/** The level that engines write, the levels that each reads, and what holds the next level back. */
export function ClusterCard() {
  const query = useQuery(clusterQuery);
  const may = useMay()("enrolments:write");
  const zone = useZone();
  const [raising, setRaising] = useState(false);
  const cluster = query.data;
  const behind = cluster !== undefined && cluster.level < cluster.level_max;
  return (
    <Card
      title="Cluster"
      hint="the level of the formats that engines write"
      flush
      className="mt-3"
      actions={
        cluster &&
        behind &&
        may && (
          <Button
            size="sm"
            icon={ArrowUpNarrowWide}
            disabled={cluster.blocked_by.length > 0}
            onClick={() => setRaising(true)}
          >
            Raise the level
          </Button>
        )
      }
    >
      {query.isError && <Failed error={query.error} retry={query.refetch} />}
      {query.isPending && <Loading />}
      {cluster && (
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
          <Table
            label="Levels of engines"
            columns={columnsOf(cluster)}
            rows={cluster.engines}
            rowKey={(row) => row.node}
            empty={<p className="px-3.5 pb-4 text-muted">No engine has registered.</p>}
          />
          {raising && <Raise cluster={cluster} onClose={() => setRaising(false)} />}
        </>
      )}
    </Card>
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

const columnsOf = (cluster: Cluster): Column<ClusterEngine>[] => [
  { id: "node", head: "Node", cell: (row) => <b className="font-medium">{row.node}</b> },
  { id: "version", head: "Version", cell: (row) => row.version || "–" },
  {
    id: "reads",
    head: "Reads levels",
    right: true,
    cell: (row) =>
      row.level_min === row.level_max ? row.level_min : `${row.level_min} to ${row.level_max}`,
  },
  { id: "writes", wide: true, head: "Writes level", right: true, cell: (row) => row.level },
  {
    id: "state",
    wide: true,
    head: "State",
    cell: (row) =>
      row.state === "up"
        ? "connected"
        : `not connected${row.seen_at ? `, last heard ${ago(row.seen_at, Date.now())}` : ""}`,
  },
  {
    id: "note",
    head: "Note",
    cell: (row) => (
      <span className="flex flex-wrap items-center gap-1.5">
        {row.refused && <StateBadge state="bad">refused</StateBadge>}
        {row.blocks && <Badge tone="warn">holds level {cluster.level_max} back</Badge>}
        {row.refused && <span className="text-muted text-xs">{row.refused}</span>}
      </span>
    ),
  },
];
