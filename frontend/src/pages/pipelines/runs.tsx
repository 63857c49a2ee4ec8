import { useQuery } from "@tanstack/react-query";
import { ScrollText } from "lucide-react";
import { useState } from "react";
import { type Pipeline, type PipelineRun, runLogQuery, runsQuery } from "@/api/queries";
import { duration, exact } from "@/lib/format";
import { dateTime, useZone } from "@/lib/time";
import { Button } from "@/ui/button";
import { Card } from "@/ui/card";
import { Code, Command } from "@/ui/code";
import { Dialog } from "@/ui/dialog";
import { Empty, Failed, Loading } from "@/ui/states";
import { type Column, Table } from "@/ui/table";
import { RunState } from "./pipelines";

/** The last runs of a pipeline, with what each wrote. */
export function Runs({ pipeline }: { pipeline: Pipeline }) {
  const name = pipeline.metadata.name;
  const zone = useZone();
  const query = useQuery(runsQuery(name));
  const [read, setRead] = useState<PipelineRun | null>(null);
  const columns: Column<PipelineRun>[] = [
    { id: "state", head: "State", cell: (row) => <RunState state={row.state} /> },
    { id: "queued", head: "Queued", cell: (row) => dateTime(row.queued_at, zone) },
    {
      id: "by",
      head: "By",
      cell: (row) => (row.trigger === "schedule" ? "its schedule" : row.requested_by),
    },
    { id: "took", head: "Took", right: true, cell: (row) => duration(row.duration_s) },
    { id: "rows", head: "Rows", right: true, cell: (row) => exact(row.rows) },
    { id: "errors", head: "Left out", right: true, cell: (row) => exact(row.errors) },
    {
      id: "error",
      head: "Error",
      width: "35%",
      cell: (row) => <span className="text-bad text-xs">{row.error}</span>,
    },
    {
      id: "log",
      head: <span className="sr-only">Log</span>,
      cell: (row) => (
        <Button size="sm" look="quiet" icon={ScrollText} onClick={() => setRead(row)}>
          Log
        </Button>
      ),
    },
  ];
  return (
    <Card title={`Runs of ${name}`} flush>
      {query.isError ? (
        <Failed error={query.error} retry={query.refetch} />
      ) : query.isPending ? (
        <Loading rows={3} />
      ) : (
        <Table
          label={`Runs of ${name}`}
          columns={columns}
          rows={query.data.items as PipelineRun[]}
          rowKey={(row) => row.id}
          empty={
            <Empty icon={ScrollText} title="No run yet" className="py-6">
              Run it by hand, or enable its schedule.
            </Empty>
          }
        />
      )}
      {read && <Log run={read} onClose={() => setRead(null)} />}
    </Card>
  );
}

function Log({ run, onClose }: { run: PipelineRun; onClose: () => void }) {
  const query = useQuery(runLogQuery(run.pipeline, run.id, run.state === "running"));
  return (
    <Dialog
      open
      wide
      onOpenChange={(open) => !open && onClose()}
      title={`Log of ${run.pipeline}`}
      lead="The end of its output, also while it runs."
    >
      <div className="flex flex-col gap-3 pb-3">
        {run.cli && <Command text={run.cli} />}
        {query.isError ? (
          <Failed error={query.error} />
        ) : (
          <Code label="Log" text={query.data?.text || "No output yet."} />
        )}
        {run.report != null && <Code label="Report" text={JSON.stringify(run.report, null, 2)} />}
      </div>
    </Dialog>
  );
}
