import { useQueryClient } from "@tanstack/react-query";
import { Check, Gauge, LoaderCircle } from "lucide-react";
import { Slider } from "radix-ui";
import { useEffect, useRef, useState } from "react";
import { bodyOf, http, type Schemas, wanted } from "@/api/client";
import { type Topic, topicQuery } from "@/api/queries";
import { useMay } from "@/app/session";
import { codecs, exactAmount } from "@/forms/fields";
import { byteRate, bytes, compact, percent, rate } from "@/lib/format";
import { positionOf, STEPS, valueAt } from "@/lib/log-scale";
import { useLivePart } from "@/live/store";
import { Badge } from "@/ui/badge";
import { Button } from "@/ui/button";
import { Card } from "@/ui/card";
import { CopyAs } from "@/ui/copy-as";
import { Input } from "@/ui/field";
import { Failed } from "@/ui/states";
import { ThrottleBadge } from "./throttle";

type FieldName = "rate_packets_per_s" | "rate_bytes_per_s";
const SEND_MS = 120;

interface Scale {
  field: FieldName;
  label: string;
  min: number;
  max: number;
  show: (value: number) => string;
}

const SCALES: readonly Scale[] = [
  {
    field: "rate_packets_per_s",
    label: "Packets/s",
    min: 1,
    max: 10_000_000,
    show: (value) => `${compact(value)}/s`,
  },
  {
    field: "rate_bytes_per_s",
    label: "Bytes/s",
    min: 1_000,
    max: 10_000_000_000,
    show: (value) => `${bytes(value)}/s`,
  },
];

/** Limits of each publisher of a topic. They hold on the wire at once. */
export function RateCard({ topic }: { topic: Topic }) {
  const name = topic.metadata.name;
  const may = useMay()("topics:write");
  const client = useQueryClient();
  const live = useLivePart(`topic:${name}`, (data) => data.topic);
  const [pending, setPending] = useState(0);
  const [error, setError] = useState<unknown>(null);
  /** What was set and is not stored yet. */
  const [drafts, setDrafts] = useState<Partial<Record<FieldName, number>>>({});
  const effective = topic.status.effective_rate;
  const settled =
    pending === 0 &&
    Object.keys(drafts).length === 0 &&
    topic.status.observed_generation >= topic.metadata.generation;
  const draft = (field: FieldName, value: number | null) =>
    setDrafts(({ [field]: _, ...others }) =>
      value === null ? others : { ...others, [field]: value },
    );

  const send = async (field: FieldName, value: number | null) => {
    setPending((count) => count + 1);
    setError(null);
    try {
      const changed = await http
        .PATCH("/api/v1/topics/{name}", {
          params: { path: { name } },
          body: wanted<Schemas["MergePatch"]>({ spec: { [field]: value } }),
        })
        .then(bodyOf);
      client.setQueryData(topicQuery(name).queryKey, changed as Topic);
      // What the engines report back comes a moment later.
      setTimeout(() => client.invalidateQueries({ queryKey: topicQuery(name).queryKey }), 600);
    } catch (caught) {
      draft(field, null);
      setError(caught);
      client.invalidateQueries({ queryKey: topicQuery(name).queryKey });
    } finally {
      setPending((count) => count - 1);
    }
  };

  return (
    <Card
      title="Rate limits"
      hint="of each publisher on the wire; readers on its own node are not limited"
      actions={
        <>
          {live && live.throttle !== "none" && <ThrottleBadge live={live} />}
          <Badge tone={settled ? "good" : "info"} icon={settled ? Check : LoaderCircle}>
            {settled ? "applied" : "applying"}
          </Badge>
        </>
      }
    >
      <div className="flex flex-col gap-4">
        {SCALES.map((scale) => (
          <RateRow
            key={scale.field}
            scale={scale}
            own={topic.spec[scale.field] ?? null}
            effective={
              scale.field === "rate_packets_per_s" ? effective.packets_per_s : effective.bytes_per_s
            }
            source={
              scale.field === "rate_packets_per_s"
                ? effective.packets_source
                : effective.bytes_source
            }
            disabled={!may}
            draft={drafts[scale.field] ?? null}
            setDraft={(value) => draft(scale.field, value)}
            send={(value) => send(scale.field, value)}
          />
        ))}
        <p className="text-muted text-xs">
          Limits what a publisher sends to the network. Readers on its own host read its ring and
          are not slowed; the publisher itself waits once its ring is full.
        </p>
        {error !== null && <Failed error={error} />}
        <div className="flex flex-wrap items-center gap-3 border-t pt-2.5 text-muted text-xs">
          <span className="num">
            Now {rate(live?.rates.packets_out, " pkt/s")}, {byteRate(live?.rates.bytes_out)},
            throttled {percent(live?.rates.rate_held)} of the time
          </span>
          {(effective.shadowed ?? []).length > 0 && (
            <span>Overridden: {effective.shadowed?.join(", ")}</span>
          )}
          <span className="ml-auto">
            <CopyAs
              action={{
                method: "PATCH",
                path: `/api/v1/topics/${encodeURIComponent(name)}`,
                body: {
                  spec: {
                    rate_packets_per_s: drafts.rate_packets_per_s ?? topic.spec.rate_packets_per_s,
                    rate_bytes_per_s: drafts.rate_bytes_per_s ?? topic.spec.rate_bytes_per_s,
                  },
                },
              }}
            />
          </span>
        </div>
      </div>
    </Card>
  );
}

const errorOf = (typed: string): string | undefined => {
  const read = codecs.limit.read(typed);
  return "error" in read ? read.error : undefined;
};

interface RowProps {
  scale: Scale;
  own: number | null;
  effective: number;
  source: string;
  disabled: boolean;
  draft: number | null;
  setDraft: (value: number | null) => void;
  send: (value: number | null) => void;
}

function RateRow({ scale, own, effective, source, disabled, draft, setDraft, send }: RowProps) {
  const [typed, setTyped] = useState<string | null>(null);
  const timer = useRef<ReturnType<typeof setTimeout>>(undefined);
  const value = draft ?? own ?? effective;
  // Many positions mean the same whole number: the slider stays where it was put.
  const [put, setPut] = useState(0);
  const position =
    valueAt(put, scale.min, scale.max) === value ? put : positionOf(value, scale.min, scale.max);
  useEffect(() => () => clearTimeout(timer.current), []);
  // The engine has said the same: nothing is ahead of it any more.
  // biome-ignore lint/correctness/useExhaustiveDependencies: `setDraft` is another one at each render
  useEffect(() => {
    if (draft !== null && own === draft) setDraft(null);
  }, [own, draft]);

  const set = (next: number) => {
    setDraft(next);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => send(next), SEND_MS);
  };
  const commitTyped = () => {
    if (typed === null) return;
    const read = codecs.limit.read(typed);
    if ("error" in read) return;
    // An unchanged text is no change, and neither is none.
    if (typed.trim() !== "" && typed.trim() !== text) set(Number(read.value));
    setTyped(null);
  };
  const text = value === 0 ? "no limit" : exactAmount(value);
  const wrong = typed === null ? undefined : errorOf(typed);
  return (
    <div>
      <div className="mb-1.5 flex flex-wrap items-center gap-2">
        <span className="whitespace-nowrap font-medium text-xs">{scale.label}</span>
        {own === null ? (
          <Badge icon={Gauge}>
            {source === "none" ? "no limit set" : `by ${source.replace("rate_limit/", "policy ")}`}
          </Badge>
        ) : (
          <>
            <Badge tone="accent">set here</Badge>
            <Button size="sm" look="quiet" disabled={disabled} onClick={() => send(null)}>
              Back to policy
            </Button>
          </>
        )}
        <Input
          aria-label={`${scale.label}, as text`}
          aria-invalid={wrong ? true : undefined}
          className="num ml-auto h-7 w-28 text-right"
          disabled={disabled}
          value={typed ?? text}
          title={wrong ?? "Such as 500, 10k, 10 MiB; none: unlimited"}
          onFocus={(event) => event.target.select()}
          onChange={(event) => setTyped(event.target.value)}
          onBlur={commitTyped}
          onKeyDown={(event) => event.key === "Enter" && commitTyped()}
        />
      </div>
      {wrong && <p className="mb-1 text-right text-bad text-xs">{wrong}</p>}
      <Slider.Root
        className="relative flex h-5 touch-none select-none items-center"
        min={0}
        max={STEPS}
        step={1}
        disabled={disabled}
        value={[position]}
        onValueChange={([next = 0]) => {
          setPut(next);
          set(valueAt(next, scale.min, scale.max));
        }}
      >
        <Slider.Track className="relative h-1.5 flex-1 rounded-full bg-raised">
          <Slider.Range className="absolute h-full rounded-full bg-accent" />
        </Slider.Track>
        <Slider.Thumb
          aria-label={scale.label}
          aria-valuetext={value === 0 ? text : scale.show(value)}
          className="block size-4 rounded-full border-2 border-accent bg-panel shadow transition-transform hover:scale-110"
        />
      </Slider.Root>
      <div aria-hidden className="num mt-0.5 flex justify-between text-2xs text-faint">
        <span>no limit</span>
        <span>{scale.show(valueAt(STEPS / 2, scale.min, scale.max))}</span>
        <span>{scale.show(scale.max)}</span>
      </div>
    </div>
  );
}
