import { useQuery } from "@tanstack/react-query";
import { getRouteApi, useNavigate } from "@tanstack/react-router";
import { Plus, Rss, Split } from "lucide-react";
import { type Subscription, subscriptionsQuery } from "@/api/queries";
import { useTidecast } from "@/app/commands";
import { useMay } from "@/app/session";
import { Sparkline } from "@/charts/sparkline";
import { duration, exact, plural, rate } from "@/lib/format";
import { useLive } from "@/live/store";
import type { ReaderLive, SubscriptionLive } from "@/live/types";
import { Badge } from "@/ui/badge";
import { Button } from "@/ui/button";
import { Card } from "@/ui/card";
import { FilterInput } from "@/ui/field";
import { Page } from "@/ui/page";
import { Segments } from "@/ui/segments";
import { Empty, Failed, Loading } from "@/ui/states";
import { type Column, Table } from "@/ui/table";
import { VirtualTable } from "@/ui/virtual-table";
import { SubscriptionEditor } from "./editor";
import { KafkaClients, KafkaGroups } from "./kafka";
import { KafkaGroupSheet } from "./kafka-group";
import { lagTrend, lostOf, SubscriptionState } from "./state";

const route = getRouteApi("/app/subscriptions");

interface Row {
  name: string;
  subscription: Subscription;
  live: SubscriptionLive | undefined;
}

const lagOf = (row: Row) => row.live?.lag_messages ?? row.subscription.status.lag_messages;

const COLUMNS: Column<Row>[] = [
  {
    id: "name",
    head: "Subscription",
    width: "minmax(6rem,2fr)",
    cell: (row) => <span className="font-medium font-mono text-xs">{row.name}</span>,
  },
  {
    id: "topic",
    wide: true,
    head: "Topic",
    width: "minmax(8rem,1.5fr)",
    cell: (row) => <span className="font-mono text-xs">{row.subscription.spec.topic}</span>,
  },
  {
    id: "state",
    head: "State",
    width: "6rem",
    cell: (row) => (
      <SubscriptionState state={row.live?.state ?? row.subscription.status.state ?? "unknown"} />
    ),
  },
  {
    id: "lag",
    head: "Lag (messages)",
    right: true,
    width: "7.5rem",
    cell: (row) => exact(lagOf(row)),
  },
  {
    id: "lag_s",
    wide: true,
    head: "Lag (time)",
    right: true,
    width: "6.5rem",
    cell: (row) => duration(row.live?.lag_s ?? row.subscription.status.lag_s),
  },
  {
    id: "trend",
    wide: true,
    head: "Trend",
    width: "7.5rem",
    cell: (row) => (
      <Sparkline
        channel="subscriptions"
        name={`subscriptions/${row.name}/lag_messages`}
        label={`Lag of ${row.name} over two minutes`}
        tint={4}
      />
    ),
  },
  {
    id: "drain",
    wide: true,
    head: "To drain",
    width: "8.5rem",
    cell: (row) => lagTrend(row.live, row.subscription),
  },
  {
    id: "rate",
    wide: true,
    head: "Delivered",
    right: true,
    width: "6.5rem",
    cell: (row) => rate(row.live?.delivered_per_s, " msg/s"),
  },
  {
    id: "members",
    wide: true,
    head: "Members",
    right: true,
    width: "5.5rem",
    cell: (row) => exact(row.live?.members ?? row.subscription.status.members),
  },
  {
    id: "dead",
    wide: true,
    head: "Dead letters",
    right: true,
    width: "6.5rem",
    cell: (row) => {
      const dead = lostOf(row.subscription, row.live);
      return dead && dead !== "0" ? <Badge tone="bad">{exact(dead)}</Badge> : exact(dead);
    },
  },
];

const READERS: Column<ReaderLive>[] = [
  { id: "client", head: "Reader", cell: (row) => row.client || row.id },
  {
    id: "topic",
    head: "Topic",
    cell: (row) => <span className="font-mono text-xs">{row.topic}</span>,
  },
  { id: "node", wide: true, head: "Node", cell: (row) => row.node },
  { id: "source", wide: true, head: "Reads from", cell: (row) => row.source },
  { id: "position", wide: true, head: "Position", right: true, cell: (row) => exact(row.position) },
  { id: "lag", head: "Lag (packets)", right: true, cell: (row) => exact(row.lag_packets) },
  {
    id: "trend",
    wide: true,
    head: "Trend",
    cell: (row) => (
      <Sparkline
        channel="subscriptions"
        name={`readers/${row.id}/lag_packets`}
        label="Lag over two minutes"
        tint={4}
      />
    ),
  },
  {
    id: "tethered",
    wide: true,
    head: "If it stalls",
    cell: (row) => (row.tethered ? "holds the ring" : "is evicted"),
  },
];

export function SubscriptionsPage() {
  const tidecast = useTidecast();
  const { q = "", view = "durable", create, group, node } = route.useSearch();
  const navigate = useNavigate();
  const may = useMay();
  const list = useQuery(subscriptionsQuery);
  const live = useLive("subscriptions");
  const set = (search: {
    q?: string | undefined;
    view?: "durable" | "live" | "groups" | "clients" | undefined;
    create?: true | undefined;
    group?: string | undefined;
    node?: string | undefined;
  }) =>
    navigate({
      to: "/subscriptions",
      search: { q: q || undefined, view, ...search },
      replace: true,
    });
  const rows: Row[] = (list.data?.items ?? [])
    .map((subscription) => ({
      name: subscription.metadata.name,
      subscription,
      live: live?.subscriptions[subscription.metadata.name],
    }))
    .filter((row) => row.name.includes(q) || row.subscription.spec.topic.includes(q))
    .sort((a, b) => Number(lagOf(b) ?? 0) - Number(lagOf(a) ?? 0) || a.name.localeCompare(b.name));
  const readers = Object.values(live?.readers ?? {}).filter(
    (one) => one.topic.includes(q) || one.client.includes(q),
  );
  return (
    <Page
      fill
      title="Subscriptions"
      lead={`${plural(rows.length, "durable subscription")}, ${plural(readers.length, "live reader")}`}
      actions={
        <>
          <FilterInput
            aria-label="Search subscriptions"
            placeholder="Name or topic"
            value={q}
            onFilter={(q) => set({ q })}
            className="w-56 max-sm:w-full"
          />
          <Segments
            label="Kind"
            value={view}
            onChange={(next) => set({ view: next })}
            options={[
              { value: "durable", label: "Durable" },
              { value: "live", label: "Live" },
              { value: "groups", label: "Kafka groups" },
              { value: "clients", label: "Kafka clients" },
            ]}
          />
          {may("subscriptions:write") && (
            <Button look="primary" icon={Plus} onClick={() => set({ create: true })}>
              Create subscription
            </Button>
          )}
        </>
      }
    >
      {view === "groups" ? (
        <KafkaGroups q={q} onOpen={(row) => set({ group: row.name, node: row.node })} />
      ) : view === "clients" ? (
        <KafkaClients q={q} />
      ) : view === "live" ? (
        <Card flush label="Live readers">
          <Table
            label="Live readers"
            columns={READERS}
            rows={readers.toSorted((a, b) => Number(b.lag_packets) - Number(a.lag_packets))}
            rowKey={(row) => row.id}
            empty={
              <Empty icon={Rss} title="No live readers" commands={[tidecast("sub", "md.>")]}>
                A live reader gets messages from memory, from now on.
              </Empty>
            }
          />
        </Card>
      ) : list.isError ? (
        <Failed error={list.error} retry={list.refetch} />
      ) : list.isPending ? (
        <Loading rows={8} />
      ) : (
        <VirtualTable
          label="Durable subscriptions"
          columns={COLUMNS}
          rows={rows}
          rowKey={(row) => row.name}
          onRow={(row) => navigate({ to: "/subscriptions/$name", params: { name: row.name } })}
          empty={
            <Empty
              icon={Split}
              title={q ? "No subscription matches" : "No durable subscription yet"}
              action={
                may("subscriptions:write") &&
                !q && (
                  <Button look="primary" icon={Plus} onClick={() => set({ create: true })}>
                    Create subscription
                  </Button>
                )
              }
            >
              A named consumer of a durable topic: it keeps its position, its members share the
              work, and messages that they cannot handle become dead letters.
            </Empty>
          }
        />
      )}
      {group && node && (
        <KafkaGroupSheet
          name={group}
          node={node}
          onClose={() => set({ group: undefined, node: undefined })}
        />
      )}
      {create && may("subscriptions:write") && (
        <SubscriptionEditor onClose={() => set({ create: undefined })} />
      )}
    </Page>
  );
}
