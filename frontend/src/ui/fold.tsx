import { ChevronRight } from "lucide-react";
import type { ReactNode } from "react";

/** Details behind a line. */
export function Fold(props: { title: ReactNode; open?: boolean; children: ReactNode }) {
  return (
    <details className="group col-span-full rounded-lg border" open={props.open || undefined}>
      <summary className="flex h-9 cursor-pointer items-center gap-1.5 px-3 font-medium text-sm">
        <ChevronRight
          aria-hidden
          className="size-3.5 text-faint transition-transform group-open:rotate-90"
        />
        {props.title}
      </summary>
      {props.children}
    </details>
  );
}
