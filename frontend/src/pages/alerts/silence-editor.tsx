import { useMemo, useState } from "react";
import { codecs, type FormField } from "@/forms/fields";
import { ResourceEditor } from "@/forms/resource-editor";

const MINUTES_MS = 60_000;

const FIELDS: readonly FormField[] = [
  { at: "spec.rule", label: "Rule", hint: "Empty: all rules", codec: codecs.text },
  {
    at: "spec.target",
    label: "Target",
    hint: "A name or a pattern",
    codec: codecs.text,
    mono: true,
    required: true,
  },
  {
    at: "spec.until",
    label: "For",
    // Chosen as a length; sent as its end.
    codec: {
      show: () => "60",
      read: (minutes) => ({
        value: new Date(Date.now() + Number(minutes) * MINUTES_MS).toISOString(),
      }),
    },
    as: "choice",
    options: [
      { value: "15", label: "15 minutes" },
      { value: "60", label: "An hour" },
      { value: "480", label: "8 hours" },
      { value: "1440", label: "A day" },
    ],
  },
  { at: "spec.reason", label: "Reason", codec: codecs.text },
];

export function SilenceEditor({
  rule,
  target,
  onClose,
}: {
  rule: string;
  target: string;
  onClose: () => void;
}) {
  const [newName] = useState(() => `silence-${Date.now().toString(36)}`);
  const fresh = useMemo(() => ({ rule, target, reason: "" }), [rule, target]);
  return (
    <ResourceEditor
      kind="silence"
      newName={newName}
      title="Silence alerts"
      lead="Webhooks are not called until then; the alerts are still listed."
      create="Silence"
      fields={FIELDS}
      fresh={fresh}
      onClose={onClose}
    />
  );
}
