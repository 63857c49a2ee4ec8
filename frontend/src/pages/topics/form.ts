import type { Topic, TopicSpec } from "@/api/queries";
import { parseAmount } from "@/lib/format";
import { isName } from "@/lib/names";

const NAME_CHARS_MAX = 200;
const RING_BYTES_MIN = 16_384;

/** What is filled in, as it is written. */
export interface TopicForm {
  name: string;
  mode: NonNullable<TopicSpec["mode"]>;
  transport: string;
  reliability: NonNullable<TopicSpec["reliability"]>;
  flow: NonNullable<TopicSpec["flow"]>;
  on_full: NonNullable<TopicSpec["on_full"]>;
  history: string;
  receive: string;
  ratePackets: string;
  rateBytes: string;
  keeper: string;
  queues: string;
  wireId: string;
  fsync: NonNullable<TopicSpec["fsync"]>;
  labels: string;
  owner: string;
  description: string;
  protected: boolean;
}

export type TopicErrors = Partial<Record<keyof TopicForm, string>>;

const amount = (text: string, what: string, min: number) =>
  (parseAmount(text) ?? -1) >= min
    ? undefined
    : `${what}: a number of at least ${min}, such as 64k or 4 MiB`;
const limit = (text: string) =>
  text.trim() === "" || parseAmount(text) !== null
    ? undefined
    : "A number such as 10k, 0 for no limit, or nothing for the policy";

/** What is wrong with a form, by field; nothing when it can be saved. */
export function errorsOf(form: TopicForm): TopicErrors {
  const found: Record<string, string | undefined> = {
    name:
      form.name === ""
        ? "A name is needed"
        : form.name.length > NAME_CHARS_MAX
          ? `At most ${NAME_CHARS_MAX} characters`
          : isName(form.name)
            ? undefined
            : "Letters, digits, _ and -, in parts joined by dots",
    history: amount(form.history, "History", RING_BYTES_MIN),
    receive: amount(form.receive, "Receive ring", RING_BYTES_MIN),
    ratePackets: limit(form.ratePackets),
    rateBytes: limit(form.rateBytes),
    keeper: /^(\*|[A-Za-z0-9_.-]{0,64})$/.test(form.keeper)
      ? undefined
      : "The name of a node, or * for engines that take turns",
    queues: amount(form.queues, "Queues", 1),
    wireId: /^(|[1-9]\d{0,4})$/.test(form.wireId)
      ? undefined
      : "A number of 1 to 65535, or nothing",
    labels: parseLabels(form.labels) ? undefined : "Pairs such as team=risk, tier=1",
  };
  return Object.fromEntries(Object.entries(found).filter(([, error]) => error));
}

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
  keeper: "",
  queues: "1",
  wireId: "",
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
    keeper: spec.owner ?? "",
    queues: String(spec.queues ?? 1),
    wireId: optional(spec.wire_id),
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
    wire_id: optionalNumber(form.wireId),
    ...(form.mode === "durable"
      ? { owner: form.keeper, queues: number(form.queues), fsync: form.fsync }
      : { owner: "" }),
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
