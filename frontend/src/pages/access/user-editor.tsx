import { useQueryClient } from "@tanstack/react-query";
import { useEffect, useState } from "react";
import { http, type Schemas, wanted } from "@/api/client";
import type { User } from "@/api/queries";
import { codecs, documentOf, draftOf, errorsOf, type FormField } from "@/forms/fields";
import { FieldsView, isPlaced } from "@/forms/fields-view";
import { isName } from "@/lib/names";
import { Editor } from "@/ui/editor";
import { TextField } from "@/ui/field";
import { Failed, Loading } from "@/ui/states";
import { toast } from "@/ui/toast";

const PASSWORD_CHARS_MIN = 10;

const FRESH: Partial<Schemas["UserInput"]> = {
  role: "viewer",
  display_name: "",
  disabled: false,
  must_change_password: true,
};

const COMMON: readonly FormField[] = [
  {
    at: "role",
    label: "Role",
    codec: codecs.text,
    as: "choice",
    options: [
      { value: "viewer", label: "Viewer", hint: "Reads everything but payloads" },
      { value: "operator", label: "Operator", hint: "Manages topics and subscriptions" },
      { value: "admin", label: "Admin", hint: "Manages everything, users too" },
    ],
  },
  { at: "display_name", label: "Full name", codec: codecs.text, wide: true },
];

const password = (label: string, hint: string, required: boolean): FormField => ({
  at: "password",
  label,
  hint,
  as: "password",
  wide: true,
  required,
  codec: {
    show: () => "",
    read: (typed) =>
      typed !== "" && String(typed).length < PASSWORD_CHARS_MIN
        ? { error: "At least ten characters" }
        : { value: typed === "" ? null : typed },
  },
});

const MUST_CHANGE: FormField = {
  at: "must_change_password",
  label: "Must change the password at the next sign-in",
  codec: codecs.flag,
  as: "switch",
  wide: true,
};

const NEW: readonly FormField[] = [
  ...COMMON,
  password("First password", "Give it to the user. The user changes it at the first sign-in", true),
  MUST_CHANGE,
];
const EDITED: readonly FormField[] = [
  ...COMMON,
  password("New password", "Leave empty to keep the current password", false),
  MUST_CHANGE,
  { at: "disabled", label: "Disabled", codec: codecs.flag, as: "switch", wide: true },
];

interface Stored {
  user: User;
  etag: string;
}

/** Users have no metadata and no plan; the rest is as with every resource. */
export function UserEditor({ name: edited, onClose }: { name?: string; onClose: () => void }) {
  const client = useQueryClient();
  const fields = edited ? EDITED : NEW;
  const [stored, setStored] = useState<Stored | null>(null);
  const [typedName, setName] = useState("");
  const [draft, setDraft] = useState(() => draftOf(fields, FRESH));
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<unknown>(null);
  const name = edited ?? typedName;
  // biome-ignore lint/correctness/useExhaustiveDependencies: read once, when the form opens
  useEffect(() => {
    if (!edited) return;
    let left = false;
    http.GET("/api/v1/users/{name}", { params: { path: { name: edited } } }).then(
      ({ data, response }) => {
        if (left || !data) return;
        setStored({ user: data, etag: response.headers.get("ETag") ?? "" });
        setDraft(draftOf(fields, data));
      },
      (failure) => left || setError(failure),
    );
    return () => {
      left = true;
    };
  }, [edited]);
  const { password: typed, ...body } = documentOf(fields, draft, {}) as Schemas["UserInput"];
  const save = async () => {
    setBusy(true);
    setError(null);
    try {
      await http.PUT("/api/v1/users/{name}", {
        params: {
          path: { name },
          header: stored ? { "if-match": stored.etag } : { "if-none-match": "*" },
        },
        body: wanted<Schemas["UserInput"]>({
          ...FRESH,
          ...body,
          ...(typed ? { password: typed } : {}),
        }),
      });
      toast.success(`${name} is saved`);
      client.invalidateQueries();
      onClose();
    } catch (caught) {
      setError(caught);
    } finally {
      setBusy(false);
    }
  };
  const loading = edited !== undefined && !stored;
  return (
    <Editor
      title={edited ? `Edit ${edited}` : "Add a user"}
      onClose={onClose}
      action={{
        method: "PUT",
        path: `/api/v1/users/${name || "NAME"}`,
        // The password stays on the page.
        body: { ...body, ...(edited ? {} : { password: "..." }) },
      }}
      ready={!loading && isName(name) && Object.keys(errorsOf(fields, draft)).length === 0}
      busy={busy}
      save={save}
    >
      {loading && error === null && <Loading rows={4} />}
      {!loading && (
        <>
          <TextField
            label="User"
            autoFocus={!edited}
            disabled={Boolean(edited)}
            value={name}
            onChange={setName}
          />
          <FieldsView
            fields={fields}
            draft={draft}
            set={(next) => {
              setDraft((before) => ({ ...before, ...next }));
              setError(null);
            }}
            editing={edited !== undefined}
            error={error}
          />
        </>
      )}
      {error !== null && !isPlaced(error, fields, draft) && (
        <div className="col-span-full">
          <Failed error={error} />
        </div>
      )}
    </Editor>
  );
}
