import { useQuery } from "@tanstack/react-query";
import { useNavigate } from "@tanstack/react-router";
import { useEffect, useMemo, useState } from "react";
import { ApiError, bodyOf, etag, http, type Schemas, wanted } from "@/api/client";
import { type Plan, type Topic, transportsQuery } from "@/api/queries";
import { useAct } from "@/app/act";
import { Editor } from "@/ui/editor";
import { Field, TextArea, TextField } from "@/ui/field";
import { PlanView } from "@/ui/plan";
import { SelectField } from "@/ui/select";
import { Failed } from "@/ui/states";
import { Switch } from "@/ui/switch";
import { bodyOfForm, errorsOf, FRESH, formOf, type TopicForm } from "./form";

const PREVIEW_MS = 250;

const CHOICES = {
  mode: [
    { value: "live", label: "Live", hint: "Memory only: lowest latency" },
    { value: "durable", label: "Durable", hint: "Queues on disk: replay, acks, consumers" },
  ],
  reliability: [
    { value: "reliable", label: "Reliable", hint: "In order, losses repaired" },
    { value: "unordered", label: "Unordered", hint: "Losses repaired, any order" },
    { value: "unreliable", label: "Unreliable", hint: "What is lost stays lost" },
  ],
  flow: [
    { value: "min", label: "Slowest receiver", hint: "min: it holds the publisher back" },
    { value: "max", label: "Fastest receiver", hint: "max: others may fall behind" },
    { value: "rate", label: "Rate limit only", hint: "rate: a laggard gets gaps" },
  ],
  on_full: [
    { value: "block", label: "Block", hint: "The publisher waits" },
    { value: "error", label: "Error", hint: "The publisher is told" },
    { value: "drop", label: "Drop", hint: "Counted, and told as an event" },
  ],
  fsync: [
    { value: "none", label: "None", hint: "As the system likes" },
    { value: "interval", label: "Interval", hint: "Every 50 ms; acks wait" },
    { value: "batch", label: "Every batch", hint: "Slowest, safest" },
  ],
} as const;

/** What the service would do with this form, asked while one types. */
function usePreview(form: TopicForm, valid: boolean, before: Topic | undefined) {
  const [plan, setPlan] = useState<Plan | null>(null);
  const [error, setError] = useState<unknown>(null);
  const body = useMemo(() => bodyOfForm(form, before), [form, before]);
  const key = JSON.stringify([form.name, body]);
  // biome-ignore lint/correctness/useExhaustiveDependencies: the key says it all
  useEffect(() => {
    if (!valid) {
      setPlan(null);
      return;
    }
    let stale = false;
    const timer = setTimeout(async () => {
      try {
        const answer = await http
          .PUT("/api/v1/topics/{name}", {
            params: { path: { name: form.name }, query: { dry_run: true } },
            body: wanted<Schemas["TopicInput"]>(body),
          })
          .then(bodyOf);
        if (stale) return;
        setPlan(answer as unknown as Plan);
        setError(null);
      } catch (caught) {
        if (stale) return;
        setPlan(null);
        setError(caught);
      }
    }, PREVIEW_MS);
    return () => {
      stale = true;
      clearTimeout(timer);
    };
  }, [key, valid]);
  return { plan, error, body };
}

type Text =
  | "history"
  | "ratePackets"
  | "rateBytes"
  | "keeper"
  | "queues"
  | "wireId"
  | "labels"
  | "owner";

export function TopicEditor({ topic, onClose }: { topic?: Topic; onClose: () => void }) {
  const navigate = useNavigate();
  const { busy, act } = useAct();
  const transports = useQuery(transportsQuery).data?.items ?? [];
  const [form, setForm] = useState<TopicForm>(() => (topic ? formOf(topic) : FRESH));
  const set = (next: Partial<TopicForm>) => setForm((before) => ({ ...before, ...next }));
  const errors = errorsOf(form);
  const valid = Object.keys(errors).length === 0;
  const { plan, error, body } = usePreview(form, valid, topic);
  // Only a name whose number another topic has needs one of its own.
  const clash = error instanceof ApiError && error.at("/spec/wire_id") !== undefined;
  const taken = !topic && plan?.action === "update";
  const path = `/api/v1/topics/${encodeURIComponent(form.name || "NAME")}`;

  const save = async () => {
    const saved = await act(
      () =>
        http.PUT("/api/v1/topics/{name}", {
          params: {
            path: { name: form.name },
            header: topic
              ? { "if-match": etag(topic.metadata.generation) }
              : { "if-none-match": "*" },
          },
          body: wanted<Schemas["TopicInput"]>(body),
        }),
      topic ? `${form.name} is saved` : `${form.name} is created`,
    );
    if (!saved) return;
    if (topic) onClose();
    else navigate({ to: "/topics/$name", params: { name: form.name } });
  };

  const pick = <N extends keyof typeof CHOICES>(name: N, label: string) => (
    <SelectField
      label={label}
      value={form[name] as string}
      onChange={(value) => set({ [name]: value })}
      options={CHOICES[name]}
    />
  );
  const text = (name: Text, label: string, hint?: string) => (
    <TextField
      label={label}
      hint={hint}
      error={errors[name]}
      value={form[name]}
      onChange={(value) => set({ [name]: value })}
    />
  );

  return (
    <Editor
      shape="sheet"
      title={topic ? `Edit ${topic.metadata.name}` : "Create a topic"}
      lead={
        topic
          ? "The preview says what each change costs."
          : "Everything but the name has a good default."
      }
      onClose={onClose}
      action={{ method: "PUT", path, body }}
      ready={valid && !taken && plan?.action !== "none" && error === null}
      busy={busy}
      save={save}
      verb={topic ? "Save" : "Create topic"}
      risky={plan?.impact === "data_loss"}
    >
      <TextField
        label="Name"
        hint="Parts joined by dots, such as md.eu.equities"
        error={taken ? "A topic of this name exists." : form.name === "" ? undefined : errors.name}
        className="col-span-full"
        autoFocus
        disabled={Boolean(topic)}
        mono
        value={form.name}
        onChange={(name) => set({ name })}
      />
      {pick("mode", "Mode")}
      <SelectField
        label="Transport"
        value={form.transport || "default"}
        onChange={(value) => set({ transport: value === "default" ? "" : value })}
        options={[
          { value: "default", label: "Default", hint: transports[0]?.metadata.name ?? "" },
          ...transports.map((one) => ({
            value: one.metadata.name,
            label: one.metadata.name,
            hint: one.spec.kind ?? "",
          })),
        ]}
      />
      {pick("reliability", "Reliability")}
      {pick("flow", "Flow control")}
      {pick("on_full", "When the ring is full")}
      {text("history", "History ring", "Send buffer and repairs")}
      {text("ratePackets", "Limit, packets/s", "Empty: by policy; 0: none")}
      {text("rateBytes", "Limit, bytes/s", "Empty: by policy; 0: none")}
      {form.mode === "durable" && text("queues", "Queues", "Partitions; may only grow")}
      {form.mode === "durable" && pick("fsync", "Sync to disk")}
      {form.mode === "durable" &&
        text("keeper", "Queues kept by", "A node; empty: each its own; *: by turns, with a lease")}
      {(clash || form.wireId !== "") &&
        text("wireId", "Number in packets", "1 to 65535; empty: made from the name")}
      {text("labels", "Labels", "team=risk, tier=1")}
      {text("owner", "Owner")}
      <Field label="Description" className="col-span-full">
        {(field) => (
          <TextArea
            {...field}
            rows={2}
            className="font-sans"
            value={form.description}
            onChange={(event) => set({ description: event.target.value })}
          />
        )}
      </Field>
      <div className="col-span-full">
        <Switch
          label="Protect against deletion"
          checked={form.protected}
          onChange={(value) => set({ protected: value })}
        />
      </div>
      {(error !== null || (plan && !taken)) && (
        <div className="col-span-full">
          {error !== null && <Failed error={error instanceof ApiError ? error : String(error)} />}
          {plan && !taken && <PlanView plan={plan} />}
        </div>
      )}
    </Editor>
  );
}
