// The editor of any resource. It reads the resource when it opens, sends what was typed and nothing else,
// and names the ETag that it read: somebody else's change meanwhile is never overwritten unasked.
import { useQueryClient } from "@tanstack/react-query";
import { type ReactNode, useEffect, useMemo, useState } from "react";
import { ApiError } from "@/api/client";
import type { Plan } from "@/api/queries";
import {
  deleteResource,
  doWrite,
  KINDS,
  type Kind,
  pathOf,
  planWrite,
  type ResourceDocument,
  readResource,
  type Stored,
  type Write,
} from "@/api/resources";
import { isName } from "@/lib/names";
import { Button } from "@/ui/button";
import { Editor } from "@/ui/editor";
import { TextField } from "@/ui/field";
import { PlanView } from "@/ui/plan";
import { Failed, Loading } from "@/ui/states";
import { toast } from "@/ui/toast";
import {
  type Draft,
  documentOf,
  draftOf,
  errorsOf,
  type FormField,
  METADATA,
  patchOf,
} from "./fields";
import { FieldsView, isPlaced } from "./fields-view";

const PREVIEW_MS = 250;

interface Props {
  kind: Kind;
  /** The resource that is edited; without it a new one is created. */
  name?: string | undefined;
  fields: readonly FormField[];
  /** What a new one starts from. */
  fresh: Record<string, unknown>;
  /** Of a new one that nobody names. */
  newName?: string;
  nameHint?: string;
  /** Of its dialog; by default it names the resource, or the kind of a new one. */
  title?: string;
  lead?: ReactNode;
  /** What the button of a new one says. */
  create?: string;
  shape?: "dialog" | "sheet";
  /** What deleting it means; without it the form does not offer it. */
  deleting?: string;
  onClose: () => void;
  /** After it was saved; by default it closes. */
  onSaved?: (name: string) => void;
}

interface State {
  stored: Stored | undefined;
  draft: Draft;
  failure: unknown;
}

/** The resource as it is now, and what is typed over it. */
function useStored(
  kind: Kind,
  name: string | undefined,
  fields: readonly FormField[],
  fresh: object,
) {
  const [state, setState] = useState<State>(() => ({
    stored: undefined,
    draft: draftOf(fields, { spec: fresh }),
    failure: null,
  }));
  const [reads, setReads] = useState(0);
  // biome-ignore lint/correctness/useExhaustiveDependencies: read once, and again when asked to
  useEffect(() => {
    if (name === undefined) return;
    let left = false;
    readResource(kind, name).then(
      (stored) =>
        left || setState({ stored, draft: draftOf(fields, stored.document), failure: null }),
      (failure) => left || setState((before) => ({ ...before, failure })),
    );
    return () => {
      left = true;
    };
  }, [kind, name, reads]);
  return {
    ...state,
    set: (next: Record<string, string | boolean>) =>
      setState((before) => ({ ...before, draft: { ...before.draft, ...next } })),
    reload: () => setReads((count) => count + 1),
  };
}

interface Preview {
  key: string;
  plan: Plan | null;
  error: unknown;
}

/** What the service would do, asked while somebody types. */
function usePreview(kind: Kind, name: string, write: Write | null, key: string) {
  const [preview, setPreview] = useState<Preview>({ key: "", plan: null, error: null });
  // biome-ignore lint/correctness/useExhaustiveDependencies: the key says it all
  useEffect(() => {
    if (!write) {
      setPreview({ key, plan: null, error: null });
      return;
    }
    let stale = false;
    const timer = setTimeout(async () => {
      const answered = await planWrite(kind, name, write).then(
        (plan) => ({ key, plan, error: null }),
        (error: unknown) => ({ key, plan: null, error }),
      );
      if (!stale) setPreview(answered);
    }, PREVIEW_MS);
    return () => {
      stale = true;
      clearTimeout(timer);
    };
  }, [key, write === null]);
  return preview;
}

export function ResourceEditor(props: Props) {
  const { kind, name: edited, fields: own, fresh, onClose, newName = "" } = props;
  const fields = useMemo(() => [...own, ...METADATA], [own]);
  const client = useQueryClient();
  const editing = edited !== undefined;
  const { stored, draft, failure, set, reload } = useStored(kind, edited, fields, fresh);
  const [typedName, setTypedName] = useState(newName);
  const [busy, setBusy] = useState(false);
  const [refused, setRefused] = useState<{ key: string; error: unknown } | null>(null);
  const name = edited ?? typedName;
  const { word } = KINDS[kind];

  const patch = stored ? patchOf(fields, stored.document, draft) : {};
  const body = editing ? patch : documentOf(fields, draft, draftOf(fields, { spec: fresh }));
  const key = JSON.stringify([name, draft, stored?.etag]);
  const valid = isName(name) && Object.keys(errorsOf(fields, draft)).length === 0;
  const changed = !editing || Object.keys(patch).length > 0;
  const write: Write = editing
    ? { method: "PATCH", body: patch as Partial<ResourceDocument>, ifMatch: stored?.etag }
    : { method: "PUT", body: body as unknown as ResourceDocument };
  const sendable = valid && changed && (!editing || stored !== undefined);
  const { plan, error: unplanned } = usePreview(kind, name, sendable ? write : null, key);
  // What was refused is true of what was sent: other words are another question.
  const error = refused?.key === key ? refused.error : unplanned;
  const taken = !editing && plan?.action === "update";
  const conflict = editing && error instanceof ApiError && error.status === 412;

  const save = async (over = false) => {
    setBusy(true);
    try {
      await doWrite(
        kind,
        name,
        over && write.method === "PATCH" ? { ...write, ifMatch: "" } : write,
      );
      toast.success(`${name} is ${editing ? "saved" : "created"}`);
      client.invalidateQueries();
      (props.onSaved ?? onClose)(name);
    } catch (caught) {
      setRefused({ key, error: caught });
    } finally {
      setBusy(false);
    }
  };
  const remove = async () => {
    await deleteResource(kind, name);
    toast.success(`${name} is deleted`);
    client.invalidateQueries();
    onClose();
  };

  return (
    <Editor
      {...(props.shape ? { shape: props.shape } : {})}
      title={props.title ?? (editing ? `Edit ${edited}` : `Create a ${word}`)}
      lead={props.lead}
      onClose={onClose}
      action={{ method: write.method, path: pathOf(kind, name), body }}
      ready={sendable && !taken && !conflict && unplanned === null && plan?.action !== "none"}
      busy={busy}
      save={() => save()}
      verb={editing ? "Save" : (props.create ?? "Create")}
      risky={plan?.impact === "data_loss"}
      remove={
        editing && props.deleting
          ? { name, lead: props.deleting, path: pathOf(kind, name), run: remove }
          : undefined
      }
    >
      {editing && !stored && !failure && <Loading rows={5} />}
      {failure !== null && (
        <div className="col-span-full">
          <Failed error={failure} retry={reload} />
        </div>
      )}
      {(stored || !editing) && (
        <>
          {newName === "" && (
            <TextField
              label="Name"
              hint={editing ? undefined : props.nameHint}
              error={nameError(typedName, taken, word)}
              className="col-span-full"
              autoFocus={!editing}
              disabled={editing}
              mono
              value={name}
              onChange={setTypedName}
            />
          )}
          <FieldsView fields={fields} draft={draft} set={set} editing={editing} error={error} />
          <ManagedBy document={stored?.document} />
        </>
      )}
      <div className="col-span-full empty:hidden">
        {conflict ? (
          <Conflict word={word} busy={busy} onReload={reload} onOverwrite={() => save(true)} />
        ) : (
          error !== null && !isPlaced(error, fields, draft) && <Failed error={error} />
        )}
        {plan && !taken && !conflict && <PlanView plan={plan} />}
      </div>
    </Editor>
  );
}

const NAME_CHARS_MAX = 200;

function nameError(name: string, taken: boolean, word: string): string | undefined {
  if (name === "") return undefined;
  if (taken) return `A ${word} of this name exists.`;
  if (name.length > NAME_CHARS_MAX) return `At most ${NAME_CHARS_MAX} characters`;
  return isName(name) ? undefined : "Letters, digits, _ and -, in parts joined by dots";
}

/** A file owns it: the next apply of that file may undo what is changed here. */
function ManagedBy({ document }: { document: ResourceDocument | undefined }) {
  const owner = document?.metadata.managed_by;
  return owner ? (
    <p className="col-span-full rounded-md bg-raised px-3 py-2 text-muted text-xs">
      Managed by <b className="font-medium text-ink">{String(owner)}</b>: the next apply of its
      documents may undo a change that is made here.
    </p>
  ) : null;
}

function Conflict(props: {
  word: string;
  busy: boolean;
  onReload: () => void;
  onOverwrite: () => void;
}) {
  return (
    <div
      role="alert"
      className="flex flex-wrap items-center gap-2 rounded-lg border border-warn/40 bg-warn-soft px-3.5 py-2.5 text-sm"
    >
      <p className="min-w-48 flex-1">Someone changed this {props.word} meanwhile.</p>
      <Button size="sm" onClick={props.onReload}>
        Reload
      </Button>
      <Button size="sm" look="danger" busy={props.busy} onClick={props.onOverwrite}>
        Overwrite
      </Button>
    </div>
  );
}
