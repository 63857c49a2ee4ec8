import { useInfiniteQuery } from "@tanstack/react-query";
import { getRouteApi, useNavigate } from "@tanstack/react-router";
import { Download, History, Radio } from "lucide-react";
import { useEffect, useState } from "react";
import { type AuditEntry, auditExport, auditQuery } from "@/api/queries";
import { differences, fieldsOf } from "@/lib/diff";
import { dateTime, useZone } from "@/lib/time";
import { live } from "@/live/store";
import { Badge, type Tone } from "@/ui/badge";
import { Button } from "@/ui/button";
import { Facts } from "@/ui/card";
import { Code } from "@/ui/code";
import { Dialog } from "@/ui/dialog";
import { FilterInput } from "@/ui/field";
import { Page } from "@/ui/page";
import { shown } from "@/ui/plan";
import { Select } from "@/ui/select";
import { Empty, Failed, Loading } from "@/ui/states";
import type { Column } from "@/ui/table";
import { TimeField } from "@/ui/time-field";
import { VirtualTable } from "@/ui/virtual-table";

const route = getRouteApi("/app/audit");
const OUTCOMES: Record<AuditEntry["outcome"], Tone> = {
  done: "good",
  denied: "bad",
  failed: "warn",
};

export function AuditPage() {
  const search = route.useSearch();
  const navigate = useNavigate();
  const zone = useZone();
  const list = useInfiniteQuery(auditQuery(search));
  const [open, setOpen] = useState<AuditEntry | null>(null);
  const [fresh, setFresh] = useState(0);
  const set = (next: Partial<typeof search>) =>
    navigate({ to: "/audit", search: { ...search, ...next }, replace: true });
  useEffect(() => live.watch("audit", () => setFresh((count) => count + 1)), []);
  const entries = (list.data?.pages.flatMap((page) => page.items) ?? []) as AuditEntry[];
  const columns: Column<AuditEntry>[] = [
    {
      id: "at",
      head: "Time",
      width: "10.5rem",
      cell: (row) => (
        <span className="num font-mono text-muted text-xs">{dateTime(row.at, zone)}</span>
      ),
    },
    {
      id: "outcome",
      head: "Outcome",
      width: "6rem",
      cell: (row) => <Badge tone={OUTCOMES[row.outcome]}>{row.outcome}</Badge>,
    },
    {
      id: "actor",
      wide: true,
      head: "Actor",
      width: "11rem",
      cell: (row) => (
        <>
          {row.actor || "anonymous"} <span className="text-faint text-xs">{row.actor_kind}</span>
        </>
      ),
    },
    { id: "action", head: "Action", width: "9rem", cell: (row) => row.action.replaceAll("_", " ") },
    {
      id: "what",
      head: "Resource",
      width: "minmax(12rem,1fr)",
      cell: (row) => (
        <>
          <span className="text-faint text-xs">{row.kind.replaceAll("_", " ")}</span>{" "}
          <span className="font-mono text-xs">{row.name}</span>
        </>
      ),
    },
    {
      id: "change",
      wide: true,
      head: "Changed",
      width: "minmax(14rem,1.5fr)",
      cell: (row) => <span className="font-mono text-muted text-xs">{summary(row)}</span>,
    },
    {
      id: "address",
      wide: true,
      head: "Source IP",
      width: "8rem",
      cell: (row) => <span className="font-mono text-faint text-xs">{row.address}</span>,
    },
  ];
  return (
    <Page
      fill
      title="Audit"
      lead="Every write and every denial: actor, action, resource, source, and the values before and after."
      actions={
        <>
          {fresh > 0 && (
            <Button
              icon={Radio}
              onClick={() => {
                setFresh(0);
                list.refetch();
              }}
            >
              {fresh === 1 ? "1 new entry" : `${fresh} new entries`}
            </Button>
          )}
          <FilterInput
            aria-label="Actor"
            placeholder="Actor"
            className="w-36"
            defaultValue={search.actor}
            onFilter={(actor) => set({ actor })}
          />
          <FilterInput
            aria-label="Name of the resource"
            placeholder="Resource"
            className="w-44"
            defaultValue={search.name}
            onFilter={(name) => set({ name })}
          />
          <Select
            label="Outcome"
            className="w-32"
            value={search.outcome ?? "all"}
            onChange={(next) => set({ outcome: next === "all" ? undefined : next })}
            options={[
              { value: "all", label: "All outcomes" },
              { value: "done", label: "Done" },
              { value: "denied", label: "Denied" },
              { value: "failed", label: "Failed" },
            ]}
          />
          <a
            href={auditExport(search)}
            download
            className="inline-flex h-8 items-center gap-1.5 rounded-md border border-line-strong bg-panel px-3 font-medium text-sm hover:bg-hover"
          >
            <Download aria-hidden className="size-3.5" />
            Export
          </a>
        </>
      }
    >
      <div className="mb-2 flex flex-wrap gap-3">
        <TimeField
          label="From"
          value={search.since ?? ""}
          onChange={(since) => set({ since: since || undefined })}
        />
        <TimeField
          label="Until"
          value={search.until ?? ""}
          onChange={(until) => set({ until: until || undefined })}
        />
      </div>
      {list.isError ? (
        <Failed error={list.error} retry={list.refetch} />
      ) : list.isPending ? (
        <Loading rows={12} />
      ) : (
        <VirtualTable
          label="Audit"
          columns={columns}
          rows={entries}
          rowKey={(row) => row.id}
          onRow={setOpen}
          onEnd={() => list.hasNextPage && !list.isFetchingNextPage && list.fetchNextPage()}
          empty={
            <Empty icon={History} title="No entry matches">
              Each write through the page, the API or the command line leaves an entry.
            </Empty>
          }
        />
      )}
      {open && <EntryDialog entry={open} onClose={() => setOpen(null)} />}
    </Page>
  );
}

function summary(entry: AuditEntry): string {
  if (entry.outcome !== "done") return entry.detail ?? "";
  return changesOf(entry)
    .map(({ path, before, after }) => {
      const name = path.replace(/^(spec|metadata)\./, "");
      return before === undefined
        ? `${name} ${shown(after)}`
        : `${name}: ${shown(before)} → ${shown(after)}`;
    })
    .slice(0, CHANGES_SHOWN_MAX)
    .join(", ");
}

const CHANGES_SHOWN_MAX = 4;

/** What differs; of what is new, what it has. */
const changesOf = ({ before, after }: AuditEntry) =>
  Object.keys(before ?? {}).length === 0 ? fieldsOf(after ?? {}) : differences(before, after ?? {});

function EntryDialog({ entry, onClose }: { entry: AuditEntry; onClose: () => void }) {
  const zone = useZone();
  const changes = changesOf(entry);
  return (
    <Dialog
      open
      onOpenChange={(next) => !next && onClose()}
      shape="sheet"
      title={`${entry.action} ${entry.name}`}
      lead={entry.detail || undefined}
    >
      <div className="flex flex-col gap-4 pb-5">
        <Facts
          items={[
            ["Time", dateTime(entry.at, zone, "millis")],
            ["Actor", `${entry.actor || "anonymous"} (${entry.actor_kind})`],
            [
              "Outcome",
              <Badge
                key="o"
                tone={OUTCOMES[entry.outcome]}
              >{`${entry.outcome}, ${entry.status}`}</Badge>,
            ],
            ["Kind", entry.kind.replaceAll("_", " ")],
            ["Source IP", entry.address || "–"],
            [
              "Request",
              <code key="r" className="font-mono text-xs">
                {entry.request_id}
              </code>,
            ],
          ]}
        />
        {changes.length > 0 && (
          <section aria-label="Changes" className="overflow-x-auto rounded-lg border">
            <table className="w-full text-xs">
              <thead>
                <tr className="border-b text-left text-faint">
                  <th className="px-3 py-1.5 font-medium">Field</th>
                  <th className="px-3 py-1.5 font-medium">Before</th>
                  <th className="px-3 py-1.5 font-medium">After</th>
                </tr>
              </thead>
              <tbody className="font-mono">
                {changes.map((one) => (
                  <tr key={one.path} className="border-b align-top last:border-0">
                    <td className="px-3 py-1.5 text-muted">{one.path}</td>
                    <td className="min-w-24 break-words px-3 py-1.5 text-bad">
                      {one.before !== undefined && <span aria-hidden>− </span>}
                      {one.before === undefined ? "–" : shown(one.before)}
                    </td>
                    <td className="min-w-24 break-words px-3 py-1.5 text-good">
                      {one.after !== undefined && <span aria-hidden>+ </span>}
                      {one.after === undefined ? "–" : shown(one.after)}
                    </td>
                  </tr>
                ))}
              </tbody>
            </table>
          </section>
        )}
        {entry.after != null && <Code label="After" text={JSON.stringify(entry.after, null, 2)} />}
      </div>
    </Dialog>
  );
}
