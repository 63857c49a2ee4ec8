// A form as data: which settings it has, how each is written as text, and how it is read back.
// A setting that nobody typed into is never sent: its value cannot change.
import { parseAmount } from "@/lib/format";

/** What is typed, by the setting's path; switches are booleans. */
export type Draft = Readonly<Record<string, string | boolean>>;

type Read = { value: unknown } | { error: string };

interface Codec {
  show: (value: unknown) => string | boolean;
  read: (typed: string | boolean) => Read;
}

export interface FormField {
  /** Where the setting stands in the document: `spec.ack_wait_s`. */
  at: string;
  label: string;
  hint?: string | ((draft: Draft) => string);
  codec: Codec;
  /** Drawn as; one line of text by default. */
  as?: "line" | "text" | "choice" | "switch" | "password";
  options?: readonly { value: string; label: string; hint?: string }[];
  /** Names offered while one types. */
  offers?: "topics";
  /** For what a machine reads: names, patterns, schedules. */
  mono?: boolean;
  wide?: boolean;
  placeholder?: string;
  /** Whether it is on the form at all. */
  when?: (draft: Draft) => boolean;
  /** It can be set when the resource is created, and never again. */
  fixed?: boolean;
  required?: boolean;
  /** Behind `Advanced`. */
  advanced?: boolean;
  /** What else changes when it does. */
  follow?: (typed: string) => Record<string, string | boolean>;
}

const text = (typed: string | boolean) => String(typed).trim();

const MIB = 1_048_576;
const UNITS = [
  [1024 * MIB, "GiB"],
  [MIB, "MiB"],
  [1024, "KiB"],
] as const;

/** An amount that reads back as the same number: `4 MiB`, `10,000,000`. */
export function exactAmount(value: number): string {
  const unit = value > 0 ? UNITS.find(([size]) => value % size === 0) : undefined;
  return unit
    ? `${value / unit[0]} ${unit[1]}`
    : String(value).replace(/\B(?=(\d{3})+(?!\d))/g, ",");
}

function readAmount(typed: string): Read {
  const value = parseAmount(typed);
  if (value === null) return { error: "Enter a number such as 500, 10k or 4 MiB" };
  if (Number.isInteger(value)) return { value };
  // Of 1.1 MiB nobody expects the fraction of a byte; of 0.4 it is all there is.
  return value >= 1000 ? { value: Math.round(value) } : { error: "Enter a whole number" };
}

function readNumber(typed: string): Read {
  const value = Number(typed.replace(/[,_]/g, ""));
  return typed !== "" && Number.isFinite(value) ? { value } : { error: "Enter a number" };
}

function readInteger(typed: string): Read {
  const found = readNumber(typed);
  return "value" in found && !Number.isSafeInteger(found.value)
    ? { error: "Enter a whole number" }
    : found;
}

/** `team=risk, canary` -> `{team: "risk", canary: ""}`; null when it is not that. */
export function parseLabels(typed: string): Record<string, string> | null {
  const out: Record<string, string> = {};
  for (const part of typed.split(",").map((one) => one.trim())) {
    if (!part) continue;
    const match = /^([A-Za-z0-9_./-]{1,63})(?:=([^=]*))?$/.exec(part);
    if (!match?.[1]) return null;
    out[match[1]] = match[2]?.trim() ?? "";
  }
  return out;
}

const showLabels = (labels: Readonly<Record<string, string>>): string =>
  Object.entries(labels)
    .map(([key, value]) => (value ? `${key}=${value}` : key))
    .join(", ");

const shown = (value: unknown) => (value == null ? "" : String(value));

export const codecs = {
  text: { show: shown, read: (typed) => ({ value: text(typed) }) },
  /** As typed, spaces included. */
  prose: { show: shown, read: (typed) => ({ value: String(typed) }) },
  number: { show: shown, read: (typed) => readNumber(text(typed)) },
  integer: { show: shown, read: (typed) => readInteger(text(typed)) },
  /** A whole number or nothing. */
  optionalInteger: {
    show: shown,
    read: (typed) => (text(typed) === "" ? { value: null } : readInteger(text(typed))),
  },
  /** Bytes. */
  amount: {
    show: (value) => exactAmount(Number(value)),
    read: (typed) => readAmount(text(typed)),
  },
  /** A rate limit: nothing is "not set here", `none` is "no limit". */
  limit: {
    show: (value) => (value == null ? "" : value === 0 ? "none" : exactAmount(Number(value))),
    read: (typed) => {
      if (text(typed) === "") return { value: null };
      return /^(none|no limit)$/i.test(text(typed)) ? { value: 0 } : readAmount(text(typed));
    },
  },
  flag: { show: (value) => value === true, read: (typed) => ({ value: typed === true }) },
  labels: {
    show: (value) => showLabels((value ?? {}) as Record<string, string>),
    read: (typed) => {
      const value = parseLabels(String(typed));
      return value ? { value } : { error: "Pairs such as team=risk, tier=1" };
    },
  },
} satisfies Record<string, Codec>;

/** What every resource has beside its settings. */
export const METADATA: readonly FormField[] = [
  { at: "metadata.description", label: "Description", codec: codecs.prose, as: "text", wide: true },
  { at: "metadata.owner", label: "Owner", hint: "A person or a team", codec: codecs.text },
  { at: "metadata.labels", label: "Labels", hint: "team=risk, tier=1", codec: codecs.labels },
  {
    at: "metadata.deletion_protection",
    label: "Protect against deletion",
    codec: codecs.flag,
    as: "switch",
    wide: true,
  },
];

type Tree = Record<string, unknown>;

function valueAt(document: object, at: string): unknown {
  return at.split(".").reduce<unknown>((node, key) => (node as Tree | undefined)?.[key], document);
}

function putAt(document: Tree, at: string, value: unknown): void {
  const keys = at.split(".");
  const last = keys.pop() as string;
  let node = document;
  for (const key of keys) {
    node[key] ??= {};
    node = node[key] as Tree;
  }
  node[last] = value;
}

export const draftOf = (fields: readonly FormField[], document: object): Draft =>
  Object.fromEntries(fields.map(({ at, codec }) => [at, codec.show(valueAt(document, at))]));

export const isOn = (field: FormField, draft: Draft) => field.when?.(draft) ?? true;

/** RFC 7396: the patch that makes one value the other; null removes. */
function mergeOf(before: unknown, after: unknown): unknown {
  const isTree = (value: unknown): value is Tree =>
    typeof value === "object" && value !== null && !Array.isArray(value);
  if (!isTree(before) || !isTree(after)) return after;
  const gone = Object.keys(before).filter((key) => !(key in after));
  return { ...after, ...Object.fromEntries(gone.map((key) => [key, null])) };
}

/** What was typed and is no value, by path. */
export function errorsOf(fields: readonly FormField[], draft: Draft): Record<string, string> {
  const out: Record<string, string> = {};
  for (const field of fields) {
    if (!isOn(field, draft)) continue;
    const typed = draft[field.at] ?? "";
    const read = field.codec.read(typed);
    if ("error" in read) out[field.at] = read.error;
    else if (field.required && typed === "") out[field.at] = `${field.label} is needed`;
  }
  return out;
}

/** A new document: the settings that are on the form; of those in the background, what was typed. */
export function documentOf(fields: readonly FormField[], draft: Draft, fresh: Draft): Tree {
  const out: Tree = {};
  for (const field of fields) {
    const background = field.advanced || field.at.startsWith("metadata.");
    if (!isOn(field, draft) || (background && draft[field.at] === fresh[field.at])) continue;
    const read = field.codec.read(draft[field.at] ?? "");
    if ("value" in read) putAt(out, field.at, read.value);
  }
  return out;
}

/** The merge patch of what was typed into; empty when nothing was. */
export function patchOf(fields: readonly FormField[], document: object, draft: Draft): Tree {
  const before = draftOf(fields, document);
  const out: Tree = {};
  for (const field of fields) {
    if (!isOn(field, draft) || draft[field.at] === before[field.at]) continue;
    const read = field.codec.read(draft[field.at] ?? "");
    if ("value" in read) putAt(out, field.at, mergeOf(valueAt(document, field.at), read.value));
  }
  return out;
}
