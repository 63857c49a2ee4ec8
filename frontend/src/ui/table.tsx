import { ArrowDown, ArrowUp } from "lucide-react";
import type { ComponentProps, ReactNode } from "react";
import { cn } from "@/lib/cn";
import { SMALL, useMedia } from "@/lib/media";

export interface Column<T> {
  id: string;
  head: ReactNode;
  cell: (row: T) => ReactNode;
  right?: boolean;
  /** CSS width; columns without one share what is left. */
  width?: string;
  sort?: boolean;
  /** Left out of narrow windows, where the rest would not fit. */
  wide?: boolean;
  className?: string;
}

/** The columns that there is room for. */
export function useFitting<T>(columns: readonly Column<T>[]): readonly Column<T>[] {
  const small = useMedia(SMALL);
  return small ? columns.filter((column) => !column.wide) : columns;
}

export interface Sort {
  id: string;
  desc: boolean;
}

/** `lag`, `-lag`: how a sort stands in the URL and in the API. */
export const sortText = (sort: Sort) => (sort.desc ? "-" : "") + sort.id;
export const parseSort = (text: string): Sort => ({
  id: text.replace(/^-/, ""),
  desc: text.startsWith("-"),
});

export function SortHead({
  column,
  sort,
  onSort,
}: {
  column: { id: string; head: ReactNode; right?: boolean | undefined; sort?: boolean | undefined };
  sort?: Sort | undefined;
  onSort?: ((sort: Sort) => void) | undefined;
}) {
  if (!column.sort || !onSort) return column.head;
  const mine = sort?.id === column.id;
  const Arrow = mine && sort?.desc ? ArrowDown : ArrowUp;
  return (
    <button
      type="button"
      onClick={() => onSort({ id: column.id, desc: mine ? !sort?.desc : Boolean(column.right) })}
      className={cn(
        "inline-flex items-center gap-1 rounded hover:text-ink",
        column.right && "flex-row-reverse",
        mine && "text-ink",
      )}
    >
      {column.head}
      <Arrow aria-hidden className={cn("size-3", !mine && "opacity-0")} />
    </button>
  );
}

export const ariaSort = (id: string, sort?: Sort): ComponentProps<"th">["aria-sort"] =>
  sort?.id === id ? (sort.desc ? "descending" : "ascending") : undefined;

interface Props<T> {
  label: string;
  columns: readonly Column<T>[];
  rows: readonly T[];
  rowKey: (row: T) => string;
  onRow?: (row: T) => void;
  sort?: Sort;
  onSort?: (sort: Sort) => void;
  empty?: ReactNode;
  className?: string;
}

/** A table of what fits a page. Thousands of rows: `VirtualTable`. */
export function Table<T>(props: Props<T>) {
  const { label, rows, rowKey, onRow, sort, onSort, empty, className } = props;
  const columns = useFitting(props.columns);
  if (rows.length === 0 && empty) return <>{empty}</>;
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be reachable by keyboard
    <div className={cn("relative overflow-x-auto", className)} tabIndex={0}>
      <table className="w-full border-collapse text-sm">
        <caption className="sr-only">{label}</caption>
        <thead>
          <tr>
            {columns.map((column) => (
              <th
                key={column.id}
                scope="col"
                aria-sort={ariaSort(column.id, sort)}
                style={{ width: column.width }}
                className={cn(
                  "whitespace-nowrap border-b px-3 py-1.5 text-left font-medium text-faint text-xs",
                  column.right && "text-right",
                )}
              >
                <SortHead column={column} sort={sort} onSort={onSort} />
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map((row) => (
            <tr
              key={rowKey(row)}
              {...(onRow && {
                tabIndex: 0,
                onClick: () => onRow(row),
                onKeyDown: (event) =>
                  event.key === "Enter" && event.target === event.currentTarget && onRow(row),
              })}
              className={cn(
                "border-b last:border-0",
                onRow && "cursor-pointer hover:bg-hover focus-visible:-outline-offset-2",
              )}
            >
              {columns.map((column) => (
                <td
                  key={column.id}
                  className={cn(
                    "h-9 px-3 py-1",
                    column.right && "num text-right",
                    column.className,
                  )}
                >
                  {column.cell(row)}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
