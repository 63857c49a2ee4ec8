import { useState } from "react";
import { http, type Schemas, wanted } from "@/api/client";
import type { User } from "@/api/queries";
import { useAct } from "@/app/act";
import { isName } from "@/lib/names";
import { Editor } from "@/ui/editor";
import { TextField } from "@/ui/field";
import { SelectField } from "@/ui/select";
import { Switch } from "@/ui/switch";

type Role = Schemas["UserInput"]["role"];
const PASSWORD_CHARS_MIN = 10;

export function UserEditor({ user, onClose }: { user?: User; onClose: () => void }) {
  const { busy, act } = useAct();
  const [name, setName] = useState(user?.name ?? "");
  const [role, setRole] = useState<Role>(user?.role ?? "viewer");
  const [display, setDisplay] = useState(user?.display_name ?? "");
  const [password, setPassword] = useState("");
  const [disabled, setDisabled] = useState(user?.disabled ?? false);
  const ready =
    isName(name) && (password === "" ? Boolean(user) : password.length >= PASSWORD_CHARS_MIN);
  const save = async () => {
    const saved = await act(
      () =>
        http.PUT("/api/v1/users/{name}", {
          params: { path: { name } },
          body: wanted<Schemas["UserInput"]>({
            role,
            display_name: display,
            disabled,
            ...(password ? { password, must_change_password: true } : {}),
          }),
        }),
      `${name} is saved`,
    );
    if (saved) onClose();
  };
  return (
    <Editor
      title={user ? `Edit ${user.name}` : "Add a user"}
      onClose={onClose}
      action={{
        method: "PUT",
        path: `/api/v1/users/${name || "NAME"}`,
        // The password stays on the page.
        body: {
          role,
          display_name: display,
          disabled,
          ...(user ? {} : { password: "..." }),
        },
      }}
      ready={ready}
      busy={busy}
      save={save}
    >
      <TextField label="User" autoFocus disabled={Boolean(user)} value={name} onChange={setName} />
      <SelectField
        label="Role"
        value={role}
        onChange={setRole}
        options={[
          { value: "viewer", label: "Viewer", hint: "Sees everything but payloads" },
          { value: "operator", label: "Operator", hint: "Runs topics and subscriptions" },
          { value: "admin", label: "Admin", hint: "Everything, users too" },
        ]}
      />
      <TextField
        label="Full name"
        className="col-span-full"
        value={display}
        onChange={setDisplay}
      />
      <TextField
        label={user ? "New password" : "First password"}
        hint={user ? "Empty: as it is" : "To be changed at the first sign-in"}
        error={
          password && password.length < PASSWORD_CHARS_MIN ? "At least ten characters." : undefined
        }
        className="col-span-full"
        type="password"
        autoComplete="new-password"
        value={password}
        onChange={setPassword}
      />
      {user && <Switch label="Disabled" checked={disabled} onChange={setDisabled} />}
    </Editor>
  );
}
