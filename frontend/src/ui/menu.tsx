import type { LucideIcon } from "lucide-react";
import { DropdownMenu } from "radix-ui";
import type { ReactNode } from "react";
import { cn } from "@/lib/cn";
import { Keys } from "./keys";

export function Menu({
  trigger,
  children,
  align = "end",
}: {
  trigger: ReactNode;
  children: ReactNode;
  align?: "start" | "end";
}) {
  return (
    <DropdownMenu.Root modal={false}>
      <DropdownMenu.Trigger asChild>{trigger}</DropdownMenu.Trigger>
      <DropdownMenu.Portal>
        <DropdownMenu.Content
          align={align}
          sideOffset={4}
          collisionPadding={8}
          className="z-50 min-w-44 animate-in rounded-lg border bg-raised p-1 shadow-pop"
        >
          {children}
        </DropdownMenu.Content>
      </DropdownMenu.Portal>
    </DropdownMenu.Root>
  );
}

export function MenuItem({
  icon: Icon,
  onSelect,
  children,
  danger,
  disabled,
  keys,
}: {
  icon?: LucideIcon;
  onSelect: () => void;
  children: ReactNode;
  danger?: boolean;
  disabled?: boolean;
  keys?: string;
}) {
  return (
    <DropdownMenu.Item
      onSelect={onSelect}
      disabled={disabled}
      className={cn(
        "flex cursor-pointer select-none items-center gap-2 rounded-md px-2 py-1 text-sm outline-none",
        "data-disabled:cursor-not-allowed data-highlighted:bg-hover data-disabled:opacity-50",
        danger && "text-bad",
      )}
    >
      {Icon && <Icon aria-hidden className="size-3.5" />}
      <span className="flex-1">{children}</span>
      {keys && <Keys keys={keys} />}
    </DropdownMenu.Item>
  );
}

export const MenuLabel = ({ children }: { children: ReactNode }) => (
  <DropdownMenu.Label className="px-2 pt-1 pb-0.5 font-medium text-2xs text-faint">
    {children}
  </DropdownMenu.Label>
);

export const MenuLine = () => <DropdownMenu.Separator className="my-1 h-px bg-line" />;
