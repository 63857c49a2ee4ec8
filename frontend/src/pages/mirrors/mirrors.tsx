import { useQuery } from "@tanstack/react-query";
import { getRouteApi, useNavigate } from "@tanstack/react-router";
import { ArrowRightLeft, CirclePause, CirclePlay } from "lucide-react";
import { http } from "@/api/client";
import { type Mirror, mirrorsQuery } from "@/api/queries";
import { useMay } from "@/app/session";
import { commandOf } from "@/lib/copy-as";
import { duration, exact, rate } from "@/lib/format";
import { StateBadge } from "@/ui/badge";
import { errorColumn, nameColumn, ResourceList, RowActions } from "@/ui/resource-list";
import type { Column } from "@/ui/table";
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
  const search = route.useSearch();
  const navigate = useNavigate();
  return (
    <ResourceList<Mirror>
      title="Mirrors"
      lead="Kafka topics or JetStream streams to durable topics, and to Kafka; each record once."
      noun="mirror"
      icon={ArrowRightLeft}
      about="A mirror copies each record of a topic once, in the order of its partition, and continues where it was after any failure."
      list={useQuery(mirrorsQuery)}
      columns={columns}
      may={useMay()("mirrors:write")}
      editor={MirrorEditor}
      search={search}
      onSearch={(next) => navigate({ to: "/mirrors", search: next, replace: true })}
    >
      {(chosen) => chosen && <MirrorProgress mirror={chosen} />}
    </ResourceList>
  );
}

function columns(onEdit: ((mirror: Mirror) => void) | undefined): Column<Mirror>[] {
  return [
    nameColumn("Mirror"),
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
    errorColumn((row) => row.status.error),
    {
      id: "do",
      head: <span className="sr-only">Pause, resume, edit</span>,
      cell: (row) => onEdit && <Doing mirror={row} onEdit={() => onEdit(row)} />,
    },
  ];
}

function Doing({ mirror, onEdit }: { mirror: Mirror; onEdit: () => void }) {
  const name = mirror.metadata.name;
  const params = { path: { name } };
  const paused = mirror.spec.paused === true;
  const verb = paused ? "resume" : "pause";
  return (
    <RowActions
      name={name}
      verb={paused ? "Resume" : "Pause"}
      icon={paused ? CirclePlay : CirclePause}
      run={() =>
        paused
          ? http.POST("/api/v1/mirrors/{name}/resume", { params })
          : http.POST("/api/v1/mirrors/{name}/pause", { params })
      }
      done={`${name} is ${paused ? "resumed" : "paused"}`}
      onEdit={onEdit}
      copy={{
        method: "POST",
        path: `/api/v1/mirrors/${encodeURIComponent(name)}/${verb}`,
        cli: commandOf("tidecast", "mirror", verb, name, "--control", location.origin),
      }}
    />
  );
}
