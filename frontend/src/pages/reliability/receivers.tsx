import { Snail } from "lucide-react";
import { useNodeNames } from "@/app/node-names";
import { Sparkline } from "@/charts/sparkline";
import { exact } from "@/lib/format";
import type { ReceiverLive } from "@/live/types";
import { Badge } from "@/ui/badge";
import { type Column, Table } from "@/ui/table";

const columns = (channel: string, nameOf: (node: string) => string): Column<ReceiverLive>[] => [
  {
    id: "node",
    head: "Receiver",
    cell: (row) => (
      <span className="inline-flex items-center gap-1.5 whitespace-nowrap">
        {nameOf(row.node)}
        {row.slowest && (
          <Badge tone="warn" icon={Snail}>
            slowest
          </Badge>
        )}
        {row.excluded && <Badge tone="bad">excluded</Badge>}
      </span>
    ),
  },
  {
    id: "topic",
    head: "Topic",
    cell: (row) => <span className="font-mono text-xs">{row.topic}</span>,
  },
  {
    id: "publisher",
    wide: true,
    head: "Publisher",
    cell: (row) => <span className="whitespace-nowrap">{row.publisher}</span>,
  },
  { id: "lag", head: "Lag (packets)", right: true, cell: (row) => exact(row.lag_packets) },
  {
    id: "trend",
    wide: true,
    head: "Trend",
    cell: (row) => (
      <Sparkline
        channel={channel}
        name={`receivers/${row.id}/lag_packets`}
        label="Lag over the last minutes"
        tint={4}
        width={72}
      />
    ),
  },
  { id: "window", wide: true, head: "Window", right: true, cell: (row) => exact(row.window) },
  {
    id: "lost",
    head: "Missing (packets)",
    right: true,
    cell: (row) => exact(row.lost),
  },
];

export function ReceiverTable({
  receivers,
  channel,
}: {
  receivers: readonly ReceiverLive[];
  channel: string;
}) {
  const rows = [...receivers].sort((a, b) => Number(b.lag_packets) - Number(a.lag_packets));
  return (
    <Table
      label="Receivers"
      columns={columns(channel, useNodeNames())}
      rows={rows}
      rowKey={(row) => row.id}
      empty={<p className="px-3.5 pb-4 text-muted">No node receives from another node.</p>}
    />
  );
}
