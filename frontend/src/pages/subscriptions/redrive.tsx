import { Link } from "@tanstack/react-router";
import { Skull } from "lucide-react";
import { useState } from "react";
import { bodyOf, http } from "@/api/client";
import type { Operation } from "@/api/queries";
import { useAct } from "@/app/act";
import { exact } from "@/lib/format";
import { Button } from "@/ui/button";
import { CopyAs } from "@/ui/copy-as";
import { Dialog } from "@/ui/dialog";
import { TextField } from "@/ui/field";
import { Empty } from "@/ui/states";
import { OperationView } from "./operation";

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
  const { busy, act } = useAct();
  const [to, setTo] = useState("");
  const [max, setMax] = useState("1000");
  const [where, setWhere] = useState("");
  const [result, setResult] = useState<Operation | null>(null);
  const body = { to, where, count_max: Math.max(1, Math.round(Number(max)) || 1) };
  const params = { path: { name } };
  const path = `/api/v1/subscriptions/${encodeURIComponent(name)}/redrive`;
  const run = async (dry: boolean) => {
    const answer = await act(
      () =>
        http.POST("/api/v1/subscriptions/{name}/redrive", {
          params: { ...params, query: { dry_run: dry } },
          body,
        }),
      dry ? undefined : "Dead letters are on their way again",
    );
    if (answer) setResult(bodyOf(answer as { data?: Operation }));
  };
  return (
    <Dialog
      open
      onOpenChange={(open) => !open && onClose()}
      title="Dead letters"
      lead="Messages that were delivered too often, or that a handler gave up."
      footer={
        topic && (
          <>
            <span className="mr-auto">
              <CopyAs action={{ method: "POST", path, body }} />
            </span>
            <Button onClick={() => run(true)} busy={busy}>
              Preview
            </Button>
            <Button look="primary" onClick={() => run(false)} busy={busy}>
              Re-drive
            </Button>
          </>
        )
      }
    >
      {topic ? (
        <div className="grid gap-3 pb-2 sm:grid-cols-2">
          <p className="col-span-full text-sm">
            {count == null
              ? "They are in"
              : count === "0"
                ? "None is left in"
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
            hint="Empty: where each came from"
            mono
            value={to}
            onChange={setTo}
          />
          <TextField label="At most" inputMode="numeric" value={max} onChange={setMax} />
          <div className="col-span-full">
            <TextField
              label="Where"
              hint={'As headers["dead-attempts"] > 3 and size < 1000; empty: all'}
              mono
              value={where}
              onChange={setWhere}
            />
          </div>
          {result && (
            <div className="col-span-full">
              <OperationView operation={result} />
            </div>
          )}
        </div>
      ) : (
        <Empty icon={Skull} title="No topic for dead letters" className="py-6">
          Name one in Edit: messages that are delivered too often then go there, with attempt count
          and reason.
        </Empty>
      )}
    </Dialog>
  );
}
