import { readFileSync } from "node:fs";
import { describe, expect, it } from "vitest";
import { choice, flag, search, text } from "@/app/search";
import { asCurl, asPython } from "@/lib/copy-as";
import { nanosOf, parsePlace } from "@/pages/messages/place";
import { parseHeaders, payloadError } from "@/pages/messages/publish-body";
import { stagesOf } from "@/pages/reliability/rings";
import { cursorShares, lagNote } from "@/pages/subscriptions/state";
import { liveFirst } from "@/pages/topics/rows";

describe("copy as", () => {
  const origin = "http://127.0.0.1:7480";
  const body = { spec: { rate_packets_per_s: 10, note: "it's", none: null, on: true } };
  const action = { method: "PATCH", path: "/api/v1/topics/md.eu", body } as const;
  it("curl quotes what a shell would read", () => {
    expect(asCurl(action, origin)).toContain(`'\\''s`);
    expect(asCurl(action, origin)).toContain('-H "Authorization: Bearer $TIDECAST_KEY"');
  });
  it("a body of text goes as it is", () => {
    const text = "kind: topic\nmetadata: {name: it's}\n";
    const yaml = { method: "POST", path: "/api/v1/apply", text, type: "application/yaml" } as const;
    expect(asCurl(yaml, origin)).toContain("-H 'Content-Type: application/yaml'");
    expect(asCurl(yaml, origin)).toContain("--data-binary 'kind: topic\n");
    expect(asPython(yaml, origin)).toContain("data=text.encode()");
  });
  it("Python has Python's words", () => {
    const code = asPython(action, origin);
    expect(code).toContain('"none": None');
    expect(code).toContain('"on": True');
    expect(code).toContain('method="PATCH"');
  });
});

it("a page's state in the URL takes what fits and leaves out the rest", () => {
  const read = search({ q: text(5), view: choice("a", "b"), create: flag });
  const fits = { q: "abc", view: "b", create: true };
  expect(read({ ...fits, other: 1 })).toEqual(fits);
  expect(read({ q: "too long", view: "z", create: "yes" })).toEqual({});
  expect(read({ q: 12 })).toEqual({ q: "12" });
});

describe("messages", () => {
  it("reads places and times without rounding", () => {
    const token = "9223372036854775807";
    expect(parsePlace(`3:${token}`)).toEqual({ queue: 3, token });
    expect(parsePlace("12")).toEqual({ queue: 0, token: "12" });
    expect(parsePlace("x")).toBeNull();
    expect(nanosOf("1970-01-01T00:00:01Z")).toBe("1000000000");
    expect(nanosOf("soon")).toBeNull();
  });
  it("knows a payload that cannot be sent", () => {
    expect(payloadError("json", "{")).toBeDefined();
    expect(payloadError("json", "{}")).toBeUndefined();
    expect(payloadError("hex", "0g")).toBeDefined();
    expect(payloadError("hex", "00 ff")).toBeUndefined();
    expect(parseHeaders("a: 1\nb:2")).toEqual({ a: "1", b: "2" });
    expect(parseHeaders("nothing")).toBeNull();
  });
});

describe("positions", () => {
  it("become shares of a queue", () => {
    const cursor = { earliest: "100", acked: "150", delivered: "175", latest: "200" };
    expect(cursorShares(cursor)).toEqual({ acked: 0.5, delivered: 0.25 });
    const empty = { earliest: "5", acked: "5", delivered: "5", latest: "5" };
    expect(cursorShares(empty)).toEqual({ acked: 1, delivered: 0 });
  });
  it("say how much of the lag is scheduled", () => {
    expect(lagNote("1000", "12")).toBe("1,000, of these 12 scheduled");
    expect([lagNote("1000", "0"), lagNote("1000", null)]).toEqual(["1,000", "1,000"]);
    expect(lagNote(null, "1")).toBe("");
  });
  it("become stages of a ring", () => {
    const ring = { slots: "100", head: "1000", sent: "990", slowest_consumed: "950" };
    expect(stagesOf(ring as never)).toMatchObject({ unsent: 0.1, held: 0.4 });
  });
});

it("topics sorted by live figures: what is active first, loaded or not, the quiet rest behind", () => {
  const topic = (name: string) => ({ metadata: { name, labels: {} } }) as never;
  const active = (name: string, packets_out: number) => ({ name, rates: { packets_out } }) as never;
  const lives = { b: active("b", 5), z: active("z", 9) };
  const sort = { id: "packets", desc: true };
  const rows = liveFirst([topic("a"), topic("b"), topic("c")], lives, sort, () => true);
  expect(rows.map((row) => row.name)).toEqual(["z", "b", "a", "c"]);
});

it("the lock file names no registry", () => {
  expect(readFileSync("package-lock.json", "utf8")).not.toMatch(/"resolved"/);
});
