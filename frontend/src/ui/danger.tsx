import type { ReactNode } from "react";

/** What cannot be undone stands apart from the rest. */
export function DangerZone({ children }: { children: ReactNode }) {
  return (
    <ul aria-label="Danger zone" className="divide-y rounded-lg border border-bad/40 bg-panel">
      {children}
    </ul>
  );
}

export function DangerRow({
  title,
  children,
  action,
}: {
  title: string;
  children: ReactNode;
  action: ReactNode;
}) {
  return (
    <li className="flex flex-wrap items-center gap-4 px-4 py-3">
      <div className="min-w-60 flex-1">
        <h3 className="font-medium text-sm">{title}</h3>
        <p className="text-muted text-xs">{children}</p>
      </div>
      {action}
    </li>
  );
}
