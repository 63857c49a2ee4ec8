import type { Schemas } from "@/api/client";
import type { Pipeline } from "@/api/queries";
import { codecs, type Draft, type FormField } from "@/forms/fields";
import { ResourceEditor } from "@/forms/resource-editor";

type Job = Schemas["PipelineSpec"]["job"];

const JOBS: Record<Job, { name: string; hint: string; topic: string }> = {
  archive: { name: "Archive", hint: "Topics to Parquet files", topic: "Topic or pattern" },
  replay: { name: "Replay", hint: "Parquet files to a topic", topic: "To topic" },
  rollup: {
    name: "Roll up",
    hint: "Telemetry by minute and hour: history charts",
    topic: "Telemetry's topic; empty: the platform's own",
  },
  backfill: {
    name: "Roll up again",
    hint: "All rollups again, from the telemetry that is stored",
    topic: "Telemetry's topic; empty: the platform's own",
  },
  capacity: { name: "Capacity report", hint: "Recommended limits and sizes", topic: "" },
};

const FRESH: Partial<Pipeline["spec"]> = {
  job: "rollup",
  schedule: "every 15m",
  enabled: true,
  topic: "",
  source: "",
  archive: "archive",
  rollups: "rollups",
  since: "",
  until: "",
  rate: 0,
  hours: 168,
  timeout_s: 3_600,
};

const jobOf = (draft: Draft) => draft["spec.job"] as Job;
const of =
  (...jobs: Job[]) =>
  (draft: Draft) =>
    jobs.includes(jobOf(draft));

const FIELDS: readonly FormField[] = [
  {
    at: "spec.job",
    label: "Job",
    codec: codecs.text,
    as: "choice",
    options: (Object.keys(JOBS) as Job[]).map((value) => ({
      value,
      label: JOBS[value].name,
      hint: JOBS[value].hint,
    })),
  },
  {
    at: "spec.schedule",
    label: "Schedule",
    hint: "every 15m, @daily, or cron in UTC: 0 3 * * *; empty: by hand",
    codec: codecs.text,
    mono: true,
  },
  { at: "spec.enabled", label: "Run by its schedule", codec: codecs.flag, as: "switch" },
  {
    at: "spec.topic",
    label: "Topic",
    hint: (draft) => JOBS[jobOf(draft)]?.topic ?? "",
    codec: codecs.text,
    mono: true,
    when: of("archive", "replay", "rollup", "backfill"),
  },
  {
    at: "spec.source",
    label: "Archived topic",
    codec: codecs.text,
    mono: true,
    when: of("replay"),
  },
  {
    at: "spec.hours",
    label: "Look back (hours)",
    codec: codecs.integer,
    when: of("capacity"),
  },
  { at: "spec.timeout_s", label: "Timeout (seconds)", codec: codecs.number },
  {
    at: "spec.archive",
    label: "Archive directory",
    codec: codecs.text,
    mono: true,
    advanced: true,
    when: of("archive", "replay"),
  },
  {
    at: "spec.rollups",
    label: "Rollup directory",
    codec: codecs.text,
    mono: true,
    advanced: true,
    when: of("rollup", "backfill", "capacity"),
  },
  {
    at: "spec.since",
    label: "Since",
    hint: "UTC, such as 2026-01-31 or 2026-01-31T12:00:00Z",
    codec: codecs.text,
    advanced: true,
    when: of("replay"),
  },
  {
    at: "spec.until",
    label: "Until",
    hint: "UTC; empty: to the end",
    codec: codecs.text,
    advanced: true,
    when: of("replay"),
  },
  {
    at: "spec.rate",
    label: "Rows/s",
    hint: "0: unlimited",
    codec: codecs.integer,
    advanced: true,
    when: of("replay"),
  },
];

export function PipelineEditor({ name, onClose }: { name?: string; onClose: () => void }) {
  return (
    <ResourceEditor
      kind="pipeline"
      name={name}
      lead="A job on Spark, run by its schedule or by hand."
      fields={FIELDS}
      fresh={FRESH}
      deleting="It no longer runs. Its archives and rollups are kept."
      onClose={onClose}
    />
  );
}
