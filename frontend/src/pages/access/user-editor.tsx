import { useState } from "react";
import { http, type Schemas, wanted } from "@/api/client";
import type { User } from "@/api/queries";
import { useAct } from "@/app/act";
import { Button } from "@/ui/button";
import { CopyAs } from "@/ui/copy-as";
import { Dialog } from "@/ui/dialog";
import { Field, Input } from "@/ui/field";
import { Select } from "@/ui/select";
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
    /^[\w-]+(\.[\w-]+)*$/.test(name) &&
    (password === "" ? Boolean(user) : password.length >= PASSWORD_CHARS_MIN);
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
    <Dialog
      open
      onOpenChange={(open) => !open && onClose()}
      title={user ? `Edit ${user.name}` : "Add a user"}
      footer={
        <>
          <span className="mr-auto">
            <CopyAs
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
            />
          </span>
          <Button onClick={onClose}>Cancel</Button>
          <Button look="primary" disabled={!ready} busy={busy} onClick={save}>
            Save
          </Button>
        </>
      }
    >
      <form
        className="grid grid-cols-2 gap-3 pb-2"
        onSubmit={(event) => {
          event.preventDefault();
          if (ready) save();
        }}
      >
        <Field label="User">
          {(field) => (
            <Input
              {...field}
              autoFocus
              disabled={Boolean(user)}
              value={name}
              onChange={(event) => setName(event.target.value)}
            />
          )}
        </Field>
        <Field label="Role">
          {(field) => (
            <Select
              id={field.id}
              value={role}
              onChange={setRole}
              options={[
                { value: "viewer", label: "Viewer", hint: "Sees everything but payloads" },
                { value: "operator", label: "Operator", hint: "Runs topics and subscriptions" },
                { value: "admin", label: "Admin", hint: "Everything, users too" },
              ]}
            />
          )}
        </Field>
        <Field label="Full name" className="col-span-2">
          {(field) => (
            <Input
              {...field}
              value={display}
              onChange={(event) => setDisplay(event.target.value)}
            />
          )}
        </Field>
        <Field
          label={user ? "New password" : "First password"}
          hint={user ? "Empty: as it is" : "To be changed at the first sign-in"}
          error={
            password && password.length < PASSWORD_CHARS_MIN
              ? "At least ten characters."
              : undefined
          }
          className="col-span-2"
        >
          {(field) => (
            <Input
              {...field}
              type="password"
              autoComplete="new-password"
              value={password}
              onChange={(event) => setPassword(event.target.value)}
            />
          )}
        </Field>
        {user && <Switch label="Disabled" checked={disabled} onChange={setDisabled} />}
        <button type="submit" hidden aria-hidden tabIndex={-1} />
      </form>
    </Dialog>
  );
}
