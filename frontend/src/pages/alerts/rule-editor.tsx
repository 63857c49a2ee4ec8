import type { AlertRule } from "@/api/queries";
import { codecs, type Draft, type FormField } from "@/forms/fields";
import { ResourceEditor } from "@/forms/resource-editor";
import { METRICS, type Metric } from "./metrics";

const FRESH: Partial<AlertRule["spec"]> = {
  metric: "lag_s",
  target: ">",
  comparison: "above",
  threshold: METRICS.lag_s.start,
  for_s: 10,
  severity: "warning",
  webhook: "",
  webhook_secret: "",
};

const FIELDS: readonly FormField[] = [
  {
    at: "spec.metric",
    label: "Metric",
    codec: codecs.text,
    as: "choice",
    options: (Object.keys(METRICS) as Metric[]).map((value) => ({
      value,
      label: METRICS[value].name,
    })),
    follow: (metric) => ({ "spec.threshold": String(METRICS[metric as Metric].start) }),
  },
  {
    at: "spec.target",
    label: "Target",
    hint: "A name, or a pattern such as md.*",
    codec: codecs.text,
    mono: true,
    required: true,
  },
  {
    at: "spec.comparison",
    label: "Condition",
    codec: codecs.text,
    as: "choice",
    options: [
      { value: "above", label: "Above" },
      { value: "below", label: "Below" },
    ],
  },
  {
    at: "spec.threshold",
    label: "Threshold",
    hint: (draft: Draft) => METRICS[draft["spec.metric"] as Metric]?.unit ?? "",
    codec: codecs.number,
  },
  { at: "spec.for_s", label: "For (seconds)", codec: codecs.number },
  {
    at: "spec.severity",
    label: "Severity",
    codec: codecs.text,
    as: "choice",
    options: [
      { value: "info", label: "Info" },
      { value: "warning", label: "Warning" },
      { value: "critical", label: "Critical" },
    ],
  },
  {
    at: "spec.webhook",
    label: "Webhook",
    hint: "Called when an alert fires and when it resolves",
    codec: codecs.text,
    wide: true,
    placeholder: "https://",
  },
  {
    at: "spec.webhook_secret",
    label: "Webhook secret",
    hint: "Signs the calls: whsec_...; a stored secret is shown masked",
    codec: codecs.text,
    mono: true,
    advanced: true,
    wide: true,
  },
];

export function RuleEditor({ name, onClose }: { name?: string; onClose: () => void }) {
  return (
    <ResourceEditor
      kind="alert_rule"
      name={name}
      fields={FIELDS}
      fresh={FRESH}
      deleting="The rule is no longer evaluated; its open alerts are resolved."
      onClose={onClose}
    />
  );
}
