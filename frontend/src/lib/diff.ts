// Before and after of a write, as the paths that differ.

export interface Difference {
  path: string;
  before: unknown;
  after: unknown;
}

const isObject = (value: unknown): value is Record<string, unknown> =>
  typeof value === "object" && value !== null && !Array.isArray(value);

/** A short list of objects: its rows are listed one by one, not as a cell of JSON. */
const areRows = (value: unknown): value is Record<string, unknown>[] =>
  Array.isArray(value) && value.length > 0 && value.length <= ROWS_MAX && value.every(isObject);

const DEPTH_MAX = 12;
const ROWS_MAX = 50;

export function differences(before: unknown, after: unknown, path = "", depth = 0): Difference[] {
  if (areRows(before) && areRows(after) && depth < DEPTH_MAX) {
    const rows = Math.max(before.length, after.length);
    return Array.from({ length: rows }, (_, at) =>
      differences(before[at] ?? {}, after[at] ?? {}, `${path}[${at}]`, depth + 1),
    ).flat();
  }
  if (isObject(before) && isObject(after) && depth < DEPTH_MAX) {
    const keys = [...new Set([...Object.keys(before), ...Object.keys(after)])].sort();
    return keys.flatMap((key) =>
      differences(before[key], after[key], path ? `${path}.${key}` : key, depth + 1),
    );
  }
  return JSON.stringify(before) === JSON.stringify(after) ? [] : [{ path, before, after }];
}

const isEmpty = (value: unknown) =>
  value === null ||
  value === undefined ||
  value === "" ||
  value === false ||
  (typeof value === "object" && Object.keys(value).length === 0);

/** What something new has: its fields, without those that are empty. */
export function fieldsOf(value: unknown, path = "", depth = 0): Difference[] {
  if (isObject(value) && depth < DEPTH_MAX) {
    return Object.keys(value)
      .sort()
      .flatMap((key) => fieldsOf(value[key], path ? `${path}.${key}` : key, depth + 1));
  }
  if (areRows(value) && depth < DEPTH_MAX) {
    return value.flatMap((row, at) => fieldsOf(row, `${path}[${at}]`, depth + 1));
  }
  return isEmpty(value) ? [] : [{ path, before: undefined, after: value }];
}
