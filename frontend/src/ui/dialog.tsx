import { X } from "lucide-react";
import { Dialog as Base } from "radix-ui";
import type { ReactNode } from "react";
import { cn } from "@/lib/cn";

interface Props {
  open: boolean;
  onOpenChange: (open: boolean) => void;
  title: string;
  lead?: ReactNode;
  children: ReactNode;
  footer?: ReactNode;
  /** A sheet slides along the right edge and keeps the page in sight. */
  shape?: "dialog" | "sheet";
  wide?: boolean;
}

export function Dialog({ open, onOpenChange, title, lead, children, footer, shape, wide }: Props) {
  const sheet = shape === "sheet";
  return (
    <Base.Root open={open} onOpenChange={onOpenChange}>
      <Base.Portal>
        <Base.Overlay className="fixed inset-0 z-40 bg-black/45 backdrop-blur-[1px]" />
        <Base.Content
          {...(lead ? {} : { "aria-describedby": undefined })}
          className={cn(
            "fixed z-40 flex animate-in flex-col border bg-panel shadow-pop",
            sheet
              ? "inset-y-0 right-0 w-full max-w-2xl"
              : "-translate-x-1/2 top-[10vh] left-1/2 max-h-[82vh] w-[calc(100vw-2rem)] rounded-xl",
            !sheet && (wide ? "max-w-3xl" : "max-w-lg"),
          )}
        >
          <header className="flex items-start gap-3 px-5 pt-4 pb-2">
            <div className="min-w-0">
              <Base.Title className="break-words font-semibold text-base">{title}</Base.Title>
              {lead && <Base.Description className="text-muted text-sm">{lead}</Base.Description>}
            </div>
            {/* No tip here: it would take the first Escape for itself. */}
            <Base.Close asChild>
              <button
                type="button"
                aria-label="Close"
                className="-mr-1.5 ml-auto inline-flex size-7 shrink-0 items-center justify-center rounded-md text-muted hover:bg-hover hover:text-ink"
              >
                <X aria-hidden className="size-4" />
              </button>
            </Base.Close>
          </header>
          <div className="min-h-0 flex-1 overflow-y-auto px-5 py-2">{children}</div>
          {footer && (
            <footer className="flex flex-wrap items-center justify-end gap-2 px-5 py-3.5">
              {footer}
            </footer>
          )}
        </Base.Content>
      </Base.Portal>
    </Base.Root>
  );
}
