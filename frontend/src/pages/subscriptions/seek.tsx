import { useQuery } from "@tanstack/react-query";
import { useMemo, useState } from "react";
import { bodyOf, http, type Schemas } from "@/api/client";
import type { Operation } from "@/api/queries";
import { useAct } from "@/app/act";
import { nanosOf } from "@/pages/messages/place";
import { Button } from "@/ui/button";
import { CopyAs } from "@/ui/copy-as";
import { Dialog } from "@/ui/dialog";
import { TextField } from "@/ui/field";
import { SelectField } from "@/ui/select";
import { Failed } from "@/ui/states";
import { OperationView } from "./operation";

type Cursor = Schemas["QueueCursor"];
type Way = "earliest" | "latest" | "time" | "token" | "shift";

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
  const { busy, act } = useAct();
  const [way, setWay] = useState<Way>("earliest");
  const [time, setTime] = useState("");
  const [token, setToken] = useState("");
  const [shift, setShift] = useState("-100");
  const [queue, setQueue] = useState("all");
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
      return Number.isSafeInteger(by) && by !== 0
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
      `${name} has moved`,
    );
    if (done) onClose();
  };
  return (
    <Dialog
      open
      onOpenChange={(open) => !open && onClose()}
      title="Move the position"
      lead="Backwards delivers again; forwards skips. Nothing is deleted."
      footer={
        <>
          <span className="mr-auto">
            {body && <CopyAs action={{ method: "POST", path, body }} />}
          </span>
          <Button onClick={onClose}>Cancel</Button>
          <Button look="primary" disabled={!body || preview.isError} busy={busy} onClick={run}>
            Move
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
            { value: "earliest", label: "Earliest", hint: "All that is kept" },
            { value: "latest", label: "Latest", hint: "Skip what waits" },
            { value: "time", label: "A time" },
            { value: "token", label: "A token", hint: "Of one queue" },
            { value: "shift", label: "By so many messages" },
          ]}
        />
        <SelectField
          label="Queue"
          value={queue}
          onChange={setQueue}
          options={[
            ...(way === "token" ? [] : [{ value: "all", label: "All queues" }]),
            ...cursors.map((one) => ({
              value: String(one.queue),
              label: `Queue ${one.queue}`,
            })),
          ]}
        />
        {way === "time" && (
          <TextField
            label="Time, local"
            className="col-span-full"
            type="datetime-local"
            step="1"
            value={time}
            onChange={setTime}
          />
        )}
        {way === "token" && (
          <TextField
            label="Token"
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
            className="col-span-full"
            inputMode="numeric"
            value={shift}
            onChange={setShift}
          />
        )}
        <div className="col-span-full flex flex-col gap-2">
          {preview.isError && <Failed error={preview.error} />}
          {preview.data && <OperationView operation={preview.data} />}
        </div>
      </div>
    </Dialog>
  );
}
