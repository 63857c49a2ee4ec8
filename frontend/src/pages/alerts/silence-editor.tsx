import { useState } from "react";
import { http, type Schemas, wanted } from "@/api/client";
import { useAct } from "@/app/act";
import { Editor } from "@/ui/editor";
import { TextField } from "@/ui/field";
import { SelectField } from "@/ui/select";

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
    <Editor
      title="Silence alerts"
      lead="Webhooks are quiet until then; the alerts still show up."
      onClose={onClose}
      action={{ method: "PUT", path: `/api/v1/silences/${name}`, body: body() }}
      ready={target !== ""}
      busy={busy}
      save={save}
      verb="Silence"
    >
      <TextField label="Rule" hint="Empty: all rules" value={rule} onChange={setRule} />
      <TextField
        label="About"
        hint="A name or a pattern"
        mono
        value={target}
        onChange={setTarget}
      />
      <SelectField label="For" value={minutes} onChange={setMinutes} options={LENGTHS} />
      <TextField label="Reason" autoFocus value={reason} onChange={setReason} />
    </Editor>
  );
}
