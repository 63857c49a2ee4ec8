import { zodResolver } from "@hookform/resolvers/zod";
import { useQuery } from "@tanstack/react-query";
import { useNavigate } from "@tanstack/react-router";
import { type ReactNode, useEffect, useMemo, useState } from "react";
import { Controller, useForm } from "react-hook-form";
import { ApiError, bodyOf, etag, http, type Schemas, wanted } from "@/api/client";
import { type Plan, type Topic, transportsQuery } from "@/api/queries";
import { useAct } from "@/app/act";
import { Button } from "@/ui/button";
import { CopyAs } from "@/ui/copy-as";
import { Dialog } from "@/ui/dialog";
import { Field, Input, TextArea } from "@/ui/field";
import { PlanView } from "@/ui/plan";
import { Select } from "@/ui/select";
import { Failed } from "@/ui/states";
import { Switch } from "@/ui/switch";
import { bodyOfForm, FRESH, formOf, type TopicForm, topicForm } from "./form";

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

export function TopicEditor({ topic, onClose }: { topic?: Topic; onClose: () => void }) {
  const navigate = useNavigate();
  const { busy, act } = useAct();
  const transports = useQuery(transportsQuery).data?.items ?? [];
  const form = useForm<TopicForm>({
    resolver: zodResolver(topicForm),
    defaultValues: topic ? formOf(topic) : FRESH,
    mode: "onChange",
  });
  const values = form.watch();
  const valid = topicForm.safeParse(values).success;
  const { plan, error, body } = usePreview(values, valid, topic);
  const taken = !topic && plan?.action === "update";
  const path = `/api/v1/topics/${encodeURIComponent(values.name || "NAME")}`;

  const save = form.handleSubmit(async (filled) => {
    const saved = await act(
      () =>
        http.PUT("/api/v1/topics/{name}", {
          params: {
            path: { name: filled.name },
            header: topic
              ? { "if-match": etag(topic.metadata.generation) }
              : { "if-none-match": "*" },
          },
          body: wanted<Schemas["TopicInput"]>(body),
        }),
      topic ? `${filled.name} is saved` : `${filled.name} is created`,
    );
    if (!saved) return;
    if (topic) onClose();
    else navigate({ to: "/topics/$name", params: { name: filled.name } });
  });

  const pick = (name: keyof typeof CHOICES, label: string) => (
    <Controller
      control={form.control}
      name={name}
      render={({ field }) => (
        <Field label={label}>
          {(props) => (
            <Select
              id={props.id}
              value={field.value}
              onChange={field.onChange}
              options={CHOICES[name] as never}
            />
          )}
        </Field>
      )}
    />
  );
  const text = (name: keyof TopicForm, label: string, hint?: ReactNode, mono?: boolean) => (
    <Field label={label} hint={hint} error={form.formState.errors[name]?.message}>
      {(props) => (
        <Input
          {...props}
          {...form.register(name)}
          className={mono ? "font-mono" : ""}
          disabled={name === "name" && Boolean(topic)}
        />
      )}
    </Field>
  );

  return (
    <Dialog
      open
      onOpenChange={(open) => !open && onClose()}
      shape="sheet"
      title={topic ? `Edit ${topic.metadata.name}` : "Create a topic"}
      lead={
        topic
          ? "The preview says what each change costs."
          : "Everything but the name has a good default."
      }
      footer={
        <>
          <span className="mr-auto">
            <CopyAs action={{ method: "PUT", path, body }} />
          </span>
          <Button onClick={onClose}>Cancel</Button>
          <Button
            look={plan?.impact === "data_loss" ? "danger" : "primary"}
            busy={busy}
            disabled={!valid || taken || plan?.action === "none" || error !== null}
            onClick={save}
          >
            {topic ? "Save" : "Create topic"}
          </Button>
        </>
      }
    >
      <form className="flex flex-col gap-3.5 pb-2" onSubmit={save}>
        {text(
          "name",
          "Name",
          taken ? undefined : "Parts joined by dots, such as md.eu.equities",
          true,
        )}
        {taken && <p className="-mt-2.5 text-bad text-xs">A topic of this name exists.</p>}
        <div className="grid grid-cols-2 gap-3">
          {pick("mode", "Mode")}
          <Controller
            control={form.control}
            name="transport"
            render={({ field }) => (
              <Field label="Transport">
                {(props) => (
                  <Select
                    id={props.id}
                    value={field.value || "default"}
                    onChange={(value) => field.onChange(value === "default" ? "" : value)}
                    options={[
                      {
                        value: "default",
                        label: "First one",
                        hint: transports[0]?.metadata.name ?? "",
                      },
                      ...transports.map((one) => ({
                        value: one.metadata.name,
                        label: one.metadata.name,
                        hint: one.spec.kind ?? "",
                      })),
                    ]}
                  />
                )}
              </Field>
            )}
          />
          {pick("reliability", "Reliability")}
          {pick("flow", "Flow control")}
          {pick("on_full", "When the ring is full")}
          {text("history", "History ring", "Send buffer and repairs")}
          {text("ratePackets", "Limit, packets/s", "Empty: by policy; 0: none")}
          {text("rateBytes", "Limit, bytes/s", "Empty: by policy; 0: none")}
          {values.mode === "durable" && text("queues", "Queues", "Partitions; may only grow")}
          {values.mode === "durable" && pick("fsync", "Sync to disk")}
          {text("labels", "Labels", "team=risk, tier=1")}
          {text("owner", "Owner")}
        </div>
        <Field label="Description">
          {(props) => (
            <TextArea {...props} {...form.register("description")} rows={2} className="font-sans" />
          )}
        </Field>
        <Controller
          control={form.control}
          name="protected"
          render={({ field }) => (
            <Switch
              label="Protect against deletion"
              checked={field.value}
              onChange={field.onChange}
            />
          )}
        />
        {error !== null && <Failed error={error instanceof ApiError ? error : String(error)} />}
        {plan && !taken && <PlanView plan={plan} />}
        <button type="submit" hidden aria-hidden tabIndex={-1} />
      </form>
    </Dialog>
  );
}
