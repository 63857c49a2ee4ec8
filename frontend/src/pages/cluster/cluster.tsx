import { useQuery } from "@tanstack/react-query";
import { Play, Truck } from "lucide-react";
import { useEffect, useState } from "react";
import { type Cluster, type ClusterEngine, clusterQuery } from "@/api/queries";
import { useMay } from "@/app/session";
import { exact } from "@/lib/format";
import { ago } from "@/lib/time";
import { useLive } from "@/live/store";
import type { NodeLive } from "@/live/types";
import { Badge, StateBadge } from "@/ui/badge";
import { Button } from "@/ui/button";
import { Card } from "@/ui/card";
import { Page } from "@/ui/page";
import { Failed, Loading } from "@/ui/states";
import { type Column, Table } from "@/ui/table";
import { DrainDialog, UndrainDialog } from "./drain";
import { KeysCard } from "./keys";
import { LevelLine, RaiseButton } from "./level";
import { MovesCard } from "./moves";

/** An engine by REST, with the live figures. */
interface Row extends ClusterEngine {
  live: NodeLive | undefined;
}

export function ClusterPage() {
  const query = useQuery(clusterQuery);
  const live = useLive("nodes");
  const may = useMay()("nodes:write");
  const [asked, setAsked] = useState<{ node: string; drain: boolean } | null>(null);
  const cluster = query.data;
  const rows = (cluster?.engines ?? []).map((one) => withLive(one, live?.nodes[one.node]));
  // The feed begins with frames of the past: it says when to read again, not what is wanted.
  const told = Object.values(live?.nodes ?? {})
    .map((one) => [one.name, one.state, one.version, one.level, one.drained].join())
    .join(";");
  const { refetch } = query;
  // biome-ignore lint/correctness/useExhaustiveDependencies: read again when the feed says so
  useEffect(() => void refetch(), [told, refetch]);
  return (
    <Page
      title="Cluster"
      lead="Which engine has which part of the work: levels, leased topics, drains, moves, keys."
    >
      <Card
        title="Cluster"
        hint="engines, the level of the formats that they write, and their leased topics"
        flush
        actions={cluster && <RaiseButton cluster={cluster} />}
      >
        {query.isError && <Failed error={query.error} retry={query.refetch} />}
        {query.isPending && <Loading />}
        {cluster && (
          <>
            <LevelLine cluster={cluster} />
            <Table
              label="Engines of the cluster"
              columns={columnsOf(cluster, may ? setAsked : undefined)}
              rows={rows}
              rowKey={(row) => row.node}
              empty={<p className="px-3.5 pb-4 text-muted">No engine has registered.</p>}
            />
          </>
        )}
      </Card>
      <MovesCard />
      <KeysCard />
      {asked?.drain && <DrainDialog node={asked.node} onClose={() => setAsked(null)} />}
      {asked && !asked.drain && <UndrainDialog node={asked.node} onClose={() => setAsked(null)} />}
    </Page>
  );
}

function withLive(engine: ClusterEngine, live: NodeLive | undefined): Row {
  if (!live || live.state === "never") return { ...engine, live };
  return { ...engine, state: live.state, live };
}

const columnsOf = (
  cluster: Cluster,
  ask: ((asked: { node: string; drain: boolean }) => void) | undefined,
): Column<Row>[] => [
  { id: "node", head: "Node", cell: (row) => <b className="font-medium">{row.node}</b> },
  {
    id: "state",
    head: "State",
    cell: (row) =>
      row.state === "up" ? (
        <StateBadge state="good">connected</StateBadge>
      ) : (
        <span className="flex flex-wrap items-center gap-1.5">
          <StateBadge state="bad">not connected</StateBadge>
          {row.seen_at && (
            <span className="text-faint text-xs">last heard {ago(row.seen_at, Date.now())}</span>
          )}
        </span>
      ),
  },
  { id: "version", wide: true, head: "Version", cell: (row) => row.version || "–" },
  {
    id: "reads",
    wide: true,
    head: "Reads levels",
    right: true,
    cell: (row) =>
      row.level_min === row.level_max ? row.level_min : `${row.level_min} to ${row.level_max}`,
  },
  { id: "writes", wide: true, head: "Writes level", right: true, cell: (row) => row.level },
  {
    id: "keeps",
    head: "Leased topics",
    right: true,
    cell: (row) => exact(row.live?.keeps),
  },
  { id: "peers", wide: true, head: "Unicast peers", cell: (row) => <Peers row={row} /> },
  { id: "drain", head: "Drain", cell: (row) => <DrainState row={row} /> },
  {
    id: "note",
    wide: true,
    head: "Note",
    cell: (row) => (
      <span className="flex flex-wrap items-center gap-1.5">
        {row.live?.drift && <StateBadge state="warn">out of sync</StateBadge>}
        {row.refused && <StateBadge state="bad">refused</StateBadge>}
        {row.blocks && <Badge tone="warn">holds level {cluster.level_max} back</Badge>}
        {row.refused && <span className="text-muted text-xs">{row.refused}</span>}
      </span>
    ),
  },
  {
    id: "act",
    head: <span className="sr-only">Actions</span>,
    right: true,
    cell: (row) =>
      ask && (
        <Button
          size="sm"
          look="quiet"
          icon={row.drained ? Play : Truck}
          onClick={() => ask({ node: row.node, drain: !row.drained })}
        >
          {row.drained ? "Undrain" : "Drain"}
        </Button>
      ),
  },
];

/** Where others reach it, and how many of its peers it hears. */
function Peers({ row }: { row: Row }) {
  const places = Object.entries(row.addresses ?? {});
  const heard = row.live?.heard !== false;
  const peers = heard ? (row.live?.peers ?? 0) : 0;
  const silent = heard ? (row.live?.peers_silent ?? []) : [];
  if (places.length === 0 && peers === 0) return <span className="text-faint">–</span>;
  return (
    <span className="flex flex-wrap items-center gap-1.5">
      {silent.length > 0 ? (
        <StateBadge state="bad">does not hear {silent.join(", ")}</StateBadge>
      ) : (
        peers > 0 && <StateBadge state="good">hears {exact(peers)}</StateBadge>
      )}
      {places.map(([transport, address]) => (
        <span key={transport} className="font-mono text-muted text-xs">
          {transport} {address}
        </span>
      ))}
    </span>
  );
}

function DrainState({ row }: { row: Row }) {
  if (!row.drained) return <span className="text-muted">takes topics</span>;
  const left = row.live?.keeps;
  if (row.state !== "up" || left == null) return <StateBadge state="paused">drained</StateBadge>;
  return left === 0 ? (
    <StateBadge state="paused">drained and empty</StateBadge>
  ) : (
    <StateBadge state="info">draining, {exact(left)} left</StateBadge>
  );
}
