import { useQuery } from "@tanstack/react-query";
import { getRouteApi, useNavigate } from "@tanstack/react-router";
import { CirclePlay, CircleStop, Workflow } from "lucide-react";
import { http } from "@/api/client";
import { type Pipeline, type PipelineRun, pipelinesQuery, systemQuery } from "@/api/queries";
import { useMay } from "@/app/session";
import { duration, exact } from "@/lib/format";
import { ago } from "@/lib/time";
import { Badge, StateBadge } from "@/ui/badge";
import { errorColumn, nameColumn, ResourceList, RowActions } from "@/ui/resource-list";
import type { Column } from "@/ui/table";
import { CapacityList } from "./capacity";
import { PipelineEditor } from "./editor";
import { Runs } from "./runs";

const route = getRouteApi("/app/pipelines");

const STATES: Record<PipelineRun["state"], string> = {
  queued: "info",
  running: "info",
  done: "good",
  failed: "bad",
  stopped: "paused",
  lost: "bad",
};

export function RunState({ state }: { state: PipelineRun["state"] }) {
  return <StateBadge state={STATES[state]}>{state}</StateBadge>;
}

/** Jobs on Spark and when they run; what each last did. */
export function PipelinesPage() {
  const search = route.useSearch();
  const navigate = useNavigate();
  const system = useQuery(systemQuery).data;
  return (
    <ResourceList<Pipeline>
      title="Pipelines"
      lead="Jobs on Spark: archive, replay, rollups, capacity; by a schedule or by hand."
      noun="pipeline"
      icon={Workflow}
      about="A rollup fills the history charts; an archive keeps topics as Parquet; a capacity report recommends limits. Each needs Spark: pip install 'tidecast[spark]'."
      list={useQuery(pipelinesQuery)}
      columns={columns}
      may={useMay()("pipelines:write")}
      editor={PipelineEditor}
      search={search}
      onSearch={(next) => navigate({ to: "/pipelines", search: next, replace: true })}
      notice={
        system &&
        !system.spark && (
          <p className="mb-3 rounded-md bg-warn-soft px-3 py-2 text-sm">{NO_SPARK}</p>
        )
      }
    >
      {(chosen) => (
        <>
          {chosen && <Runs pipeline={chosen} />}
          <CapacityList />
        </>
      )}
    </ResourceList>
  );
}

function columns(onEdit: ((pipeline: Pipeline) => void) | undefined): Column<Pipeline>[] {
  const now = Date.now();
  const last = (row: Pipeline) => row.status.last_run;
  return [
    nameColumn("Pipeline"),
    { id: "job", wide: true, head: "Job", cell: (row) => <Badge>{row.spec.job}</Badge> },
    {
      id: "schedule",
      head: "Schedule",
      cell: (row) =>
        row.spec.schedule ? (
          <span className="font-mono text-xs">
            {row.spec.schedule}
            {!row.spec.enabled && <Badge className="ml-1.5">off</Badge>}
          </span>
        ) : (
          "by hand"
        ),
    },
    {
      id: "next",
      wide: true,
      head: "Next run",
      cell: (row) => (row.status.next_run_at ? ago(row.status.next_run_at, now) : "–"),
    },
    {
      id: "last",
      head: "Last run",
      cell: (row) => {
        const run = last(row);
        if (!run) return "never";
        return (
          <span className="flex items-center gap-1.5">
            <RunState state={run.state} />
            {ago(run.finished_at ?? run.started_at ?? run.queued_at, now)}
          </span>
        );
      },
    },
    {
      id: "duration",
      wide: true,
      head: "Took",
      right: true,
      cell: (row) => duration(last(row)?.duration_s),
    },
    { id: "rows", wide: true, head: "Rows", right: true, cell: (row) => exact(last(row)?.rows) },
    errorColumn((row) => last(row)?.error),
    {
      id: "do",
      head: <span className="sr-only">Start, stop, edit</span>,
      cell: (row) => onEdit && <Doing pipeline={row} onEdit={() => onEdit(row)} />,
    },
  ];
}

const NO_SPARK = "PySpark is not installed on the service's host: pip install 'tidecast[spark]'";

function Doing({ pipeline, onEdit }: { pipeline: Pipeline; onEdit: () => void }) {
  const name = pipeline.metadata.name;
  const params = { path: { name } };
  const runs = pipeline.status.state !== "idle";
  const spark = useQuery(systemQuery).data?.spark ?? true;
  const verb = runs ? "stop" : "start";
  return (
    <RowActions
      name={name}
      verb={runs ? "Stop" : "Start"}
      icon={runs ? CircleStop : CirclePlay}
      disabled={!runs && !spark}
      title={spark ? undefined : NO_SPARK}
      run={() =>
        runs
          ? http.POST("/api/v1/pipelines/{name}/stop", { params })
          : http.POST("/api/v1/pipelines/{name}/start", { params })
      }
      done={runs ? `${name} is stopped` : `${name} is queued`}
      onEdit={onEdit}
      copy={{ method: "POST", path: `/api/v1/pipelines/${encodeURIComponent(name)}/${verb}` }}
    />
  );
}
