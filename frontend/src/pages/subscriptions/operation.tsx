import type { Operation } from "@/api/queries";
import { Badge } from "@/ui/badge";
import { shown } from "@/ui/plan";

/** What engines answered, or would do. */
export function OperationView({ operation, title }: { operation: Operation; title?: string }) {
  return (
    <section
      aria-label={operation.dry_run ? "Preview" : "Result"}
      className="rounded-lg border bg-canvas text-sm"
    >
      <header className="flex items-center gap-2 border-b px-3 py-1.5">
        <b className="font-semibold">
          {title ?? (operation.dry_run ? "What would happen" : operation.action)}
        </b>
        <Badge
          tone={operation.state === "done" ? "good" : operation.state === "failed" ? "bad" : "warn"}
        >
          {operation.dry_run && operation.state === "done" ? "possible" : operation.state}
        </Badge>
      </header>
      <ul className="flex flex-col gap-1 px-3 py-2">
        {(operation.results ?? []).length === 0 && (
          <li className="text-muted">No engine has anything to do.</li>
        )}
        {(operation.results ?? []).map((one) => (
          <li key={one.node} className="flex flex-wrap items-baseline gap-2">
            <b className="font-medium">{one.node}</b>
            {one.ok ? (
              Object.entries(one.value ?? {}).map(([key, value]) =>
                pairsOf(value) ? (
                  <p key={key} className="num w-full break-words text-muted text-xs">
                    {key.replaceAll("_", " ")} <span className="font-mono">{pairsOf(value)}</span>
                  </p>
                ) : rowsOf(value) ? (
                  <Rows key={key} label={key} rows={rowsOf(value) ?? []} />
                ) : (
                  <span key={key} className="num text-muted text-xs">
                    {key.replaceAll("_", " ")}{" "}
                    <b className="font-medium text-ink">{shown(value)}</b>
                  </span>
                ),
              )
            ) : (
              <span className="text-bad text-xs">{one.detail || one.code}</span>
            )}
          </li>
        ))}
      </ul>
    </section>
  );
}

type Row = Record<string, unknown>;
const ROWS_SHOWN_MAX = 50;

/** Places, queue and token: `0:17 0:18`. */
function pairsOf(value: unknown): string | null {
  if (!Array.isArray(value) || value.length === 0 || !value.every(Array.isArray)) return null;
  const places = value.slice(0, ROWS_SHOWN_MAX).map((one: unknown[]) => one.join(":"));
  return places.join(" ") + (value.length > ROWS_SHOWN_MAX ? " ..." : "");
}

/** A list of alike objects, such as what would move in each queue. */
function rowsOf(value: unknown): Row[] | null {
  if (!Array.isArray(value) || value.length === 0) return null;
  return value.every((one) => typeof one === "object" && one !== null) ? (value as Row[]) : null;
}

function Rows({ label, rows }: { label: string; rows: readonly Row[] }) {
  const heads = Object.keys(rows[0] ?? {});
  return (
    <table className="num w-full text-xs">
      <caption className="sr-only">{label}</caption>
      <thead>
        <tr>
          {heads.map((head) => (
            <th key={head} scope="col" className="pr-3 text-left font-medium text-faint">
              {head.replaceAll("_", " ")}
            </th>
          ))}
        </tr>
      </thead>
      <tbody>
        {rows.slice(0, ROWS_SHOWN_MAX).map((row) => (
          <tr key={JSON.stringify(row)}>
            {heads.map((head) => (
              <td key={head} className="pr-3">
                {shown(row[head])}
              </td>
            ))}
          </tr>
        ))}
      </tbody>
    </table>
  );
}
