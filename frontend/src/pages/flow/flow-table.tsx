import { byteRate, exact, percent, rate } from "@/lib/format";
import type { Flow } from "@/live/types";
import { Badge } from "@/ui/badge";
import { Card } from "@/ui/card";
import { type Column, Table } from "@/ui/table";

type Row = Flow["edges"][string];

/** The graph as a table: the same figures, for those who read better than they look. */
export function FlowTable({ flow, edges }: { flow: Flow; edges: readonly string[] }) {
  const label = (id: string) => flow.nodes[id]?.label ?? id;
  const columns: Column<Row>[] = [
    { id: "from", head: "From", cell: (row) => label(row.source) },
    { id: "to", head: "To", cell: (row) => label(row.target) },
    {
      id: "packets",
      head: "Packets/s",
      right: true,
      cell: (row) => rate(row.packets_per_s, " pkt/s"),
    },
    {
      id: "bytes",
      wide: true,
      head: "Bytes/s",
      right: true,
      cell: (row) => byteRate(row.bytes_per_s),
    },
    { id: "loss", head: "Loss", right: true, cell: (row) => rate(row.loss_per_s, " pkt/s") },
    {
      id: "resent",
      wide: true,
      head: "Resent",
      right: true,
      cell: (row) => rate(row.resent_per_s, " pkt/s"),
    },
    {
      id: "pressure",
      wide: true,
      head: "Pressure",
      right: true,
      cell: (row) => percent(row.pressure),
    },
    {
      id: "lag",
      wide: true,
      head: "Lag (packets)",
      right: true,
      cell: (row) => exact(row.lag_packets),
    },
    {
      id: "throttle",
      head: "Throttle",
      cell: (row) =>
        row.throttle === "none" ? (
          "none"
        ) : (
          <Badge tone="warn">{row.throttle === "rate" ? "rate limit" : "flow control"}</Badge>
        ),
    },
  ];
  const rows = edges.flatMap((id) => flow.edges[id] ?? []);
  return (
    <Card flush className="overflow-auto" label="Flow as a table">
      <Table label="Flow" columns={columns} rows={rows} rowKey={(row) => row.id} />
    </Card>
  );
}
