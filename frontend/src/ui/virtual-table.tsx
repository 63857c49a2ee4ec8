import { useVirtualizer } from "@tanstack/react-virtual";
import { type KeyboardEvent, type ReactNode, useEffect, useRef } from "react";
import { cn } from "@/lib/cn";
import { ariaSort, type Column, type Sort, SortHead, useFitting } from "./table";

const ROW_HEIGHT = 36;

interface Props<T> {
  label: string;
  columns: readonly Column<T>[];
  rows: readonly T[];
  /** How many there are in all, when more can be loaded. */
  total?: number | undefined;
  rowKey: (row: T) => string;
  onRow?: ((row: T) => void) | undefined;
  sort?: Sort;
  onSort?: (sort: Sort) => void;
  onEnd?: (() => void) | undefined;
  empty?: ReactNode;
}

/** Ten thousand rows, of which some forty exist. Arrow keys move, Enter opens. */
export function VirtualTable<T>(props: Props<T>) {
  const { label, rows, total, rowKey, onRow, sort, onSort, onEnd, empty } = props;
  const columns = useFitting(props.columns);
  const box = useRef<HTMLDivElement>(null);
  const virtual = useVirtualizer({
    count: rows.length,
    getScrollElement: () => box.current,
    estimateSize: () => ROW_HEIGHT,
    overscan: 12,
  });
  const items = virtual.getVirtualItems();
  const last = items.at(-1)?.index ?? 0;
  useEffect(() => {
    if (onEnd && last >= rows.length - 40) onEnd();
  }, [last, rows.length, onEnd]);

  const focus = (index: number) => {
    const to = Math.max(0, Math.min(rows.length - 1, index));
    virtual.scrollToIndex(to);
    requestAnimationFrame(() =>
      box.current
        ?.querySelector<HTMLElement>(`[data-index="${to}"]`)
        ?.focus({ preventScroll: true }),
    );
  };
  const press = (event: KeyboardEvent, index: number, row: T) => {
    const moves: Record<string, number> = {
      ArrowDown: index + 1,
      ArrowUp: index - 1,
      PageDown: index + 15,
      PageUp: index - 15,
      Home: 0,
      End: rows.length - 1,
    };
    const to = moves[event.key];
    if (to !== undefined) {
      event.preventDefault();
      focus(to);
    } else if (event.key === "Enter" && event.target === event.currentTarget) onRow?.(row);
  };
  const template = columns.map((column) => column.width ?? "minmax(0,1fr)").join(" ");
  const grid = { gridTemplateColumns: template };

  if (rows.length === 0) {
    return <div className="h-full overflow-auto rounded-lg border bg-panel">{empty}</div>;
  }
  return (
    <div className="flex h-full min-h-0 flex-col overflow-hidden rounded-lg border bg-panel">
      {/* biome-ignore lint/a11y/useSemanticElements: a table element cannot lay out virtual rows */}
      <div
        ref={box}
        role="table"
        aria-label={label}
        aria-rowcount={(total ?? rows.length) + 1}
        className="relative min-h-0 flex-1 overflow-auto md:[&>*]:min-w-[60rem]"
      >
        {/* biome-ignore lint/a11y/useSemanticElements: see above */}
        <div role="rowgroup" className="sticky top-0 z-10 border-b bg-panel">
          {/* biome-ignore lint/a11y/useSemanticElements: see above */}
          {/* biome-ignore lint/a11y/useFocusableInteractive: a head row is not focused */}
          <div role="row" className="grid" style={grid}>
            {columns.map((column) => (
              // biome-ignore lint/a11y/useSemanticElements: see above
              // biome-ignore lint/a11y/useFocusableInteractive: its button is
              <div
                key={column.id}
                role="columnheader"
                aria-sort={ariaSort(column.id, sort)}
                className={cn(
                  "truncate px-3 py-1.5 font-medium text-faint text-xs",
                  column.right && "text-right",
                )}
              >
                <SortHead column={column} sort={sort} onSort={onSort} />
              </div>
            ))}
          </div>
        </div>
        {/* biome-ignore lint/a11y/useSemanticElements: see above */}
        <div role="rowgroup" className="relative" style={{ height: virtual.getTotalSize() }}>
          {items.map((item) => {
            const row = rows[item.index] as T;
            return (
              // biome-ignore lint/a11y/useSemanticElements: see above
              <div
                key={rowKey(row)}
                role="row"
                data-index={item.index}
                aria-rowindex={item.index + 2}
                tabIndex={item.index === (items[0]?.index ?? 0) ? 0 : -1}
                onClick={() => onRow?.(row)}
                onKeyDown={(event) => press(event, item.index, row)}
                className={cn(
                  "absolute inset-x-0 top-0 grid items-center border-b text-sm hover:bg-hover focus-visible:-outline-offset-2",
                  onRow && "cursor-pointer",
                )}
                style={{ ...grid, height: ROW_HEIGHT, transform: `translateY(${item.start}px)` }}
              >
                {columns.map((column) => (
                  // biome-ignore lint/a11y/useSemanticElements: see above
                  <div
                    key={column.id}
                    role="cell"
                    className={cn(
                      "min-w-0 truncate px-3",
                      column.right && "num text-right",
                      column.className,
                    )}
                  >
                    {column.cell(row)}
                  </div>
                ))}
              </div>
            );
          })}
        </div>
      </div>
    </div>
  );
}
