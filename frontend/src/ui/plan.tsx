import type { LucideIcon } from "lucide-react";
import { ArrowRight, CircleCheck, Flame, Plus, RefreshCw, TriangleAlert, Zap } from "lucide-react";
import type { Plan } from "@/api/queries";
import { cn } from "@/lib/cn";
import { Badge, type Tone } from "./badge";

type Impact = NonNullable<Plan["impact"]>;

const IMPACTS: Record<Impact, { tone: Tone; icon: LucideIcon; word: string; says: string }> = {
  none: {
    tone: "plain",
    icon: CircleCheck,
    word: "no change",
    says: "Metadata only; traffic is not affected.",
  },
  live: { tone: "good", icon: Zap, word: "live", says: "Takes effect at once; traffic continues." },
  restart: {
    tone: "warn",
    icon: RefreshCw,
    word: "restart",
    says: "Takes effect when an engine restarts.",
  },
  recreate: {
    tone: "warn",
    icon: RefreshCw,
    word: "recreate",
    says: "Publications of this topic end, and publishers open new ones; readers continue.",
  },
  data_loss: {
    tone: "bad",
    icon: Flame,
    word: "data loss",
    says: "Messages are deleted permanently.",
  },
};

function ImpactBadge({ impact }: { impact: Impact }) {
  const { tone, icon, word } = IMPACTS[impact];
  return (
    <Badge tone={tone} icon={icon}>
      {word}
    </Badge>
  );
}

export const shown = (value: unknown): string =>
  value === null || value === undefined
    ? "unset"
    : typeof value === "string"
      ? value || '""'
      : JSON.stringify(value);

/** What a write would do, before it is done. */
export function PlanView({ plan }: { plan: Plan }) {
  const impact = plan.impact ?? "none";
  const fresh = plan.action === "create" && impact === "none";
  return (
    <section aria-label="Preview" className="rounded-lg border bg-canvas">
      <header className="flex items-center gap-2 border-b px-3 py-2 text-sm">
        <b className="font-semibold capitalize">
          {plan.action === "none" ? "No change" : plan.action}
        </b>
        <span className="truncate font-mono text-xs">{plan.name}</span>
        <span className="ml-auto">
          {fresh ? (
            <Badge tone="good" icon={Plus}>
              new
            </Badge>
          ) : (
            <ImpactBadge impact={impact} />
          )}
        </span>
      </header>
      <p className="px-3 pt-2 text-muted text-xs">
        {plan.action === "none"
          ? "Nothing would change."
          : fresh
            ? "No existing resources are modified."
            : IMPACTS[impact].says}
      </p>
      <ul className="flex flex-col gap-1 px-3 py-2">
        {(plan.changes ?? []).map((change) => (
          <li key={change.path} className="flex flex-wrap items-center gap-1.5 font-mono text-xs">
            <span className="text-muted">{change.path.replace(/^\/(spec|metadata)\//, "")}</span>
            {plan.action !== "create" && (
              <>
                <del className="break-words text-bad">{shown(change.old)}</del>
                <ArrowRight aria-label="becomes" className="size-3 text-faint" />
              </>
            )}
            <ins className={cn("break-all text-good no-underline")}>{shown(change.new)}</ins>
            {change.impact && change.impact !== "live" && change.impact !== "none" && (
              <ImpactBadge impact={change.impact} />
            )}
          </li>
        ))}
      </ul>
      {(plan.warnings ?? []).map((warning) => (
        <p key={warning} className="flex gap-1.5 border-t px-3 py-2 text-warn text-xs">
          <TriangleAlert aria-hidden className="mt-0.5 size-3.5 shrink-0" />
          {warning}
        </p>
      ))}
    </section>
  );
}
