import { useQuery } from "@tanstack/react-query";
import { getRouteApi, useNavigate } from "@tanstack/react-router";
import { ArrowRightLeft, CirclePause, CirclePlay, Pencil, Plus } from "lucide-react";
import { useState } from "react";
import { http } from "@/api/client";
import { type Mirror, mirrorsQuery } from "@/api/queries";
import { useAct } from "@/app/act";
import { useMay } from "@/app/session";
import { commandOf } from "@/lib/copy-as";
import { duration, exact, rate } from "@/lib/format";
import { StateBadge } from "@/ui/badge";
import { Button } from "@/ui/button";
import { Card } from "@/ui/card";
import { CopyAs } from "@/ui/copy-as";
import { Page } from "@/ui/page";
import { Empty, Failed, Loading } from "@/ui/states";
import { type Column, Table } from "@/ui/table";
import { MirrorEditor } from "./editor";
import { MirrorProgress } from "./progress";

const route = getRouteApi("/app/mirrors");

const STATES: Record<Mirror["status"]["state"], string> = {
  paused: "paused",
  starting: "info",
  running: "good",
  waiting: "bad",
};

export function MirrorState({ mirror }: { mirror: Mirror }) {
  const { state } = mirror.status;
  return <StateBadge state={STATES[state]}>{state}</StateBadge>;
}

export const endsOf = ({ spec }: Mirror): readonly [string, string] => {
  if (spec.direction === "from_jetstream") return [`jetstream:${spec.streams}`, spec.topic];
  const kafka = `kafka:${spec.kafka_topic}`;
  return spec.direction === "from_kafka" ? [kafka, spec.topic] : [spec.topic, kafka];
};

/** Copies between Kafka or JetStream and durable topics that the service keeps running. */
export function MirrorsPage() {
  const { name: chosen, create: creating } = route.useSearch();
  const navigate = useNavigate();
  const may = useMay()("mirrors:write");
  const list = useQuery(mirrorsQuery);
  const [edited, setEdited] = useState<Mirror | null>(null);
  const setCreating = (create: true | undefined) =>
    navigate({ to: "/mirrors", search: { name: chosen, create }, replace: true });
  const mirrors = (list.data?.items ?? []) as Mirror[];
  const open = mirrors.find((one) => one.metadata.name === chosen);
  const create = may && (
    <Button look="primary" icon={Plus} onClick={() => setCreating(true)}>
      Create mirror
    </Button>
  );
  return (
    <Page
      title="Mirrors"
      lead="Kafka topics or JetStream streams to durable topics, and to Kafka; each record once."
      actions={create}
    >
      {list.isError && <Failed error={list.error} retry={list.refetch} />}
      {list.isPending && <Loading />}
      {list.data && (
        <div className="flex flex-col gap-3">
          <Card label="Mirrors" flush>
            {mirrors.length === 0 ? (
              <Empty icon={ArrowRightLeft} title="No mirror yet" className="py-10" action={create}>
                A mirror copies each record of a topic once, in the order of its partition, and
                continues where it was after any failure.
              </Empty>
            ) : (
              <Table
                label="Mirrors"
                columns={columns(may ? setEdited : undefined)}
                rows={mirrors}
                rowKey={(row) => row.metadata.name}
                onRow={(row) =>
                  navigate({ to: "/mirrors", search: { name: row.metadata.name }, replace: true })
                }
              />
            )}
          </Card>
          {open && <MirrorProgress mirror={open} />}
        </div>
      )}
      {edited && <MirrorEditor name={edited.metadata.name} onClose={() => setEdited(null)} />}
      {may && creating && (
        <MirrorEditor
          onClose={() => setCreating(undefined)}
          onSaved={(name) => navigate({ to: "/mirrors", search: { name }, replace: true })}
        />
      )}
    </Page>
  );
}

function columns(onEdit: ((mirror: Mirror) => void) | undefined): Column<Mirror>[] {
  return [
    {
      id: "name",
      head: "Mirror",
      cell: (row) => <b className="font-medium">{row.metadata.name}</b>,
    },
    {
      id: "ends",
      wide: true,
      head: "From, to",
      cell: (row) => <span className="font-mono text-xs">{endsOf(row).join(" → ")}</span>,
    },
    { id: "state", head: "State", cell: (row) => <MirrorState mirror={row} /> },
    { id: "rate", head: "Records/s", right: true, cell: (row) => rate(row.status.rate) },
    { id: "lag", head: "Lag", right: true, cell: (row) => exact(row.status.lag) },
    {
      id: "eta",
      wide: true,
      head: "Left",
      right: true,
      cell: (row) => (row.status.eta_s ? duration(row.status.eta_s) : "–"),
    },
    {
      id: "records",
      wide: true,
      head: "Copied",
      right: true,
      cell: (row) => exact(row.status.records),
    },
    {
      id: "error",
      wide: true,
      head: "Error",
      width: "22%",
      cell: (row) => (
        <span className="line-clamp-2 text-bad text-xs" title={row.status.error}>
          {row.status.error}
        </span>
      ),
    },
    {
      id: "do",
      head: <span className="sr-only">Pause, resume, edit</span>,
      cell: (row) => onEdit && <Doing mirror={row} onEdit={() => onEdit(row)} />,
    },
  ];
}

function Doing({ mirror, onEdit }: { mirror: Mirror; onEdit: () => void }) {
  const { busy, act } = useAct();
  const name = mirror.metadata.name;
  const params = { path: { name } };
  const paused = mirror.spec.paused === true;
  const verb = paused ? "resume" : "pause";
  return (
    // biome-ignore lint/a11y/noStaticElementInteractions: it only keeps its buttons' clicks from the row
    // biome-ignore lint/a11y/useKeyWithClickEvents: it only keeps its buttons' clicks from the row
    <span
      className="flex items-center justify-end gap-1"
      onClick={(event) => event.stopPropagation()}
    >
      <Button
        size="sm"
        icon={paused ? CirclePlay : CirclePause}
        busy={busy}
        aria-label={`${paused ? "Resume" : "Pause"} ${name}`}
        onClick={() =>
          act(
            () =>
              paused
                ? http.POST("/api/v1/mirrors/{name}/resume", { params })
                : http.POST("/api/v1/mirrors/{name}/pause", { params }),
            `${name} is ${paused ? "resumed" : "paused"}`,
          )
        }
      >
        {paused ? "Resume" : "Pause"}
      </Button>
      <Button size="sm" look="quiet" icon={Pencil} aria-label={`Edit ${name}`} onClick={onEdit}>
        Edit
      </Button>
      <CopyAs
        small
        action={{
          method: "POST",
          path: `/api/v1/mirrors/${encodeURIComponent(name)}/${verb}`,
          cli: commandOf("tidecast", "mirror", verb, name, "--control", location.origin),
        }}
      />
    </span>
  );
}
