// Where a problem of many YAML documents stands. The service names a document by its index.

interface Place {
  /** `topic orders.eu`, or `document 2`. */
  document: string;
  /** From 1. */
  line: number;
}

/** The document of an index, and its line where the pointer's last key is written. */
export function placeOf(text: string, pointer: string): Place | null {
  const match = /^\/(?:documents\/)?(\d+)(\/.*)?$/.exec(pointer);
  if (!match) return null;
  const index = Number(match[1]);
  const key = match[2]?.split("/").findLast((part) => !/^\d*$/.test(part)) ?? "kind";
  const lines = text.split("\n");
  let at = -1;
  let begin = -1;
  let filled = false;
  const own: string[] = [];
  for (const [number, line] of [...lines, "---"].entries()) {
    if (/^---(\s|$)/.test(line)) {
      if (filled) at += 1;
      if (filled && at === index) break;
      own.length = 0;
      begin = -1;
      filled = false;
      continue;
    }
    if (line.trim() && !line.trim().startsWith("#")) filled = true;
    if (filled && begin < 0) begin = number;
    if (filled) own.push(line);
  }
  if (at !== index || begin < 0) return null;
  const whole = own.join("\n");
  const kind = /^kind:\s*([\w-]+)/m.exec(whole)?.[1];
  const name = /\bname:\s*["']?([\w.-]+)/.exec(whole)?.[1];
  const found = own.findIndex((line) => new RegExp(`\\b${key}\\s*:`).test(line));
  return {
    document: kind && name ? `${kind} ${name}` : `document ${index + 1}`,
    line: begin + Math.max(0, found) + 1,
  };
}
