import { Activity } from "lucide-react";
import { useTidecast } from "@/app/commands";
import { useNodeNames } from "@/app/node-names";
import { TimeChart } from "@/charts/time-chart";
import { compact, duration, exact, percent, rate } from "@/lib/format";
import { useLive } from "@/live/store";
import type { AgentLive, ImageLive, Rates, Reliability } from "@/live/types";
import { Card, Facts } from "@/ui/card";
import { Meter } from "@/ui/meter";
import { Page } from "@/ui/page";
import { Stat } from "@/ui/stat";
import { Empty, Loading } from "@/ui/states";
import { type Column, Table } from "@/ui/table";
import { Faults } from "./faults";
import { PublicationTable } from "./publications";
import { ReceiverTable } from "./receivers";
import { RecorderCard } from "./recorder";

const CHANNEL = "reliability";

const IMAGES: Column<ImageLive>[] = [
  {
    id: "topic",
    head: "Topic",
    cell: (row) => <span className="font-mono text-xs">{row.topic}</span>,
  },
  { id: "way", wide: true, head: "From → at", cell: (row) => `${row.source} → ${row.node}` },
  {
    id: "fill",
    head: "Receive ring",
    width: "11rem",
    cell: (row) => <Meter value={row.fill} label="Receive ring fill" />,
  },
  { id: "gaps", head: "Open gaps", right: true, cell: (row) => exact(row.gaps) },
  { id: "losses", head: "Missing", right: true, cell: (row) => rate(row.rates.losses, " pkt/s") },
  {
    id: "recovered",
    wide: true,
    head: "Recovered",
    right: true,
    cell: (row) => exact(row.recovered),
  },
  {
    id: "lost",
    head: "Missing, total",
    right: true,
    cell: (row) => exact(row.lost),
  },
  {
    id: "duplicates",
    wide: true,
    head: "Duplicates",
    right: true,
    cell: (row) => exact(row.duplicates),
  },
  { id: "overruns", wide: true, head: "Overruns", right: true, cell: (row) => exact(row.overruns) },
];

const AGENTS: Column<AgentLive>[] = [
  { id: "node", head: "Node", cell: (row) => row.node },
  { id: "name", head: "Agent", cell: (row) => row.name },
  {
    id: "cycles",
    head: "Duty cycles",
    right: true,
    cell: (row) => rate(row.duty_cycles_per_s, "/s"),
  },
  {
    id: "longest",
    head: "Longest",
    right: true,
    cell: (row) => duration(row.duty_cycle_ms_max / 1000),
  },
  { id: "parks", wide: true, head: "Parks", right: true, cell: (row) => rate(row.parks_per_s) },
  {
    id: "calls",
    wide: true,
    head: "System calls",
    right: true,
    cell: (row) => rate(row.system_calls_per_s),
  },
  {
    id: "short",
    wide: true,
    head: "Short sends",
    right: true,
    cell: (row) => exact(row.short_sends),
  },
  {
    id: "errors",
    wide: true,
    head: "Send errors",
    right: true,
    cell: (row) => exact(row.send_errors),
  },
];

export function ReliabilityPage() {
  const data = useLive(CHANNEL);
  return (
    <Page
      title="Reliability"
      lead="Loss, NAKs and repairs; ring fill, and the time until history is evicted."
    >
      {data ? <Body data={data} /> : <Loading rows={10} />}
    </Page>
  );
}

function Body({ data }: { data: Reliability }) {
  const tidecast = useTidecast();
  const publications = Object.values(data.publications);
  const receivers = Object.values(data.receivers);
  const images = Object.values(data.images);
  const slowest = data.slowest_receiver ? data.receivers[data.slowest_receiver] : undefined;
  const rates: Partial<Rates> = data.rates ?? {};
  const { rate_held: byRate = 0, flow_held: byFlow = 0 } = rates;
  const nameOf = useNodeNames();
  return (
    <div className="flex flex-col gap-3">
      <div className="grid grid-cols-2 gap-3 lg:grid-cols-3 2xl:grid-cols-6">
        <Stat
          label="NAKs sent"
          value={rate(rates.naks_sent, " NAK/s")}
          note={`${rate(rates.naks_received, " NAK/s")} received`}
          spark={{ channel: CHANNEL, name: "naks_sent", tint: 2 }}
          help="Requests for missing packets"
        />
        <Stat
          label="Resent"
          value={rate(rates.packets_resent, " pkt/s")}
          note={`${percent(data.retransmit_ratio)} of sent packets`}
          spark={{ channel: CHANNEL, name: "packets_resent", tint: 3 }}
        />
        <Stat
          label="Missing"
          value={rate(rates.losses, " pkt/s")}
          note="at first, at receivers"
          spark={{ channel: CHANNEL, name: "losses", tint: 6 }}
        />
        <Stat
          label="Unrecoverable loss"
          value={rate(rates.lost_for_good, " pkt/s")}
          tone={(rates.lost_for_good ?? 0) > 0 ? "bad" : undefined}
          note="reported to subscribers as gaps"
          spark={{ channel: CHANNEL, name: "lost_for_good", tint: 6 }}
        />
        <Stat
          label="Throttled"
          value={percent(data.rates ? Math.max(byFlow, byRate) : undefined)}
          note={`flow control ${percent(rates.flow_held)}, rate limit ${percent(rates.rate_held)}`}
          help="Share of the time that the most throttled publisher was held back"
          spark={{
            channel: CHANNEL,
            name: byRate > byFlow ? "rate_held" : "flow_held",
            tint: 4,
          }}
        />
        <Stat
          label="Slowest receiver"
          value={slowest ? `${compact(Number(slowest.lag_packets))} pkt` : "none"}
          note={slowest ? `${nameOf(slowest.node)} on ${slowest.topic}` : "no receiver is behind"}
        />
      </div>
      <div className="grid grid-cols-1 gap-3 xl:grid-cols-3">
        <Card title="Loss and repair" hint="packets/s" className="xl:col-span-2">
          <TimeChart
            channel={CHANNEL}
            label="Loss and repair"
            height={180}
            format={(value) => rate(value)}
            series={[
              { key: "losses", label: "missing", tint: 6 },
              { key: "packets_resent", label: "resent", tint: 3, dash: true },
              { key: "naks_sent", label: "NAKs sent", tint: 2 },
              { key: "naks_received", label: "NAKs received", tint: 1, dash: true },
            ]}
          />
        </Card>
        <Faults injected={data.faults} />
      </div>
      <Card
        title="Publications"
        hint="position of each stage in the ring, to find the stage that is behind"
        flush
      >
        {publications.length === 0 ? (
          <Empty
            icon={Activity}
            title="No publisher is connected"
            commands={[tidecast("pub", "md.eu", "--message", "hello")]}
          >
            A publication is the ring of a publisher: its send buffer, and its history for repairs.
          </Empty>
        ) : (
          <PublicationTable publications={publications} receivers={receivers} />
        )}
      </Card>
      <div className="grid grid-cols-1 gap-3 xl:grid-cols-2">
        <Card title="Receivers" hint="as their publishers see them" flush>
          <ReceiverTable receivers={receivers} channel={CHANNEL} />
        </Card>
        <RecorderCard />
      </div>
      <Card title="Images" hint="remote publications, as received" flush>
        <Table
          label="Images"
          columns={IMAGES}
          rows={images}
          rowKey={(row) => row.id}
          empty={<p className="px-3.5 pb-4 text-muted">No node receives from another node.</p>}
        />
      </Card>
      <div className="grid grid-cols-1 gap-3 xl:grid-cols-3">
        <Card title="Agents" hint="one thread each" flush className="xl:col-span-2">
          <Table
            label="Agents"
            columns={AGENTS}
            rows={Object.values(data.agents)}
            rowKey={(row) => row.id}
            empty={<p className="px-3.5 pb-4 text-muted">No node reports agents.</p>}
          />
        </Card>
        <Card title="Refused packets" hint="by cause, since the start">
          {Object.keys(data.invalid).length === 0 ? (
            <p className="text-muted">None.</p>
          ) : (
            <Facts
              items={Object.entries(data.invalid).map(([cause, count]) => [
                cause.replaceAll("_", " "),
                exact(count),
              ])}
            />
          )}
        </Card>
      </div>
    </div>
  );
}
