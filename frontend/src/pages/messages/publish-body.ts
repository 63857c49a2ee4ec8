export type Shape = "text" | "json" | "hex";

/** `name: value`, one a line; null when a line is not that. */
export function parseHeaders(text: string): Record<string, string> | null {
  const out: Record<string, string> = {};
  for (const line of text.split("\n")) {
    if (!line.trim()) continue;
    const match = /^\s*([^:\s]+)\s*:\s*(.*)$/.exec(line);
    if (!match?.[1]) return null;
    out[match[1]] = match[2] ?? "";
  }
  return out;
}

export function payloadError(shape: Shape, text: string): string | undefined {
  if (shape === "hex") return /^([0-9a-f]{2}|\s)*$/i.test(text) ? undefined : "Pairs of hex digits";
  if (shape !== "json") return undefined;
  try {
    JSON.parse(text);
    return undefined;
  } catch (error) {
    return error instanceof Error ? error.message : "Not JSON";
  }
}
