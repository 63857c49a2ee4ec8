import { Command } from "cmdk";
import { Check, ChevronsUpDown } from "lucide-react";
import { Popover } from "radix-ui";
import { type ReactNode, useState } from "react";
import { cn } from "@/lib/cn";

/** Choose one of very many, found by typing. */
export function Combo({
  label,
  value,
  options,
  onText,
  onChange,
  className,
  empty,
}: {
  label: string;
  value: string;
  options: readonly string[];
  onText: (text: string) => void;
  onChange: (value: string) => void;
  className?: string;
  /** What to do when nothing matches. */
  empty?: ReactNode;
}) {
  const [open, setOpen] = useState(false);
  return (
    <Popover.Root open={open} onOpenChange={setOpen}>
      <Popover.Trigger
        aria-label={value ? `${label}: ${value}` : label}
        className={cn(
          "inline-flex h-8 min-w-0 items-center justify-between gap-2 rounded-md border border-line-strong bg-canvas px-2.5 text-sm hover:border-faint",
          className,
        )}
      >
        <span className={cn("truncate", value ? "font-mono text-xs" : "text-faint")}>
          {value || label}
        </span>
        <ChevronsUpDown aria-hidden className="size-3.5 shrink-0 text-faint" />
      </Popover.Trigger>
      <Popover.Portal>
        <Popover.Content
          align="start"
          sideOffset={4}
          className="z-50 w-(--radix-popover-trigger-width) min-w-64 animate-in overflow-hidden rounded-lg border bg-raised shadow-pop"
        >
          <Command label={label} shouldFilter={false}>
            <Command.Input
              placeholder="Type a part of the name"
              onValueChange={onText}
              className="h-9 w-full border-b bg-transparent px-3 text-sm placeholder:text-faint focus:outline-none"
            />
            <Command.List className="max-h-72 overflow-y-auto p-1">
              <Command.Empty className="px-3 py-4 text-muted text-sm">
                {empty ?? "No entry has this name."}
              </Command.Empty>
              {options.map((option) => (
                <Command.Item
                  key={option}
                  value={option}
                  onSelect={() => {
                    onChange(option);
                    setOpen(false);
                  }}
                  className="flex cursor-pointer items-center gap-2 rounded-md px-2 py-1 font-mono text-xs data-[selected=true]:bg-hover"
                >
                  <Check
                    aria-hidden
                    className={cn("size-3.5 text-accent", option !== value && "opacity-0")}
                  />
                  <span className="truncate">{option}</span>
                </Command.Item>
              ))}
            </Command.List>
          </Command>
        </Popover.Content>
      </Popover.Portal>
    </Popover.Root>
  );
}
