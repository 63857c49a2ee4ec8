import { useQuery } from "@tanstack/react-query";
import { useDeferredValue, useMemo, useState } from "react";
import { bodyOf, http, type Schemas, wanted } from "@/api/client";
import type { Pipeline, Plan } from "@/api/queries";
import { useAct } from "@/app/act";
import { isName } from "@/lib/names";
import { Editor } from "@/ui/editor";
import { TextField } from "@/ui/field";
import { SelectField } from "@/ui/select";
import { Failed } from "@/ui/states";
import { Switch } from "@/ui/switch";

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
    name: "Roll up anew",
    hint: "All rollups again, from what is kept",
    topic: "Telemetry's topic; empty: the platform's own",
  },
  capacity: { name: "Capacity report", hint: "Recommended limits and sizes", topic: "" },
};

export function PipelineEditor({
  pipeline,
  onClose,
}: {
  pipeline: Pipeline | undefined;
  onClose: () => void;
}) {
  const { busy, act } = useAct();
  const was = pipeline?.spec;
  const [name, setName] = useState(pipeline?.metadata.name ?? "");
  const [job, setJob] = useState<Job>(was?.job ?? "rollup");
  const [schedule, setSchedule] = useState(was?.schedule ?? "every 15m");
  const [enabled, setEnabled] = useState(was?.enabled ?? true);
  const [topic, setTopic] = useState(was?.topic ?? "");
  const [source, setSource] = useState(was?.source ?? "");
  const [hours, setHours] = useState(String(was?.hours ?? 168));
  const [timeout, setTimeoutS] = useState(String(was?.timeout_s ?? 3_600));
  const params = { path: { name } };
  const path = `/api/v1/pipelines/${encodeURIComponent(name || "NAME")}`;
  const ready = isName(name);
  const body = useMemo(
    () => ({
      spec: {
        ...was,
        job,
        schedule,
        enabled,
        topic: job === "capacity" ? "" : topic,
        source: job === "replay" ? source : "",
        hours: Number(hours),
        timeout_s: Number(timeout),
      },
    }),
    [was, job, schedule, enabled, topic, source, hours, timeout],
  );
  const settled = useDeferredValue(body);
  const put = (dry_run: boolean) =>
    http.PUT("/api/v1/pipelines/{name}", {
      params: { ...params, query: { dry_run } },
      body: wanted<Schemas["PipelineInput"]>(body),
    });
  const plan = useQuery({
    queryKey: ["pipelines", "plan", name, settled],
    queryFn: () => put(true).then((answer) => bodyOf(answer as { data?: Plan })),
    enabled: ready,
    retry: false,
  });
  const save = async () => {
    if (await act(() => put(false), `${name} is saved`)) onClose();
  };
  const remove = async () => {
    await http.DELETE("/api/v1/pipelines/{name}", { params });
    await act(async () => undefined, `${name} is deleted`);
    onClose();
  };
  return (
    <Editor
      title={pipeline ? `Edit ${name}` : "Create a pipeline"}
      lead="A job on Spark, run by its schedule or by hand."
      onClose={onClose}
      action={{ method: "PUT", path, body }}
      ready={ready && !plan.isError}
      busy={busy}
      save={save}
      remove={
        pipeline && {
          name,
          path,
          lead: "It runs no more. Archives and rollups that it made stay.",
          run: remove,
        }
      }
    >
      <TextField
        label="Name"
        autoFocus
        disabled={Boolean(pipeline)}
        value={name}
        onChange={setName}
      />
      <SelectField
        label="Job"
        value={job}
        onChange={setJob}
        options={(Object.keys(JOBS) as Job[]).map((value) => ({
          value,
          label: JOBS[value].name,
          hint: JOBS[value].hint,
        }))}
      />
      <TextField
        label="Schedule"
        hint="every 15m, @daily, or cron in UTC: 0 3 * * *; empty: by hand"
        mono
        value={schedule}
        onChange={setSchedule}
      />
      <div className="pt-5">
        <Switch label="Run by its schedule" checked={enabled} onChange={setEnabled} />
      </div>
      {job !== "capacity" && (
        <TextField label="Topic" hint={JOBS[job].topic} mono value={topic} onChange={setTopic} />
      )}
      {job === "replay" && (
        <TextField label="Archived topic" mono value={source} onChange={setSource} />
      )}
      {job === "capacity" && (
        <TextField
          label="Hours to look back"
          inputMode="numeric"
          value={hours}
          onChange={setHours}
        />
      )}
      <TextField
        label="Stopped after, s"
        inputMode="numeric"
        value={timeout}
        onChange={setTimeoutS}
      />
      {plan.isError && (
        <div className="col-span-full">
          <Failed error={plan.error} />
        </div>
      )}
    </Editor>
  );
}
