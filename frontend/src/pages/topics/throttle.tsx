import { Gauge, Waves } from "lucide-react";
import { percent } from "@/lib/format";
import type { TopicLive } from "@/live/types";
import { Badge } from "@/ui/badge";

/** What throttles a topic's publishers, and for which share of the time. */
export function ThrottleBadge({ live }: { live: TopicLive | undefined }) {
  if (live?.throttle === "rate") {
    return (
      <Badge tone="warn" icon={Gauge}>
        rate limit {percent(live.rates.rate_held)}
      </Badge>
    );
  }
  if (live?.throttle === "flow") {
    return (
      <Badge tone="info" icon={Waves}>
        flow control {percent(live.rates.flow_held)}
      </Badge>
    );
  }
  return <span className="text-faint text-xs">no</span>;
}
