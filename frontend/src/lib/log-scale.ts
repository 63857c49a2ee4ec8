// A slider over many decades. Position 0 means "no limit"; from 1 on it grows by the same factor.

export const STEPS = 400;

/** Slider position -> whole number of two significant digits. */
export function valueAt(position: number, min: number, max: number): number {
  if (position <= 0) return 0;
  const share = (Math.min(position, STEPS) - 1) / (STEPS - 1);
  const raw = min * (max / min) ** share;
  const unit = 10 ** Math.max(0, Math.floor(Math.log10(raw)) - 1);
  return Math.round(raw / unit) * unit;
}

export function positionOf(value: number, min: number, max: number): number {
  if (value <= 0) return 0;
  const share = Math.log(Math.max(value, min) / min) / Math.log(max / min);
  return Math.round(1 + Math.min(1, share) * (STEPS - 1));
}
