import { useQuery } from "@tanstack/react-query";
import { RotateCw } from "lucide-react";
import { useState } from "react";
import { http } from "@/api/client";
import { type Transport, transportsQuery, wireKeysQuery } from "@/api/queries";
import { useAct } from "@/app/act";
import { useMay } from "@/app/session";
import { ago, dateTime, useZone } from "@/lib/time";
import { Badge, StateBadge } from "@/ui/badge";
import { Button } from "@/ui/button";
import { Card } from "@/ui/card";
import { Confirm } from "@/ui/confirm";
import { Failed } from "@/ui/states";
import { Switch } from "@/ui/switch";
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
        <StateBadge state="info">optional: receivers accept plain packets too</StateBadge>
      ) : (
        <StateBadge state="plain">off: packets are plain</StateBadge>
      ),
  },
  { id: "epochs", head: "Epochs of keys", cell: (row) => <Epochs transport={row} /> },
  {
    id: "do",
    head: <span className="sr-only">Rotate</span>,
    cell: (row) => <Rotate name={row.metadata.name} />,
  },
];

/** The next secret of a transport: the others end later, or now if one of them leaked. */
function Rotate({ name }: { name: string }) {
  const may = useMay()("enrolments:write");
  const { act } = useAct();
  const [open, setOpen] = useState(false);
  const [atOnce, setAtOnce] = useState(false);
  if (!may) return null;
  const path = `/api/v1/transports/${encodeURIComponent(name)}/keys/rotate`;
  return (
    <span className="flex justify-end">
      <Button
        size="sm"
        icon={RotateCw}
        aria-label={`Rotate the keys of ${name}`}
        onClick={() => setOpen(true)}
      >
        Rotate
      </Button>
      <Confirm
        open={open}
        onOpenChange={(next) => {
          setOpen(next);
          setAtOnce(false);
        }}
        title={`Rotate the keys of ${name}?`}
        lead={
          atOnce
            ? "Every other epoch ends now. Engines that do not have the new one yet lose packets until they get it."
            : "Engines get the new epoch before they use it, and accept packets of the previous epoch for a while: no message is lost."
        }
        verb={atOnce ? "Revoke and rotate" : "Rotate"}
        action={{ method: "POST", path: atOnce ? `${path}?at_once=true` : path }}
        run={async () => {
          await http.POST("/api/v1/transports/{name}/keys/rotate", {
            params: { path: { name }, query: atOnce ? { at_once: true } : {} },
          });
          await act(async () => undefined, `${name} has a new epoch of keys`);
        }}
      >
        <Switch
          checked={atOnce}
          onChange={setAtOnce}
          label="End all other epochs now: a secret leaked"
        />
      </Confirm>
    </span>
  );
}

const TONES = { waiting: "info", active: "good", accepted: "plain" } as const;

function Epochs({ transport }: { transport: Transport }) {
  const sealed = transport.spec.secure !== "off";
  const zone = useZone();
  const query = useQuery(wireKeysQuery(transport.metadata.name));
  if (query.isError) return <Failed error={query.error} />;
  const epochs = query.data?.epochs ?? [];
  if (query.data && epochs.length === 0)
    return sealed ? (
      <StateBadge state="warn">no keys of this service</StateBadge>
    ) : (
      <span className="text-faint">–</span>
    );
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
