import { StateBadge } from "@/ui/badge";

/** Engines need a moment to apply a change: that is no fault. */
const APPLYING_MS = 15_000;

/** Whether the engines run with the newest settings. */
export function SyncBadge({ drift, since }: { drift: boolean; since: string }) {
  if (!drift) return <StateBadge state="good">in sync</StateBadge>;
  const applying = Date.now() - Date.parse(since) < APPLYING_MS;
  return applying ? (
    <StateBadge state="info">applying</StateBadge>
  ) : (
    <StateBadge state="warn">out of sync</StateBadge>
  );
}
