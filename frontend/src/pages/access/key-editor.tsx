import { Plus, X } from "lucide-react";
import { useState } from "react";
import { bodyOf, http, type Schemas, wanted } from "@/api/client";
import { useAct } from "@/app/act";
import { isName } from "@/lib/names";
import { Button, IconButton } from "@/ui/button";
import { Command } from "@/ui/code";
import { Dialog } from "@/ui/dialog";
import { Editor } from "@/ui/editor";
import { Input, TextField } from "@/ui/field";
import { SelectField } from "@/ui/select";

type Right = Schemas["Scope"]["rights"][number];
type Role = Schemas["KeyInput"]["role"];
const RIGHTS: readonly Right[] = ["publish", "subscribe", "manage", "read_payloads"];
const DAYS = [
  { value: "1", label: "A day" },
  { value: "30", label: "30 days" },
  { value: "365", label: "A year" },
  { value: "never", label: "Never" },
] as const;

export function KeyEditor({ onClose }: { onClose: () => void }) {
  const { busy, act } = useAct();
  const [name, setName] = useState("");
  const [role, setRole] = useState<Role>("viewer");
  const [description, setDescription] = useState("");
  const [days, setDays] = useState<(typeof DAYS)[number]["value"]>("30");
  const [scopes, setScopes] = useState<{ id: number; pattern: string; rights: Right[] }[]>([
    { id: 0, pattern: ">", rights: ["subscribe"] },
  ]);
  const [secret, setSecret] = useState<string | null>(null);
  const body = wanted<Schemas["KeyInput"]>({
    name,
    role,
    description,
    scopes: scopes.map(({ pattern, rights }) => ({ pattern, rights })),
    ...(role === "admin" ? { scopes: [] } : {}),
    ...(days === "never" ? {} : { expires_s: Number(days) * 86_400 }),
  });
  const ready =
    isName(name) && body.scopes?.every((one) => one.pattern && one.rights.length > 0) === true;
  const make = async () => {
    const made = await act(() => http.POST("/api/v1/keys", { body }).then(bodyOf));
    if (made && "secret" in made) setSecret(made.secret);
  };
  if (secret) {
    return (
      <Dialog
        open
        onOpenChange={(open) => !open && onClose()}
        title={`${name} is made`}
        lead="The secret is shown only now: only its hash is stored."
        footer={
          <Button look="primary" onClick={onClose}>
            I have stored it
          </Button>
        }
      >
        <div className="flex flex-col gap-2 pb-2" data-testid="key-secret">
          <Command text={secret} />
          <Command text={`export TIDECAST_KEY=${secret}`} />
          <Command
            text={`curl -H "Authorization: Bearer $TIDECAST_KEY" ${location.origin}/api/v1/auth/me`}
          />
        </div>
      </Dialog>
    );
  }
  return (
    <Editor
      title="Create an API key"
      lead="Give it as little as it needs."
      onClose={onClose}
      action={{ method: "POST", path: "/api/v1/keys", body }}
      ready={ready}
      busy={busy}
      save={make}
      verb="Create key"
    >
      <TextField label="Name" autoFocus mono value={name} onChange={setName} />
      <SelectField label="Expires in" value={days} onChange={setDays} options={DAYS} />
      <SelectField
        label="Role"
        hint="What it may do in the API"
        value={role}
        onChange={setRole}
        options={[
          { value: "viewer", label: "Viewer", hint: "Reads, changes nothing" },
          { value: "operator", label: "Operator", hint: "Runs topics and subscriptions" },
          { value: "admin", label: "Admin", hint: "Everything" },
        ]}
      />
      <TextField label="Description" value={description} onChange={setDescription} />
      <fieldset className="col-span-full flex flex-col gap-2" hidden={role === "admin"}>
        <legend className="mb-1 font-medium text-xs">Rights on topics</legend>
        {scopes.map((scope, index) => (
          <div
            key={scope.id}
            className="flex flex-wrap items-center gap-3 rounded-md border px-2.5 py-2"
          >
            <Input
              aria-label="Topic pattern"
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
          <code className="font-mono">{">"}</code> at the end for the rest.
        </p>
      </fieldset>
    </Editor>
  );
}
