// Forms as data: what nobody typed into is never sent, and a number reads back as the same number.
import { describe, expect, it } from "vitest";
import {
  codecs,
  documentOf,
  draftOf,
  errorsOf,
  exactAmount,
  type FormField,
  METADATA,
  parseLabels,
  patchOf,
} from "@/forms/fields";
import { FRESH, topicFields } from "@/pages/topics/form";

const FIELDS = [...topicFields([]), ...METADATA];
const STORED = {
  metadata: {
    labels: { team: "risk", tier: "1" },
    owner: "ann",
    description: "Kept",
    deletion_protection: true,
    managed_by: "gitops",
  },
  spec: { ...FRESH, history_bytes: 1_000_000, rate_bytes_per_s: 10_000_000, spool: true },
};
const typed = (next: Record<string, string | boolean>) =>
  patchOf(FIELDS, STORED, { ...draftOf(FIELDS, STORED), ...next });

describe("a form", () => {
  it("sends nothing that nobody typed into", () => {
    expect(typed({})).toEqual({});
    expect(typed({ "metadata.owner": "bob" })).toEqual({ metadata: { owner: "bob" } });
    expect(typed({ "spec.linger_us": "31" })).toEqual({ spec: { linger_us: 31 } });
  });
  it("removes a label by name, and keeps the others", () => {
    expect(typed({ "metadata.labels": "team=risk, zone=eu" })).toEqual({
      metadata: { labels: { team: "risk", zone: "eu", tier: null } },
    });
  });
  it("resets a limit with nothing, and lifts it with none", () => {
    expect(typed({ "spec.rate_bytes_per_s": "" })).toEqual({ spec: { rate_bytes_per_s: null } });
    expect(typed({ "spec.rate_bytes_per_s": "none" })).toEqual({ spec: { rate_bytes_per_s: 0 } });
  });
  it("sends of a new resource what stands on its first page, and what was typed", () => {
    const fresh = draftOf(FIELDS, { spec: FRESH });
    const made = documentOf(FIELDS, { ...fresh, "spec.cache_bytes": "1 MiB" }, fresh);
    expect(made).not.toHaveProperty("metadata");
    expect(made.spec).toMatchObject({ mode: "live", history_bytes: 4_194_304 });
    expect(made.spec).not.toHaveProperty("queues");
    expect(made.spec).not.toHaveProperty("linger_us");
    expect(made.spec).not.toHaveProperty("cache_bytes");
  });
  it("has every setting of a topic", () => {
    const settings = FIELDS.map((field) => field.at.replace("spec.", ""));
    expect(settings).toEqual(expect.arrayContaining(Object.keys(FRESH)));
  });
  it("says what is no value beside its field", () => {
    const draft = {
      ...draftOf(FIELDS, STORED),
      "spec.history_bytes": "a lot",
      "metadata.labels": "=",
    };
    expect(Object.keys(errorsOf(FIELDS, draft))).toEqual(["spec.history_bytes", "metadata.labels"]);
  });
});

describe("numbers", () => {
  it.each([
    0, 1, 999, 1_000, 1_024, 12_345, 1_000_000, 1_048_576, 10_000_000, 10_003_415, 987_654_321,
    4_294_967_296, 9_007_199_254_740_991,
  ])("%d reads back as itself", (value) => {
    for (const codec of [codecs.amount, codecs.limit, codecs.integer, codecs.number]) {
      expect(codec.read(String(codec.show(value)))).toEqual({ value });
    }
  });
  it.each([0.25, 7.5, 123_456_789.25, 1e-9])("%d reads back as itself", (value) => {
    expect(codecs.number.read(codecs.number.show(value) as string)).toEqual({ value });
  });
  it("of bytes keep a unit only when it is exact", () => {
    expect(exactAmount(10_000_000)).toBe("10,000,000");
    expect(exactAmount(10_485_760)).toBe("10 MiB");
    expect(codecs.amount.read("1.5 MiB")).toEqual({ value: 1_572_864 });
    expect(codecs.amount.read("0.4")).toHaveProperty("error");
    expect(codecs.limit.read("a lot")).toHaveProperty("error");
    expect(codecs.integer.read("1.5")).toHaveProperty("error");
    expect(codecs.number.read("")).toHaveProperty("error");
  });
});

it("labels are pairs", () => {
  expect(parseLabels("team=risk, canary")).toEqual({ team: "risk", canary: "" });
  expect(parseLabels("a=b=c")).toBeNull();
});

it("a choice cannot be empty, but a setting can", () => {
  const transport = FIELDS.find((field) => field.at === "spec.transport") as FormField;
  expect(transport.codec.show("")).not.toBe("");
  expect(transport.codec.read(transport.codec.show(""))).toEqual({ value: "" });
});
