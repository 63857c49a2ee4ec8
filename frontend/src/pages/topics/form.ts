import { z } from "zod";
import type { Topic, TopicSpec } from "@/api/queries";
import { parseAmount } from "@/lib/format";

const NAME = /^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$/;

const amount = (what: string, min: number) =>
  z.string().refine(
    (text) => {
      const value = parseAmount(text);
      return value !== null && value >= min;
    },
    { error: `${what}: a number of at least ${min}, such as 64k or 4 MiB` },
  );
const limit = z.string().refine((text) => text.trim() === "" || parseAmount(text) !== null, {
  error: "A number such as 10k, 0 for no limit, or nothing for the policy",
});

export const topicForm = z.object({
  name: z
    .string()
    .min(1, { error: "A name is needed" })
    .max(200, { error: "At most 200 characters" })
    .regex(NAME, { error: "Letters, digits, _ and -, in parts joined by dots" }),
  mode: z.enum(["live", "durable"]),
  transport: z.string(),
  reliability: z.enum(["reliable", "unordered", "unreliable"]),
  flow: z.enum(["min", "max", "rate"]),
  on_full: z.enum(["block", "error", "drop"]),
  history: amount("History", 16_384),
  receive: amount("Receive ring", 16_384),
  ratePackets: limit,
  rateBytes: limit,
  queues: amount("Queues", 1),
  fsync: z.enum(["none", "interval", "batch"]),
  labels: z.string().refine((text) => parseLabels(text) !== null, {
    error: "Pairs such as team=risk, tier=1",
  }),
  owner: z.string().max(200),
  description: z.string().max(4096),
  protected: z.boolean(),
});

export type TopicForm = z.infer<typeof topicForm>;

export const FRESH: TopicForm = {
  name: "",
  mode: "live",
  transport: "",
  reliability: "reliable",
  flow: "min",
  on_full: "block",
  history: "4 MiB",
  receive: "4 MiB",
  ratePackets: "",
  rateBytes: "",
  queues: "1",
  fsync: "interval",
  labels: "",
  owner: "",
  description: "",
  protected: false,
};

/** `team=risk, canary` -> `{team: "risk", canary: ""}`; null when it is not that. */
export function parseLabels(text: string): Record<string, string> | null {
  const out: Record<string, string> = {};
  for (const part of text.split(",").map((one) => one.trim())) {
    if (!part) continue;
    const match = /^([A-Za-z0-9_./-]{1,63})(?:=([^=]*))?$/.exec(part);
    if (!match?.[1]) return null;
    out[match[1]] = match[2]?.trim() ?? "";
  }
  return out;
}

const mib = (value: number) =>
  value % 1_048_576 === 0
    ? `${value / 1_048_576} MiB`
    : value % 1024 === 0
      ? `${value / 1024} KiB`
      : String(value);
const optional = (value: number | null | undefined) => (value == null ? "" : String(value));

export function formOf(topic: Topic): TopicForm {
  const { spec, metadata } = topic;
  return {
    name: metadata.name,
    mode: spec.mode ?? "live",
    transport: spec.transport ?? "",
    reliability: spec.reliability ?? "reliable",
    flow: spec.flow ?? "min",
    on_full: spec.on_full ?? "block",
    history: mib(spec.history_bytes ?? 4_194_304),
    receive: mib(spec.receive_bytes ?? 4_194_304),
    ratePackets: optional(spec.rate_packets_per_s),
    rateBytes: optional(spec.rate_bytes_per_s),
    queues: String(spec.queues ?? 1),
    fsync: spec.fsync ?? "interval",
    labels: Object.entries(metadata.labels)
      .map(([key, value]) => (value ? `${key}=${value}` : key))
      .join(", "),
    owner: metadata.owner,
    description: metadata.description,
    protected: metadata.deletion_protection,
  };
}

const number = (text: string) => Math.round(parseAmount(text) ?? 0);
const optionalNumber = (text: string) => (text.trim() === "" ? null : number(text));

/** The body of a PUT. What the form does not know stays as it was. */
export function bodyOfForm(form: TopicForm, before?: Topic) {
  const spec: Partial<TopicSpec> = {
    ...before?.spec,
    mode: form.mode,
    transport: form.transport,
    reliability: form.reliability,
    flow: form.flow,
    on_full: form.on_full,
    history_bytes: number(form.history),
    receive_bytes: number(form.receive),
    rate_packets_per_s: optionalNumber(form.ratePackets),
    rate_bytes_per_s: optionalNumber(form.rateBytes),
    ...(form.mode === "durable" ? { queues: number(form.queues), fsync: form.fsync } : {}),
  };
  return {
    metadata: {
      labels: parseLabels(form.labels) ?? {},
      owner: form.owner,
      description: form.description,
      deletion_protection: form.protected,
      managed_by: before?.metadata.managed_by ?? "",
    },
    spec,
  };
}
