import { Check, ChevronDown } from "lucide-react";
import { Select as BaseSelect } from "radix-ui";
import { cn } from "@/lib/cn";
import { boxed, Field } from "./field";

interface SelectProps<T extends string> {
  value: T;
  onChange: (value: T) => void;
  options: readonly { value: T; label: string; hint?: string }[];
  label?: string;
  id?: string;
  className?: string;
  disabled?: boolean;
}

/** A choice with its label and hint. */
export function SelectField<T extends string>({
  label,
  hint,
  error,
  ...select
}: Omit<SelectProps<T>, "id" | "label"> & { label: string; hint?: string; error?: string }) {
  return (
    <Field label={label} hint={hint} error={error}>
      {(field) => <Select {...select} id={field.id} />}
    </Field>
  );
}

export function Select<T extends string>(props: SelectProps<T>) {
  const { value, onChange, options, label, id, className, disabled } = props;
  return (
    <BaseSelect.Root
      value={value}
      onValueChange={(next) => onChange(next as T)}
      disabled={disabled}
    >
      <BaseSelect.Trigger
        id={id}
        aria-label={label}
        className={cn(
          "inline-flex items-center justify-between gap-1.5 text-left",
          boxed(className),
        )}
      >
        <BaseSelect.Value />
        <ChevronDown aria-hidden className="size-3.5 text-faint" />
      </BaseSelect.Trigger>
      <BaseSelect.Portal>
        <BaseSelect.Content
          position="popper"
          sideOffset={4}
          className="z-50 max-h-80 min-w-(--radix-select-trigger-width) animate-in overflow-hidden rounded-lg border bg-raised p-1 shadow-pop"
        >
          <BaseSelect.Viewport>
            {options.map((option) => (
              <BaseSelect.Item
                key={option.value}
                value={option.value}
                className="relative flex cursor-pointer select-none flex-col rounded-md py-1 pr-7 pl-2 text-sm outline-none data-highlighted:bg-hover"
              >
                <BaseSelect.ItemText>{option.label}</BaseSelect.ItemText>
                {option.hint && <span className="text-faint text-xs">{option.hint}</span>}
                <BaseSelect.ItemIndicator className="absolute top-1.5 right-2">
                  <Check aria-hidden className="size-3.5 text-accent" />
                </BaseSelect.ItemIndicator>
              </BaseSelect.Item>
            ))}
          </BaseSelect.Viewport>
        </BaseSelect.Content>
      </BaseSelect.Portal>
    </BaseSelect.Root>
  );
}
