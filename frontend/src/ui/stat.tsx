import type { ReactNode } from "react";
import { Sparkline } from "@/charts/sparkline";
import { cn } from "@/lib/cn";
import { NONE } from "@/lib/format";
import type { Tone } from "./badge";
import { Tip } from "./tip";

const TONES: Partial<Record<Tone, string>> = {
  warn: "text-warn",
  bad: "text-bad",
  good: "text-good",
};

/** The figure and its unit: `22.1k` `msg`, `1.50` `MiB`; `2m 41s` is all figure. */
const SPLIT = /^(\d+[dhm] \d+[hms]|-?[\d.,<]+[kMGTP]?)(?![A-Za-z])\s*(.*)$/;

interface Props {
  label: string;
  value: string;
  /** Said below the figure: what it is made of, or what it means. */
  note?: ReactNode;
  tone?: Tone | undefined;
  help?: string;
  spark?: { channel: string; name: string; tint?: number };
}

export function Stat({ label, value, note, tone, help, spark }: Props) {
  const unknown = value === NONE;
  const [, number = value, unit = ""] = SPLIT.exec(value) ?? [];
  return (
    <div className="@container flex min-w-0 flex-col rounded-lg border bg-panel px-3.5 pt-2.5 pb-2">
      <div className="flex items-center justify-between text-muted text-xs">
        {help ? (
          <Tip text={help}>
            <button type="button" className="cursor-help rounded text-left">
              {label}
            </button>
          </Tip>
        ) : (
          label
        )}
      </div>
      <div className="mt-0.5 flex items-end justify-between gap-2">
        <p
          data-testid={`stat-${label}`}
          className={cn(
            "num whitespace-nowrap font-semibold text-[1.375rem] leading-8 tracking-[-0.02em]",
            unknown ? "text-faint" : TONES[tone ?? "plain"],
          )}
        >
          {unknown ? "unknown" : number}
          <span className="ml-0.5 font-medium text-muted text-sm tracking-normal">{unit}</span>
        </p>
        {spark && (
          <span className="@max-[10.5rem]:hidden">
            <Sparkline
              channel={spark.channel}
              name={spark.name}
              tint={spark.tint ?? 1}
              label={`${label} over the last minutes`}
              width={72}
              height={26}
            />
          </span>
        )}
      </div>
      <p
        className="truncate text-faint text-xs"
        title={typeof note === "string" ? note : undefined}
      >
        {note ?? "\u00a0"}
      </p>
    </div>
  );
}
