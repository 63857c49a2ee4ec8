// The settings of a topic, as a form has them.
import type { TopicSpec, Transport } from "@/api/queries";
import { codecs, type Draft, type FormField } from "@/forms/fields";
import { duration } from "@/lib/format";

export const FRESH: Partial<TopicSpec> = {
  mode: "live",
  transport: "",
  reliability: "reliable",
  flow: "min",
  on_full: "block",
  compression: "off",
  history_bytes: 4_194_304,
  receive_bytes: 4_194_304,
  large_history_bytes: 67_108_864,
  rate_packets_per_s: null,
  rate_bytes_per_s: null,
  linger_us: 20,
  nak_delay_us: 50,
  nak_retry_us: 200,
  receiver_timeout_s: 5,
  close_linger_s: 5,
  owner: "",
  queues: 1,
  fsync: "interval",
  fsync_interval_ms: 50,
  segment_bytes: 134_217_728,
  retention_bytes: 0,
  retention_s: 0,
  retention_past_unacked: false,
  cache_bytes: 16_777_216,
  spool: false,
  producer_ttl_s: 604_800,
  storage: "local",
};

const CHOICES = {
  mode: [
    { value: "live", label: "Live", hint: "Memory only: lowest latency" },
    { value: "durable", label: "Durable", hint: "Queues on disk: replay, acks, consumers" },
  ],
  reliability: [
    { value: "reliable", label: "Reliable", hint: "In order, losses repaired" },
    { value: "unordered", label: "Unordered", hint: "Losses repaired, any order" },
    { value: "unreliable", label: "Unreliable", hint: "Losses are not repaired" },
  ],
  flow: [
    { value: "min", label: "Slowest receiver", hint: "min: it holds the publisher back" },
    { value: "max", label: "Fastest receiver", hint: "max: others may fall behind" },
    { value: "rate", label: "Rate limit only", hint: "rate: a slow receiver gets gaps" },
  ],
  on_full: [
    { value: "block", label: "Block", hint: "The publisher waits" },
    { value: "error", label: "Error", hint: "The publisher gets an error" },
    { value: "drop", label: "Drop", hint: "Counted, and reported as an event" },
  ],
  compression: [
    { value: "off", label: "Off", hint: "Each message carries its key and headers" },
    {
      value: "tables",
      label: "Tables",
      hint: "Keys and headers that repeat are sent once; the network carries fewer bytes",
    },
  ],
  fsync: [
    { value: "none", label: "None", hint: "When the operating system writes" },
    { value: "interval", label: "Interval", hint: "fsync every 50 ms by default; acks wait" },
    { value: "batch", label: "Every batch", hint: "Slowest, safest" },
  ],
} as const;

const isDurable = (draft: Draft) => draft["spec.mode"] === "durable";

const choice = (name: keyof typeof CHOICES, label: string): FormField => ({
  at: `spec.${name}`,
  label,
  codec: codecs.text,
  as: "choice",
  options: CHOICES[name],
});

const setting = (
  name: keyof TopicSpec,
  label: string,
  codec: FormField["codec"],
  hint?: FormField["hint"],
): FormField => ({ at: `spec.${name}`, label, codec, ...(hint ? { hint } : {}) });

const durable = (field: FormField): FormField => ({ ...field, when: isDurable });
const advanced = (field: FormField): FormField => ({ ...field, advanced: true });

const kept = (draft: Draft): string => {
  const seconds = Number(draft["spec.retention_s"]);
  return seconds > 0 ? `Messages older than ${duration(seconds)} are deleted` : "0: no limit";
};

const FIRST: readonly FormField[] = [
  choice("reliability", "Reliability"),
  choice("flow", "Flow control"),
  choice("on_full", "When the ring is full"),
  setting("history_bytes", "History ring", codecs.amount, "Send buffer and repairs"),
  setting(
    "rate_packets_per_s",
    "Limit (packets/s)",
    codecs.limit,
    "Empty: by policy; none: unlimited",
  ),
  setting("rate_bytes_per_s", "Limit (bytes/s)", codecs.limit, "Empty: by policy; none: unlimited"),
  durable(setting("queues", "Queues", codecs.integer, "Partitions; can only grow")),
  durable(choice("fsync", "Sync to disk")),
  durable({
    ...setting("owner", "Owner node", codecs.text),
    hint: "Empty: each node stores the messages published on it. *: shared by lease",
  }),
  durable(setting("retention_bytes", "Retention (bytes per queue)", codecs.amount, "0: no limit")),
  durable(setting("retention_s", "Retention (seconds)", codecs.number, kept)),
];

const REST: readonly FormField[] = [
  setting("receive_bytes", "Receive ring", codecs.amount, "Per publication, at each receiver"),
  setting("large_history_bytes", "History ring, large messages", codecs.amount),
  choice("compression", "Compression"),
  setting("linger_us", "Linger (µs)", codecs.integer, "How long an open packet waits for more"),
  setting(
    "nak_delay_us",
    "NAK delay (µs)",
    codecs.integer,
    "How long to wait for reordered packets before a NAK",
  ),
  setting("nak_retry_us", "NAK retry (µs)", codecs.integer),
  setting("receiver_timeout_s", "Receiver timeout (seconds)", codecs.number),
  setting("close_linger_s", "Linger after close (seconds)", codecs.number),
  setting(
    "wire_id",
    "Topic id on the wire",
    codecs.optionalInteger,
    "1 to 65535; empty: from the name",
  ),
  durable(setting("fsync_interval_ms", "Sync interval (ms)", codecs.number)),
  durable({
    ...setting("storage", "Storage", codecs.text),
    hint: "local, kafka://HOST:PORT/TOPIC or jetstream://HOST:PORT/STREAM: acknowledged when it is there, too",
  }),
  durable(setting("segment_bytes", "Segment size", codecs.amount)),
  durable(setting("cache_bytes", "Cache (bytes per queue)", codecs.amount)),
  durable(setting("producer_ttl_s", "Producer sessions kept (seconds)", codecs.number)),
  durable({
    ...setting("retention_past_unacked", "Delete unacknowledged messages too", codecs.flag),
    as: "switch",
  }),
  { ...setting("spool", "Spool publishers' rings to disk", codecs.flag), as: "switch" },
];

export function topicFields(transports: readonly Transport[]): readonly FormField[] {
  const first = transports[0]?.metadata.name ?? "";
  return [
    choice("mode", "Mode"),
    {
      ...setting("transport", "Transport", DEFAULTED),
      as: "choice",
      options: [
        { value: DEFAULT, label: "Default", hint: first },
        ...transports.map(({ metadata, spec }) => ({
          value: metadata.name,
          label: metadata.name,
          hint: spec.kind ?? "",
        })),
      ],
    },
    ...FIRST,
    ...REST.map(advanced),
  ];
}

/** A choice cannot have an empty value. */
const DEFAULT = " ";
const DEFAULTED: FormField["codec"] = {
  show: (value) => (value ? String(value) : DEFAULT),
  read: (typed) => ({ value: String(typed).trim() }),
};
