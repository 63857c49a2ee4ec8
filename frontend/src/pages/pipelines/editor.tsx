import { useQuery } from "@tanstack/react-query";
import { useDeferredValue, useMemo, useState } from "react";
import { bodyOf, http, type Schemas, wanted } from "@/api/client";
import type { Pipeline, Plan } from "@/api/queries";
import { useAct } from "@/app/act";
import { Button } from "@/ui/button";
import { Confirm } from "@/ui/confirm";
import { CopyAs } from "@/ui/copy-as";
import { Dialog } from "@/ui/dialog";
import { Field, Input } from "@/ui/field";
import { Select } from "@/ui/select";
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
  const [asked, setAsked] = useState(false);
  const params = { path: { name } };
  const path = `/api/v1/pipelines/${encodeURIComponent(name || "NAME")}`;
  const ready = /^[\w-]+(\.[\w-]+)*$/.test(name);
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
  return (
    <Dialog
      open
      onOpenChange={(open) => !open && onClose()}
      title={pipeline ? `Edit ${name}` : "Create a pipeline"}
      lead="A job on Spark, run by its schedule or by hand."
      footer={
        <>
          {pipeline && (
            <Button look="danger" onClick={() => setAsked(true)}>
              Delete
            </Button>
          )}
          <span className="mr-auto">
            <CopyAs action={{ method: "PUT", path, body }} />
          </span>
          <Button onClick={onClose}>Cancel</Button>
          <Button look="primary" busy={busy} disabled={!ready || plan.isError} onClick={save}>
            Save
          </Button>
        </>
      }
    >
      <form
        className="grid grid-cols-2 gap-3 pb-2"
        onSubmit={(event) => {
          event.preventDefault();
          if (ready) save();
        }}
      >
        <Field label="Name">
          {(field) => (
            <Input
              {...field}
              autoFocus
              disabled={Boolean(pipeline)}
              value={name}
              onChange={(event) => setName(event.target.value)}
            />
          )}
        </Field>
        <Field label="Job">
          {(field) => (
            <Select
              id={field.id}
              value={job}
              onChange={setJob}
              options={(Object.keys(JOBS) as Job[]).map((value) => ({
                value,
                label: JOBS[value].name,
                hint: JOBS[value].hint,
              }))}
            />
          )}
        </Field>
        <Field label="Schedule" hint="every 15m, @daily, or cron in UTC: 0 3 * * *; empty: by hand">
          {(field) => (
            <Input
              {...field}
              className="font-mono"
              value={schedule}
              onChange={(event) => setSchedule(event.target.value)}
            />
          )}
        </Field>
        <div className="pt-5">
          <Switch label="Run by its schedule" checked={enabled} onChange={setEnabled} />
        </div>
        {job !== "capacity" && (
          <Field label="Topic" hint={JOBS[job].topic}>
            {(field) => (
              <Input
                {...field}
                className="font-mono"
                value={topic}
                onChange={(event) => setTopic(event.target.value)}
              />
            )}
          </Field>
        )}
        {job === "replay" && (
          <Field label="Archived topic">
            {(field) => (
              <Input
                {...field}
                className="font-mono"
                value={source}
                onChange={(event) => setSource(event.target.value)}
              />
            )}
          </Field>
        )}
        {job === "capacity" && (
          <Field label="Hours to look back">
            {(field) => (
              <Input
                {...field}
                inputMode="numeric"
                value={hours}
                onChange={(event) => setHours(event.target.value)}
              />
            )}
          </Field>
        )}
        <Field label="Stopped after, s">
          {(field) => (
            <Input
              {...field}
              inputMode="numeric"
              value={timeout}
              onChange={(event) => setTimeoutS(event.target.value)}
            />
          )}
        </Field>
        {plan.isError && (
          <div className="col-span-2">
            <Failed error={plan.error} />
          </div>
        )}
        <button type="submit" hidden aria-hidden tabIndex={-1} />
      </form>
      <Confirm
        open={asked}
        onOpenChange={setAsked}
        title={`Delete ${name}?`}
        lead="It runs no more. Archives and rollups that it made stay."
        verb="Delete"
        action={{ method: "DELETE", path }}
        run={async () => {
          await http.DELETE("/api/v1/pipelines/{name}", { params });
          await act(async () => undefined, `${name} is deleted`);
          onClose();
        }}
      />
    </Dialog>
  );
}
