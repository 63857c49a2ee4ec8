import type { ComponentProps } from "react";
import { useAct } from "@/app/act";
import { Button } from "./button";
import { CopyAs } from "./copy-as";

interface Props extends Omit<ComponentProps<typeof Button>, "busy" | "onClick"> {
  run: () => Promise<unknown>;
  /** The toast after success. */
  done?: string;
  copy: ComponentProps<typeof CopyAs>["action"];
}

/** A button that does something at once, and the same as a command. */
export function ActionButton({ run, done, copy, ...button }: Props) {
  const { busy, act } = useAct();
  return (
    <>
      <Button size="sm" busy={busy} onClick={() => act(run, done)} {...button} />
      <CopyAs small action={copy} />
    </>
  );
}
