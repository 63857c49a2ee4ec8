/** `queue:token`, or a token of queue 0. */
export function parsePlace(text: string): { queue: number; token: string } | null {
  const match = /^(?:(\d{1,4}):)?(\d{1,19})$/.exec(text.trim());
  return match?.[2] ? { queue: Number(match[1] ?? 0), token: match[2] } : null;
}

/** Nanoseconds since 1970 of a field of type datetime-local, as the string that a 64-bit number is. */
export function nanosOf(local: string): string | null {
  const ms = new Date(local).getTime();
  return Number.isNaN(ms) ? null : `${BigInt(ms) * 1_000_000n}`;
}
