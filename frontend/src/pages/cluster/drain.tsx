import { useQuery } from "@tanstack/react-query";
import { Play, Truck } from "lucide-react";
import { bodyOf, http, type Schemas, wanted } from "@/api/client";
import { drainQuery, type NodeDrain } from "@/api/queries";
import { useAct } from "@/app/act";
import { useTidecast } from "@/app/commands";
import { exact } from "@/lib/format";
import { Button } from "@/ui/button";
import { CopyAs } from "@/ui/copy-as";
import { Dialog } from "@/ui/dialog";
import { Failed, Loading } from "@/ui/states";

const NAMES_MAX = 20;

function useDrained(node: string, drained: boolean, onClose: () => void) {
  const { busy, act, error } = useAct("here");
  const tidecast = useTidecast();
  const body = wanted<Schemas["MergePatch"]>({ spec: { drained } });
  const words = drained ? "transfers its leased topics" : "takes its share of the leased topics";
  return {
    busy,
    error,
    action: {
      method: "PATCH" as const,
      path: `/api/v1/nodes/${encodeURIComponent(node)}`,
      body,
      cli: tidecast("cluster", drained ? "drain" : "undrain", node),
    },
    run: async () => {
      const done = await act(
        () =>
          http
            .PATCH("/api/v1/nodes/{name}", { params: { path: { name: node } }, body })
            .then(bodyOf),
        `${node} ${words}`,
      );
      if (done) onClose();
    },
  };
}

/** What moves and what stays is shown before a node is drained. */
export function DrainDialog({ node, onClose }: { node: string; onClose: () => void }) {
  const preview = useQuery(drainQuery(node));
  const { busy, error, action, run } = useDrained(node, true, onClose);
  return (
    <Dialog
      open
      onOpenChange={(open) => !open && onClose()}
      title={`Drain ${node}?`}
      lead="It transfers its leased topics to other engines, and takes none until it is undrained, also after a restart. Publishers and consumers continue."
      footer={
        <>
          <span className="mr-auto">
            <CopyAs action={action} />
          </span>
          <Button onClick={onClose}>Cancel</Button>
          <Button look="primary" icon={Truck} busy={busy} onClick={run}>
            Drain
          </Button>
        </>
      }
    >
      {preview.isPending && <Loading />}
      {preview.isError && <Failed error={preview.error} />}
      {preview.data && <Preview drain={preview.data} />}
      {error !== null && <Failed error={error} />}
    </Dialog>
  );
}

function Preview({ drain }: { drain: NodeDrain }) {
  const more = drain.stays_total - drain.stays.length;
  return (
    <section
      aria-label="Preview"
      className="flex flex-col gap-3 rounded-lg border px-3 py-2 text-sm"
    >
      <div>
        <h3 className="font-medium">
          {drain.keeps.length === 0
            ? "No leased topic moves"
            : `${exact(drain.keeps.length)} leased topic${drain.keeps.length === 1 ? "" : "s"} move`}
        </h3>
        <p className="break-words font-mono text-muted text-xs">
          {drain.keeps.slice(0, NAMES_MAX).join(", ")}
          {drain.keeps.length > NAMES_MAX && `, and ${exact(drain.keeps.length - NAMES_MAX)} more`}
        </p>
      </div>
      {drain.stays.length > 0 && (
        <div>
          <h3 className="font-medium">{exact(drain.stays_total)} stay</h3>
          <ul aria-label="What stays" className="flex flex-col gap-1 text-xs">
            {drain.stays.slice(0, NAMES_MAX).map((one) => (
              <li key={`${one.kind}/${one.name}`}>
                <span className="text-faint">{one.kind}</span>{" "}
                <span className="font-mono">{one.name}</span>{" "}
                <span className="text-muted">{one.reason}</span>
              </li>
            ))}
            {more + Math.max(0, drain.stays.length - NAMES_MAX) > 0 && (
              <li className="text-muted">
                and {exact(more + Math.max(0, drain.stays.length - NAMES_MAX))} more
              </li>
            )}
          </ul>
        </div>
      )}
    </section>
  );
}

export function UndrainDialog({ node, onClose }: { node: string; onClose: () => void }) {
  const { busy, error, action, run } = useDrained(node, false, onClose);
  const state = useQuery(drainQuery(node));
  return (
    <Dialog
      open
      onOpenChange={(open) => !open && onClose()}
      title={`Undrain ${node}?`}
      lead="Other engines transfer its share of the leased topics to it again."
      footer={
        <>
          <span className="mr-auto">
            <CopyAs action={action} />
          </span>
          <Button onClick={onClose}>Cancel</Button>
          <Button look="primary" icon={Play} busy={busy} onClick={run}>
            Undrain
          </Button>
        </>
      }
    >
      {state.data && state.data.keeps.length > 0 && (
        <p className="text-sm">It still has {exact(state.data.keeps.length)} leased topics.</p>
      )}
      {error !== null && <Failed error={error} />}
    </Dialog>
  );
}
