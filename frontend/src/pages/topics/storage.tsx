import { exact } from "@/lib/format";
import type { StorageLive, TopicLive } from "@/live/types";
import { StateBadge } from "@/ui/badge";
import { Card } from "@/ui/card";
import { type Column, Table } from "@/ui/table";
import { OpenState, WaitingNotes } from "./open-state";

/** In a row and a heading: the storage takes nothing, so publishers get no acks. */
export function StorageBadge({ live }: { live: TopicLive | null | undefined }) {
  const waits = Object.values(live?.storages ?? {}).find((one) => one.state === "waiting");
  return (
    waits && (
      <span title={`its storage is waiting: ${waits.detail}`}>
        <StateBadge state="warn">storage waiting</StateBadge>
      </span>
    )
  );
}

interface Row extends StorageLive {
  node: string;
}

const COLUMNS: Column<Row>[] = [
  { id: "node", head: "Node", cell: (row) => row.node },
  { id: "storage", head: "Storage", cell: (row) => row.storage },
  { id: "state", head: "State", cell: (row) => <OpenState {...row} /> },
  {
    id: "waiting_records",
    head: "Not stored yet",
    right: true,
    cell: (row) => exact(row.waiting_records),
  },
  { id: "records", wide: true, head: "Records", right: true, cell: (row) => exact(row.records) },
  { id: "failures", head: "Failures", right: true, cell: (row) => exact(row.failures) },
];

/** The storage of a topic beside its log, at the node that keeps the topic. */
export function StorageCard({ live }: { live: TopicLive | null | undefined }) {
  const rows = Object.entries(live?.storages ?? {}).map(([node, one]) => ({ ...one, node }));
  return (
    <Card title="Storage" hint="a record is acked when it is there" flush>
      <Table
        label="Storage"
        columns={COLUMNS}
        rows={rows}
        rowKey={(row) => row.node}
        empty={<p className="px-3.5 pb-4 text-muted">No engine keeps the topic now.</p>}
      />
      <WaitingNotes rows={rows} />
    </Card>
  );
}
