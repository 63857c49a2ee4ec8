import { useQuery } from "@tanstack/react-query";
import { useMemo, useState } from "react";
import { bodyOf, http, type Schemas } from "@/api/client";
import type { Operation } from "@/api/queries";
import { useAct } from "@/app/act";
import { exact, plural } from "@/lib/format";
import { nanosOf } from "@/pages/messages/place";
import { TextField } from "@/ui/field";
import { TimeField } from "@/ui/time-field";
import { countOf, movedBy, queuesOf, type Say } from "./operation";
import { ResetDialog } from "./reset-dialog";

type Cursor = Schemas["QueueCursor"];
type Way = "earliest" | "latest" | "time" | "token" | "shift";

/** Messages that come again or are skipped, and those in flight that are discarded. */
const saySeek: Say = (value, dry) => {
  const { again, skipped } = movedBy(value);
  const out = queuesOf(value).reduce((sum, row) => sum + countOf(row.forgotten), 0);
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
  const queues = cursors.length ? cursors.map((one) => queueOf(one.queue)) : ["0"];
  // An offset is of one queue: the first, until another one is chosen.
  const queue = way === "token" && chosen === "all" ? (queues[0] ?? "0") : chosen;
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
    <ResetDialog
      title="Reset position"
      lead="Backwards delivers again; forwards skips. No message is deleted."
      unit="messages"
      way={way}
      onWay={setWay}
      offset="token"
      queue={queue}
      onQueue={setQueue}
      queues={queues.map((one) => ({ value: one, label: `Queue ${one}` }))}
      action={body && { method: "POST", path, body }}
      preview={preview}
      say={saySeek}
      busy={busy}
      error={error}
      run={run}
      onClose={onClose}
    >
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
    </ResetDialog>
  );
}

/** The number of a queue that is named `TOPIC:NUMBER`. */
const queueOf = (queue: string | number): string => String(queue).split(":").pop() ?? "0";
