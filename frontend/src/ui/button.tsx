import type { LucideIcon } from "lucide-react";
import type { ComponentProps } from "react";
import { cn } from "@/lib/cn";
import { Tip } from "./tip";

type Look = "primary" | "plain" | "quiet" | "danger";

const LOOKS: Record<Look, string> = {
  primary: "bg-accent text-accent-ink hover:brightness-110 font-semibold",
  plain: "bg-panel border border-line-strong hover:bg-hover font-medium",
  quiet: "text-muted hover:bg-hover hover:text-ink font-medium",
  danger: "bg-bad-soft text-bad border border-bad/40 hover:border-bad font-semibold",
};

interface Props extends ComponentProps<"button"> {
  look?: Look;
  size?: "sm" | "md";
  icon?: LucideIcon;
  busy?: boolean;
}

export function Button({ look = "plain", size = "md", icon: Icon, busy, ...rest }: Props) {
  const { className, children, disabled, ...props } = rest;
  return (
    <button
      type="button"
      {...props}
      disabled={disabled || busy}
      aria-busy={busy || undefined}
      className={cn(
        "inline-flex shrink-0 select-none items-center justify-center gap-1.5 whitespace-nowrap rounded-md",
        "transition-colors disabled:cursor-not-allowed disabled:opacity-50",
        size === "sm" ? "h-6.5 px-2 text-xs" : "h-8 px-3 text-sm",
        LOOKS[look],
        className,
      )}
    >
      {Icon && <Icon aria-hidden className={cn("size-3.5", busy && "animate-pulse")} />}
      {children}
    </button>
  );
}

interface IconProps extends Omit<ComponentProps<"button">, "children"> {
  icon: LucideIcon;
  label: string;
  hint?: string;
  pressed?: boolean;
}

/** A button that is only an icon: its label is read aloud and shown in a tip. */
export function IconButton({ icon: Icon, label, hint, pressed, className, ...props }: IconProps) {
  return (
    <Tip text={label} keys={hint}>
      <button
        type="button"
        aria-label={label}
        aria-pressed={pressed}
        {...props}
        className={cn(
          "inline-flex size-7 shrink-0 items-center justify-center rounded-md text-muted",
          "transition-colors hover:bg-hover hover:text-ink disabled:opacity-50",
          pressed && "bg-accent-soft text-accent",
          className,
        )}
      >
        <Icon aria-hidden className="size-4" />
      </button>
    </Tip>
  );
}
