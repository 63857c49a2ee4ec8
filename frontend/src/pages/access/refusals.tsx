import { exact, rate } from "@/lib/format";
import type { KeyLive } from "@/live/types";
import { StateBadge } from "@/ui/badge";

/** Requests of a key's clients that engines refused since these started, and whether that continues. */
export function Refusals({ live }: { live: KeyLive | undefined }) {
  if (!live) return <span className="text-faint text-xs">none</span>;
  return (
    <span className="num flex flex-wrap items-center gap-1.5 text-xs">
      <span>{exact(live.denied)} denied</span>
      <span>{exact(live.over_quota)} over quota</span>
      {(live.refused_per_s ?? 0) > 0 && (
        <StateBadge state="warn">{rate(live.refused_per_s, "/s")} now</StateBadge>
      )}
    </span>
  );
}

/** Of what is in no row of the table: other keys together, and callers that have none of these. */
export function OtherRefusals({ rows }: { rows: readonly KeyLive[] }) {
  if (rows.length === 0) return null;
  return (
    <ul aria-label="Refused requests without a key of the list" className="border-t px-3 py-2">
      {rows.map((row) => (
        <li key={row.name} className="flex items-center gap-2 text-muted text-xs">
          <span className="font-mono">{row.name || "no key"}</span>
          <Refusals live={row} />
        </li>
      ))}
    </ul>
  );
}
