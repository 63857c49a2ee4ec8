import { describe, expect, it } from "vitest";
import { decode } from "@/lib/decode";
import { indentJson } from "@/lib/json-text";
import { positionOf, STEPS, valueAt } from "@/lib/log-scale";

describe("a slider over decades", () => {
  it.each([
    [1, 10_000_000],
    [1_000, 10_000_000_000],
  ])("from %d on gives whole numbers that grow", (min, max) => {
    let before = 0;
    for (let position = 0; position <= STEPS; position += 1) {
      const value = valueAt(position, min, max);
      expect(Number.isSafeInteger(value), `${position} gives ${value}`).toBe(true);
      expect(value).toBeGreaterThanOrEqual(before);
      before = value;
    }
    expect(valueAt(0, min, max)).toBe(0);
    expect(valueAt(1, min, max)).toBe(min);
    expect(before).toBe(max);
    expect(positionOf(max, min, max)).toBe(STEPS);
  });
});

describe("JSON as text", () => {
  const text =
    '{"id":12345678901234567890,"x":1.0,"s":"a \\"b\\": {1, 2}","e":[],"o":{ },"n":[1,null]}';
  it("keeps each number as it was written", () => {
    const shown = indentJson(text);
    expect(shown).toContain('"id": 12345678901234567890');
    expect(shown).toContain('"x": 1.0');
    const bare = (json: string) => json.replace(/\s/g, "");
    expect(bare(shown)).toBe(bare(text));
  });
  it("indents as the language itself does", () => {
    for (const value of [[], {}, [[]], { a: [1, { b: "c" }], d: {} }, "text", 1.5, null, [true]]) {
      expect(indentJson(JSON.stringify(value))).toBe(JSON.stringify(value, null, 2));
    }
    expect(() => indentJson("{")).toThrow();
  });
  it("is shown so", () => {
    expect(decode(new TextEncoder().encode('{"id":18446744073709551615}')).text).toContain(
      "18446744073709551615",
    );
  });
});
