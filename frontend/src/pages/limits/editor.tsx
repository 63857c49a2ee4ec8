import { useQuery } from "@tanstack/react-query";
import { useDeferredValue, useMemo, useState } from "react";
import { bodyOf, http, type Schemas, wanted } from "@/api/client";
import type { Plan, RateLimit } from "@/api/queries";
import { useAct } from "@/app/act";
import { bytes, parseAmount } from "@/lib/format";
import { isName } from "@/lib/names";
import { Editor } from "@/ui/editor";
import { TextField } from "@/ui/field";
import { PlanView } from "@/ui/plan";
import { Failed } from "@/ui/states";

/** Empty: says nothing. `none` or 0: no limit. undefined: not an amount. */
export function amountOf(text: string): number | null | undefined {
  if (text.trim() === "") return null;
  if (/^\s*(none|no limit)\s*$/i.test(text)) return 0;
  const amount = parseAmount(text);
  return amount === null ? undefined : Math.round(amount);
}

const textOf = (value: number | null | undefined, format: (value: number) => string = String) =>
  value == null ? "" : value === 0 ? "none" : format(value);

export function PolicyEditor({
  policy,
  onClose,
}: {
  policy: RateLimit | undefined;
  onClose: () => void;
}) {
  const { busy, act } = useAct();
  const [name, setName] = useState(policy?.metadata.name ?? "");
  const [pattern, setPattern] = useState(policy?.spec.pattern ?? "");
  const [priority, setPriority] = useState(String(policy?.spec.priority ?? 0));
  const [packets, setPackets] = useState(textOf(policy?.spec.rate_packets_per_s));
  const [size, setSize] = useState(textOf(policy?.spec.rate_bytes_per_s, bytes));
  const [publisher, setPublisher] = useState(policy?.spec.publisher ?? "");
  const perPackets = amountOf(packets);
  const perBytes = amountOf(size);
  const ready =
    isName(name) &&
    pattern !== "" &&
    perPackets !== undefined &&
    perBytes !== undefined &&
    Number.isInteger(Number(priority));
  const params = { path: { name } };
  const path = `/api/v1/rate-limits/${encodeURIComponent(name || "NAME")}`;
  const body = useMemo(
    () => ({
      spec: {
        pattern,
        publisher,
        priority: Number(priority),
        rate_packets_per_s: perPackets ?? null,
        rate_bytes_per_s: perBytes ?? null,
      },
    }),
    [pattern, publisher, priority, perPackets, perBytes],
  );
  const settled = useDeferredValue(body);
  const put = (dry_run: boolean) =>
    http.PUT("/api/v1/rate-limits/{name}", {
      params: { ...params, query: { dry_run } },
      body: wanted<Schemas["RateLimitInput"]>(body),
    });
  const plan = useQuery({
    queryKey: ["rate-limits", "plan", name, settled],
    queryFn: () => put(true).then((answer) => bodyOf(answer as { data?: Plan })),
    enabled: ready,
    retry: false,
  });
  const save = async () => {
    if (await act(() => put(false), `${name} holds`)) onClose();
  };
  const remove = async () => {
    await http.DELETE("/api/v1/rate-limits/{name}", { params });
    await act(async () => undefined, `${name} is deleted`);
    onClose();
  };
  return (
    <Editor
      title={policy ? `Edit ${name}` : "Create a policy"}
      lead="A limit for each publisher of the topics that match."
      onClose={onClose}
      action={{ method: "PUT", path, body }}
      ready={ready && !plan.isError}
      busy={busy}
      save={save}
      remove={
        policy && {
          name,
          path,
          lead: "What it limited is limited by the next policy that matches, or by nothing.",
          run: remove,
        }
      }
    >
      <TextField
        label="Name"
        autoFocus
        disabled={Boolean(policy)}
        value={name}
        onChange={setName}
      />
      <TextField
        label="Priority"
        hint="-1000 to 1000"
        inputMode="numeric"
        value={priority}
        onChange={setPriority}
      />
      <TextField
        label="Topics"
        hint="* is one part of a name, > the rest: md.*, orders.>"
        mono
        value={pattern}
        onChange={setPattern}
      />
      <TextField
        label="Publishers of node"
        hint="Empty: of all nodes"
        value={publisher}
        onChange={setPublisher}
      />
      <TextField
        label="Packets a second"
        hint="Empty: says nothing; none: no limit"
        error={perPackets === undefined ? "Such as 500, 10k, none" : undefined}
        value={packets}
        onChange={setPackets}
      />
      <TextField
        label="Bytes a second"
        hint="Such as 10 MiB"
        error={perBytes === undefined ? "Such as 10 MiB, 500k, none" : undefined}
        value={size}
        onChange={setSize}
      />
      <div className="col-span-full">
        {plan.isError && <Failed error={plan.error} />}
        {plan.data && <PlanView plan={plan.data} />}
      </div>
    </Editor>
  );
}
