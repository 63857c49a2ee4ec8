import type { ReactNode } from "react";
import type { Operation } from "@/api/queries";
import type { Action } from "@/lib/copy-as";
import { Button } from "@/ui/button";
import { CopyAs } from "@/ui/copy-as";
import { Dialog } from "@/ui/dialog";
import { SelectField } from "@/ui/select";
import { Failed } from "@/ui/states";
import { OperationView, type Say } from "./operation";

interface Props<Way extends string> {
  title: string;
  lead: string;
  /** What moves, in the plural. */
  unit: "messages" | "records";
  way: Way;
  onWay: (way: Way) => void;
  /** The way that names an offset of one queue. */
  offset: Way;
  queue: string;
  onQueue: (queue: string) => void;
  queues: { value: string; label: string }[];
  /** The request of the form; null while a field is missing or wrong. */
  action: Action | null;
  preview: { data?: Operation | undefined; isError: boolean; error: unknown };
  say: Say;
  busy: boolean;
  error: unknown;
  run: () => void;
  onClose: () => void;
  children: ReactNode;
}

/** Moves a position: chooses the place and the queue, and shows what the move means. */
export function ResetDialog<Way extends string>(props: Props<Way>) {
  const { title, unit, way, offset, action, preview, say, onClose } = props;
  const ways = [
    { value: "earliest", label: "Earliest", hint: `All stored ${unit}` },
    { value: "latest", label: "Latest", hint: `Skip all waiting ${unit}` },
    { value: "time", label: "Time" },
    { value: offset, label: "Offset", hint: "In one queue" },
    { value: "shift", label: `Shift by N ${unit}` },
  ];
  return (
    <Dialog
      open
      onOpenChange={(open) => !open && onClose()}
      title={title}
      lead={props.lead}
      footer={
        <>
          <span className="mr-auto">{action && <CopyAs action={action} />}</span>
          <Button onClick={onClose}>Cancel</Button>
          <Button
            look="primary"
            disabled={!action || preview.isError}
            busy={props.busy}
            onClick={props.run}
          >
            {title}
          </Button>
        </>
      }
    >
      <div className="grid gap-3 pb-2 sm:grid-cols-2">
        <SelectField
          label="To"
          value={way}
          onChange={props.onWay}
          options={ways as { value: Way; label: string; hint?: string }[]}
        />
        <SelectField
          label="Queue"
          value={props.queue}
          onChange={props.onQueue}
          options={[
            ...(way === offset ? [] : [{ value: "all", label: "All queues" }]),
            ...props.queues,
          ]}
        />
        {props.children}
        <div className="col-span-full flex flex-col gap-2">
          {(props.error !== null || preview.isError) && (
            <Failed error={props.error ?? preview.error} />
          )}
          {action && preview.data && <OperationView operation={preview.data} say={say} />}
        </div>
      </div>
    </Dialog>
  );
}
