// A page's state in the URL. What does not fit is left out: a link never fails.

type Read<T> = (value: unknown) => T | undefined;
type Fields = Record<string, Read<unknown>>;
type Search<F extends Fields> = {
  [K in keyof F]?: Exclude<ReturnType<F[K]>, undefined> | undefined;
};

export const text =
  (chars: number): Read<string> =>
  (value) => {
    const shown = typeof value === "number" ? String(value) : value;
    return typeof shown === "string" && shown !== "" && shown.length <= chars ? shown : undefined;
  };

export const choice =
  <T extends string>(...values: T[]): Read<T> =>
  (value) =>
    values.find((one) => one === value);

export const flag: Read<true> = (value) => (value === true ? true : undefined);

/** A validator for the router: known fields, each read or left out. */
export const search =
  <F extends Fields>(fields: F) =>
  (raw: Record<string, unknown>): Search<F> => {
    const out: Record<string, unknown> = {};
    for (const [name, read] of Object.entries(fields)) {
      const value = read(raw[name]);
      if (value !== undefined) out[name] = value;
    }
    return out as Search<F>;
  };
