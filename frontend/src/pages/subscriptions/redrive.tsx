import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { Skull } from "lucide-react";
import { useState } from "react";
import { bodyOf, http } from "@/api/client";
import type { Operation } from "@/api/queries";
import { useAct } from "@/app/act";
import { codecs } from "@/forms/fields";
import { refusalOf } from "@/forms/fields-view";
import { exact, plural } from "@/lib/format";
import { useSettled } from "@/lib/settled";
import { Button } from "@/ui/button";
import { CopyAs } from "@/ui/copy-as";
import { Dialog } from "@/ui/dialog";
import { TextField } from "@/ui/field";
import { Empty, Failed } from "@/ui/states";
import { countOf, OperationView, type Say } from "./operation";

const COUNT_MAX = 1_000_000;

const sayRedrive =
  (to: string): Say =>
  (value, dry) => {
    const moved = plural(countOf(value.records), "message");
    const where = to === "" ? "their original topics" : to;
    const more = value.next ? " More dead letters are left." : "";
    return `${moved} ${dry ? "will be" : "were"} published to ${where}; ${exact(countOf(value.scanned))} checked.${more}`;
  };

function countErrorOf(text: string): string | undefined {
  const read = codecs.integer.read(text);
  if ("error" in read) return read.error;
  const count = Number(read.value);
  return count >= 1 && count <= COUNT_MAX ? undefined : `1 to ${exact(COUNT_MAX)}`;
}

/** Publishes dead letters again: where they came from, or elsewhere. */
export function Redrive({
  name,
  topic,
  count,
  onClose,
}: {
  name: string;
  topic: string;
  count: string | null | undefined;
  onClose: () => void;
}) {
  const { busy, act, error } = useAct("here");
  const [to, setTo] = useState("");
  const [max, setMax] = useState("1000");
  const [where, setWhere] = useState("");
  const [result, setResult] = useState<Operation | null>(null);
  const wrong = countErrorOf(max);
  const body = { to, where, count_max: Number(max) };
  const params = { path: { name } };
  const path = `/api/v1/subscriptions/${encodeURIComponent(name)}/redrive`;
  const send = (dry_run: boolean) =>
    http
      .POST("/api/v1/subscriptions/{name}/redrive", {
        params: { ...params, query: { dry_run } },
        body,
      })
      .then((answer) => bodyOf(answer as { data?: Operation }));
  // The preview is of what stands in the fields now: other words are another question.
  const asked = useSettled(JSON.stringify(body));
  const current = asked === JSON.stringify(body);
  const preview = useQuery({
    queryKey: ["subscriptions", "redrive", name, asked],
    queryFn: () => send(true),
    enabled: topic !== "" && !wrong && current && result === null,
    retry: false,
  });
  const failure = error ?? preview.error;
  const refusals = (preview.data?.results ?? []).filter((one) => !one.ok).map((one) => one.detail);
  const whereWrong = refusalOf(failure, "where") ?? (where ? filterError(refusals) : undefined);
  const run = async () => {
    const done = await act(() => send(false), "Dead letters are published again");
    if (done) setResult(done);
  };
  if (!topic) {
    return (
      <Dialog open onOpenChange={(open) => !open && onClose()} title="Dead letters">
        <Empty icon={Skull} title="No dead-letter topic" className="py-6">
          Set a dead-letter topic in Edit: it gets each message that exceeds its deliveries, with
          its attempt count and the reason.
        </Empty>
      </Dialog>
    );
  }
  return (
    <Dialog
      open
      onOpenChange={(open) => !open && onClose()}
      title="Dead letters"
      lead="Messages that exceeded their deliveries, or that a handler rejected."
      footer={
        <>
          <span className="mr-auto">
            <CopyAs action={{ method: "POST", path, body }} />
          </span>
          <Button onClick={onClose}>{result ? "Close" : "Cancel"}</Button>
          <Button
            look="primary"
            onClick={run}
            busy={busy}
            disabled={
              wrong !== undefined || !current || !preview.data || preview.data.state === "failed"
            }
          >
            Re-drive
          </Button>
        </>
      }
    >
      <div className="grid gap-3 pb-2 sm:grid-cols-2">
        <p className="col-span-full text-sm">
          {count == null
            ? "Dead letters are in"
            : count === "0"
              ? "No dead letter is left in"
              : `${exact(count)} in`}{" "}
          <Link
            to="/messages"
            search={{ topic, view: "browse" }}
            className="font-mono text-accent text-xs hover:underline"
          >
            {topic}
          </Link>
        </p>
        <TextField
          label="To topic"
          hint="Empty: the original topic of each message"
          error={refusalOf(failure, "to")}
          mono
          value={to}
          onChange={setTo}
        />
        <TextField
          label="At most"
          error={wrong}
          inputMode="numeric"
          value={max}
          onChange={setMax}
        />
        <div className="col-span-full">
          <TextField
            label="Filter"
            hint={'Such as headers["dead-attempts"] > 3 and size < 1000; empty: all'}
            error={whereWrong}
            mono
            value={where}
            onChange={setWhere}
          />
        </div>
        <div className="col-span-full flex flex-col gap-2">
          {failure !== null && !whereWrong && <Failed error={failure} />}
          {result ? (
            <OperationView operation={result} say={sayRedrive(to)} />
          ) : (
            !wrong &&
            !whereWrong &&
            current &&
            preview.data && <OperationView operation={preview.data} say={sayRedrive(to)} />
          )}
        </div>
      </div>
    </Dialog>
  );
}

/** What engines say of a filter, without the name of the field that it stands beside. */
const filterError = (details: readonly string[]): string | undefined =>
  details.find((one) => /\bwhere\b/.test(one))?.replace(/^.*?\bwhere:\s*/, "");
