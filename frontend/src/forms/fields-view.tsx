import { useId } from "react";
import { ApiError } from "@/api/client";
import { useTopicNames } from "@/app/topic-names";
import { Field, Input, TextArea, TextField } from "@/ui/field";
import { Fold } from "@/ui/fold";
import { SelectField } from "@/ui/select";
import { Switch } from "@/ui/switch";
import { type Draft, errorsOf, type FormField, isOn } from "./fields";

interface Props {
  fields: readonly FormField[];
  draft: Draft;
  set: (next: Record<string, string | boolean>) => void;
  /** Settings that are fixed cannot be changed. */
  editing: boolean;
  /** What the service refused. */
  error?: unknown;
}

const pointerOf = (at: string) => `/${at.replaceAll(".", "/")}`;

/** What the service says of a setting, or of a part of it. */
export function refusalOf(error: unknown, at: string): string | undefined {
  if (!(error instanceof ApiError)) return undefined;
  const pointer = pointerOf(at);
  const found = error.problem.errors?.find(
    (one) => one.pointer === pointer || one.pointer?.startsWith(`${pointer}/`),
  );
  return found && found.detail + (found.allowed ? ` (allowed: ${found.allowed})` : "");
}

/** Whether every part of a refusal stands beside a field that is shown. */
export const isPlaced = (error: unknown, fields: readonly FormField[], draft: Draft): boolean => {
  const problems = error instanceof ApiError ? (error.problem.errors ?? []) : [];
  const on = fields.filter((field) => isOn(field, draft)).map((field) => pointerOf(field.at));
  return (
    problems.length > 0 &&
    problems.every(({ pointer }) =>
      on.some((one) => pointer === one || pointer?.startsWith(`${one}/`)),
    )
  );
};

/** The fields of a form; the rare ones are folded away until one of them is wrong. */
export function FieldsView({ fields, draft, set, editing, error }: Props) {
  const errors = errorsOf(fields, draft);
  const wrong = (field: FormField) => {
    // A field that is still empty is no mistake yet.
    const local = draft[field.at] === "" ? undefined : errors[field.at];
    return local ?? refusalOf(error, field.at);
  };
  const on = fields.filter((field) => isOn(field, draft));
  const advanced = on.filter((field) => field.advanced);
  const one = (field: FormField) => (
    <OneField
      key={field.at}
      field={field}
      draft={draft}
      set={set}
      error={wrong(field)}
      disabled={editing && field.fixed === true}
    />
  );
  return (
    <>
      {on.filter((field) => !field.advanced).map(one)}
      {advanced.length > 0 && (
        <Fold title="Advanced" open={advanced.some((field) => wrong(field) !== undefined)}>
          <div className="grid gap-3 px-3 pt-1 pb-3 sm:grid-cols-2">{advanced.map(one)}</div>
        </Fold>
      )}
    </>
  );
}

interface OneProps {
  field: FormField;
  draft: Draft;
  set: (next: Record<string, string | boolean>) => void;
  error: string | undefined;
  disabled: boolean;
}

function OneField({ field, draft, set, error, disabled }: OneProps) {
  const typed = draft[field.at] ?? "";
  const hint = typeof field.hint === "function" ? field.hint(draft) : field.hint;
  const place = field.wide ? { className: "col-span-full" } : {};
  const change = (next: string | boolean) =>
    set({ [field.at]: next, ...(typeof next === "string" ? field.follow?.(next) : {}) });
  if (field.as === "switch") {
    return (
      <div className={field.wide ? "col-span-full" : "self-center sm:pt-4"}>
        <Switch
          label={field.label}
          checked={typed === true}
          onChange={change}
          disabled={disabled}
        />
        {(error || hint) && (
          <p className={error ? "text-bad text-xs" : "text-faint text-xs"}>{error ?? hint}</p>
        )}
      </div>
    );
  }
  const value = String(typed);
  if (field.as === "choice") {
    return (
      <SelectField
        label={field.label}
        {...(hint ? { hint } : {})}
        {...(error ? { error } : {})}
        value={value}
        disabled={disabled}
        onChange={change}
        options={field.options ?? []}
      />
    );
  }
  if (field.as === "text") {
    return (
      <Field label={field.label} hint={hint} error={error} {...place}>
        {(props) => (
          <TextArea
            {...props}
            rows={2}
            className="font-sans"
            value={value}
            onChange={(event) => change(event.target.value)}
          />
        )}
      </Field>
    );
  }
  if (field.offers === "topics")
    return <TopicField {...{ field, value, error, disabled, change }} />;
  return (
    <TextField
      label={field.label}
      hint={hint}
      error={error}
      {...place}
      disabled={disabled}
      {...(field.mono ? { mono: true } : {})}
      {...(field.placeholder ? { placeholder: field.placeholder } : {})}
      {...(field.as === "password" ? { type: "password", autoComplete: "new-password" } : {})}
      value={value}
      onChange={change}
    />
  );
}

function TopicField({
  field,
  value,
  error,
  disabled,
  change,
}: {
  field: FormField;
  value: string;
  error: string | undefined;
  disabled: boolean;
  change: (next: string) => void;
}) {
  const list = useId();
  const names = useTopicNames(value);
  return (
    <Field
      label={field.label}
      hint={typeof field.hint === "string" ? field.hint : undefined}
      error={error}
      {...(field.wide ? { className: "col-span-full" } : {})}
    >
      {(props) => (
        <>
          <Input
            {...props}
            list={list}
            className="font-mono"
            disabled={disabled}
            value={value}
            onChange={(event) => change(event.target.value)}
          />
          <datalist id={list}>
            {names.map((one) => (
              <option key={one} value={one} />
            ))}
          </datalist>
        </>
      )}
    </Field>
  );
}
