import { type ReactNode, useState } from "react";
import { useHealth } from "@/app/health";
import type { Action } from "@/lib/copy-as";
import { Button } from "./button";
import { Confirm } from "./confirm";
import { CopyAs } from "./copy-as";
import { Dialog } from "./dialog";

interface Props {
  title: string;
  lead?: ReactNode;
  shape?: "dialog" | "sheet";
  onClose: () => void;
  /** What saving does, for a shell and Python. */
  action: Action;
  /** Whether what is filled in can be saved. */
  ready: boolean;
  busy: boolean;
  save: () => void;
  verb?: string;
  /** Saving loses data. */
  risky?: boolean;
  /** Deletes what is edited, after a last question. */
  remove?: { name: string; lead: string; path: string; run: () => Promise<unknown> } | undefined;
  children: ReactNode;
}

/** A form in a dialog: Enter saves, and so does the button; the action can be copied. */
export function Editor({ title, lead, shape, onClose, remove, children, ...form }: Props) {
  const { action, busy, save, verb = "Save", risky } = form;
  const away = useHealth().database === "away";
  const ready = form.ready && !away;
  const [asked, setAsked] = useState(false);
  return (
    <Dialog
      open
      onOpenChange={(open) => !open && onClose()}
      title={title}
      lead={lead}
      {...(shape ? { shape } : {})}
      footer={
        <>
          {remove && (
            <Button look="danger" onClick={() => setAsked(true)}>
              Delete
            </Button>
          )}
          <span className="mr-auto">
            <CopyAs action={action} />
          </span>
          <Button onClick={onClose}>Cancel</Button>
          {away && <span className="text-warn text-xs">Database unreachable</span>}
          <Button look={risky ? "danger" : "primary"} busy={busy} disabled={!ready} onClick={save}>
            {verb}
          </Button>
        </>
      }
    >
      <form
        className="grid gap-3 pb-2 sm:grid-cols-2"
        onSubmit={(event) => {
          event.preventDefault();
          if (ready && !busy) save();
        }}
      >
        {children}
        <button type="submit" hidden aria-hidden tabIndex={-1} />
      </form>
      {remove && (
        <Confirm
          open={asked}
          onOpenChange={setAsked}
          title={`Delete ${remove.name}?`}
          lead={remove.lead}
          verb="Delete"
          action={{ method: "DELETE", path: remove.path }}
          run={remove.run}
        />
      )}
    </Dialog>
  );
}
