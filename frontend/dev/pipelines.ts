// What the fixture platform says of history, pipelines and capacity.
import { iso, type Row, resource } from "./fixtures";

const RUN = {
  id: "5b1e0d5e-0000-4000-8000-000000000001",
  pipeline: "rollup",
  job: "rollup",
  trigger: "schedule",
  requested_by: "",
  state: "done",
  exit_code: 0,
  error: "",
  rows: "41230",
  duration_s: 38.2,
  cli: "tidecast pipeline rollup --out rollups",
  report: { samples: 41_230, minutes: 15 },
};

export function history(url: URL, nowMs: number) {
  const from = Date.parse(url.searchParams.get("from") ?? "") || nowMs - 86_400_000;
  const span = (nowMs - from) / 1000;
  const step = span > 10 * 86_400 ? 14_400 : span > 2 * 86_400 ? 3_600 : 300;
  const first = Math.floor(from / 1000 / step) * step;
  const at_s = Array.from({ length: Math.floor(span / step) }, (_, at) => first + at * step);
  const day = (seconds: number) => Math.sin((seconds / 86_400) * 2 * Math.PI);
  return {
    scope: url.searchParams.get("scope"),
    name: url.searchParams.get("name"),
    step_s: step,
    source: step % 3_600 ? "minute" : "hour",
    at_s,
    series: url.searchParams.getAll("metric").map((metric, line) => ({
      metric,
      unit: "",
      // A night without measurements is a hole.
      values: at_s.map((at) =>
        at % 86_400 < 7_200
          ? null
          : (1.4 + day(at - line * 4_000)) * (metric.match(/ratio|fill/) ? 0.02 : 900),
      ),
    })),
    rolled_up_until: iso(nowMs - 90_000),
    empty: null,
  };
}

export const pipelines = (nowMs: number): Row[] => {
  const run = (more: Row) => ({
    ...RUN,
    queued_at: iso(nowMs - 400_000),
    started_at: iso(nowMs - 399_000),
    finished_at: iso(nowMs - 360_800),
    ...more,
  });
  const spec = { topic: "", source: "", archive: "archive", rollups: "rollups", timeout_s: 3_600 };
  return [
    resource(
      "pipeline",
      "rollup",
      { ...spec, job: "rollup", enabled: true, schedule: "every 15m" },
      { state: "idle", next_run_at: iso(nowMs + 420_000), last_run: run({}) },
    ),
    resource(
      "pipeline",
      "archive-orders",
      { ...spec, job: "archive", enabled: true, schedule: "@daily", topic: "orders.>" },
      {
        state: "idle",
        next_run_at: iso(nowMs + 30_000_000),
        last_run: run({
          id: "5b1e0d5e-0000-4000-8000-000000000002",
          pipeline: "archive-orders",
          job: "archive",
          state: "failed",
          rows: null,
          error: "no space left",
        }),
      },
    ),
  ];
};

export const runs = (nowMs: number): Row[] =>
  pipelines(nowMs).map((one) => (one.status as Row).last_run as Row);

export const capacity = (nowMs: number) => ({
  run: RUN.id,
  made_at: iso(nowMs - 7_200_000),
  items: [
    {
      topic: "md.us.equities",
      spec: { rate_bytes_per_s: 50_331_648, history_bytes: 100_663_296 },
      reasons: [
        "rate_bytes_per_s: 99 % of all minutes stayed below 36,000,000 bytes/s; 1.3 times that",
        "history_bytes: 2 s at the peak, 4,194,304 at least",
      ],
      peak_messages_per_s: 181_000,
      peak_bytes_per_s: 36_000_000,
    },
  ],
  mend: "",
});
