import { dateTime, useZone } from "@/lib/time";
import { StateBadge } from "@/ui/badge";

interface State {
  state: "open" | "waiting";
  since?: string | null;
  detail?: string;
}

/** Whether another system answers, or since when the engine waits for it. */
export function OpenState({ state, since }: State) {
  const zone = useZone();
  if (state === "open") return <StateBadge state="good">open</StateBadge>;
  return (
    <span className="flex flex-wrap items-center gap-1.5">
      <StateBadge state="warn">waiting</StateBadge>
      {since && <span className="num text-xs">since {dateTime(since, zone)}</span>}
    </span>
  );
}

/** Why each of the systems that are waited for does not answer. */
export function WaitingNotes({ rows }: { rows: (State & { node: string })[] }) {
  return rows
    .filter((row) => row.state === "waiting")
    .map((row) => (
      <p key={row.node} role="note" className="px-3.5 py-2 text-sm text-warn">
        waiting: {row.detail}
      </p>
    ));
}
