import type { ReactNode } from "react";
import { useEffect } from "react";

interface Props {
  title: string;
  lead?: ReactNode;
  actions?: ReactNode;
  badges?: ReactNode;
  children: ReactNode;
  /** The page scrolls inside itself (lists that fill the window). */
  fill?: boolean;
}

export function Page({ title, lead, actions, badges, children, fill }: Props) {
  useEffect(() => {
    document.title = `${title} · Tidecast`;
  }, [title]);
  return (
    <div className={fill ? "flex h-full min-h-0 flex-col" : "pb-10"}>
      <header className="flex flex-wrap items-start gap-x-4 gap-y-2 px-5 pt-4 pb-3">
        <div className="min-w-0">
          <div className="flex flex-wrap items-center gap-2">
            <h1 className="break-all font-semibold text-[1.0625rem] leading-7 tracking-[-0.012em]">
              {title}
            </h1>
            {badges}
          </div>
          {lead && <p className="max-w-3xl text-muted text-sm">{lead}</p>}
        </div>
        {actions && (
          <div className="ml-auto flex flex-wrap items-center gap-1.5 max-sm:w-full">{actions}</div>
        )}
      </header>
      <div className={fill ? "min-h-0 flex-1 px-5 pb-4" : "px-5"}>{children}</div>
    </div>
  );
}
