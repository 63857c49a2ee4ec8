import { Tooltip } from "radix-ui";
import type { ReactNode } from "react";
import { Keys } from "./keys";

interface Props {
  text: ReactNode;
  keys?: string | undefined;
  children: ReactNode;
  side?: "top" | "bottom" | "left" | "right";
}

export const TipProvider = Tooltip.Provider;

export function Tip({ text, keys, children, side = "bottom" }: Props) {
  return (
    <Tooltip.Root>
      <Tooltip.Trigger asChild>{children}</Tooltip.Trigger>
      <Tooltip.Portal>
        <Tooltip.Content
          side={side}
          sideOffset={6}
          collisionPadding={8}
          className="z-50 flex max-w-72 animate-in items-center gap-2 rounded-md border bg-raised px-2 py-1 text-xs shadow-pop"
        >
          {text}
          {keys && <Keys keys={keys} />}
        </Tooltip.Content>
      </Tooltip.Portal>
    </Tooltip.Root>
  );
}
