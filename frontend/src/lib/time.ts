import { usePrefs, type Zone } from "./prefs";

type Instant = string | number | Date | null | undefined;

const pad = (value: number, width = 2) => String(value).padStart(width, "0");

function fields(date: Date, zone: Zone) {
  return zone === "utc"
    ? {
        day: `${date.getUTCFullYear()}-${pad(date.getUTCMonth() + 1)}-${pad(date.getUTCDate())}`,
        time: `${pad(date.getUTCHours())}:${pad(date.getUTCMinutes())}:${pad(date.getUTCSeconds())}`,
        millis: pad(date.getUTCMilliseconds(), 3),
      }
    : {
        day: `${date.getFullYear()}-${pad(date.getMonth() + 1)}-${pad(date.getDate())}`,
        time: `${pad(date.getHours())}:${pad(date.getMinutes())}:${pad(date.getSeconds())}`,
        millis: pad(date.getMilliseconds(), 3),
      };
}

/** ISO text, epoch milliseconds or a Date; null when it is none of them. */
export function toDate(value: Instant): Date | null {
  if (value == null || value === "") return null;
  const date = value instanceof Date ? value : new Date(value);
  return Number.isNaN(date.getTime()) ? null : date;
}

export function clock(value: Instant, zone: Zone, precision: "seconds" | "millis" = "seconds") {
  const date = toDate(value);
  if (!date) return "–";
  const { time, millis } = fields(date, zone);
  return precision === "millis" ? `${time}.${millis}` : time;
}

export function dateTime(value: Instant, zone: Zone, precision: "seconds" | "millis" = "seconds") {
  const date = toDate(value);
  if (!date) return "–";
  return `${fields(date, zone).day} ${clock(date, zone, precision)}${zone === "utc" ? "Z" : ""}`;
}

/** `12 s ago`, `in 3 h`; `now` within a second. */
export function ago(value: Instant, nowMs: number): string {
  const date = toDate(value);
  if (!date) return "–";
  const seconds = Math.round((nowMs - date.getTime()) / 1000);
  const size = Math.abs(seconds);
  if (size < 2) return "now";
  const text =
    size < 60
      ? `${size} s`
      : size < 3_600
        ? `${Math.floor(size / 60)} min`
        : size < 86_400
          ? `${Math.floor(size / 3_600)} h`
          : `${Math.floor(size / 86_400)} d`;
  return seconds > 0 ? `${text} ago` : `in ${text}`;
}

/** What a field of type `datetime-local` shows for an instant, in a zone; empty when it is none. */
export function inputOf(value: Instant, zone: Zone): string {
  const date = toDate(value);
  if (!date) return "";
  const { day, time } = fields(date, zone);
  return `${day}T${time}`;
}

/** The instant that such a field means in a zone, as ISO text in UTC; empty when it is none. */
export function instantOf(typed: string, zone: Zone): string {
  if (!typed) return "";
  const date = toDate(zone === "utc" ? `${typed}Z` : typed);
  return date ? date.toISOString() : "";
}

/** `UTC`, or this browser's zone: `New York, UTC-05:00`. */
export function zoneName(zone: Zone, at: Date = new Date()): string {
  if (zone === "utc") return "UTC";
  const minutes = -at.getTimezoneOffset();
  const size = Math.abs(minutes);
  const offset = `UTC${minutes < 0 ? "-" : "+"}${pad(Math.floor(size / 60))}:${pad(size % 60)}`;
  const place = Intl.DateTimeFormat().resolvedOptions().timeZone.split("/").pop() ?? "";
  return /^(UTC|GMT|)$/.test(place) ? offset : `${place.replaceAll("_", " ")}, ${offset}`;
}

export function useZone(): Zone {
  return usePrefs().zone;
}
