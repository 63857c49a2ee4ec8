// Payload bytes -> something to read, and when a decoder fails, why.
import { indentJson } from "./json-text";
import { decodeMessagePack } from "./msgpack";

export type Decoder = "json" | "messagepack" | "text" | "hex";
export const DECODERS: readonly Decoder[] = ["json", "messagepack", "text", "hex"];

/** What is shown inline; more is offered as a download. */
export const INLINE_BYTES_MAX = 64 * 1024;

interface Attempt {
  decoder: Decoder;
  reason: string;
}

export interface Decoded {
  decoder: Decoder;
  text: string;
  /** One line for a list. */
  summary: string;
  /** Decoders tried before this one, and why each failed. */
  failed: Attempt[];
  shown: number;
  size: number;
}

const asText = (source: Uint8Array) => new TextDecoder("utf-8", { fatal: true }).decode(source);

/** A JSON document or a MessagePack value is read only whole; text and hex may be cut. */
function decodeWith(decoder: Decoder, source: Uint8Array, size: number): string {
  switch (decoder) {
    case "json": {
      if (source.length < size) throw new Error(`${size} bytes are too long to show as a document`);
      const first = source.find((byte) => byte > 0x20);
      if (first === undefined) throw new Error("no bytes");
      return indentJson(asText(source));
    }
    case "messagepack": {
      if (source.length < size) throw new Error(`${size} bytes are too long to show as a document`);
      return JSON.stringify(decodeMessagePack(source), null, 2);
    }
    case "text": {
      const text = asText(trimUtf8(source));
      // biome-ignore lint/suspicious/noControlCharactersInRegex: control characters are what it seeks
      const odd = /[\u0000-\u0008\u000e-\u001f]/.exec(text);
      if (odd) throw new Error(`control character at ${odd.index}`);
      return text;
    }
    case "hex":
      return hexDump(source);
  }
}

/** Cut so that no character is halved at the end. */
function trimUtf8(source: Uint8Array): Uint8Array {
  let end = source.length;
  let back = 0;
  while (back < 4 && end - back > 0) {
    const byte = source[end - 1 - back] ?? 0;
    if ((byte & 0xc0) !== 0x80) {
      const need = byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : byte >= 0xc0 ? 2 : 1;
      if (need > back + 1) end -= back + 1;
      break;
    }
    back += 1;
  }
  return source.subarray(0, end);
}

/** `size` is the payload's full length when `source` was cut by the service. */
export function decode(
  source: Uint8Array,
  wanted: Decoder | "auto" = "auto",
  size = source.length,
): Decoded {
  const shown = source.subarray(0, INLINE_BYTES_MAX);
  const order: Decoder[] = wanted === "auto" ? [...autoOrder(shown)] : [wanted, "hex"];
  const failed: Attempt[] = [];
  for (const decoder of order) {
    try {
      const text = decodeWith(decoder, shown, size);
      return {
        decoder,
        text,
        summary: summaryOf(decoder, text, shown),
        failed,
        shown: shown.length,
        size,
      };
    } catch (error) {
      failed.push({ decoder, reason: error instanceof Error ? error.message : String(error) });
    }
  }
  return { decoder: "hex", text: "", summary: "", failed, shown: 0, size };
}

/** A bare number or short text is valid MessagePack too: text comes first unless it looks binary. */
function autoOrder(source: Uint8Array): readonly Decoder[] {
  const first = source[0] ?? 0;
  const structured = (first >= 0x80 && first <= 0x9f) || (first >= 0xdc && first <= 0xdf);
  return structured ? ["messagepack", "json", "text", "hex"] : ["json", "text", "hex"];
}

function summaryOf(decoder: Decoder, text: string, source: Uint8Array): string {
  if (decoder === "hex") return Array.from(source.subarray(0, 48), hexByte).join(" ");
  if (decoder === "text") return text.slice(0, 240).replace(/\s+/g, " ");
  return text
    .slice(0, 480)
    .replace(/\s*\n\s*/g, " ")
    .slice(0, 240);
}

const hexByte = (byte: number) => byte.toString(16).padStart(2, "0");

/** Offset, sixteen bytes, and their printable characters. */
export function hexDump(source: Uint8Array): string {
  const lines: string[] = [];
  for (let at = 0; at < source.length; at += 16) {
    const row = source.subarray(at, at + 16);
    const left = Array.from(row.subarray(0, 8), hexByte).join(" ");
    const right = Array.from(row.subarray(8), hexByte).join(" ");
    const print = Array.from(row, (byte) =>
      byte >= 0x20 && byte < 0x7f ? String.fromCharCode(byte) : "·",
    ).join("");
    lines.push(
      `${at.toString(16).padStart(6, "0")}  ${left.padEnd(23)}  ${right.padEnd(23)}  ${print}`,
    );
  }
  return lines.join("\n");
}
