import { useId } from "react";
import { cn } from "@/lib/cn";

/** A few choices side by side; arrow keys move between them. */
export function Segments<T extends string>(props: {
  value: T;
  onChange: (value: T) => void;
  options: readonly { value: T; label: string }[];
  label: string;
}) {
  const name = useId();
  return (
    <fieldset className="inline-flex rounded-md border border-line-strong bg-canvas p-0.5">
      <legend className="sr-only">{props.label}</legend>
      {props.options.map((option) => (
        <label
          key={option.value}
          className={cn(
            "cursor-pointer rounded px-2 font-medium text-xs leading-5.5 has-focus-visible:outline-2 has-focus-visible:outline-accent",
            option.value === props.value ? "bg-hover text-ink" : "text-muted hover:text-ink",
          )}
        >
          <input
            type="radio"
            className="sr-only"
            name={name}
            checked={option.value === props.value}
            onChange={() => props.onChange(option.value)}
          />
          {option.label}
        </label>
      ))}
    </fieldset>
  );
}
