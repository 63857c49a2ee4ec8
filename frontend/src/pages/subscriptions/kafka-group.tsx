import { useQuery } from "@tanstack/react-query";
import { Rewind, Trash2 } from "lucide-react";
import { useMemo, useState } from "react";
import { bodyOf, http, type Schemas } from "@/api/client";
import { kafkaGroupQuery, type Operation } from "@/api/queries";
import { useAct } from "@/app/act";
import { useTidecast } from "@/app/commands";
import { useMay } from "@/app/session";
import { duration, exact, plural } from "@/lib/format";
import { dateTime, useZone } from "@/lib/time";
import { useLivePart } from "@/live/store";
import { nanosOf } from "@/pages/messages/place";
import { Button } from "@/ui/button";
import { Facts } from "@/ui/card";
import { Confirm } from "@/ui/confirm";
import { Dialog } from "@/ui/dialog";
import { TextField } from "@/ui/field";
import { Failed, Loading } from "@/ui/states";
import { type Column, Table } from "@/ui/table";
import { TimeField } from "@/ui/time-field";
import { GroupState } from "./kafka";
import { movedBy, type Say } from "./operation";
import { ResetDialog } from "./reset-dialog";

type Offset = Schemas["KafkaOffset"];
type Member = Schemas["KafkaMember"];
type Reset = Schemas["ResetRequest"];

const OFFSETS: Column<Offset>[] = [
  {
    id: "queue",
    head: "Queue",
    cell: (row) => <span className="font-mono text-xs">{`${row.topic}:${row.queue}`}</span>,
  },
  { id: "committed", head: "Committed", right: true, cell: (row) => exact(row.committed) },
  { id: "end", head: "End", right: true, cell: (row) => exact(row.end) },
  { id: "lag", head: "Lag", right: true, cell: (row) => exact(row.lag) },
  { id: "lag_s", wide: true, head: "Lag (time)", right: true, cell: (row) => duration(row.lag_s) },
];

const MEMBERS: Column<Member>[] = [
  {
    id: "client",
    head: "Client id",
    cell: (row) => <span className="font-mono text-xs">{row.client_id}</span>,
  },
  { id: "address", head: "Address", cell: (row) => row.address },
  {
    id: "assigned",
    head: "Queues",
    cell: (row) => <span className="font-mono text-xs">{(row.assigned ?? []).join(", ")}</span>,
  },
];

interface Named {
  name: string;
  node: string;
}

const pathOf = ({ name, node }: Named, more = "") =>
  `/api/v1/kafka/groups/${encodeURIComponent(name)}${more}?${new URLSearchParams({ node })}`;

/** A group: its members and offsets; a reset and a delete while it has no members. */
export function KafkaGroupSheet({ name, node, onClose }: Named & { onClose: () => void }) {
  const zone = useZone();
  const may = useMay()("operations:write");
  const found = useQuery(kafkaGroupQuery(name, node));
  const live = useLivePart("kafka", (data) => data.groups[`${node}/${name}`]);
  const [asked, setAsked] = useState<"reset" | "delete" | null>(null);
  const group = found.data;
  const busy = (group?.members ?? 0) > 0;
  const close = () => setAsked(null);
  return (
    <Dialog
      open
      shape="sheet"
      onOpenChange={(open) => !open && onClose()}
      title={name}
      lead={`Kafka group at ${node}`}
      footer={
        may &&
        group && (
          <>
            <span className="mr-auto text-muted text-xs">
              {busy ? "Stop its consumers to reset or delete it." : ""}
            </span>
            <Button icon={Rewind} disabled={busy} onClick={() => setAsked("reset")}>
              Reset offsets
            </Button>
            <Button icon={Trash2} look="danger" disabled={busy} onClick={() => setAsked("delete")}>
              Delete group
            </Button>
          </>
        )
      }
    >
      {found.isError && <Failed error={found.error} retry={found.refetch} />}
      {found.isPending && <Loading rows={6} />}
      {group && (
        <div className="flex flex-col gap-4 pb-2">
          <Facts
            items={[
              ["State", <GroupState key="state" state={live?.state ?? group.state} />],
              [
                "Lag",
                <span key="lag" data-testid="group-lag">
                  {exact(live?.lag ?? group.lag)}
                </span>,
              ],
              ["Lag in time", duration(live?.lag_s ?? group.lag_s)],
              ["Protocol", group.protocol || "–"],
              ["Generation", exact(group.generation)],
              ["Last commit", group.committed_at ? dateTime(group.committed_at, zone) : "–"],
            ]}
          />
          <Table
            label="Offsets"
            columns={OFFSETS}
            rows={group.offsets ?? []}
            rowKey={(row) => `${row.topic}:${row.queue}`}
            empty="Nothing is committed"
          />
          {(group.offsets_left_out ?? 0) > 0 && (
            <p className="text-muted text-sm">
              and {plural(group.offsets_left_out ?? 0, "queue")} more
            </p>
          )}
          <Table
            label="Members"
            columns={MEMBERS}
            rows={group.consumers ?? []}
            rowKey={(row) => row.id}
            empty="No members"
          />
        </div>
      )}
      {asked === "reset" && group && (
        <ResetOffsets name={name} node={node} offsets={group.offsets ?? []} onClose={close} />
      )}
      {asked === "delete" && (
        <DeleteGroup name={name} node={node} onClose={close} onDeleted={onClose} />
      )}
    </Dialog>
  );
}

function DeleteGroup({
  name,
  node,
  onClose,
  onDeleted,
}: Named & { onClose: () => void; onDeleted: () => void }) {
  const { act } = useAct();
  const tidecast = useTidecast();
  return (
    <Confirm
      open
      onOpenChange={(next) => !next && onClose()}
      title={`Delete group ${name}?`}
      lead="Its offsets are lost. auto.offset.reset decides where later consumers begin."
      word={name}
      verb="Delete group"
      action={{
        method: "DELETE",
        path: pathOf({ name, node }),
        cli: tidecast("kafka", "delete", name, "--yes"),
      }}
      run={async () => {
        await http
          .DELETE("/api/v1/kafka/groups/{name}", { params: { path: { name }, query: { node } } })
          .then(bodyOf);
        await act(async () => undefined, `Group ${name} is deleted`);
        onDeleted();
      }}
    />
  );
}

/** Records that come again or are skipped. */
const sayReset: Say = (value, dry) => {
  const { again, skipped } = movedBy(value);
  const will = dry ? "will be" : "are";
  const parts = [
    ...(skipped ? [`${plural(skipped, "record")} ${will} skipped`] : []),
    ...(again ? [`${plural(again, "record")} ${will} read again`] : []),
  ];
  return parts.length ? `${parts.join("; ")}.` : "No offset changes.";
};

type Way = "earliest" | "latest" | "time" | "offset" | "shift";

/** The request of the form; null while a field is missing or wrong. */
function requestOf(way: Way, text: string, place: string): Reset | null {
  const split = place.lastIndexOf(":");
  const only =
    place === "all" ? {} : { topic: place.slice(0, split), queue: Number(place.slice(split + 1)) };
  if (way === "earliest" || way === "latest") return { to: way, ...only } as Reset;
  if (way === "time") {
    const time_ns = nanosOf(text);
    return time_ns ? ({ to: "time", time_ns, ...only } as Reset) : null;
  }
  if (way === "offset") {
    const known = /^\d{1,18}$/.test(text) && place !== "all";
    return known ? ({ to: "offset", offset: text, ...only } as Reset) : null;
  }
  const shift = Number(text);
  const whole = text.trim() !== "" && Number.isSafeInteger(shift) && shift !== 0;
  return whole ? ({ shift, ...only } as Reset) : null;
}

function ResetOffsets({
  name,
  node,
  offsets,
  onClose,
}: Named & { offsets: readonly Offset[]; onClose: () => void }) {
  const { busy, act, error } = useAct("here");
  const [way, setWay] = useState<Way>("earliest");
  const [text, setText] = useState("");
  const [chosen, setPlace] = useState("all");
  const places = offsets.map((row) => `${row.topic}:${row.queue}`).toSorted();
  // An offset is of one queue: the first, until another one is chosen.
  const place = way === "offset" && chosen === "all" ? (places[0] ?? "all") : chosen;
  const body = useMemo(() => requestOf(way, text, place), [way, text, place]);
  const params = { path: { name }, query: { node } };
  const preview = useQuery({
    queryKey: ["kafka", "reset", node, name, body],
    queryFn: () =>
      http
        .POST("/api/v1/kafka/groups/{name}/reset", {
          params: { ...params, query: { node, dry_run: true } },
          body: body as Reset,
        })
        .then((answer) => bodyOf(answer as { data?: Operation })),
    enabled: body !== null,
    retry: false,
  });
  const run = async () => {
    if (!body) return;
    const done = await act(
      () => http.POST("/api/v1/kafka/groups/{name}/reset", { params, body }).then(bodyOf),
      `The offsets of ${name} are reset`,
    );
    if (done) onClose();
  };
  const cli = preview.data?.cli?.replace(/ --dry-run$/, "");
  return (
    <ResetDialog
      title="Reset offsets"
      lead="Backwards reads records again; forwards skips them. No record is deleted."
      unit="records"
      way={way}
      onWay={(next) => {
        setWay(next);
        setText("");
      }}
      offset="offset"
      queue={place}
      onQueue={setPlace}
      queues={places.map((one) => ({ value: one, label: one }))}
      action={body && { method: "POST", path: pathOf({ name, node }, "/reset"), body, cli }}
      preview={preview}
      say={sayReset}
      busy={busy}
      error={error}
      run={run}
      onClose={onClose}
    >
      {way === "time" && (
        <TimeField label="Time" className="col-span-full" value={text} onChange={setText} />
      )}
      {(way === "offset" || way === "shift") && (
        <TextField
          label={way === "offset" ? "Offset" : "Records"}
          hint={way === "offset" ? `Of ${place}` : "Negative: backwards"}
          error={body || text === "" ? undefined : "Enter a whole number"}
          className="col-span-full"
          inputMode="numeric"
          mono
          value={text}
          onChange={setText}
        />
      )}
    </ResetDialog>
  );
}
