import { describe, expect, it } from "vitest";
import { SeriesRing } from "@/lib/ring";

const fill = (ring: SeriesRing, count: number) => {
  for (let at = 1; at <= count; at += 1) ring.push(at, [["a", at * 10]]);
};
const listed = (ring: SeriesRing, name: string, seconds = 100) => [
  ...(ring.window([name], seconds)[1] ?? []),
];

describe("SeriesRing", () => {
  it("gives back what was pushed, oldest first, over the wrap", () => {
    const ring = new SeriesRing(4);
    fill(ring, 6);
    expect([...(ring.window(["a"], 100)[0] ?? [])]).toEqual([3, 4, 5, 6]);
    expect(listed(ring, "a")).toEqual([30, 40, 50, 60]);
  });

  it("cuts the window by time, and draws a shorter one while there is less", () => {
    const ring = new SeriesRing(10);
    fill(ring, 8);
    expect(listed(ring, "a", 3)).toHaveLength(4);
    expect(ring.span(300, 5)).toBe(7);
    expect(ring.span(300, 20)).toBe(20);
    expect(ring.span(3, 1)).toBe(3);
  });

  it("leaves a hole where a series said nothing, and before it began", () => {
    const ring = new SeriesRing(8);
    ring.push(1, [["a", 1]]);
    ring.push(2, [["b", 2]]);
    ring.push(3, [["a", 3]]);
    expect(listed(ring, "a")).toEqual([1, Number.NaN, 3]);
    expect(listed(ring, "b")).toEqual([Number.NaN, 2, Number.NaN]);
    expect(listed(ring, "unknown")).toEqual([Number.NaN, Number.NaN, Number.NaN]);
  });

  it("refuses time that does not move forward", () => {
    const ring = new SeriesRing(4);
    expect(ring.push(5, [["a", 1]])).toBe(true);
    expect(ring.push(5, [["a", 2]])).toBe(false);
    expect(ring.push(4, [["a", 3]])).toBe(false);
    expect(ring.latest("a")).toBe(1);
  });

  it("keeps no more series than its limit", () => {
    const ring = new SeriesRing(4, 2);
    ring.push(
      1,
      ["a", "b", "c"].map((name, at) => [name, at] as const),
    );
    expect(ring.names).toEqual(["a", "b"]);
    expect(ring.latest("c")).toBeNaN();
  });

  it("refuses a capacity that holds nothing", () => {
    expect(() => new SeriesRing(1)).toThrow("at least 2");
  });
});
