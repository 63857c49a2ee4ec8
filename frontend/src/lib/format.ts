// Numbers for people: three significant digits, a unit that fits, and a width that does not jump.
// 64-bit integers arrive as strings and are never turned into a float to be shown exactly.

/** What is not known. */
export const NONE = "–";
const COUNT_UNITS = ["", "k", "M", "G", "T", "P"];
const BYTE_UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

type Maybe<T> = T | null | undefined;

function scaled(value: number, base: number, units: string[]): [string, string] {
  let rest = Math.abs(value);
  let unit = 0;
  while (unit < units.length - 1 && rest >= base * 0.9995) {
    rest /= base;
    unit += 1;
  }
  const digits =
    unit === 0 && Number.isInteger(value) ? 0 : rest >= 99.95 ? 0 : rest >= 9.995 ? 1 : 2;
  return [(value < 0 ? "-" : "") + rest.toFixed(digits), units[unit] ?? ""];
}

/** `1234567` -> `1.23M` */
export function compact(value: Maybe<number>): string {
  if (value == null || !Number.isFinite(value)) return NONE;
  const [number, unit] = scaled(value, 1000, COUNT_UNITS);
  return number + unit;
}

/** `1536` -> `1.50 KiB` */
export function bytes(value: Maybe<number>): string {
  if (value == null || !Number.isFinite(value)) return NONE;
  const [number, unit] = scaled(value, 1024, BYTE_UNITS);
  return `${number} ${unit}`;
}

export function rate(value: Maybe<number>, unit = "/s"): string {
  return value == null ? NONE : compact(value) + unit;
}

export function byteRate(value: Maybe<number>): string {
  return value == null ? NONE : `${bytes(value)}/s`;
}

/** A share of one: `0.0123` -> `1.23%`. What is not nothing never reads as 0%. */
export function percent(value: Maybe<number>): string {
  if (value == null || !Number.isFinite(value)) return NONE;
  const hundred = value * 100;
  if (hundred === 0) return "0%";
  if (Math.abs(hundred) < 0.01) return "<0.01%";
  return `${hundred.toFixed(Math.abs(hundred) >= 9.995 ? (Math.abs(hundred) >= 99.95 ? 0 : 1) : 2)}%`;
}

/** An exact integer with separators; takes the strings that 64-bit numbers arrive as. */
export function exact(value: Maybe<number | string | bigint>): string {
  if (value == null || value === "") return NONE;
  const text = String(value);
  const match = /^(-?)(\d+)(\.\d+)?$/.exec(text);
  if (!match) return text;
  const [, sign = "", whole = "", rest = ""] = match;
  return sign + whole.replace(/\B(?=(\d{3})+(?!\d))/g, ",") + rest;
}

/** `0.0000123` s -> `12.3 µs`, `95` s -> `1m 35s` */
export function duration(seconds: Maybe<number>): string {
  if (seconds == null || Number.isNaN(seconds)) return NONE;
  if (!Number.isFinite(seconds)) return "never";
  const size = Math.abs(seconds);
  if (size === 0) return "0 s";
  if (size < 1e-6) return `${(seconds * 1e9).toFixed(0)} ns`;
  if (size < 1e-3) return `${(seconds * 1e6).toPrecision(3)} µs`;
  if (size < 1) return `${(seconds * 1e3).toPrecision(3)} ms`;
  if (size < 60) return `${size < 10 ? seconds.toFixed(1) : Math.round(seconds)} s`;
  const parts: [string, number][] = [
    ["d", 86_400],
    ["h", 3_600],
    ["m", 60],
    ["s", 1],
  ];
  let rest = Math.round(size);
  const out: string[] = [];
  for (const [name, length] of parts) {
    const count = Math.floor(rest / length);
    rest -= count * length;
    if (count > 0) out.push(`${count}${name}`);
    if (out.length === 2) break;
  }
  return (seconds < 0 ? "-" : "") + out.join(" ");
}

/** `1 topic`, `2 topics` */
export function plural(count: number, one: string, many = `${one}s`): string {
  return `${exact(count)} ${count === 1 ? one : many}`;
}

/** Parses `10k`, `1.5 MiB`, `2_000`: what people type where a number is wanted; null if it is none. */
export function parseAmount(text: string): number | null {
  const match = /^\s*([\d_,]*\.?\d+)\s*(k|m|g|t)?(i)?(b)?(?:\/s)?\s*$/i.exec(text);
  if (!match) return null;
  const [, digits = "", unit = "", binary] = match;
  const power = "kmgt".indexOf(unit.toLowerCase()) + (unit ? 1 : 0);
  return Number(digits.replace(/[_,]/g, "")) * (binary ? 1024 : 1000) ** power;
}
