import { Link } from "@tanstack/react-router";
import { Handle, type Node, type NodeProps, Position } from "@xyflow/react";
import { Cog, Database, Layers, type LucideIcon, RadioTower, Rss, Split } from "lucide-react";
import { memo } from "react";
import { cn } from "@/lib/cn";
import { percent, rate } from "@/lib/format";
import type { Flow } from "@/live/types";
import { NODE_HEIGHT, NODE_WIDTH } from "./layout";

type One = Flow["nodes"][string];
export type FlowNodeData = One & Record<string, unknown>;

const ICONS: Record<One["kind"], LucideIcon> = {
  publisher: RadioTower,
  topic: Layers,
  queue: Database,
  agent: Cog,
  subscription: Split,
  subscriber: Rss,
};

const STATES: Record<One["state"], string> = {
  active: "border-line-strong",
  idle: "border-line border-dashed",
  slow: "border-warn",
  paused: "border-info border-dashed",
};

const WORDS: Record<One["state"], string> = {
  active: "",
  idle: "text-faint",
  slow: "text-warn",
  paused: "text-info",
};

/** On the network packets are counted, behind a queue messages. */
const DURABLE: readonly One["kind"][] = ["queue", "agent", "subscription"];

function pathOf(data: One): string | null {
  if (data.kind === "topic") return `/topics/${encodeURIComponent(data.label)}`;
  if (data.kind === "subscription") return `/subscriptions/${encodeURIComponent(data.label)}`;
  return null;
}

export const FlowNodeView = memo(function FlowNodeView({ data }: NodeProps<Node<FlowNodeData>>) {
  const Icon = ICONS[data.kind];
  const path = pathOf(data);
  return (
    <div
      style={{ width: NODE_WIDTH, height: NODE_HEIGHT }}
      className={cn(
        "flex items-center gap-2.5 overflow-hidden rounded-lg border bg-raised px-2.5 text-left",
        STATES[data.state],
      )}
    >
      <Handle type="target" position={Position.Left} isConnectable={false} className="opacity-0" />
      <span
        className={cn(
          "flex size-7 shrink-0 items-center justify-center rounded-md",
          data.kind === "topic" ? "bg-accent-soft text-accent" : "bg-hover text-muted",
        )}
      >
        <Icon aria-hidden className="size-4" />
      </span>
      <span className="min-w-0 flex-1">
        {path ? (
          <Link
            to={path}
            className="block truncate rounded font-medium text-ink text-xs hover:text-accent"
          >
            {data.label}
          </Link>
        ) : (
          <span className="block truncate font-medium text-ink text-xs">{data.label}</span>
        )}
        <span className="num flex gap-1.5 whitespace-nowrap text-2xs text-muted">
          <span className="truncate">
            {data.kind}
            {data.node && ` @ ${data.node}`}
          </span>
          {data.state !== "active" && (
            <b className={cn("font-medium", WORDS[data.state])}>{data.state}</b>
          )}
        </span>
        <span className="num flex justify-between text-2xs text-muted">
          {rate(data.packets_per_s, DURABLE.includes(data.kind) ? " msg/s" : " pkt/s")}
          {data.fill != null && <span>{percent(data.fill)} full</span>}
        </span>
      </span>
      {data.fill != null && (
        <span aria-hidden className="absolute inset-x-0 bottom-0 h-0.5 bg-line">
          <span
            className={cn(
              "block h-full",
              data.fill > 0.9 ? "bg-bad" : data.fill > 0.7 ? "bg-warn" : "bg-accent",
            )}
            style={{ width: `${Math.min(1, data.fill) * 100}%` }}
          />
        </span>
      )}
      <Handle type="source" position={Position.Right} isConnectable={false} className="opacity-0" />
    </div>
  );
});
