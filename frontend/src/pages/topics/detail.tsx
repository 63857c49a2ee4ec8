import { useQuery } from "@tanstack/react-query";
import { getRouteApi, Link, useNavigate } from "@tanstack/react-router";
import { MessageSquareText, Pencil, RadioTower } from "lucide-react";
import { lazy, Suspense, useState } from "react";
import { ApiError } from "@/api/client";
import { type Topic, topicQuery } from "@/api/queries";
import { useTidecast } from "@/app/commands";
import { useMay } from "@/app/session";
import { HistoryCard } from "@/charts/history-card";
import { TimeChart } from "@/charts/time-chart";
import { byteRate, bytes, compact, duration, exact, NONE, percent, rate } from "@/lib/format";
import { dateTime, useZone } from "@/lib/time";
import { useLink, useLive, useLiveError } from "@/live/store";
import type { QueueLive, Rates, ReaderLive, TopicDetail, TopicLive } from "@/live/types";
import { PublicationTable } from "@/pages/reliability/publications";
import { ReceiverTable } from "@/pages/reliability/receivers";
import { Badge, Label, StateBadge } from "@/ui/badge";
import { Button } from "@/ui/button";
import { Card, Facts } from "@/ui/card";
import { Page } from "@/ui/page";
import { Stat } from "@/ui/stat";
import { Empty, Failed, Loading } from "@/ui/states";
import { type Column, Table } from "@/ui/table";
import { TabPanel, Tabs } from "@/ui/tabs";
import { AdapterBadges, AdaptersCard, isAttached } from "./adapter";
import { CapacityCard } from "./capacity";
import { Danger } from "./danger";
import { RateCard } from "./rate-card";
import { StorageBadge, StorageCard } from "./storage";
import { SyncBadge } from "./sync-badge";
import { ThrottleBadge } from "./throttle";

const TopicEditor = lazy(() =>
  import("./editor").then((module) => ({ default: module.TopicEditor })),
);

const route = getRouteApi("/app/topics/$name");

export function TopicPage() {
  const { name } = route.useParams();
  const { tab = "live" } = route.useSearch();
  const navigate = useNavigate();
  const may = useMay();
  const [editing, setEditing] = useState(false);
  const query = useQuery(topicQuery(name));
  const live = useLive(`topic:${name}`);
  const link = useLink();
  const refused = useLiveError(`topic:${name}`);
  const firstFrameComes =
    live === undefined && refused === undefined && (link === "connecting" || link === "live");
  const topic = query.data as Topic | undefined;
  if (query.isError && isAttached(live?.topic)) {
    return <AttachedPage name={name} live={live} />;
  }
  // Only the first live frame says whether adapters keep a topic that is no resource.
  if (query.error instanceof ApiError && query.error.status === 404 && firstFrameComes) {
    return (
      <Page title={name}>
        <Loading />
      </Page>
    );
  }
  if (query.isError) {
    return (
      <Page title={name}>
        <Failed error={query.error} retry={query.refetch} />
      </Page>
    );
  }
  return (
    <Page
      title={name}
      lead={topic?.metadata.description || undefined}
      badges={topic && <Badges topic={topic} live={live} />}
      actions={
        <>
          <Link
            to="/messages"
            search={{ topic: name }}
            className="inline-flex h-8 items-center gap-1.5 rounded-md border border-line-strong bg-panel px-3 font-medium text-sm hover:bg-hover"
          >
            <MessageSquareText aria-hidden className="size-3.5" />
            Messages
          </Link>
          {may("topics:write") && topic && (
            <Button icon={Pencil} onClick={() => setEditing(true)}>
              Edit
            </Button>
          )}
        </>
      }
    >
      <Tabs
        value={tab}
        onChange={(next) =>
          navigate({
            to: "/topics/$name",
            params: { name },
            search: { tab: next === "live" ? undefined : next },
            replace: true,
          })
        }
        tabs={[
          { value: "live", label: "Live" },
          { value: "settings", label: "Settings" },
          ...(may("topics:write") ? [{ value: "danger" as const, label: "Danger zone" }] : []),
        ]}
      >
        <TabPanel value="live">
          {topic ? <LiveTab name={name} topic={topic} live={live} /> : <Loading rows={8} />}
        </TabPanel>
        <TabPanel value="settings">
          {topic && (
            <>
              <CapacityCard topic={name} />
              <SettingsTab topic={topic} />
            </>
          )}
        </TabPanel>
        <TabPanel value="danger">{topic && <Danger topic={topic} />}</TabPanel>
      </Tabs>
      {editing && topic && (
        <Suspense>
          <TopicEditor name={name} onClose={() => setEditing(false)} />
        </Suspense>
      )}
    </Page>
  );
}

/** A topic that adapters of engines keep: it is no resource, and has no settings here. */
function AttachedPage({ name, live }: { name: string; live: TopicDetail | undefined }) {
  const queues = Object.values(live?.queues ?? {});
  return (
    <Page
      title={name}
      lead="An adapter keeps its queues: applications consume them here, and publish elsewhere."
      badges={<AdapterBadges live={live?.topic} />}
    >
      <div className="flex flex-col gap-3">
        <AdaptersCard live={live?.topic} />
        {queues.length > 0 && <QueuesCard queues={queues} />}
      </div>
    </Page>
  );
}

function Badges({ topic, live }: { topic: Topic; live: TopicDetail | undefined }) {
  return (
    <>
      <Badge tone={topic.spec.mode === "durable" ? "info" : "plain"}>{topic.spec.mode}</Badge>
      <Badge>{topic.spec.reliability}</Badge>
      {topic.status.paused && <StateBadge state="paused">paused</StateBadge>}
      <SyncBadge drift={topic.status.drift} since={topic.metadata.updated_at} />
      {live?.topic && live.topic.throttle !== "none" && <ThrottleBadge live={live.topic} />}
      <StorageBadge live={live?.topic} />
      {Object.entries(topic.metadata.labels).map(([key, value]) => (
        <Label key={key} name={key} value={value} />
      ))}
    </>
  );
}

const READERS: Column<ReaderLive>[] = [
  { id: "client", head: "Reader", cell: (row) => row.client || row.id },
  { id: "node", head: "Node", cell: (row) => row.node },
  { id: "source", head: "Reads from", cell: (row) => row.source },
  { id: "position", head: "Position", right: true, cell: (row) => exact(row.position) },
  { id: "lag", head: "Lag (packets)", right: true, cell: (row) => exact(row.lag_packets) },
  {
    id: "tethered",
    head: "If it stalls",
    cell: (row) => (row.tethered ? "holds the ring" : "is evicted"),
  },
];

const KEEPERS: Record<string, string> = {
  "": "each node stores the messages published on it",
  "*": "shared by lease",
};

/** Where each queue is: the engine that has it, since when, and what it holds. */
function QueuesCard({ queues }: { queues: QueueLive[] }) {
  const zone = useZone();
  const columns: Column<QueueLive>[] = [
    { id: "number", head: "Queue", cell: (row) => exact(row.number) },
    { id: "node", head: "Owner node", cell: (row) => row.node },
    {
      id: "epoch",
      head: "Owner epoch",
      right: true,
      cell: (row) => (row.owner_epoch === "0" ? "no lease" : exact(row.owner_epoch)),
    },
    {
      id: "since",
      head: "Since",
      cell: (row) => (row.owner_since ? dateTime(row.owner_since, zone) : "always"),
    },
    { id: "latest", head: "Next offset", right: true, cell: (row) => exact(row.latest) },
    { id: "bytes", head: "On disk", right: true, cell: (row) => bytes(Number(row.bytes)) },
    { id: "lag", head: "Lag (messages)", right: true, cell: (row) => exact(row.lag_messages) },
  ];
  return (
    <Card title="Queues" hint="each queue on the engine that owns it now" flush>
      <Table
        label="Queues"
        columns={columns}
        rows={queues.sort((a, b) => a.number - b.number)}
        rowKey={(row) => row.name}
        empty={<p className="px-3.5 pb-4 text-muted">No engine owns the queues now.</p>}
      />
    </Card>
  );
}

const lagOf = (topic: TopicLive | null | undefined): string => {
  if (!topic) return NONE;
  return topic.lag_s == null ? `${compact(Number(topic.lag_packets))} pkt` : duration(topic.lag_s);
};

/** Bytes a second on the network, and the part that tables of keys and headers kept off it. */
export const sentNote = (compression: string | undefined, rates: Rates | undefined): string => {
  const sent = byteRate(rates?.bytes_out);
  const saved = rates?.bytes_saved ?? 0;
  if (!rates || (compression !== "tables" && saved === 0)) return sent;
  const whole = (rates.bytes_out ?? 0) + saved;
  return `${sent}, tables save ${percent(whole > 0 ? saved / whole : 0)}`;
};

function LiveTab({
  name,
  topic,
  live,
}: {
  name: string;
  topic: Topic;
  live: TopicDetail | undefined;
}) {
  const tidecast = useTidecast();
  const channel = `topic:${name}`;
  const shown = live?.topic;
  const rates = shown?.rates;
  const spark = (series: string, tint: number) => ({ channel, name: series, tint });
  const receivers = Object.values(live?.receivers ?? {});
  const publications = Object.values(live?.publications ?? {});
  return (
    <div className="flex flex-col gap-3">
      <div className="grid grid-cols-2 gap-3 lg:grid-cols-3 2xl:grid-cols-6">
        <Stat
          label="Published"
          value={rate(rates?.messages_out, " msg/s")}
          note="messages that publishers wrote"
          spark={spark("messages_out", 1)}
        />
        <Stat
          label="Sent"
          value={rate(rates?.packets_out, " pkt/s")}
          note={sentNote(topic.spec.compression, rates)}
          spark={spark("packets_out", 1)}
        />
        <Stat
          label="Received"
          value={rate(rates?.packets_in, " pkt/s")}
          note={byteRate(rates?.bytes_in)}
          spark={spark("packets_in", 2)}
        />
        <Stat
          label="Retransmitted"
          value={percent(shown?.retransmit_ratio)}
          note={`${rate(rates?.losses, " pkt/s")} missing`}
          spark={spark("retransmit_ratio", 3)}
        />
        <Stat
          label="Lag"
          value={lagOf(shown)}
          note={
            shown?.lag_messages == null
              ? "slowest receiver"
              : `${exact(shown.lag_messages)} messages`
          }
          spark={spark("lag_packets", 4)}
        />
        <Stat
          label="Ring"
          value={percent(shown?.ring_fill)}
          note={`history ${bytes(topic.spec.history_bytes)}`}
          spark={spark("ring_fill", 5)}
        />
      </div>
      <div className="grid grid-cols-1 gap-3 xl:grid-cols-2">
        <Card title="Packets/s">
          <TimeChart
            channel={channel}
            label="Packets/s over time"
            height={170}
            format={(value) => rate(value, " pkt/s")}
            axis={compact}
            series={[
              { key: "packets_out", label: "sent", tint: 1 },
              { key: "packets_in", label: "received", tint: 2 },
              { key: "packets_resent", label: "resent", tint: 3, dash: true },
              { key: "losses", label: "missing", tint: 6, dash: true },
            ]}
          />
        </Card>
        <RateCard topic={topic} />
      </div>
      <HistoryCard
        scope="topic"
        name={name}
        queues={topic.spec.mode === "durable" ? (topic.spec.queues ?? 1) : 0}
      />
      {topic.spec.mode === "durable" && <QueuesCard queues={Object.values(live?.queues ?? {})} />}
      {(topic.spec.storage ?? "local") !== "local" && <StorageCard live={shown} />}
      <Card title="Publications" flush>
        {publications.length === 0 ? (
          <Empty
            icon={RadioTower}
            title="No publisher yet"
            className="py-8"
            commands={[tidecast("pub", name, "--message", "hello"), tidecast("sub", name)]}
          >
            The first message opens a publication.
          </Empty>
        ) : (
          <PublicationTable publications={publications} receivers={receivers} />
        )}
      </Card>
      {receivers.length > 0 && (
        <Card title="Receivers" hint="other nodes, as the publisher sees them" flush>
          <ReceiverTable receivers={receivers} channel={channel} />
        </Card>
      )}
      <Card title="Readers" hint="subscribers, each on its own node" flush>
        <Table
          label="Readers"
          columns={READERS}
          rows={Object.values(live?.readers ?? {})}
          rowKey={(row) => row.id}
          empty={<p className="px-3.5 pb-4 text-muted">No subscribers.</p>}
        />
      </Card>
    </div>
  );
}

function SettingsTab({ topic }: { topic: Topic }) {
  const zone = useZone();
  const { spec, metadata, status } = topic;
  return (
    <div className="grid grid-cols-1 gap-3 lg:grid-cols-2">
      <Card title="Settings">
        <Facts
          items={[
            ["Mode", spec.mode],
            ["Transport", spec.transport || "the first transport"],
            ["Reliability", spec.reliability],
            ["Flow control", spec.flow],
            ["When full", spec.on_full],
            ["Compression", spec.compression],
            ["History", bytes(spec.history_bytes)],
            ["Receive ring", bytes(spec.receive_bytes)],
            ["Large messages", bytes(spec.large_history_bytes)],
            ["Linger", duration((spec.linger_us ?? 0) / 1e6)],
            ["NAK delay", duration((spec.nak_delay_us ?? 0) / 1e6)],
            ["Receiver time-out", duration(spec.receiver_timeout_s)],
            ...(spec.mode === "durable"
              ? ([
                  ["Queues", exact(spec.queues)],
                  ["Kept by", KEEPERS[spec.owner ?? ""] ?? `node ${spec.owner}`],
                  ["Sync", spec.fsync],
                  [
                    "Retention",
                    spec.retention_bytes ? bytes(spec.retention_bytes) : "no limit by size",
                  ],
                  ["Kept for", spec.retention_s ? duration(spec.retention_s) : "ever"],
                ] as [string, string][])
              : []),
          ]}
        />
      </Card>
      <div className="flex flex-col gap-3">
        <Card title="Identity">
          <Facts
            items={[
              ["Owner", metadata.owner || "none"],
              ["Managed by", metadata.managed_by || "hand"],
              ["Generation", exact(metadata.generation)],
              ["Applied", exact(status.observed_generation)],
              ["Changed", `${dateTime(metadata.updated_at, zone)} by ${metadata.updated_by}`],
              ["Created", dateTime(metadata.created_at, zone)],
              [
                "Id",
                <span key="uid" className="font-mono text-xs">
                  {metadata.uid}
                </span>,
              ],
            ]}
          />
        </Card>
        <Card title="Conditions">
          {(status.conditions ?? []).length === 0 ? (
            <p className="text-muted">None.</p>
          ) : (
            <ul className="flex flex-col gap-2">
              {(status.conditions ?? []).map((one) => (
                <li key={`${one.type}/${one.node}`} className="flex items-start gap-2 text-sm">
                  <Badge
                    tone={
                      one.type === "Error" && one.status
                        ? "bad"
                        : one.type === "Applied" && one.status
                          ? "good"
                          : "plain"
                    }
                  >
                    {one.type}
                    {one.status ? "" : ": no"}
                  </Badge>
                  <span className="text-muted">
                    {one.node && <b className="font-medium text-ink">{one.node} </b>}
                    {one.message || one.reason}
                  </span>
                </li>
              ))}
            </ul>
          )}
        </Card>
      </div>
    </div>
  );
}
