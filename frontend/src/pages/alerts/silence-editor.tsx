import { useState } from "react";
import { http, type Schemas, wanted } from "@/api/client";
import { useAct } from "@/app/act";
import { Button } from "@/ui/button";
import { CopyAs } from "@/ui/copy-as";
import { Dialog } from "@/ui/dialog";
import { Field, Input } from "@/ui/field";
import { Select } from "@/ui/select";

const LENGTHS = [
  { value: "15", label: "15 minutes" },
  { value: "60", label: "An hour" },
  { value: "480", label: "8 hours" },
  { value: "1440", label: "A day" },
] as const;

export function SilenceEditor({
  rule: about,
  target: of,
  onClose,
}: {
  rule: string;
  target: string;
  onClose: () => void;
}) {
  const { busy, act } = useAct();
  const [rule, setRule] = useState(about);
  const [target, setTarget] = useState(of);
  const [minutes, setMinutes] = useState<(typeof LENGTHS)[number]["value"]>("60");
  const [reason, setReason] = useState("");
  const [name] = useState(() => `silence-${Date.now().toString(36)}`);
  const body = () => ({
    spec: {
      rule,
      target,
      reason,
      until: new Date(Date.now() + Number(minutes) * 60_000).toISOString(),
    },
  });
  const save = async () => {
    const saved = await act(
      () =>
        http.PUT("/api/v1/silences/{name}", {
          params: { path: { name } },
          body: wanted<Schemas["SilenceInput"]>(body()),
        }),
      "Silenced",
    );
    if (saved) onClose();
  };
  return (
    <Dialog
      open
      onOpenChange={(open) => !open && onClose()}
      title="Silence alerts"
      lead="Webhooks are quiet until then; the alerts still show up."
      footer={
        <>
          <span className="mr-auto">
            <CopyAs action={{ method: "PUT", path: `/api/v1/silences/${name}`, body: body() }} />
          </span>
          <Button onClick={onClose}>Cancel</Button>
          <Button look="primary" busy={busy} disabled={!target} onClick={save}>
            Silence
          </Button>
        </>
      }
    >
      <form
        className="grid grid-cols-2 gap-3 pb-2"
        onSubmit={(event) => {
          event.preventDefault();
          save();
        }}
      >
        <Field label="Rule" hint="Empty: all rules">
          {(field) => (
            <Input {...field} value={rule} onChange={(event) => setRule(event.target.value)} />
          )}
        </Field>
        <Field label="About" hint="A name or a pattern">
          {(field) => (
            <Input
              {...field}
              className="font-mono"
              value={target}
              onChange={(event) => setTarget(event.target.value)}
            />
          )}
        </Field>
        <Field label="For">
          {(field) => (
            <Select id={field.id} value={minutes} onChange={setMinutes} options={LENGTHS} />
          )}
        </Field>
        <Field label="Reason">
          {(field) => (
            <Input
              {...field}
              autoFocus
              value={reason}
              onChange={(event) => setReason(event.target.value)}
            />
          )}
        </Field>
        <button type="submit" hidden aria-hidden tabIndex={-1} />
      </form>
    </Dialog>
  );
}
