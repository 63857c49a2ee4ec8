import { useNavigate } from "@tanstack/react-router";
import { useState } from "react";
import { http, type Schemas, wanted } from "@/api/client";
import type { Subscription } from "@/api/queries";
import { useAct } from "@/app/act";
import { useTopicNames } from "@/app/topic-names";
import { isName } from "@/lib/names";
import { Editor } from "@/ui/editor";
import { Field, Input, TextField } from "@/ui/field";
import { SelectField } from "@/ui/select";

type Start = "earliest" | "latest";

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
  const valid = isName(name) && topic.length > 0 && Number(ackWait) > 0 && Number(inFlight) >= 1;
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
    <Editor
      title={subscription ? `Edit ${name}` : "Create a subscription"}
      lead="A named consumer of a durable topic."
      onClose={onClose}
      action={{ method: "PUT", path, body }}
      ready={valid}
      busy={busy}
      save={save}
      verb={subscription ? "Save" : "Create"}
    >
      <TextField
        label="Name"
        className="col-span-full"
        autoFocus
        disabled={Boolean(subscription)}
        mono
        value={name}
        onChange={setName}
      />
      <Field
        label="Topic"
        hint="A durable topic, or a pattern such as orders.*"
        className="col-span-full"
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
        <SelectField
          label="Start"
          value={start}
          onChange={setStart}
          options={[
            { value: "earliest", label: "Earliest", hint: "All that is kept" },
            { value: "latest", label: "Latest", hint: "From now on" },
          ]}
        />
      )}
      <TextField
        label="Ack wait, s"
        hint="Then it is delivered again"
        inputMode="decimal"
        value={ackWait}
        onChange={setAckWait}
      />
      <TextField
        label="Deliveries, at most"
        hint="0: for ever"
        inputMode="numeric"
        value={deliverMax}
        onChange={setDeliverMax}
      />
      <TextField
        label="In flight, at most"
        hint="A member's credit"
        inputMode="numeric"
        value={inFlight}
        onChange={setInFlight}
      />
      <TextField
        label="Dead letters to"
        hint="A topic; empty: none"
        mono
        value={deadLetter}
        onChange={setDeadLetter}
      />
    </Editor>
  );
}
