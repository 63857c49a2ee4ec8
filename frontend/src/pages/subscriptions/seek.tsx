import { useQuery } from "@tanstack/react-query";
import { useMemo, useState } from "react";
import { bodyOf, http, type Schemas } from "@/api/client";
import type { Operation } from "@/api/queries";
import { useAct } from "@/app/act";
import { exact, plural } from "@/lib/format";
import { nanosOf } from "@/pages/messages/place";
import { Button } from "@/ui/button";
import { CopyAs } from "@/ui/copy-as";
import { Dialog } from "@/ui/dialog";
import { TextField } from "@/ui/field";
import { SelectField } from "@/ui/select";
import { Failed } from "@/ui/states";
import { TimeField } from "@/ui/time-field";
import { countOf, OperationView, queuesOf, type Say } from "./operation";

type Cursor = Schemas["QueueCursor"];
type Way = "earliest" | "latest" | "time" | "token" | "shift";

/** Messages that come again or are skipped, and those in flight that are discarded. */
const saySeek: Say = (value, dry) => {
  const rows = queuesOf(value);
  let [again, skipped, out] = [0, 0, 0];
  for (const row of rows) {
    const moved = countOf(row.records);
    if (moved < 0) again -= moved;
    else skipped += moved;
    out += countOf(row.forgotten);
  }
  const will = dry ? "will be" : "are";
  const parts = [
    ...(skipped ? [`${plural(skipped, "message")} ${will} skipped`] : []),
    ...(again ? [`${plural(again, "message")} ${will} delivered again`] : []),
    ...(out ? [`${exact(out)} in flight ${will} discarded`] : []),
  ];
  return parts.length ? `${parts.join("; ")}.` : "The position does not change.";
};

/** Moves a subscription's position, after showing what that means. */
export function Seek({
  name,
  cursors,
  onClose,
}: {
  name: string;
  cursors: readonly Cursor[];
  onClose: () => void;
}) {
  const { busy, act, error } = useAct("here");
  const [way, setWay] = useState<Way>("earliest");
  const [time, setTime] = useState("");
  const [token, setToken] = useState("");
  const [shift, setShift] = useState("-100");
  const [chosen, setQueue] = useState("all");
  const first = queueOf(cursors[0]?.queue ?? "0");
  // An offset is of one queue: the first, until another one is chosen.
  const queue = way === "token" && chosen === "all" ? first : chosen;
  const number = queue === "all" ? null : Number(queue);
  const body = useMemo((): Schemas["SeekRequest"] | null => {
    const only = number === null ? {} : { queue: number };
    if (way === "time") {
      const time_ns = nanosOf(time);
      return time_ns ? ({ at: "time", time_ns, ...only } as Schemas["SeekRequest"]) : null;
    }
    if (way === "token") {
      return /^\d{1,19}$/.test(token) && number !== null
        ? ({ at: "token", token, queue: number } as Schemas["SeekRequest"])
        : null;
    }
    if (way === "shift") {
      const by = Number(shift);
      return shift.trim() !== "" && Number.isSafeInteger(by) && by !== 0
        ? ({ shift: by, ...only } as Schemas["SeekRequest"])
        : null;
    }
    return { at: way, ...only } as Schemas["SeekRequest"];
  }, [way, time, token, shift, number]);
  const params = { path: { name } };
  const preview = useQuery({
    queryKey: ["subscriptions", "seek", name, body],
    queryFn: () =>
      http
        .POST("/api/v1/subscriptions/{name}/seek", {
          params: { ...params, query: { dry_run: true } },
          body: body as Schemas["SeekRequest"],
        })
        .then((answer) => bodyOf(answer as { data?: Operation })),
    enabled: body !== null,
    retry: false,
  });
  const path = `/api/v1/subscriptions/${encodeURIComponent(name)}/seek`;
  const run = async () => {
    if (!body) return;
    const done = await act(
      () => http.POST("/api/v1/subscriptions/{name}/seek", { params, body }),
      `The position of ${name} is changed`,
    );
    if (done) onClose();
  };
  return (
    <Dialog
      open
      onOpenChange={(open) => !open && onClose()}
      title="Reset position"
      lead="Backwards delivers again; forwards skips. No message is deleted."
      footer={
        <>
          <span className="mr-auto">
            {body && <CopyAs action={{ method: "POST", path, body }} />}
          </span>
          <Button onClick={onClose}>Cancel</Button>
          <Button look="primary" disabled={!body || preview.isError} busy={busy} onClick={run}>
            Reset position
          </Button>
        </>
      }
    >
      <div className="grid gap-3 pb-2 sm:grid-cols-2">
        <SelectField
          label="To"
          value={way}
          onChange={setWay}
          options={[
            { value: "earliest", label: "Earliest", hint: "All stored messages" },
            { value: "latest", label: "Latest", hint: "Skip all waiting messages" },
            { value: "time", label: "Time" },
            { value: "token", label: "Offset", hint: "In one queue" },
            { value: "shift", label: "Shift by N messages" },
          ]}
        />
        <SelectField
          label="Queue"
          value={queue}
          onChange={setQueue}
          options={[
            ...(way === "token" ? [] : [{ value: "all", label: "All queues" }]),
            ...(cursors.length ? cursors.map((one) => queueOf(one.queue)) : ["0"]).map((one) => ({
              value: one,
              label: `Queue ${one}`,
            })),
          ]}
        />
        {way === "time" && (
          <TimeField label="Time" className="col-span-full" value={time} onChange={setTime} />
        )}
        {way === "token" && (
          <TextField
            label="Offset"
            hint={`Of queue ${queue}; see Positions for its earliest and latest`}
            error={token === "" || /^\d{1,19}$/.test(token) ? undefined : "Digits only"}
            className="col-span-full"
            inputMode="numeric"
            mono
            value={token}
            onChange={setToken}
          />
        )}
        {way === "shift" && (
          <TextField
            label="Messages"
            hint="Negative: backwards"
            error={body ? undefined : "Enter a whole number other than 0"}
            className="col-span-full"
            inputMode="numeric"
            value={shift}
            onChange={setShift}
          />
        )}
        <div className="col-span-full flex flex-col gap-2">
          {(error !== null || preview.isError) && <Failed error={error ?? preview.error} />}
          {body && preview.data && <OperationView operation={preview.data} say={saySeek} />}
        </div>
      </div>
    </Dialog>
  );
}

/** The number of a queue that is named `TOPIC:NUMBER`. */
const queueOf = (queue: string | number): string => String(queue).split(":").pop() ?? "0";
