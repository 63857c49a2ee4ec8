import { useNavigate } from "@tanstack/react-router";
import { useMemo } from "react";
import type { Subscription } from "@/api/queries";
import { codecs, type FormField } from "@/forms/fields";
import { ResourceEditor } from "@/forms/resource-editor";

const FRESH: Partial<Subscription["spec"]> = {
  topic: "",
  start: { at: "earliest" },
  filter: "",
  ack_wait_s: 30,
  max_deliver: 5,
  max_in_flight: 500,
  dead_letter: "",
};

const START: FormField = {
  at: "spec.start.at",
  label: "Start",
  codec: codecs.text,
  as: "choice",
  options: [
    { value: "earliest", label: "Earliest", hint: "All stored messages" },
    { value: "latest", label: "Latest", hint: "New messages only" },
  ],
};

const FIELDS: readonly FormField[] = [
  {
    at: "spec.topic",
    label: "Topic",
    hint: "A durable topic, or a pattern such as orders.*",
    codec: codecs.text,
    offers: "topics",
    wide: true,
    required: true,
  },
  {
    at: "spec.ack_wait_s",
    label: "Ack wait (seconds)",
    hint: "A message that is not acked in this time is delivered again",
    codec: codecs.number,
  },
  {
    at: "spec.max_deliver",
    label: "Max deliveries",
    hint: "Per message; 0: unlimited",
    codec: codecs.integer,
  },
  {
    at: "spec.max_in_flight",
    label: "Max in flight",
    hint: "Unacknowledged messages per consumer",
    codec: codecs.integer,
  },
  {
    at: "spec.dead_letter",
    label: "Dead letters to",
    hint: "A topic; empty: none",
    codec: codecs.text,
    mono: true,
  },
  {
    at: "spec.filter",
    label: "Filter",
    hint: 'Such as key.startswith("eu.") and size < 1000; it cannot be changed later',
    codec: codecs.text,
    mono: true,
    wide: true,
    fixed: true,
  },
];

export function SubscriptionEditor({ name, onClose }: { name?: string; onClose: () => void }) {
  const navigate = useNavigate();
  const fields = useMemo(() => (name ? FIELDS : [START, ...FIELDS]), [name]);
  return (
    <ResourceEditor
      kind="subscription"
      name={name}
      lead="A named consumer of a durable topic."
      fields={fields}
      fresh={FRESH}
      onClose={onClose}
      onSaved={(saved) => {
        onClose();
        navigate({ to: "/subscriptions/$name", params: { name: saved } });
      }}
    />
  );
}
