import { Tabs as Base } from "radix-ui";
import type { ReactNode } from "react";

export interface Tab<T extends string> {
  value: T;
  label: string;
  count?: number | undefined;
}

/** Tabs whose choice the caller keeps, as a rule in the URL. */
export function Tabs<T extends string>({
  value,
  onChange,
  tabs,
  children,
}: {
  value: T;
  onChange: (value: T) => void;
  tabs: readonly Tab<T>[];
  children: ReactNode;
}) {
  return (
    <Base.Root value={value} onValueChange={(next) => onChange(next as T)}>
      <Base.List className="mb-3 flex gap-4 border-b">
        {tabs.map((tab) => (
          <Base.Trigger
            key={tab.value}
            value={tab.value}
            className="-mb-px border-transparent border-b-2 pb-1.5 font-medium text-muted text-sm hover:text-ink data-[state=active]:border-accent data-[state=active]:text-ink"
          >
            {tab.label}
            {tab.count !== undefined && (
              <span className="num ml-1.5 rounded bg-raised px-1 text-2xs text-muted">
                {tab.count}
              </span>
            )}
          </Base.Trigger>
        ))}
      </Base.List>
      {children}
    </Base.Root>
  );
}

export const TabPanel = Base.Content;
