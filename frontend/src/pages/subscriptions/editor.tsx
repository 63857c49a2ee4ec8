import { useNavigate } from "@tanstack/react-router";
import { useState } from "react";
import { http, type Schemas, wanted } from "@/api/client";
import type { Subscription } from "@/api/queries";
import { useAct } from "@/app/act";
import { useTopicNames } from "@/app/topic-names";
import { Button } from "@/ui/button";
import { CopyAs } from "@/ui/copy-as";
import { Dialog } from "@/ui/dialog";
import { Field, Input } from "@/ui/field";
import { Select } from "@/ui/select";

type Start = "earliest" | "latest";
const NAME = /^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$/;

export function SubscriptionEditor({
  subscription,
  onClose,
}: {
  subscription?: Subscription;
  onClose: () => void;
}) {
  const navigate = useNavigate();
  const { busy, act } = useAct();
  const spec = subscription?.spec;
  const [name, setName] = useState(subscription?.metadata.name ?? "");
  const [topic, setTopic] = useState(spec?.topic ?? "");
  const [start, setStart] = useState<Start>("earliest");
  const [ackWait, setAckWait] = useState(String(spec?.ack_wait_s ?? 30));
  const [deliverMax, setDeliverMax] = useState(String(spec?.deliver_max ?? 5));
  const [inFlight, setInFlight] = useState(String(spec?.in_flight_max ?? 500));
  const [deadLetter, setDeadLetter] = useState(spec?.dead_letter ?? "");
  const names = useTopicNames(topic);
  const valid = NAME.test(name) && topic.length > 0 && Number(ackWait) > 0 && Number(inFlight) >= 1;
  const body = {
    spec: {
      ...spec,
      topic,
      ...(subscription ? {} : { start: { at: start } }),
      ack_wait_s: Number(ackWait),
      deliver_max: Number(deliverMax),
      in_flight_max: Number(inFlight),
      dead_letter: deadLetter,
    },
  };
  const path = `/api/v1/subscriptions/${encodeURIComponent(name || "NAME")}`;
  const save = async () => {
    const saved = await act(
      () =>
        http.PUT("/api/v1/subscriptions/{name}", {
          params: { path: { name } },
          body: wanted<Schemas["SubscriptionInput"]>(body),
        }),
      subscription ? `${name} is saved` : `${name} is created`,
    );
    if (!saved) return;
    onClose();
    navigate({ to: "/subscriptions/$name", params: { name } });
  };
  return (
    <Dialog
      open
      onOpenChange={(open) => !open && onClose()}
      title={subscription ? `Edit ${name}` : "Create a subscription"}
      lead="A named consumer of a durable topic."
      footer={
        <>
          <span className="mr-auto">
            <CopyAs action={{ method: "PUT", path, body }} />
          </span>
          <Button onClick={onClose}>Cancel</Button>
          <Button look="primary" disabled={!valid} busy={busy} onClick={save}>
            {subscription ? "Save" : "Create"}
          </Button>
        </>
      }
    >
      <form
        className="grid grid-cols-2 gap-3 pb-2"
        onSubmit={(event) => {
          event.preventDefault();
          if (valid) save();
        }}
      >
        <Field label="Name" className="col-span-2">
          {(field) => (
            <Input
              {...field}
              autoFocus
              disabled={Boolean(subscription)}
              className="font-mono"
              value={name}
              onChange={(event) => setName(event.target.value)}
            />
          )}
        </Field>
        <Field
          label="Topic"
          hint="A durable topic, or a pattern such as orders.*"
          className="col-span-2"
        >
          {(field) => (
            <>
              <Input
                {...field}
                list="topic-names"
                className="font-mono"
                value={topic}
                onChange={(event) => setTopic(event.target.value)}
              />
              <datalist id="topic-names">
                {names.map((one) => (
                  <option key={one} value={one} />
                ))}
              </datalist>
            </>
          )}
        </Field>
        {!subscription && (
          <Field label="Start">
            {(field) => (
              <Select
                id={field.id}
                value={start}
                onChange={setStart}
                options={[
                  { value: "earliest", label: "Earliest", hint: "All that is kept" },
                  { value: "latest", label: "Latest", hint: "From now on" },
                ]}
              />
            )}
          </Field>
        )}
        <Field label="Ack wait, s" hint="Then it is delivered again">
          {(field) => (
            <Input
              {...field}
              inputMode="decimal"
              value={ackWait}
              onChange={(event) => setAckWait(event.target.value)}
            />
          )}
        </Field>
        <Field label="Deliveries, at most" hint="0: for ever">
          {(field) => (
            <Input
              {...field}
              inputMode="numeric"
              value={deliverMax}
              onChange={(event) => setDeliverMax(event.target.value)}
            />
          )}
        </Field>
        <Field label="In flight, at most" hint="A member's credit">
          {(field) => (
            <Input
              {...field}
              inputMode="numeric"
              value={inFlight}
              onChange={(event) => setInFlight(event.target.value)}
            />
          )}
        </Field>
        <Field label="Dead letters to" hint="A topic; empty: none">
          {(field) => (
            <Input
              {...field}
              className="font-mono"
              value={deadLetter}
              onChange={(event) => setDeadLetter(event.target.value)}
            />
          )}
        </Field>
        <button type="submit" hidden aria-hidden tabIndex={-1} />
      </form>
    </Dialog>
  );
}
