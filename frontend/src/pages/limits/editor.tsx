import type { RateLimit } from "@/api/queries";
import { codecs, type FormField } from "@/forms/fields";
import { ResourceEditor } from "@/forms/resource-editor";

const FRESH: Partial<RateLimit["spec"]> = {
  pattern: "",
  priority: 0,
  rate_packets_per_s: null,
  rate_bytes_per_s: null,
  publisher: "",
};

const FIELDS: readonly FormField[] = [
  {
    at: "spec.pattern",
    label: "Topics",
    hint: "* matches one part of a name, > the rest: md.*, orders.>",
    codec: codecs.text,
    mono: true,
    required: true,
  },
  { at: "spec.priority", label: "Priority", hint: "-1000 to 1000", codec: codecs.integer },
  {
    at: "spec.rate_packets_per_s",
    label: "Packets/s",
    hint: 'Empty: not set by this policy; "none": unlimited',
    codec: codecs.limit,
  },
  {
    at: "spec.rate_bytes_per_s",
    label: "Bytes/s",
    hint: "Such as 10 MiB, 500k or 10,000,000",
    codec: codecs.limit,
  },
  {
    at: "spec.publisher",
    label: "Only publishers on node",
    hint: "Empty: all nodes",
    codec: codecs.text,
  },
];

export function PolicyEditor({ name, onClose }: { name?: string; onClose: () => void }) {
  return (
    <ResourceEditor
      kind="rate_limit"
      name={name}
      lead="A limit for each publisher of the topics that match."
      fields={FIELDS}
      fresh={FRESH}
      deleting="Its topics are limited by the next policy that matches, or not at all."
      onClose={onClose}
    />
  );
}
