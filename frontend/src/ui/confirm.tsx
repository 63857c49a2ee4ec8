import { type ReactNode, useState } from "react";
import type { Action } from "@/lib/copy-as";
import { Button } from "./button";
import { CopyAs } from "./copy-as";
import { Dialog } from "./dialog";
import { TextField } from "./field";
import { Failed } from "./states";

interface Props {
  open: boolean;
  onOpenChange: (open: boolean) => void;
  title: string;
  lead: ReactNode;
  /** What has to be typed: the name of what will be gone. */
  word?: string;
  verb: string;
  action?: Action;
  run: () => Promise<unknown>;
  children?: ReactNode;
}

/** The last question before something cannot be undone. */
export function Confirm({
  open,
  onOpenChange,
  title,
  lead,
  word,
  verb,
  action,
  run,
  children,
}: Props) {
  const [typed, setTyped] = useState("");
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<unknown>(null);
  const close = (next: boolean) => {
    onOpenChange(next);
    setTyped("");
    setError(null);
  };
  const act = async () => {
    setBusy(true);
    setError(null);
    try {
      await run();
      close(false);
    } catch (caught) {
      setError(caught);
    } finally {
      setBusy(false);
    }
  };
  const ready = !word || typed === word;
  return (
    <Dialog
      open={open}
      onOpenChange={close}
      title={title}
      lead={lead}
      footer={
        <>
          {action && (
            <span className="mr-auto">
              <CopyAs action={action} />
            </span>
          )}
          <Button onClick={() => close(false)}>Cancel</Button>
          <Button look="danger" disabled={!ready} busy={busy} onClick={act}>
            {verb}
          </Button>
        </>
      }
    >
      <form
        className="flex flex-col gap-3"
        onSubmit={(event) => {
          event.preventDefault();
          if (ready && !busy) act();
        }}
      >
        {children}
        {word && (
          <TextField
            label={`Type ${word} to confirm`}
            autoFocus
            mono
            value={typed}
            onChange={setTyped}
          />
        )}
        {error !== null && <Failed error={error} />}
      </form>
    </Dialog>
  );
}
