import type { Operation } from "@/api/queries";
import { exact, plural } from "@/lib/format";
import { Badge } from "@/ui/badge";
import { Fold } from "@/ui/fold";
import { type Column, Table } from "@/ui/table";

/** How the result, or the preview, of one engine reads in a sentence. */
export type Say = (value: Record<string, unknown>, dry: boolean) => string;

interface Props {
  operation: Operation;
  say: Say;
  title?: string;
}

/** What engines answered, or would do: a sentence each, and the queues behind it. */
export function OperationView({ operation, say, title }: Props) {
  const { dry_run: dry = false, state } = operation;
  const results = operation.results ?? [];
  return (
    <section
      aria-label={dry ? "Preview" : "Result"}
      className="rounded-lg border bg-canvas text-sm"
    >
      <header className="flex items-center gap-2 border-b px-3 py-1.5">
        <b className="font-semibold">{title ?? (dry ? "Preview" : "Result")}</b>
        {!(dry && state === "done") && (
          <Badge tone={state === "done" ? "good" : state === "failed" ? "bad" : "warn"}>
            {state}
          </Badge>
        )}
      </header>
      <ul className="flex flex-col gap-1.5 px-3 py-2">
        {results.length === 0 && <li className="text-muted">No engine has anything to do.</li>}
        {results.map((one) => (
          <li key={one.node}>
            {results.length > 1 && <b className="mr-2 font-medium">{one.node}</b>}
            {one.ok ? (
              <span className="num">{say(one.value ?? {}, dry)}</span>
            ) : (
              <span className="text-bad">{one.detail || one.code}</span>
            )}
            {one.ok && <Queues rows={queuesOf(one.value ?? {})} />}
          </li>
        ))}
      </ul>
    </section>
  );
}

/** A number of an answer: those of 64 bits come as text. */
export const countOf = (value: unknown): number => Number(value ?? 0);

interface QueueRow {
  topic: string;
  queue: number;
  before: string | number;
  after: string | number;
  records: string | number;
  forgotten: string | number;
}

const isRow = (value: unknown): value is QueueRow =>
  typeof value === "object" && value !== null && "before" in value && "after" in value;

/** The queues of a seek. */
export function queuesOf(value: Record<string, unknown>): readonly QueueRow[] {
  const found = Object.values(value).find((one) => Array.isArray(one) && one.some(isRow));
  return (found as unknown[] | undefined)?.filter(isRow) ?? [];
}

/** How many messages or records come again, and how many are skipped. */
export function movedBy(value: Record<string, unknown>): { again: number; skipped: number } {
  let [again, skipped] = [0, 0];
  for (const row of queuesOf(value)) {
    const moved = countOf(row.records);
    if (moved < 0) again -= moved;
    else skipped += moved;
  }
  return { again, skipped };
}

const COLUMNS: Column<QueueRow>[] = [
  { id: "queue", head: "Queue", cell: (row) => `${row.topic}:${row.queue}` },
  { id: "before", head: "From", right: true, cell: (row) => exact(row.before) },
  { id: "after", head: "To", right: true, cell: (row) => exact(row.after) },
  { id: "records", head: "Messages", right: true, cell: (row) => exact(row.records) },
  { id: "out", head: "In flight, discarded", right: true, cell: (row) => exact(row.forgotten) },
];

function Queues({ rows }: { rows: readonly QueueRow[] }) {
  if (rows.length === 0) return null;
  return (
    <Fold title={plural(rows.length, "queue")}>
      <Table
        label="Queues"
        columns={COLUMNS}
        rows={rows}
        rowKey={(row) => `${row.topic}:${row.queue}`}
      />
    </Fold>
  );
}
