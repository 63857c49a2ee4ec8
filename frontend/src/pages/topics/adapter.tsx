import { exact } from "@/lib/format";
import type { AdapterLive, TopicLive } from "@/live/types";
import { Badge, StateBadge } from "@/ui/badge";
import { Card } from "@/ui/card";
import { type Column, Table } from "@/ui/table";
import { OpenState, WaitingNotes } from "./open-state";

export const isAttached = (live: TopicLive | null | undefined) =>
  Object.keys(live?.adapters ?? {}).length > 0;

/** In a row: the adapter that keeps the queues, or that it waits for its system. */
export function AdapterBadge({ live }: { live: TopicLive | undefined }) {
  const adapters = Object.values(live?.adapters ?? {});
  const waits = adapters.find((one) => one.state === "waiting");
  if (waits)
    return (
      <span title={`adapter ${waits.adapter} is waiting: ${waits.detail}`}>
        <StateBadge state="warn">waiting</StateBadge>
      </span>
    );
  return adapters[0] && <Badge tone="info">{adapters[0].adapter}</Badge>;
}

/** Which adapters keep a topic's queues, and that one waits for its system. */
export function AdapterBadges({ live }: { live: TopicLive | null | undefined }) {
  const adapters = Object.values(live?.adapters ?? {});
  const waits = adapters.find((one) => one.state === "waiting");
  return (
    <>
      {[...new Set(adapters.map((one) => one.adapter))].sort().map((kind) => (
        <Badge key={kind} tone="info">
          adapter {kind}
        </Badge>
      ))}
      {waits && (
        <span title={`waiting: ${waits.detail}`}>
          <StateBadge state="warn">waiting</StateBadge>
        </span>
      )}
    </>
  );
}

interface Row extends AdapterLive {
  node: string;
}

/** The adapters of a topic, one for each engine that has it. */
export function AdaptersCard({ live }: { live: TopicLive | null | undefined }) {
  const rows = Object.entries(live?.adapters ?? {}).map(([node, one]) => ({ ...one, node }));
  const columns: Column<Row>[] = [
    { id: "node", head: "Node", cell: (row) => row.node },
    { id: "adapter", head: "Adapter", cell: (row) => row.adapter },
    {
      id: "state",
      head: "State",
      cell: (row) => <OpenState {...row} />,
    },
    { id: "queues", head: "Queues", right: true, cell: (row) => exact(row.queues) },
    { id: "records", wide: true, head: "Records", right: true, cell: (row) => exact(row.records) },
    { id: "lag", head: "Lag (records)", right: true, cell: (row) => exact(row.lag) },
    { id: "errors", head: "Errors", right: true, cell: (row) => exact(row.errors) },
    { id: "reconnects", head: "Reconnects", right: true, cell: (row) => exact(row.reconnects) },
    { id: "left-out", head: "Left out", right: true, cell: (row) => exact(row.left_out) },
  ];
  return (
    <Card title="Adapters" hint="adapters keep the queues; the engine reads them" flush>
      <Table
        label="Adapters"
        columns={columns}
        rows={rows.sort((a, b) => a.node.localeCompare(b.node))}
        rowKey={(row) => row.node}
      />
      <WaitingNotes rows={rows} />
    </Card>
  );
}
