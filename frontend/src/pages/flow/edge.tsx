import {
  BaseEdge,
  type Edge,
  EdgeLabelRenderer,
  type EdgeProps,
  getBezierPath,
} from "@xyflow/react";
import { Gauge, TriangleAlert, Waves } from "lucide-react";
import { memo } from "react";
import { cn } from "@/lib/cn";
import { compact, percent, rate } from "@/lib/format";
import type { Flow } from "@/live/types";

type One = Flow["edges"][string];
export type FlowEdgeData = One & Record<string, unknown>;

/** Thicker with rate, by decades: 1 packet a second to ten million. */
const edgeWidth = (packets: number) =>
  packets > 0 ? 1 + Math.min(7, Math.log10(packets + 1)) * 0.55 : 1;

/** Seconds a dash takes for its length: faster with rate, still when nothing moves. */
const edgePace = (packets: number) =>
  packets > 0 ? Math.max(0.25, 1.8 - Math.log10(packets + 1) * 0.25) : 0;

const colour = (data: One) =>
  data.loss_per_s > 0 || data.pressure >= 0.9
    ? "var(--bad)"
    : data.throttle !== "none" || data.pressure >= 0.7
      ? "var(--warn)"
      : data.packets_per_s > 0
        ? "var(--accent)"
        : "var(--line-strong)";

export const FlowEdgeView = memo(function FlowEdgeView(props: EdgeProps<Edge<FlowEdgeData>>) {
  const { data } = props;
  const [path, x, y] = getBezierPath(props);
  if (!data) return null;
  const stroke = colour(data);
  const pace = edgePace(data.packets_per_s);
  const lag = Number(data.lag_packets);
  return (
    <>
      <BaseEdge
        path={path}
        style={{
          stroke,
          strokeWidth: edgeWidth(data.packets_per_s),
          opacity: data.packets_per_s > 0 ? 0.5 : 1,
        }}
      />
      {pace > 0 && (
        <path
          d={path}
          fill="none"
          stroke={stroke}
          strokeWidth={Math.max(1.4, edgeWidth(data.packets_per_s) * 0.6)}
          strokeLinecap="round"
          strokeDasharray="3 13"
          className="motion-reduce:hidden"
          style={{ animation: `flow ${pace}s linear infinite` }}
        />
      )}
      <EdgeLabelRenderer>
        <div
          style={{ transform: `translate(-50%,-50%) translate(${x}px,${y}px)` }}
          className="num pointer-events-none absolute flex max-w-28 flex-wrap items-center justify-center gap-x-1.5 rounded-md border bg-panel px-1.5 text-2xs leading-4"
        >
          <span className={cn(data.packets_per_s > 0 ? "text-ink" : "text-faint")}>
            {rate(data.packets_per_s, " pkt/s")}
          </span>
          {data.loss_per_s > 0 && (
            <span className="inline-flex items-center gap-0.5 text-bad">
              <TriangleAlert aria-label="loss" className="size-3" />
              {rate(data.loss_per_s)}
            </span>
          )}
          {data.resent_per_s > 0 && <span className="text-muted">↻ {rate(data.resent_per_s)}</span>}
          {data.throttle !== "none" && (
            <span className="inline-flex items-center gap-0.5 text-warn">
              {data.throttle === "rate" ? (
                <Gauge aria-hidden className="size-3" />
              ) : (
                <Waves aria-hidden className="size-3" />
              )}
              {data.throttle === "rate" ? "limit" : "flow"}
            </span>
          )}
          {data.pressure >= 0.01 && (
            <span className={data.pressure >= 0.7 ? "text-warn" : "text-muted"}>
              {percent(data.pressure)}
            </span>
          )}
          {lag > 0 && <span className="text-muted">−{compact(lag)}</span>}
        </div>
      </EdgeLabelRenderer>
    </>
  );
});
