import { useQuery } from "@tanstack/react-query";
import { Cable, Split } from "lucide-react";
import { type KafkaGroup, kafkaGroupsQuery } from "@/api/queries";
import { useTidecast } from "@/app/commands";
import { Sparkline } from "@/charts/sparkline";
import { byteRate, bytes, duration, exact, plural, rate } from "@/lib/format";
import { dateTime, useZone } from "@/lib/time";
import { useLive, useLiveError } from "@/live/store";
import type { KafkaClientLive, KafkaGroupLive } from "@/live/types";
import { StateBadge } from "@/ui/badge";
import { Empty, Failed, Loading } from "@/ui/states";
import type { Column } from "@/ui/table";
import { VirtualTable } from "@/ui/virtual-table";

/** Part of the live row; of a group that is only listed its trend is not known. */
type Row = KafkaGroup & Pick<KafkaGroupLive, "lag_trend_per_s" | "drain_s">;

const STATES: Record<string, string> = {
  Stable: "good",
  PreparingRebalance: "warn",
  CompletingRebalance: "warn",
};

export function GroupState({ state }: { state: string }) {
  return <StateBadge state={STATES[state] ?? "plain"}>{state}</StateBadge>;
}

const idOf = (row: Row) => `${row.node}/${row.name}`;

const GROUPS: Column<Row>[] = [
  {
    id: "name",
    head: "Group",
    width: "minmax(7rem,2fr)",
    cell: (row) => <span className="font-medium font-mono text-xs">{row.name}</span>,
  },
  {
    id: "topics",
    wide: true,
    head: "Topics",
    width: "minmax(8rem,1.5fr)",
    cell: (row) => <span className="font-mono text-xs">{(row.topics ?? []).join(", ")}</span>,
  },
  { id: "node", wide: true, head: "Node", width: "7rem", cell: (row) => row.node },
  {
    id: "state",
    head: "State",
    width: "10rem",
    cell: (row) => <GroupState state={row.state} />,
  },
  { id: "lag", head: "Lag (records)", right: true, width: "7.5rem", cell: (row) => exact(row.lag) },
  {
    id: "lag_s",
    wide: true,
    head: "Lag (time)",
    right: true,
    width: "6.5rem",
    cell: (row) => duration(row.lag_s),
  },
  {
    id: "trend",
    wide: true,
    head: "Trend",
    width: "7.5rem",
    cell: (row) => (
      <Sparkline
        channel="kafka"
        name={`groups/${idOf(row)}/lag`}
        label={`Lag of ${row.name} over two minutes`}
        tint={4}
      />
    ),
  },
  {
    id: "drain",
    wide: true,
    head: "To drain",
    right: true,
    width: "8.5rem",
    cell: (row) => drainOf(row),
  },
  {
    id: "members",
    head: "Members",
    right: true,
    width: "5.5rem",
    cell: (row) => exact(row.members),
  },
];

function drainOf(row: Row): string {
  const trend = row.lag_trend_per_s;
  if (trend != null && trend > 0.5) return `grows ${rate(trend, " /s")}`;
  return row.drain_s ? duration(row.drain_s) : "–";
}

interface Props {
  q: string;
  onOpen: (group: KafkaGroup) => void;
}

/** Groups of Kafka clients: those that lag the most as they are now, others by search. */
export function KafkaGroups({ q, onOpen }: Props) {
  const tidecast = useTidecast();
  const live = useLive("kafka");
  const problem = useLiveError("kafka");
  const known = Object.values(live?.groups ?? {});
  const total = live?.groups_total ?? 0;
  const some = total > known.length;
  const listed = useQuery({ ...kafkaGroupsQuery(q), enabled: some && q !== "" });
  const rows = new Map<string, Row>();
  for (const row of some && q ? (listed.data?.items ?? []) : []) rows.set(idOf(row), row);
  for (const row of known) if (matches(row, q)) rows.set(idOf(row), row);
  const shown = [...rows.values()].sort(
    (a, b) => Number(b.lag ?? 0) - Number(a.lag ?? 0) || a.name.localeCompare(b.name),
  );
  if (problem) return <Failed error={problem} />;
  if (!live) return <Loading rows={8} />;
  return (
    <div className="flex h-full min-h-0 flex-col gap-2">
      {some && (
        <p role="status" className="text-muted text-sm">
          The {exact(known.length)} groups that lag the most, of {exact(total)}. Search for others
          by name.
        </p>
      )}
      {(listed.data?.missing ?? []).map((one) => (
        <p key={one.node} role="alert" className="text-sm text-warn">
          {one.node}: {one.reason}
        </p>
      ))}
      <VirtualTable
        label="Kafka groups"
        columns={GROUPS}
        rows={shown}
        rowKey={idOf}
        onRow={onOpen}
        empty={
          <Empty
            icon={Split}
            title={q ? "No group matches" : "No Kafka groups"}
            commands={[tidecast("kafka", "groups")]}
          >
            A consumer group of Kafka clients at the endpoint of an engine.
          </Empty>
        }
      />
    </div>
  );
}

const matches = (row: KafkaGroup, q: string) =>
  row.name.includes(q) || (row.topics ?? []).some((topic) => topic.includes(q));

/** Connections of Kafka clients, with their rates. */
export function KafkaClients({ q }: { q: string }) {
  const zone = useZone();
  const tidecast = useTidecast();
  const live = useLive("kafka");
  const problem = useLiveError("kafka");
  const known = Object.values(live?.clients ?? {});
  const rows = known
    .filter((one) =>
      [one.client_id, one.software ?? "", one.address, one.key_name ?? ""].some((text) =>
        text.includes(q),
      ),
    )
    .sort((a, b) => a.node.localeCompare(b.node) || Number(a.number) - Number(b.number));
  const columns: Column<KafkaClientLive>[] = [
    {
      id: "client",
      head: "Client id",
      width: "minmax(7rem,1.5fr)",
      cell: (row) => <span className="font-mono text-xs">{row.client_id || "–"}</span>,
    },
    {
      id: "software",
      wide: true,
      head: "Software",
      width: "minmax(8rem,1.5fr)",
      cell: (row) => row.software || "–",
    },
    {
      id: "address",
      head: "Address",
      width: "11rem",
      cell: (row) => <span className="font-mono text-xs">{row.address}</span>,
    },
    { id: "node", wide: true, head: "Node", width: "7rem", cell: (row) => row.node },
    { id: "key", wide: true, head: "Key", width: "7rem", cell: (row) => row.key_name || "–" },
    {
      id: "in",
      head: "In",
      right: true,
      width: "8rem",
      cell: (row) => `${byteRate(row.in_per_s)}`,
    },
    { id: "out", head: "Out", right: true, width: "8rem", cell: (row) => byteRate(row.out_per_s) },
    {
      id: "all",
      wide: true,
      head: "In and out",
      right: true,
      width: "9rem",
      cell: (row) => `${bytes(Number(row.bytes_in))}, ${bytes(Number(row.bytes_out))}`,
    },
    {
      id: "since",
      wide: true,
      head: "Since",
      width: "11rem",
      cell: (row) => dateTime(row.since, zone),
    },
  ];
  if (problem) return <Failed error={problem} />;
  if (!live) return <Loading rows={8} />;
  return (
    <div className="flex h-full min-h-0 flex-col gap-2">
      {(live.clients_total ?? 0) > known.length && (
        <p role="status" className="text-muted text-sm">
          {plural(known.length, "connection")} of {exact(live.clients_total)}
        </p>
      )}
      <VirtualTable
        label="Kafka clients"
        columns={columns}
        rows={rows}
        rowKey={(row) => `${row.node}/${row.number}`}
        empty={
          <Empty
            icon={Cable}
            title={q ? "No client matches" : "No Kafka clients"}
            commands={[tidecast("kafka", "clients")]}
          >
            Kafka clients connect to an engine that has an endpoint.
          </Empty>
        }
      />
    </div>
  );
}
