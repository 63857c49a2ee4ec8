import type { ReactNode } from "react";

interface Line {
  label: string;
  /** 1 to 6; by default its place in the list. */
  tint?: number;
  dash?: boolean;
}

/** What a chart's lines are called, each with a figure that the chart writes: outside React. */
export function Legend({
  lines,
  figure,
  children,
}: {
  lines: readonly Line[];
  figure: (index: number, element: HTMLElement | null) => void;
  children?: ReactNode;
}) {
  return (
    <figcaption className="mb-1 flex flex-wrap gap-x-4 gap-y-0.5 text-xs">
      {lines.map((line, index) => (
        <span key={line.label} className="inline-flex items-center gap-1.5">
          <svg aria-hidden width="14" height="3" className="shrink-0">
            <line
              x1="0"
              x2="14"
              y1="1.5"
              y2="1.5"
              stroke={`var(--series-${line.tint ?? (index % 6) + 1})`}
              strokeWidth="3"
              strokeDasharray={line.dash ? "4 2" : undefined}
            />
          </svg>
          <span className="text-muted">{line.label}</span>
          <b className="num font-semibold" ref={(element) => figure(index, element)} />
        </span>
      ))}
      {children}
    </figcaption>
  );
}
