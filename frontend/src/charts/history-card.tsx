import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { ChartSpline } from "lucide-react";
import { useMemo, useState } from "react";
import type { Schemas } from "@/api/client";
import { historyPath, historyQuery } from "@/api/queries";
import { byteRate, compact, duration, percent, rate } from "@/lib/format";
import { setPref, usePrefs } from "@/lib/prefs";
import { Card } from "@/ui/card";
import { CopyAs } from "@/ui/copy-as";
import { Segments } from "@/ui/segments";
import { Select } from "@/ui/select";
import { Failed, Loading, Said } from "@/ui/states";
import { HistoryChart } from "./history-chart";

type Scope = Schemas["History"]["scope"];
type Metric = Schemas["HistorySeries"]["metric"];

const RANGES = { "1h": 3_600, "24h": 86_400, "7d": 7 * 86_400, "90d": 90 * 86_400 } as const;
export type Range = keyof typeof RANGES;
const RANGE_NAMES: Record<Range, string> = {
  "1h": "1 h",
  "24h": "24 h",
  "7d": "7 d",
  "90d": "90 d",
};

interface Figure {
  name: string;
  metrics: readonly [Metric, string][];
  format: (value: number) => string;
}

const FIGURES = {
  messages: {
    name: "Messages",
    metrics: [
      ["in_per_s", "in"],
      ["out_per_s", "out"],
    ],
    format: (value) => rate(value),
  },
  bytes: {
    name: "Bytes",
    metrics: [
      ["bytes_in_per_s", "in"],
      ["bytes_out_per_s", "out"],
    ],
    format: (value) => byteRate(value),
  },
  lag: {
    name: "Lag, messages",
    metrics: [
      ["lag_p50", "50 % below"],
      ["lag_p99", "99 % below"],
      ["lag_max", "highest"],
    ],
    format: (value) => compact(value),
  },
  lag_s: {
    name: "Lag, time",
    metrics: [["lag_s_max", "highest"]],
    format: (value) => duration(value),
  },
  resent: {
    name: "Retransmitted",
    metrics: [["retransmit_ratio", "of sent packets"]],
    format: (value) => percent(value),
  },
  cache: {
    name: "Cache fill",
    metrics: [
      ["cache_fill", "mean"],
      ["cache_fill_max", "highest"],
    ],
    format: (value) => percent(value),
  },
  drain: {
    name: "Time to drain",
    metrics: [["drain_s", "longest"]],
    format: (value) => duration(value),
  },
} as const satisfies Record<string, Figure>;
type FigureName = keyof typeof FIGURES;

const FIGURES_OF: Record<Scope, readonly FigureName[]> = {
  topic: ["messages", "bytes", "lag", "lag_s", "resent", "cache"],
  queue: ["messages", "bytes", "lag", "lag_s", "cache"],
  subscription: ["lag", "lag_s", "messages", "drain"],
  node: ["messages", "bytes", "resent", "cache"],
};

/** The hours, days and months before the live minutes, from the rollups of telemetry. */
export function HistoryCard({
  scope,
  name,
  queues = 0,
}: {
  scope: Scope;
  name: string;
  /** Of a durable topic: how many queues it may be looked at by. */
  queues?: number;
}) {
  const [chosen, setChosen] = useState<FigureName>(FIGURES_OF[scope][0] ?? "messages");
  const [queue, setQueue] = useState("all");
  const { historyRange } = usePrefs();
  const range: Range = historyRange in RANGES ? (historyRange as Range) : "24h";
  const about =
    queue === "all" ? { scope, name } : { scope: "queue" as const, name: `${name}:${queue}` };
  const names = FIGURES_OF[about.scope];
  const which = names.includes(chosen) ? chosen : (names[0] ?? "messages");
  const figure: Figure = FIGURES[which];
  const asked = {
    ...about,
    metrics: figure.metrics.map(([metric]) => metric),
    seconds: RANGES[range],
  };
  const query = useQuery(historyQuery(asked));
  const lines = useMemo(
    () =>
      figure.metrics.map(([metric, label], index) => ({
        label,
        tint: [1, 2, 4][index] ?? 1,
        values: query.data?.series.find((one) => one.metric === metric)?.values ?? [],
      })),
    [figure, query.data],
  );
  return (
    <Card
      title="History"
      actions={
        <>
          {queues > 1 && (
            <Select
              label="Queue"
              className="h-7 w-32 text-xs"
              value={queue}
              onChange={setQueue}
              options={[
                { value: "all", label: "All queues" },
                ...Array.from({ length: queues }, (_, at) => ({
                  value: String(at),
                  label: `Queue ${at}`,
                })),
              ]}
            />
          )}
          <Select
            label="Figure"
            className="h-7 w-36 text-xs"
            value={which}
            onChange={setChosen}
            options={names.map((one) => ({ value: one, label: FIGURES[one].name }))}
          />
          <Segments
            label="Time"
            value={range}
            onChange={(next) => setPref("historyRange", next)}
            options={(Object.keys(RANGES) as Range[]).map((one) => ({
              value: one,
              label: RANGE_NAMES[one],
            }))}
          />
          <CopyAs small action={{ method: "GET", path: historyPath(asked) }} />
        </>
      }
    >
      {query.isError ? (
        <Failed error={query.error} retry={query.refetch} />
      ) : query.isPending ? (
        <Loading rows={5} />
      ) : query.data.empty ? (
        <div className="flex items-center gap-3 py-1">
          <ChartSpline aria-hidden className="size-5 shrink-0 text-accent" />
          <div className="text-muted text-sm">
            <p className="font-medium text-ink">No history to show</p>
            <p>
              <Said text={query.data.empty.detail} /> <Said text={query.data.empty.mend} />
            </p>
          </div>
          {query.data.empty.code === "no_rollup" && (
            <Link
              to="/pipelines"
              className="ml-auto shrink-0 rounded font-medium text-accent text-sm hover:underline"
            >
              Pipelines
            </Link>
          )}
        </div>
      ) : (
        <HistoryChart
          label={`${figure.name} of ${about.name}, ${RANGE_NAMES[range]}`}
          atS={query.data.at_s}
          stepS={query.data.step_s}
          lines={lines}
          format={figure.format}
        />
      )}
    </Card>
  );
}
