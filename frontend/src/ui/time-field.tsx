import { inputOf, instantOf, toDate, useZone, zoneName } from "@/lib/time";
import { TextField } from "./field";

/** A clock that is ahead of this one is no future. */
const AHEAD_MS = 5_000;

interface Props {
  label: string;
  /** ISO text; empty while there is none. */
  value: string;
  onChange: (instant: string) => void;
  className?: string;
  /** It may be in the future. */
  ahead?: boolean;
  hint?: string;
  error?: string | undefined;
}

/** An instant, typed and shown in the zone of the header; the label names it. */
export function TimeField({ label, value, onChange, className, ahead, hint, error }: Props) {
  const zone = useZone();
  const date = toDate(value);
  const early = !ahead && date !== null && date.getTime() > Date.now() + AHEAD_MS;
  return (
    <TextField
      label={`${label} (${zoneName(zone, date ?? new Date())})`}
      error={early ? "This time is in the future: nothing is stored there yet." : error}
      {...(hint ? { hint } : {})}
      {...(className ? { className } : {})}
      type="datetime-local"
      step="1"
      value={inputOf(value, zone)}
      onChange={(typed) => onChange(instantOf(typed, zone))}
    />
  );
}
