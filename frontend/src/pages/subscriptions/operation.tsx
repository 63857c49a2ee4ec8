import type { Operation } from "@/api/queries";
import { Badge } from "@/ui/badge";
import { shown } from "@/ui/plan";

/** What engines answered, or would do. */
export function OperationView({ operation }: { operation: Operation }) {
  return (
    <section
      aria-label={operation.dry_run ? "Preview" : "Result"}
      className="rounded-lg border bg-canvas text-sm"
    >
      <header className="flex items-center gap-2 border-b px-3 py-1.5">
        <b className="font-semibold">
          {operation.dry_run ? "What would happen" : operation.action}
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
              Object.entries(one.value ?? {}).map(([key, value]) => (
                <span key={key} className="num text-muted text-xs">
                  {key.replaceAll("_", " ")} <b className="font-medium text-ink">{shown(value)}</b>
                </span>
              ))
            ) : (
              <span className="text-bad text-xs">{one.detail || one.code}</span>
            )}
          </li>
        ))}
      </ul>
    </section>
  );
}
