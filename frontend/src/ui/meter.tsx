import { cn } from "@/lib/cn";
import { percent } from "@/lib/format";

/** How full something is. Above `high` the page that shows it says so in words, too. */
export function Meter({
  value,
  label,
  high = 0.9,
  mid = 0.7,
  className,
}: {
  value: number | null | undefined;
  label: string;
  high?: number;
  mid?: number;
  className?: string;
}) {
  const share = Math.max(0, Math.min(1, value ?? 0));
  const tone = share >= high ? "bg-bad" : share >= mid ? "bg-warn" : "bg-accent";
  return (
    <span className={cn("inline-flex w-full items-center gap-2", className)}>
      {/* biome-ignore lint/a11y/useSemanticElements: a meter element cannot be styled alike everywhere */}
      <span
        role="meter"
        aria-label={label}
        aria-valuenow={Math.round(share * 100)}
        aria-valuemin={0}
        aria-valuemax={100}
        className="h-1.5 min-w-10 flex-1 overflow-hidden rounded-full bg-raised"
      >
        <span
          className={cn("block h-full rounded-full transition-[width] duration-300", tone)}
          style={{ width: `${share * 100}%` }}
        />
      </span>
      <span className="num w-11 shrink-0 text-right text-muted text-xs">
        {value == null ? "–" : percent(share)}
      </span>
    </span>
  );
}
