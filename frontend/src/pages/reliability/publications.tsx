import { byteRate, duration, exact, percent, rate } from "@/lib/format";
import type { PublicationLive, ReceiverLive } from "@/live/types";
import { Badge } from "@/ui/badge";
import { type Column, Table } from "@/ui/table";
import { Tip } from "@/ui/tip";
import { behind, bottleneck, stagesOf } from "./rings";

/** The ring as a bar: consumed history, waiting for receivers, waiting to be sent. */
function RingBar({ publication }: { publication: PublicationLive }) {
  const { unsent, held } = stagesOf(publication);
  const text =
    `${exact(behind(publication.head, publication.slowest_consumed))} packets not yet consumed, ` +
    `${exact(behind(publication.head, publication.sent))} not yet sent, of ${exact(publication.slots)}`;
  return (
    <Tip text={text}>
      <button type="button" aria-label={text} className="flex w-full items-center gap-2">
        <span className="flex h-2 flex-1 justify-end overflow-hidden rounded-sm bg-raised">
          <span className="bg-series-4" style={{ width: `${held * 100}%` }} />
          <span
            className="bg-[repeating-linear-gradient(135deg,var(--series-3)_0_3px,transparent_3px_5px)]"
            style={{ width: `${unsent * 100}%` }}
          />
        </span>
        <span className="num w-11 text-right text-muted text-xs">{percent(publication.fill)}</span>
      </button>
    </Tip>
  );
}

export function PublicationTable({
  publications,
  receivers,
}: {
  publications: readonly PublicationLive[];
  receivers: readonly ReceiverLive[];
}) {
  const columns: Column<PublicationLive>[] = [
    {
      id: "topic",
      head: "Topic",
      cell: (row) => (
        <span className="font-mono text-xs">
          {row.topic}
          {row.channel !== "ordinary" && <span className="text-faint"> · {row.channel}</span>}
        </span>
      ),
    },
    {
      id: "publisher",
      wide: true,
      head: "Publisher",
      cell: (row) => `${row.client || "client"} @ ${row.node}`,
    },
    { id: "sent", head: "Sent", right: true, cell: (row) => rate(row.rates.packets_out, " pkt/s") },
    {
      id: "resent",
      wide: true,
      head: "Resent",
      right: true,
      cell: (row) => rate(row.rates.packets_resent, " pkt/s"),
    },
    {
      id: "saved",
      wide: true,
      head: "Saved",
      right: true,
      cell: (row) => (row.rates.bytes_saved ? byteRate(row.rates.bytes_saved) : "–"),
    },
    { id: "ring", head: "Ring", width: "14rem", cell: (row) => <RingBar publication={row} /> },
    {
      id: "history",
      head: "To eviction",
      right: true,
      cell: (row) => (row.history_s == null ? "–" : duration(row.history_s)),
    },
    {
      id: "behind",
      head: "Bottleneck",
      cell: (row) => {
        const what = bottleneck(row, receivers);
        return what === "none" ? (
          <Badge tone="good">none</Badge>
        ) : (
          <Badge tone={what === "no receiver" ? "plain" : "warn"}>{what}</Badge>
        );
      },
    },
    {
      id: "receivers",
      wide: true,
      head: "Receivers",
      right: true,
      cell: (row) => exact(row.receivers),
    },
    {
      id: "late",
      wide: true,
      head: "NAKs too late",
      right: true,
      cell: (row) =>
        row.naks_too_late === "0" ? "0" : <Badge tone="bad">{exact(row.naks_too_late)}</Badge>,
    },
    {
      id: "rtt",
      wide: true,
      head: "Round trip",
      right: true,
      cell: (row) => (row.rtt_ms == null ? "–" : duration(row.rtt_ms / 1000)),
    },
  ];
  return (
    <Table label="Publications" columns={columns} rows={publications} rowKey={(row) => row.id} />
  );
}
