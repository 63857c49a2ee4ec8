import { TrendingDown, TrendingUp } from "lucide-react";
import type { Subscription } from "@/api/queries";
import { duration, exact, rate } from "@/lib/format";
import type { SubscriptionLive } from "@/live/types";
import { StateBadge } from "@/ui/badge";

const STATES: Record<string, string> = {
  active: "good",
  idle: "plain",
  paused: "paused",
  behind: "warn",
  partial: "warn",
  unwired: "plain",
  unknown: "plain",
};

export function SubscriptionState({ state }: { state: string }) {
  return <StateBadge state={STATES[state] ?? "plain"}>{state}</StateBadge>;
}

/** Time to drain at the present rate, or that it grows. */
export function lagTrend(live: SubscriptionLive | undefined, subscription: Subscription) {
  const trend = live?.lag_trend_per_s;
  const drain = live?.drain_s ?? subscription.status.drain_s;
  if (trend != null && trend > 0.5) {
    return (
      <span className="num inline-flex items-center gap-1 text-warn text-xs">
        <TrendingUp aria-label="grows" className="size-3.5" />
        Growing {rate(trend, " msg/s")}
      </span>
    );
  }
  if (drain != null && drain > 0) {
    return (
      <span className="num inline-flex items-center gap-1 text-xs">
        <TrendingDown aria-label="falls" className="size-3.5 text-good" />
        {duration(drain)}
      </span>
    );
  }
  return <span className="text-faint text-xs">–</span>;
}

/** The same in words. */
export function drainNote(live: SubscriptionLive | undefined): string {
  const trend = live?.lag_trend_per_s;
  if (trend != null && trend > 0.5) return `lag grows by ${rate(trend, " msg/s")}`;
  if (live?.drain_s) return `drained in ${duration(live.drain_s)}`;
  return live?.lag_messages === "0" ? "no backlog" : "lag is stable";
}

/** The exact lag, and how many of it wait for their delivery time. */
export function lagNote(
  lag: string | null | undefined,
  scheduled: string | null | undefined,
): string {
  if (lag == null) return "";
  return scheduled && scheduled !== "0"
    ? `${exact(lag)}, of these ${exact(scheduled)} scheduled`
    : exact(lag);
}

/** How far along its queue a cursor stands, as shares for a bar. */
export function cursorShares(cursor: {
  earliest: string;
  acked: string;
  delivered: string;
  latest: string;
}): { acked: number; delivered: number } {
  const from = BigInt(cursor.earliest);
  const span = Number(BigInt(cursor.latest) - from);
  if (span <= 0) return { acked: 1, delivered: 0 };
  const share = (position: string) =>
    Math.max(0, Math.min(1, Number(BigInt(position) - from) / span));
  const acked = share(cursor.acked);
  return { acked, delivered: Math.max(0, share(cursor.delivered) - acked) };
}

/** Messages given up: those that still wait in their topic, or all of them where there is none. */
export const lostOf = (subscription: Subscription, live: SubscriptionLive | undefined) => {
  const told = live ?? subscription.status;
  return subscription.spec.dead_letter ? told.dead_letters : told.given_up;
};

export const exactOr = (value: string | null | undefined) => (value == null ? "–" : exact(value));

/** Why a cursor waits, as engines say it, in the words of the settings. */
const REASONS: Record<string, string> = {
  "no credit": "in-flight limit reached",
  "no member": "no consumer connected",
  "member's ring is full": "consumer does not read",
};

export const reasonOf = (pressure: string): string => REASONS[pressure] ?? pressure;
