import type { LucideIcon } from "lucide-react";
import {
  CircleAlert,
  CircleCheck,
  CircleDashed,
  CirclePause,
  Info,
  TriangleAlert,
} from "lucide-react";
import type { ReactNode } from "react";
import { cn } from "@/lib/cn";

export type Tone = "good" | "warn" | "bad" | "info" | "plain" | "accent";

const TONES: Record<Tone, string> = {
  good: "bg-good-soft text-good",
  warn: "bg-warn-soft text-warn",
  bad: "bg-bad-soft text-bad",
  info: "bg-info-soft text-info",
  plain: "bg-raised text-muted",
  accent: "bg-accent-soft text-accent",
};

export function Badge({
  tone = "plain",
  icon: Icon,
  children,
  className,
}: {
  tone?: Tone;
  icon?: LucideIcon | undefined;
  children: ReactNode;
  className?: string;
}) {
  return (
    <span
      className={cn(
        "inline-flex h-5 items-center gap-1 whitespace-nowrap rounded px-1.5 font-medium text-2xs",
        TONES[tone],
        className,
      )}
    >
      {Icon && <Icon aria-hidden className="size-3" />}
      {children}
    </span>
  );
}

/** A state is a shape and a word; its colour only repeats them. */
const STATES: Record<string, [Tone, LucideIcon]> = {
  good: ["good", CircleCheck],
  warn: ["warn", TriangleAlert],
  bad: ["bad", CircleAlert],
  info: ["info", Info],
  plain: ["plain", CircleDashed],
  paused: ["info", CirclePause],
};

export function StateBadge({
  state,
  children,
}: {
  state: keyof typeof STATES;
  children: ReactNode;
}) {
  const [tone, icon] = STATES[state] ?? (["plain", CircleDashed] as const);
  return (
    <Badge tone={tone} icon={icon}>
      {children}
    </Badge>
  );
}

export function Label({ name, value }: { name: string; value: string }) {
  return (
    <span className="inline-flex h-5 items-center overflow-hidden rounded border font-mono text-2xs">
      <span className="bg-raised px-1 text-faint">{name}</span>
      <span className="px-1 text-muted">{value}</span>
    </span>
  );
}
