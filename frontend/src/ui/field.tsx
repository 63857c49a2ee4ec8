import { type LucideIcon, Search } from "lucide-react";
import { type ComponentProps, type ReactNode, useId } from "react";
import { cn } from "@/lib/cn";

const BOX =
  "h-8 min-w-0 rounded-md border border-line-strong bg-canvas px-2.5 text-sm placeholder:text-faint " +
  "transition-colors hover:border-faint focus:border-accent focus:outline-none focus:ring-2 focus:ring-accent/25 " +
  "aria-invalid:border-bad disabled:opacity-60";

/** Full width unless the caller says another one. */
export const boxed = (className?: string) =>
  cn(BOX, !/(^|\s)w-/.test(className ?? "") && "w-full", className);

export function Input({ className, ...props }: ComponentProps<"input">) {
  return <input autoComplete="off" spellCheck={false} {...props} className={boxed(className)} />;
}

export function TextArea({ className, ...props }: ComponentProps<"textarea">) {
  return (
    <textarea
      spellCheck={false}
      {...props}
      className={cn(boxed(className), "h-auto! py-1.5 font-mono")}
    />
  );
}

interface FieldProps {
  label: string;
  hint?: ReactNode;
  error?: string | undefined;
  className?: string;
  children: (props: {
    id: string;
    "aria-describedby": string | undefined;
    "aria-invalid": boolean | undefined;
  }) => ReactNode;
}

/** Label, control, hint and error, tied together for assistive technology. */
export function Field({ label, hint, error, className, children }: FieldProps) {
  const id = useId();
  const noteId = hint || error ? `${id}-note` : undefined;
  return (
    <div className={cn("flex min-w-0 flex-col gap-1", className)}>
      <label htmlFor={id} className="font-medium text-xs">
        {label}
      </label>
      {children({ id, "aria-describedby": noteId, "aria-invalid": error ? true : undefined })}
      {(error || hint) && (
        <p id={noteId} className={cn("text-xs", error ? "text-bad" : "text-faint")}>
          {error ?? hint}
        </p>
      )}
    </div>
  );
}

interface TextFieldProps
  extends Omit<FieldProps, "children">,
    Omit<ComponentProps<"input">, "value" | "onChange" | "className" | "children"> {
  value: string;
  onChange: (value: string) => void;
  /** For what a machine reads: names, patterns, schedules. */
  mono?: boolean;
}

/** A field of one line of text; `className` places the field. */
export function TextField({
  label,
  hint,
  error,
  className,
  mono,
  onChange,
  ...input
}: TextFieldProps) {
  return (
    <Field label={label} hint={hint} error={error} {...(className ? { className } : {})}>
      {(field) => (
        <Input
          {...field}
          {...input}
          {...(mono ? { className: "font-mono" } : {})}
          onChange={(event) => onChange(event.target.value)}
        />
      )}
    </Field>
  );
}

export function SearchInput({
  icon: Icon = Search,
  className,
  ...props
}: ComponentProps<"input"> & { icon?: LucideIcon }) {
  return (
    <div className={cn("relative", className)}>
      <Icon
        aria-hidden
        className="-translate-y-1/2 absolute top-1/2 left-2.5 size-3.5 text-faint"
      />
      <Input type="search" {...props} className="pl-8" />
    </div>
  );
}

interface FilterInputProps extends Omit<ComponentProps<"input">, "onChange"> {
  onFilter: (text: string | undefined) => void;
}

/** A search field for a filter in the page's address: an empty text removes the filter. */
export function FilterInput({ onFilter, ...props }: FilterInputProps) {
  return <SearchInput {...props} onChange={(event) => onFilter(event.target.value || undefined)} />;
}
