import { toDate } from "@/lib/time";

/** `queue:token`, or a token of queue 0. */
export function parsePlace(text: string): { queue: number; token: string } | null {
  const match = /^(?:(\d{1,4}):)?(\d{1,19})$/.exec(text.trim());
  return match?.[2] ? { queue: Number(match[1] ?? 0), token: match[2] } : null;
}

/** Nanoseconds since 1970 of an instant, as the string that a 64-bit number is. */
export function nanosOf(instant: string): string | null {
  const date = toDate(instant);
  return date ? `${BigInt(date.getTime()) * 1_000_000n}` : null;
}
