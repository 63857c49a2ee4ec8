import { Plus, X } from "lucide-react";
import { useState } from "react";
import { bodyOf, http, type Schemas, wanted } from "@/api/client";
import { useAct } from "@/app/act";
import { codecs, documentOf, draftOf, type FormField } from "@/forms/fields";
import { FieldsView, isPlaced, refusalOf } from "@/forms/fields-view";
import { isName } from "@/lib/names";
import { Button, IconButton } from "@/ui/button";
import { Command } from "@/ui/code";
import { Dialog } from "@/ui/dialog";
import { Editor } from "@/ui/editor";
import { Input, TextField } from "@/ui/field";
import { Failed } from "@/ui/states";

type Right = Schemas["Scope"]["rights"][number];
const RIGHTS: readonly Right[] = ["publish", "subscribe", "manage", "read_payloads"];
const DAY_S = 86_400;

const FIELDS: readonly FormField[] = [
  {
    at: "expires_s",
    label: "Expires in",
    // Chosen in days; sent in seconds, or as nothing.
    codec: {
      show: () => "30",
      read: (days) => ({ value: days === "never" ? null : Number(days) * DAY_S }),
    },
    as: "choice",
    options: [
      { value: "1", label: "A day" },
      { value: "30", label: "30 days" },
      { value: "365", label: "A year" },
      { value: "never", label: "Never" },
    ],
  },
  {
    at: "role",
    label: "Role",
    hint: "Its rights in the API",
    codec: codecs.text,
    as: "choice",
    options: [
      { value: "viewer", label: "Viewer", hint: "Reads only" },
      { value: "operator", label: "Operator", hint: "Manages topics and subscriptions" },
      { value: "admin", label: "Admin", hint: "Everything" },
    ],
  },
  { at: "description", label: "Description", codec: codecs.text, wide: true },
];
const FRESH = { role: "viewer", description: "" };

export function KeyEditor({ onClose }: { onClose: () => void }) {
  const { busy, act, error } = useAct("here");
  const [name, setName] = useState("");
  const [draft, setDraft] = useState(() => draftOf(FIELDS, FRESH));
  // Which topics is a decision: nothing is preselected.
  const [scopes, setScopes] = useState<{ id: number; pattern: string; rights: Right[] }[]>([
    { id: 0, pattern: "", rights: ["subscribe"] },
  ]);
  const [secret, setSecret] = useState<string | null>(null);
  // An admin's key is for everything: it takes no scopes.
  const isAdmin = draft.role === "admin";
  const body = wanted<Schemas["KeyInput"]>({
    name,
    ...(documentOf(FIELDS, draft, {}) as Partial<Schemas["KeyInput"]>),
    scopes: isAdmin ? [] : scopes.map(({ pattern, rights }) => ({ pattern, rights })),
  });
  const ready =
    isName(name) && (isAdmin || scopes.every((one) => one.pattern && one.rights.length > 0));
  const create = async () => {
    const created = await act(() => http.POST("/api/v1/keys", { body }).then(bodyOf));
    if (created && "secret" in created) setSecret(created.secret);
  };
  if (secret) return <Secret name={name} secret={secret} onClose={onClose} />;
  return (
    <Editor
      title="Create an API key"
      lead="Give it only the rights that it needs."
      onClose={onClose}
      action={{ method: "POST", path: "/api/v1/keys", body }}
      ready={ready}
      busy={busy}
      save={create}
      verb="Create key"
    >
      <TextField
        label="Name"
        autoFocus
        mono
        error={refusalOf(error, "name")}
        value={name}
        onChange={setName}
      />
      <FieldsView
        fields={FIELDS}
        draft={draft}
        set={(next) => setDraft((before) => ({ ...before, ...next }))}
        editing={false}
        error={error}
      />
      <fieldset className="col-span-full flex flex-col gap-2" hidden={isAdmin}>
        <legend className="mb-1 font-medium text-xs">Topic permissions</legend>
        {scopes.map((scope, index) => (
          <div
            key={scope.id}
            className="flex flex-wrap items-center gap-3 rounded-md border px-2.5 py-2"
          >
            <Input
              aria-label="Topic pattern"
              placeholder="orders.>"
              className="w-40 font-mono"
              value={scope.pattern}
              onChange={(event) =>
                setScopes(
                  scopes.map((one) =>
                    one.id === scope.id ? { ...one, pattern: event.target.value } : one,
                  ),
                )
              }
            />
            {RIGHTS.map((right) => (
              <label key={right} className="inline-flex items-center gap-1.5 text-xs">
                <input
                  type="checkbox"
                  className="accent-(--accent)"
                  checked={scope.rights.includes(right)}
                  onChange={(event) =>
                    setScopes(
                      scopes.map((one) =>
                        one.id === scope.id
                          ? {
                              ...one,
                              rights: event.target.checked
                                ? [...one.rights, right]
                                : one.rights.filter((had) => had !== right),
                            }
                          : one,
                      ),
                    )
                  }
                />
                {right.replaceAll("_", " ")}
              </label>
            ))}
            <IconButton
              icon={X}
              label={`Remove scope ${index + 1}`}
              className="ml-auto"
              onClick={() => setScopes(scopes.filter((one) => one.id !== scope.id))}
            />
          </div>
        ))}
        <Button
          size="sm"
          icon={Plus}
          className="self-start"
          onClick={() =>
            setScopes([
              ...scopes,
              {
                id: Math.max(-1, ...scopes.map((one) => one.id)) + 1,
                pattern: "",
                rights: ["subscribe"],
              },
            ])
          }
        >
          Another pattern
        </Button>
        <p className="text-faint text-xs">
          <code className="font-mono">*</code> stands for one part of a name,{" "}
          <code className="font-mono">{">"}</code> at the end for the rest; {">"} alone is every
          topic.
        </p>
        {refusalOf(error, "scopes") && (
          <p className="text-bad text-xs">{refusalOf(error, "scopes")}</p>
        )}
      </fieldset>
      {error !== null && !isPlaced(error, [...FIELDS, NAME, SCOPES], draft) && (
        <div className="col-span-full">
          <Failed error={error} />
        </div>
      )}
    </Editor>
  );
}

const NAME: FormField = { at: "name", label: "Name", codec: codecs.text };
const SCOPES: FormField = { at: "scopes", label: "Topic permissions", codec: codecs.text };

/** Shown once: a stray Escape must not lose it. */
function Secret({ name, secret, onClose }: { name: string; secret: string; onClose: () => void }) {
  const [leaving, setLeaving] = useState(false);
  return (
    <Dialog
      open
      onOpenChange={(open) => !open && setLeaving(true)}
      title={`Key ${name} created`}
      lead="The secret is shown only now: only its hash is stored."
      footer={
        <Button look="primary" onClick={onClose}>
          Done
        </Button>
      }
    >
      <div className="flex flex-col gap-2 pb-2" data-testid="key-secret">
        <Command text={secret} />
        <Command text={`export TIDECAST_KEY=${secret}`} />
        <Command
          text={`curl -H "Authorization: Bearer $TIDECAST_KEY" ${location.origin}/api/v1/auth/me`}
        />
        {leaving && (
          <div
            role="alert"
            className="flex flex-wrap items-center gap-2 rounded-lg border border-warn/40 bg-warn-soft px-3.5 py-2.5 text-sm"
          >
            <p className="min-w-48 flex-1">Did you store the secret? It cannot be shown again.</p>
            <Button size="sm" onClick={() => setLeaving(false)}>
              Not yet
            </Button>
            <Button size="sm" look="danger" onClick={onClose}>
              Stored, close
            </Button>
          </div>
        )}
      </div>
    </Dialog>
  );
}
