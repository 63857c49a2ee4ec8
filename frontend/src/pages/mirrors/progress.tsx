import { useQuery } from "@tanstack/react-query";
import { ChartLine } from "lucide-react";
import { useMemo } from "react";
import { type Mirror, mirrorProgressQuery } from "@/api/queries";
import { HistoryChart } from "@/charts/history-chart";
import { exact, rate } from "@/lib/format";
import { dateTime, useZone } from "@/lib/time";
import { Card } from "@/ui/card";
import { CopyAs } from "@/ui/copy-as";
import { Empty, Failed } from "@/ui/states";
import { type Column, Table } from "@/ui/table";
import { endsOf, MirrorState } from "./mirrors";

type Queue = Mirror["status"]["queues"][number];
type Event = Mirror["status"]["events"][number];

const QUEUES: Column<Queue>[] = [
  { id: "source", head: "Queue", cell: (row) => row.source },
  { id: "position", head: "Copied to", right: true, cell: (row) => exact(row.position) },
  { id: "durable", head: "Durable to", right: true, cell: (row) => exact(row.durable) },
  { id: "end", head: "End of the source", right: true, cell: (row) => exact(row.end) },
];

/** How far a mirror is, its rate of the last minutes, and what happened. */
export function MirrorProgress({ mirror }: { mirror: Mirror }) {
  const name = mirror.metadata.name;
  const { status } = mirror;
  const zone = useZone();
  const events: Column<Event>[] = [
    { id: "at", head: "Time", cell: (row) => dateTime(row.at, zone) },
    { id: "event", head: "Event", cell: (row) => row.event },
    { id: "text", head: "What", width: "60%", cell: (row) => row.text },
  ];
  return (
    <Card
      title={`Progress of ${name}`}
      actions={
        <CopyAs
          small
          action={{
            method: "GET",
            path: `/api/v1/mirrors/${encodeURIComponent(name)}`,
            cli: `tidecast mirror show ${name} --control ${location.origin}`,
          }}
        />
      }
    >
      <div className="flex flex-col gap-3">
        <p className="flex flex-wrap items-center gap-x-3 gap-y-1 text-sm">
          <MirrorState mirror={mirror} />
          <span className="font-mono text-xs">{endsOf(mirror).join(" → ")}</span>
          <span data-testid="mirror-records">{exact(status.records)} copied</span>
          <span data-testid="mirror-lag">{exact(status.lag)} to copy</span>
          {status.gone !== "0" && <span>{exact(status.gone)} gone</span>}
          {status.left_out !== "0" && <span>{exact(status.left_out)} left out</span>}
          {status.failures > 0 && <span>{exact(status.failures)} failures</span>}
        </p>
        {status.error && <p className="text-bad text-sm">{status.error}</p>}
        <Plot name={name} />
        <Table
          label="Queues"
          columns={QUEUES}
          rows={status.queues}
          rowKey={(row) => String(row.source)}
        />
        {status.events.length > 0 && (
          <Table
            label="Events"
            columns={events}
            rows={status.events}
            rowKey={(row) => `${row.at} ${row.event} ${row.text}`}
          />
        )}
      </div>
    </Card>
  );
}

function Plot({ name }: { name: string }) {
  const query = useQuery(mirrorProgressQuery(name));
  const found = query.data;
  const lines = useMemo(
    () => [{ label: "records/s", tint: 1, values: found?.rate ?? [] }],
    [found?.rate],
  );
  if (query.isError) return <Failed error={query.error} retry={query.refetch} />;
  if (!found?.at_s.length)
    return (
      <Empty icon={ChartLine} title="No rate yet">
        The chart shows the rate while the mirror copies.
      </Empty>
    );
  return (
    <HistoryChart
      label={`Rate of ${name}`}
      atS={found.at_s}
      stepS={1}
      lines={lines}
      format={rate}
      height={140}
    />
  );
}
