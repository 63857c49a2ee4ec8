import { useState } from "react";
import { TimeChart } from "@/charts/time-chart";
import {
  byteRate,
  bytes,
  compact,
  duration,
  exact,
  NONE,
  percent,
  plural,
  rate,
} from "@/lib/format";
import { useLive } from "@/live/store";
import type { Rates } from "@/live/types";
import { Card } from "@/ui/card";
import { Page } from "@/ui/page";
import { Segments } from "@/ui/segments";
import { Stat } from "@/ui/stat";
import { Loading } from "@/ui/states";
import { Busiest } from "./busiest";
import { FirstSteps } from "./first-steps";
import { SlowList } from "./slow-list";

const CHANNEL = "overview";
type Unit = "messages" | "packets" | "bytes";

const FORMATS: Record<Unit, (value: number) => string> = {
  messages: (value) => rate(value, " msg/s"),
  packets: (value) => rate(value, " pkt/s"),
  bytes: (value) => `${bytes(value)}/s`,
};

export function OverviewPage() {
  const data = useLive(CHANNEL);
  const [unit, setUnit] = useState<Unit>("messages");
  if (!data) {
    return (
      <Page title="Overview">
        <Loading rows={10} />
      </Page>
    );
  }
  const rates: Partial<Rates> = data.rates ?? {};
  const resent = data.retransmit_ratio ?? 0;
  const fill = data.ring_fill_max ?? 0;
  const down = data.nodes_total - data.nodes_up;
  const spark = (name: string, tint?: number) => ({
    channel: CHANNEL,
    name,
    ...(tint ? { tint } : {}),
  });
  return (
    <Page title="Overview" lead={summary(data)}>
      <FirstSteps topics={data.topics_total} />
      <div className="grid grid-cols-2 gap-3 lg:grid-cols-4 2xl:grid-cols-8">
        <Stat
          label="Published"
          value={rate(rates.messages_out, " msg/s")}
          note={`${rate(rates.packets_out, " pkt/s")}, ${byteRate(rates.bytes_out)} sent`}
          spark={spark("messages_out")}
          help="Messages that publishers wrote; packets and bytes sent for the first time, by all nodes"
        />
        <Stat
          label="Received"
          value={rate(rates.packets_in, " pkt/s")}
          note={byteRate(rates.bytes_in)}
          spark={spark("packets_in", 2)}
          help="Packets accepted into receive rings, by all nodes"
        />
        <Stat
          label="Retransmitted"
          value={percent(data.retransmit_ratio)}
          note={`${rate(rates.packets_resent, " pkt/s")} resent`}
          tone={resent > 0.05 ? "bad" : resent > 0.01 ? "warn" : undefined}
          spark={spark("retransmit_ratio", 3)}
          help="Packets sent again, as a share of all packets sent"
        />
        <Stat
          label="Unrecoverable loss"
          value={rate(rates.lost_for_good, " pkt/s")}
          note={`${rate(rates.losses, " pkt/s")} missing at first`}
          tone={(rates.lost_for_good ?? 0) > 0 ? "bad" : undefined}
          spark={spark("lost_for_good", 6)}
          help="Packets that no publisher can resend; subscribers get a Gap event for each range"
        />
        <Stat
          label="Lag"
          value={
            data.lag_s != null
              ? duration(data.lag_s)
              : data.lag_packets_max == null
                ? NONE
                : `${compact(Number(data.lag_packets_max))} pkt`
          }
          note={
            data.lag_messages == null
              ? "slowest receiver, live topics"
              : `${exact(data.lag_messages)} messages, durable`
          }
          spark={spark(data.lag_s == null ? "lag_packets_max" : "lag_s", 4)}
          help="Lag of the slowest reader"
        />
        <Stat
          label="Fullest ring"
          value={percent(data.ring_fill_max)}
          note={
            data.cache_fill_max == null
              ? "sent, not yet consumed"
              : `cache ${percent(data.cache_fill_max)}`
          }
          tone={fill >= 0.9 ? "bad" : fill >= 0.7 ? "warn" : undefined}
          spark={spark("ring_fill_max", 5)}
          help="The fullest publication: sent and not yet consumed by its slowest receiver"
        />
        <Stat
          label="Nodes"
          value={`${data.nodes_up} / ${data.nodes_total}`}
          note={
            down > 0
              ? `${down} down`
              : data.nodes_drifting > 0
                ? `${data.nodes_drifting} out of sync`
                : "all up, in sync"
          }
          tone={down > 0 ? "bad" : data.nodes_drifting > 0 ? "warn" : undefined}
          help="Connected engines. An engine out of sync does not use the newest settings; the page Nodes lists them"
        />
        <Stat
          label="Round trip"
          value={data.rtt_ms == null ? "–" : duration(data.rtt_ms / 1000)}
          note={`${plural(data.publishers, "publisher")}, ${plural(data.subscribers, "reader")}`}
          spark={spark("rtt_ms", 2)}
          help="Smoothed round-trip time between publishers and receivers"
        />
      </div>
      <div className="mt-3 grid grid-cols-1 gap-3 xl:grid-cols-3">
        <Card
          title="Throughput"
          className="xl:col-span-2"
          actions={
            <Segments
              label="Unit"
              value={unit}
              onChange={setUnit}
              options={[
                { value: "messages", label: "Messages" },
                { value: "packets", label: "Packets" },
                { value: "bytes", label: "Bytes" },
              ]}
            />
          }
        >
          <TimeChart
            channel={CHANNEL}
            label={`Throughput in ${unit}/s`}
            height={212}
            format={FORMATS[unit]}
            axis={unit === "bytes" ? bytes : compact}
            series={
              unit === "messages"
                ? [{ key: "messages_out", label: "published", tint: 1 }]
                : [
                    { key: `${unit}_out`, label: "sent", tint: 1 },
                    { key: `${unit}_in`, label: "received", tint: 2 },
                    { key: `${unit}_resent`, label: "resent", tint: 3, dash: true },
                  ]
            }
          />
        </Card>
        <SlowList slow={Object.values(data.slow ?? {})} firing={data.alerts_firing} />
        <Card title="Loss and repair" hint="packets/s">
          <TimeChart
            channel={CHANNEL}
            label="Loss and repair, packets/s"
            height={150}
            format={(value) => rate(value)}
            series={[
              { key: "losses", label: "missing", tint: 6 },
              { key: "packets_resent", label: "resent", tint: 3, dash: true },
              { key: "naks_sent", label: "NAKs", tint: 2 },
            ]}
          />
        </Card>
        <Card title="Throttled" hint="share of the time, the worst publisher">
          <TimeChart
            channel={CHANNEL}
            label="Share of the time that publishers were throttled"
            height={150}
            floor={1}
            format={percent}
            series={[
              { key: "rate_held", label: "by rate limit", tint: 3 },
              { key: "flow_held", label: "by flow control", tint: 4, dash: true },
            ]}
          />
        </Card>
        <Busiest names={data.busiest} />
      </div>
    </Page>
  );
}

function summary(data: {
  topics_active: number;
  topics_total: number;
  publishers: number;
  subscribers: number;
}): string {
  return `${exact(data.topics_active)} of ${plural(data.topics_total, "topic")} active`;
}
