import { Link } from "@tanstack/react-router";
import type { LucideIcon } from "lucide-react";
import {
  CircleCheck,
  Gauge,
  HardDrive,
  ServerOff,
  Timer,
  TriangleAlert,
  Unplug,
  Waves,
} from "lucide-react";
import { useEffect, useState } from "react";
import { ago } from "@/lib/time";
import type { Slow } from "@/live/types";
import { Badge } from "@/ui/badge";
import { Card } from "@/ui/card";

interface Why {
  icon: LucideIcon;
  word: string;
  advice: string;
}

const REASONS: Record<Slow["reason"], Why> = {
  rate_limit: {
    icon: Gauge,
    word: "rate limit",
    advice: "Raise the limit if the network can take more.",
  },
  flow_control: {
    icon: Waves,
    word: "flow control",
    advice: "A receiver's window is full: find the slowest.",
  },
  loss: { icon: Unplug, word: "packet loss", advice: "Look at socket buffers and the network." },
  ring_full: {
    icon: HardDrive,
    word: "ring full",
    advice: "The slowest receiver holds the publisher back.",
  },
  slow_reader: {
    icon: Timer,
    word: "slow reader",
    advice: "Add members, or read in batches.",
  },
  long_duty_cycle: {
    icon: Timer,
    word: "busy agent",
    advice: "The agent's thread lacks CPU time.",
  },
  node_down: { icon: ServerOff, word: "node down", advice: "Its engine is not connected." },
  drift: {
    icon: TriangleAlert,
    word: "out of sync",
    advice: "The node does not use the newest settings: see its page.",
  },
  send_errors: {
    icon: Unplug,
    word: "send errors",
    advice: "The kernel refuses packets: run `tidecast doctor`.",
  },
  cache_pressure: {
    icon: HardDrive,
    word: "cache pressure",
    advice: "A slow cursor holds blocks.",
  },
};

function target(slow: Slow): { to: string } {
  const name = encodeURIComponent(slow.name);
  if (slow.kind === "topic") return { to: `/topics/${name}` };
  if (slow.kind === "subscription") return { to: `/subscriptions/${name}` };
  if (slow.kind === "node" || slow.kind === "agent") return { to: "/nodes" };
  return { to: "/reliability" };
}

/** What is slow, with the reason: the first place to look. */
export function SlowList({ slow, firing }: { slow: Slow[]; firing: number }) {
  const [now, setNow] = useState(() => Date.now());
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), 1000);
    return () => clearInterval(timer);
  }, []);
  return (
    <Card
      title="Bottlenecks"
      flush
      actions={
        firing > 0 && (
          <Link to="/alerts" className="rounded">
            <Badge tone="bad" icon={TriangleAlert}>
              {firing} firing
            </Badge>
          </Link>
        )
      }
    >
      {slow.length === 0 ? (
        <div className="flex h-full min-h-36 flex-col items-center justify-center gap-1.5 pb-6 text-center">
          <CircleCheck aria-hidden className="size-6 text-good" />
          <p className="font-medium">No bottlenecks</p>
          <p className="max-w-60 text-faint text-xs">
            No publisher is throttled, no reader is behind, every node is in sync.
          </p>
        </div>
      ) : (
        <ul className="max-h-66 overflow-y-auto pb-1">
          {slow.slice(0, 30).map((one) => {
            const why = REASONS[one.reason];
            return (
              <li key={`${one.kind}/${one.node}/${one.name}/${one.reason}`}>
                <Link
                  {...target(one)}
                  className="flex gap-2.5 px-3.5 py-2 transition-colors hover:bg-hover focus-visible:-outline-offset-2"
                >
                  <why.icon aria-hidden className="mt-0.5 size-4 shrink-0 text-warn" />
                  <span className="min-w-0 flex-1">
                    <span className="flex items-baseline gap-1.5">
                      <b className="truncate font-medium font-mono text-xs">{one.name}</b>
                      <span className="text-warn text-xs">{why.word}</span>
                      <span className="num ml-auto shrink-0 text-2xs text-faint">
                        {ago(one.since, now)}
                      </span>
                    </span>
                    <span className="block text-muted text-xs">{one.detail || why.advice}</span>
                  </span>
                </Link>
              </li>
            );
          })}
        </ul>
      )}
    </Card>
  );
}
