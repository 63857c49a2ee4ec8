import { Gauge, Waves } from "lucide-react";
import type { TopicLive } from "@/live/types";
import { Badge } from "@/ui/badge";

export function ThrottleBadge({ throttle }: { throttle: TopicLive["throttle"] }) {
  if (throttle === "rate") {
    return (
      <Badge tone="warn" icon={Gauge}>
        rate limit
      </Badge>
    );
  }
  if (throttle === "flow") {
    return (
      <Badge tone="info" icon={Waves}>
        flow control
      </Badge>
    );
  }
  return <span className="text-faint text-xs">no</span>;
}
