import { Switch as BaseSwitch } from "radix-ui";
import { useId } from "react";

export function Switch(props: {
  checked: boolean;
  onChange: (checked: boolean) => void;
  label: string;
  disabled?: boolean;
}) {
  const id = useId();
  return (
    <span className="inline-flex items-center gap-2">
      <BaseSwitch.Root
        id={id}
        checked={props.checked}
        onCheckedChange={props.onChange}
        disabled={props.disabled}
        className="h-4.5 w-8 rounded-full border border-line-strong bg-raised p-0.5 transition-colors data-[state=checked]:border-accent data-[state=checked]:bg-accent"
      >
        <BaseSwitch.Thumb className="block size-3 rounded-full bg-muted transition-transform data-[state=checked]:translate-x-3.5 data-[state=checked]:bg-accent-ink" />
      </BaseSwitch.Root>
      <label htmlFor={id} className="text-sm">
        {props.label}
      </label>
    </span>
  );
}
