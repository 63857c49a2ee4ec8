import type { ReactNode } from "react";
import { cn } from "@/lib/cn";

interface CardProps {
  title?: ReactNode;
  hint?: ReactNode;
  actions?: ReactNode;
  children?: ReactNode;
  className?: string;
  flush?: boolean;
  label?: string;
}

export function Card({ title, hint, actions, children, className, flush, label }: CardProps) {
  return (
    <section
      aria-label={label ?? (typeof title === "string" ? title : undefined)}
      className={cn("flex min-w-0 flex-col rounded-lg border bg-panel", className)}
    >
      {(title || actions) && (
        <header className="flex min-h-10 items-center gap-x-2 gap-y-1 px-3.5 pt-1.5 max-sm:flex-wrap">
          <h2 className="whitespace-nowrap font-semibold text-sm">{title}</h2>
          {hint && <span className="truncate text-faint text-xs max-sm:hidden">{hint}</span>}
          <span className="ml-auto flex min-w-0 items-center gap-1 max-sm:flex-wrap">
            {actions}
          </span>
        </header>
      )}
      <div className={cn("min-h-0 min-w-0 flex-1", !flush && "p-3.5 pt-2")}>{children}</div>
    </section>
  );
}

/** A pair of name and value; a list of them describes one thing. */
export function Facts({
  items,
  className,
}: {
  items: [ReactNode, ReactNode][];
  className?: string;
}) {
  return (
    <dl className={cn("grid grid-cols-[max-content_1fr] gap-x-6 gap-y-1.5 text-sm", className)}>
      {items.map(([name, value], index) => (
        // biome-ignore lint/suspicious/noArrayIndexKey: a list of facts never reorders
        <div key={index} className="contents">
          <dt className="text-muted">{name}</dt>
          <dd className="num min-w-0 break-words">{value ?? "–"}</dd>
        </div>
      ))}
    </dl>
  );
}
