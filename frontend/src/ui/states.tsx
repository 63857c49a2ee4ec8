import { type LucideIcon, RotateCw, TriangleAlert } from "lucide-react";
import type { ReactNode } from "react";
import { ApiError } from "@/api/client";
import { cn } from "@/lib/cn";
import { Button } from "./button";
import { Command } from "./code";

/** Nothing here yet: what would be here, why one wants it, and how to get it. */
export function Empty({
  icon: Icon,
  title,
  children,
  commands,
  action,
  className,
}: {
  icon: LucideIcon;
  title: string;
  children?: ReactNode;
  commands?: string[];
  action?: ReactNode;
  className?: string;
}) {
  return (
    <div
      className={cn(
        "mx-auto flex max-w-xl flex-col items-center gap-2 px-4 py-12 text-center",
        className,
      )}
    >
      <span className="mb-1 flex size-10 items-center justify-center rounded-xl border bg-raised">
        <Icon aria-hidden className="size-5 text-accent" />
      </span>
      <p className="font-semibold text-base">{title}</p>
      {children && <div className="max-w-md text-muted text-sm">{children}</div>}
      {commands && (
        <div className="mt-2 flex w-full flex-col gap-1.5 text-left">
          {commands.map((command) => (
            <Command key={command} text={command} />
          ))}
        </div>
      )}
      {action && <div className="mt-2 flex gap-2">{action}</div>}
    </div>
  );
}

/** What the service says in a few words, as a sentence; `code` in it as code. */
export function Said({ text }: { text: string }) {
  return (
    <>
      {`${text.charAt(0).toUpperCase()}${text.slice(1)}.`.split("`").map((part, at) =>
        at % 2 ? (
          // biome-ignore lint/suspicious/noArrayIndexKey: parts of one text never reorder
          <code key={at} className="font-mono text-xs">
            {part}
          </code>
        ) : (
          part
        ),
      )}
    </>
  );
}

export function Failed({ error, retry }: { error: unknown; retry?: () => void }) {
  const forbidden = error instanceof ApiError && error.status === 403;
  const message = error instanceof Error ? error.message : String(error);
  return (
    <div
      role="alert"
      className="flex items-start gap-2.5 rounded-lg border border-bad/40 bg-bad-soft px-3.5 py-2.5"
    >
      <TriangleAlert aria-hidden className="mt-0.5 size-4 shrink-0 text-bad" />
      <p className="min-w-0 flex-1 break-words text-sm">
        {forbidden ? `Your role does not allow this: ${message}.` : message}
      </p>
      {retry && !forbidden && (
        <Button size="sm" icon={RotateCw} onClick={retry}>
          Try again
        </Button>
      )}
    </div>
  );
}

function Skeleton({ className }: { className?: string }) {
  return <div aria-hidden className={cn("animate-pulse rounded bg-raised", className)} />;
}

export function Loading({ rows = 6 }: { rows?: number }) {
  return (
    <div role="status" aria-label="Loading" className="flex flex-col gap-2 py-1">
      {Array.from({ length: rows }, (_, index) => (
        // biome-ignore lint/suspicious/noArrayIndexKey: placeholders are all alike
        <Skeleton key={index} className="h-7" />
      ))}
    </div>
  );
}
