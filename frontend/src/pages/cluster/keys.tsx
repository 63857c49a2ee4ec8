import { useQuery } from "@tanstack/react-query";
import { type Transport, transportsQuery, wireKeysQuery } from "@/api/queries";
import { useMay } from "@/app/session";
import { ago, dateTime, useZone } from "@/lib/time";
import { Badge, StateBadge } from "@/ui/badge";
import { Card } from "@/ui/card";
import { Failed } from "@/ui/states";
import { type Column, Table } from "@/ui/table";

/** Which transports are sealed, and with which epochs of their keys. */
export function KeysCard() {
  const items = (useQuery(transportsQuery).data?.items ?? []) as Transport[];
  const may = useMay()("enrolments:read");
  return (
    <Card
      title="Sealed transports"
      hint="the keys that this service hands out to engines"
      flush
      className="mt-3"
    >
      <Table
        label="Sealed transports"
        columns={may ? COLUMNS : COLUMNS.slice(0, 2)}
        rows={items.filter((one) => one.spec.kind !== "ipc")}
        rowKey={(row) => row.metadata.name}
        empty={<p className="px-3.5 pb-4 text-muted">No transport sends packets.</p>}
      />
    </Card>
  );
}

const COLUMNS: Column<Transport>[] = [
  {
    id: "name",
    head: "Transport",
    cell: (row) => <b className="font-medium">{row.metadata.name}</b>,
  },
  {
    id: "secure",
    head: "Sealed",
    cell: (row) =>
      row.spec.secure === "required" ? (
        <StateBadge state="good">required</StateBadge>
      ) : row.spec.secure === "optional" ? (
        <StateBadge state="info">optional: plain packets are taken too</StateBadge>
      ) : (
        <StateBadge state="plain">off: packets are plain</StateBadge>
      ),
  },
  { id: "epochs", head: "Epochs of keys", cell: (row) => <Epochs transport={row} /> },
];

const TONES = { waiting: "info", active: "good", accepted: "plain" } as const;

function Epochs({ transport }: { transport: Transport }) {
  const sealed = transport.spec.secure !== "off";
  const zone = useZone();
  const query = useQuery({ ...wireKeysQuery(transport.metadata.name), enabled: sealed });
  if (!sealed) return <span className="text-faint">–</span>;
  if (query.isError) return <Failed error={query.error} />;
  const epochs = query.data?.epochs ?? [];
  if (query.data && epochs.length === 0)
    return <StateBadge state="warn">none of this service</StateBadge>;
  return (
    <span className="flex flex-wrap items-center gap-1.5">
      {epochs.map((one) => (
        <Badge key={one.epoch} tone={TONES[one.state]}>
          {one.epoch} {one.state}
          {one.state === "waiting" && ` until ${dateTime(one.activate_at, zone)}`}
          {one.retire_at && `, ends ${ago(one.retire_at, Date.now())}`}
        </Badge>
      ))}
    </span>
  );
}
