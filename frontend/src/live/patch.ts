// RFC 7396, without touching what it is given: rows that do not change keep their identity, so React
// renders only what did.

const isObject = (value: unknown): value is Record<string, unknown> =>
  typeof value === "object" && value !== null && !Array.isArray(value);

export function mergePatch<T>(target: T, patch: unknown): T {
  if (!isObject(patch)) return patch as T;
  const base: Record<string, unknown> = isObject(target) ? target : {};
  let out: Record<string, unknown> | undefined;
  for (const [key, change] of Object.entries(patch)) {
    const before = base[key];
    if (change === null) {
      if (!(key in base)) continue;
      out ??= { ...base };
      delete out[key];
      continue;
    }
    const after = mergePatch(before, change);
    if (after === before && key in base) continue;
    out ??= { ...base };
    out[key] = after;
  }
  return (out ?? base) as T;
}
