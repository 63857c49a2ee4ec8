import type { Mirror } from "@/api/queries";
import { codecs, type Draft, type FormField } from "@/forms/fields";
import { ResourceEditor } from "@/forms/resource-editor";

type Spec = Mirror["spec"];

const FRESH: Partial<Spec> = {
  direction: "from_kafka",
  topic: "",
  servers: "",
  kafka_topic: "",
  streams: "",
  subjects: "",
  domain: "",
  key_header: "",
  paused: false,
  rate: 0,
  user: "",
  secret: "",
  mechanism: "SCRAM-SHA-512",
  tls: false,
  ca: "",
  start: "earliest",
  place: "auto",
  on_gap: "report",
  gateway: "",
  token: "",
};

const choices = (...pairs: [string, string][]) => pairs.map(([value, label]) => ({ value, label }));
const inward = (draft: Draft) => draft["spec.direction"] !== "to_kafka";
const ofStreams = (draft: Draft) => draft["spec.direction"] === "from_jetstream";
const ofKafka = (draft: Draft) => !ofStreams(draft);
const hasUser = (draft: Draft) => draft["spec.user"] !== "";
const MASKED = "Masked: leave it unchanged to keep the stored secret";

const FIELDS: readonly FormField[] = [
  {
    at: "spec.direction",
    label: "Direction",
    codec: codecs.text,
    as: "choice",
    fixed: true,
    options: choices(
      ["from_kafka", "From Kafka to a topic"],
      ["to_kafka", "From a topic to Kafka"],
      ["from_jetstream", "From JetStream to a topic"],
    ),
  },
  {
    at: "spec.topic",
    label: "Topic",
    hint: "A durable topic of this platform",
    codec: codecs.text,
    mono: true,
    offers: "topics",
    fixed: true,
    required: true,
  },
  {
    at: "spec.servers",
    label: "Servers",
    hint: "HOST:PORT, separated by commas",
    codec: codecs.text,
    mono: true,
    required: true,
  },
  {
    at: "spec.kafka_topic",
    label: "Kafka topic",
    codec: codecs.text,
    mono: true,
    fixed: true,
    required: true,
    when: ofKafka,
  },
  {
    at: "spec.streams",
    label: "Streams",
    hint: "Of JetStream, separated by commas; each is a queue",
    codec: codecs.text,
    mono: true,
    fixed: true,
    required: true,
    when: ofStreams,
  },
  {
    at: "spec.subjects",
    label: "Subjects",
    hint: "Of a single stream, separated by commas; each is a queue; empty: all",
    codec: codecs.text,
    mono: true,
    fixed: true,
    advanced: true,
    when: ofStreams,
  },
  {
    at: "spec.key_header",
    label: "Header with the key",
    hint: "Empty: the subject is the key",
    codec: codecs.text,
    mono: true,
    fixed: true,
    advanced: true,
    when: ofStreams,
  },
  {
    at: "spec.domain",
    label: "JetStream domain",
    codec: codecs.text,
    mono: true,
    advanced: true,
    when: ofStreams,
  },
  { at: "spec.rate", label: "Records/s", hint: "0: unlimited", codec: codecs.integer },
  { at: "spec.paused", label: "Paused", codec: codecs.flag, as: "switch" },
  { at: "spec.user", label: "User", hint: "Empty: no login", codec: codecs.text },
  {
    at: "spec.secret",
    label: "Secret",
    hint: MASKED,
    codec: codecs.prose,
    as: "password",
    when: hasUser,
  },
  {
    at: "spec.mechanism",
    label: "Login by",
    codec: codecs.text,
    as: "choice",
    options: choices(
      ["SCRAM-SHA-512", "SCRAM-SHA-512"],
      ["SCRAM-SHA-256", "SCRAM-SHA-256"],
      ["PLAIN", "PLAIN"],
    ),
    when: (draft) => hasUser(draft) && ofKafka(draft),
  },
  { at: "spec.tls", label: "TLS", codec: codecs.flag, as: "switch" },
  {
    at: "spec.ca",
    label: "Authorities",
    hint: "PEM; empty: the system's certificates",
    codec: codecs.prose,
    as: "text",
    wide: true,
    advanced: true,
    when: (draft) => draft["spec.tls"] === true,
  },
  {
    at: "spec.start",
    label: "A new mirror begins at",
    codec: codecs.text,
    as: "choice",
    advanced: true,
    options: choices(["earliest", "The oldest record"], ["latest", "The end"]),
  },
  {
    at: "spec.place",
    label: "Records go to",
    codec: codecs.text,
    as: "choice",
    advanced: true,
    options: choices(
      ["auto", "The same queue, if both have as many queues"],
      ["queue", "The same queue"],
      ["key", "The queue that the key selects"],
    ),
    when: inward,
  },
  {
    at: "spec.on_gap",
    label: "If records are deleted before they are copied",
    codec: codecs.text,
    as: "choice",
    advanced: true,
    options: choices(["report", "Report it and continue"], ["stop", "Stop"]),
  },
  {
    at: "spec.gateway",
    label: "Gateway",
    hint: "Of the engine that keeps the topic; empty: the service's own engine",
    codec: codecs.text,
    mono: true,
    advanced: true,
    when: inward,
  },
  {
    at: "spec.token",
    label: "Key of the gateway",
    hint: MASKED,
    codec: codecs.prose,
    as: "password",
    advanced: true,
  },
];

interface Props {
  name?: string;
  onClose: () => void;
  onSaved?: (name: string) => void;
}

export function MirrorEditor({ name, onClose, onSaved }: Props) {
  return (
    <ResourceEditor
      kind="mirror"
      name={name}
      lead="It copies each record once, and resumes after any failure."
      fields={FIELDS}
      fresh={FRESH}
      deleting="It stops copying. Its position is kept: a new mirror of this name resumes there."
      onClose={onClose}
      {...(onSaved ? { onSaved } : {})}
    />
  );
}
