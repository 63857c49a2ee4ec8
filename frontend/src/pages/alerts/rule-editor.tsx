import { useState } from "react";
import { http, type Schemas, wanted } from "@/api/client";
import type { AlertRule } from "@/api/queries";
import { useAct } from "@/app/act";
import { isName } from "@/lib/names";
import { Editor } from "@/ui/editor";
import { TextField } from "@/ui/field";
import { SelectField } from "@/ui/select";
import { METRICS, type Metric } from "./metrics";

type Spec = AlertRule["spec"];

export function RuleEditor({
  rule,
  onClose,
}: {
  rule: AlertRule | undefined;
  onClose: () => void;
}) {
  const { busy, act } = useAct();
  const [name, setName] = useState(rule?.metadata.name ?? "");
  const [metric, setMetric] = useState<Metric>(rule?.spec.metric ?? "lag_s");
  const [target, setTarget] = useState(rule?.spec.target ?? ">");
  const [comparison, setComparison] = useState<Spec["comparison"]>(
    rule?.spec.comparison ?? "above",
  );
  const [threshold, setThreshold] = useState(String(rule?.spec.threshold ?? METRICS.lag_s.start));
  const [forSeconds, setFor] = useState(String(rule?.spec.for_s ?? 10));
  const [severity, setSeverity] = useState<Spec["severity"]>(rule?.spec.severity ?? "warning");
  const [webhook, setWebhook] = useState(rule?.spec.webhook ?? "");
  const ready =
    isName(name) && target !== "" && Number.isFinite(Number(threshold)) && Number(forSeconds) >= 0;
  const body = {
    spec: {
      metric,
      target,
      comparison,
      threshold: Number(threshold),
      for_s: Number(forSeconds),
      severity,
      webhook,
      enabled: rule?.spec.enabled ?? true,
    },
  };
  const params = { path: { name } };
  const path = `/api/v1/alert-rules/${encodeURIComponent(name || "NAME")}`;
  const save = async () => {
    if (
      await act(
        () =>
          http.PUT("/api/v1/alert-rules/{name}", {
            params,
            body: wanted<Schemas["AlertRuleInput"]>(body),
          }),
        `${name} is saved`,
      )
    )
      onClose();
  };
  const remove = async () => {
    await http.DELETE("/api/v1/alert-rules/{name}", { params });
    await act(async () => undefined, `${name} is deleted`);
    onClose();
  };
  return (
    <Editor
      title={rule ? `Edit ${name}` : "Create a rule"}
      onClose={onClose}
      action={{ method: "PUT", path, body }}
      ready={ready}
      busy={busy}
      save={save}
      remove={
        rule && {
          name,
          path,
          lead: "It is looked at no more, and what it told is over.",
          run: remove,
        }
      }
    >
      <TextField
        label="Name"
        className="col-span-full"
        autoFocus
        disabled={Boolean(rule)}
        value={name}
        onChange={setName}
      />
      <SelectField
        label="Figure"
        value={metric}
        onChange={(next) => {
          setMetric(next);
          setThreshold(String(METRICS[next].start));
        }}
        options={(Object.keys(METRICS) as Metric[]).map((value) => ({
          value,
          label: METRICS[value].name,
        }))}
      />
      <TextField
        label="Of"
        hint="A name, or a pattern such as md.*"
        mono
        value={target}
        onChange={setTarget}
      />
      <SelectField
        label="Is"
        value={comparison ?? "above"}
        onChange={setComparison}
        options={[
          { value: "above", label: "Above" },
          { value: "below", label: "Below" },
        ]}
      />
      <TextField
        label="Threshold"
        hint={METRICS[metric].unit}
        inputMode="decimal"
        value={threshold}
        onChange={setThreshold}
      />
      <TextField label="For, seconds" inputMode="decimal" value={forSeconds} onChange={setFor} />
      <SelectField
        label="Severity"
        value={severity ?? "warning"}
        onChange={setSeverity}
        options={[
          { value: "info", label: "Info" },
          { value: "warning", label: "Warning" },
          { value: "critical", label: "Critical" },
        ]}
      />
      <TextField
        label="Webhook"
        hint="Gets a POST when it fires and when it is over"
        className="col-span-full"
        type="url"
        placeholder="https://"
        value={webhook}
        onChange={setWebhook}
      />
    </Editor>
  );
}
