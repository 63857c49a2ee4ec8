import { describe, expect, it } from "vitest";
import { decode, hexDump, INLINE_BYTES_MAX } from "@/lib/decode";
import { decodeMessagePack } from "@/lib/msgpack";

const bytes = (...values: number[]) => Uint8Array.from(values);
const utf8 = (text: string) => new TextEncoder().encode(text);

describe("MessagePack", () => {
  it("reads every family of value", () => {
    const source = bytes(
      ...[0x86, 0xa1, 0x61, 0x01],
      ...[0xa1, 0x62, 0x94, 0xff, 0xc3, 0xc0, 0xa2, 0xc3, 0xa9],
      ...[0xa1, 0x63, 0xca, 0x3f, 0x00, 0x00, 0x00],
      ...[0xa1, 0x64, 0xc4, 0x01, 0xff],
      ...[0xa1, 0x65, 0xcf, 0x80, 0, 0, 0, 0, 0, 0, 0],
      ...[0xa1, 0x66, 0xd3, 0x80, 0, 0, 0, 0, 0, 0, 0],
    );
    expect(decodeMessagePack(source)).toEqual({
      a: 1,
      b: [-1, true, null, "é"],
      c: 0.5,
      d: "0xff",
      e: "9223372036854775808",
      f: "-9223372036854775808",
    });
  });

  it("reads a time-stamp", () => {
    expect(decodeMessagePack(bytes(0xd6, 0xff, 0, 0, 0, 0))).toBe("1970-01-01T00:00:00.000Z");
  });

  it.each([
    ["nothing", []],
    ["a string longer than what is there", [0xd9, 0xff, 0x61]],
    ["an array of four thousand million", [0xdd, 0xff, 0xff, 0xff, 0xff]],
    ["a tag that is none", [0xc1]],
    ["bytes behind the value", [0x01, 0x02]],
    ["text that is not UTF-8", [0xa1, 0xff]],
    ["nesting without end", Array(100).fill(0x91)],
  ])("refuses %s", (_, source) => {
    expect(() => decodeMessagePack(bytes(...source))).toThrow();
  });

  it("does not let a key named __proto__ through to the prototype", () => {
    const value = decodeMessagePack(bytes(0x81, 0xa9, ...utf8("__proto__"), 0x80)) as object;
    expect(Object.keys(value)).toEqual(["__proto__"]);
    expect(Object.getPrototypeOf(value)).toBe(Object.prototype);
  });
});

describe("decode", () => {
  it.each([
    ["json", utf8('{"a": [1, 2]}'), "json", '{ "a": [ 1, 2 ] }'],
    ["text", utf8("plain words"), "text", "plain words"],
    ["a map", bytes(0x81, 0xa1, 0x61, 0x01), "messagepack", '{ "a": 1 }'],
    ["bytes", bytes(0x00, 0x01, 0xff), "hex", "00 01 ff"],
    ["nothing", bytes(), "text", ""],
  ] as const)("finds %s by itself", (_, source, decoder, summary) => {
    expect(decode(source)).toMatchObject({ decoder, summary });
  });

  it("says why the wanted decoder failed, and shows hex", () => {
    const shown = decode(utf8("{broken"), "json");
    expect(shown.decoder).toBe("hex");
    expect(shown.failed.map((one) => one.decoder)).toEqual(["json"]);
    expect(shown.failed[0]?.reason).not.toBe("");
  });

  it("shows no more than its limit, and no half character at the cut", () => {
    const shown = decode(utf8(`x${"é".repeat(INLINE_BYTES_MAX)}`), "text");
    expect(shown.shown).toBe(INLINE_BYTES_MAX);
    expect(shown.text.endsWith("é")).toBe(true);
    expect(shown.text).not.toContain("\ufffd");
  });

  it("reads no document of which it has a part", () => {
    expect(decode(utf8("1234"), "json", 100).decoder).toBe("hex");
  });

  it("dumps offsets, bytes and characters", () => {
    const [first = "", second = ""] = hexDump(utf8("0123456789abcdefX\n")).split("\n");
    expect(first).toBe(
      "000000  30 31 32 33 34 35 36 37  38 39 61 62 63 64 65 66  0123456789abcdef",
    );
    expect(second).toMatch(/^000010 {2}58 0a +X·$/);
  });
});
