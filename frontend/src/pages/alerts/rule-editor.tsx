import { useState } from "react";
import { http, type Schemas, wanted } from "@/api/client";
import type { AlertRule } from "@/api/queries";
import { useAct } from "@/app/act";
import { Button } from "@/ui/button";
import { CopyAs } from "@/ui/copy-as";
import { Dialog } from "@/ui/dialog";
import { Field, Input } from "@/ui/field";
import { Select } from "@/ui/select";
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
    /^[\w-]+(\.[\w-]+)*$/.test(name) &&
    target !== "" &&
    Number.isFinite(Number(threshold)) &&
    Number(forSeconds) >= 0;
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
  return (
    <Dialog
      open
      onOpenChange={(open) => !open && onClose()}
      title={rule ? `Edit ${name}` : "Create a rule"}
      footer={
        <>
          {rule && (
            <Button
              look="danger"
              busy={busy}
              onClick={async () => {
                if (
                  await act(
                    () => http.DELETE("/api/v1/alert-rules/{name}", { params }),
                    `${name} is deleted`,
                  )
                )
                  onClose();
              }}
            >
              Delete
            </Button>
          )}
          <span className="mr-auto">
            <CopyAs
              action={{ method: "PUT", path: `/api/v1/alert-rules/${name || "NAME"}`, body }}
            />
          </span>
          <Button onClick={onClose}>Cancel</Button>
          <Button look="primary" busy={busy} disabled={!ready} onClick={save}>
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
        <Field label="Name" className="col-span-2">
          {(field) => (
            <Input
              {...field}
              autoFocus
              disabled={Boolean(rule)}
              value={name}
              onChange={(event) => setName(event.target.value)}
            />
          )}
        </Field>
        <Field label="Figure">
          {(field) => (
            <Select
              id={field.id}
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
          )}
        </Field>
        <Field label="Of" hint="A name, or a pattern such as md.*">
          {(field) => (
            <Input
              {...field}
              className="font-mono"
              value={target}
              onChange={(event) => setTarget(event.target.value)}
            />
          )}
        </Field>
        <Field label="Is">
          {(field) => (
            <Select
              id={field.id}
              value={comparison ?? "above"}
              onChange={setComparison}
              options={[
                { value: "above", label: "Above" },
                { value: "below", label: "Below" },
              ]}
            />
          )}
        </Field>
        <Field label="Threshold" hint={METRICS[metric].unit}>
          {(field) => (
            <Input
              {...field}
              inputMode="decimal"
              value={threshold}
              onChange={(event) => setThreshold(event.target.value)}
            />
          )}
        </Field>
        <Field label="For, seconds">
          {(field) => (
            <Input
              {...field}
              inputMode="decimal"
              value={forSeconds}
              onChange={(event) => setFor(event.target.value)}
            />
          )}
        </Field>
        <Field label="Severity">
          {(field) => (
            <Select
              id={field.id}
              value={severity ?? "warning"}
              onChange={setSeverity}
              options={[
                { value: "info", label: "Info" },
                { value: "warning", label: "Warning" },
                { value: "critical", label: "Critical" },
              ]}
            />
          )}
        </Field>
        <Field
          label="Webhook"
          hint="Gets a POST when it fires and when it is over"
          className="col-span-2"
        >
          {(field) => (
            <Input
              {...field}
              type="url"
              placeholder="https://"
              value={webhook}
              onChange={(event) => setWebhook(event.target.value)}
            />
          )}
        </Field>
        <button type="submit" hidden aria-hidden tabIndex={-1} />
      </form>
    </Dialog>
  );
}
