import { describe, expect, it } from "vitest";
import { differences, fieldsOf } from "@/lib/diff";
import { bytes, compact, duration, exact, parseAmount, percent } from "@/lib/format";
import { positionOf, STEPS, valueAt } from "@/lib/log-scale";
import { ago, clock, dateTime } from "@/lib/time";

describe("numbers", () => {
  it.each([
    [0, "0"],
    [0.5, "0.50"],
    [999, "999"],
    [999.9, "1.00k"],
    [1234, "1.23k"],
    [1_234_567, "1.23M"],
    [-12_345, "-12.3k"],
    [null, "–"],
    [Number.NaN, "–"],
  ])("compact(%s) is %s", (value, text) => expect(compact(value)).toBe(text));

  it.each([
    [0, "0%"],
    [0.000_001, "<0.01%"],
    [0.0123, "1.23%"],
    [0.1234, "12.3%"],
    [1, "100%"],
  ])("percent(%s) is %s", (value, text) => expect(percent(value)).toBe(text));

  it("shows 64-bit numbers to the last digit", () => {
    expect(exact("9223372036854775807")).toBe("9,223,372,036,854,775,807");
    expect(exact("-1234")).toBe("-1,234");
  });

  it.each([
    [1536, "1.50 KiB"],
    [1_048_576, "1.00 MiB"],
    [12, "12 B"],
  ])("bytes(%s) is %s", (value, text) => expect(bytes(value)).toBe(text));

  it.each([
    [0, "0 s"],
    [0.000_012_3, "12.3 µs"],
    [0.25, "250 ms"],
    [95, "1m 35s"],
    [90_000, "1d 1h"],
    [Number.POSITIVE_INFINITY, "never"],
    [null, "–"],
  ])("duration(%s) is %s", (value, text) => expect(duration(value)).toBe(text));

  it.each([
    ["10k", 10_000],
    ["1.5 MiB", 1_572_864],
    ["2_000", 2_000],
    ["3 MB/s", 3_000_000],
    ["many", null],
    ["", null],
  ])("parseAmount(%s) is %s", (text, value) => expect(parseAmount(text)).toBe(value));
});

describe("log scale", () => {
  it("starts at no limit, ends at the top, and comes back to where it was", () => {
    expect(valueAt(0, 1, 1e7)).toBe(0);
    expect(valueAt(STEPS, 1, 1e7)).toBe(1e7);
    for (let at = 60; at <= STEPS; at += 17) {
      expect(Math.abs(positionOf(valueAt(at, 1, 1e7), 1, 1e7) - at)).toBeLessThanOrEqual(2);
    }
  });
});

describe("time", () => {
  const instant = "2026-03-04T05:06:07.089Z";
  it("is shown in UTC or as the clock on the wall", () => {
    expect(dateTime(instant, "utc", "millis")).toBe("2026-03-04 05:06:07.089Z");
    expect(clock(instant, "utc")).toBe("05:06:07");
    expect(dateTime("no date", "utc")).toBe("–");
  });
  it.each([
    [500, "now"],
    [12_000, "12 s ago"],
    [3_600_000, "1 h ago"],
    [-120_000, "in 2 min"],
  ])("after %s ms is %s", (age, text) => {
    expect(ago(Date.parse(instant), Date.parse(instant) + age)).toBe(text);
  });
});

it("differences name the paths that changed, and nothing else", () => {
  const before = { a: 1, b: { c: [1], d: 2 } };
  expect(differences(before, { a: 1, b: { c: [1, 2], d: 2 }, e: null })).toEqual([
    { path: "b.c", before: [1], after: [1, 2] },
    { path: "e", before: undefined, after: null },
  ]);
});

it("rows of a list are told field by field", () => {
  const moved = { results: [{ queue: 0, tokens: [2, 11] }, { queue: 1 }] };
  expect(fieldsOf(moved).map(({ path }) => path)).toEqual([
    "results[0].queue",
    "results[0].tokens",
    "results[1].queue",
  ]);
  expect(differences(moved, { results: [{ queue: 0, tokens: [2, 11] }, { queue: 3 }] })).toEqual([
    { path: "results[1].queue", before: 1, after: 3 },
  ]);
});
