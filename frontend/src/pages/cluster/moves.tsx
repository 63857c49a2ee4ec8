import { useInfiniteQuery } from "@tanstack/react-query";
import { getRouteApi, useNavigate } from "@tanstack/react-router";
import { ArrowRight } from "lucide-react";
import { useEffect } from "react";
import { type LeaseMove, movesQuery } from "@/api/queries";
import { useTidecast } from "@/app/commands";
import { duration } from "@/lib/format";
import { dateTime, useZone } from "@/lib/time";
import { live } from "@/live/store";
import { Badge } from "@/ui/badge";
import { Card } from "@/ui/card";
import { CopyAs } from "@/ui/copy-as";
import { FilterInput } from "@/ui/field";
import { More } from "@/ui/more";
import { Failed, Loading } from "@/ui/states";
import { type Column, Table } from "@/ui/table";

const route = getRouteApi("/app/cluster");

/** Which leased topic went from which engine to which, and why; new ones appear by themselves. */
export function MovesCard() {
  const search = route.useSearch();
  const navigate = useNavigate();
  const zone = useZone();
  const tidecast = useTidecast();
  const list = useInfiniteQuery(movesQuery(search));
  const { refetch } = list;
  useEffect(() => live.watch("moves", () => void refetch()), [refetch]);
  const set = (next: Partial<typeof search>) =>
    navigate({ to: "/cluster", search: { ...search, ...next }, replace: true });
  const moves = (list.data?.pages.flatMap((page) => page.items) ?? []) as LeaseMove[];
  const given = Object.entries(search).filter(([, value]) => value) as [string, string][];
  return (
    <Card
      title="Moves"
      hint="leased topics that moved from one engine to another in the last 30 days"
      flush
      className="mt-3"
      actions={
        <>
          <FilterInput
            aria-label="Topic of the moves"
            placeholder="Topic"
            className="w-36"
            defaultValue={search.topic}
            onFilter={(topic) => set({ topic })}
          />
          <FilterInput
            aria-label="Node of the moves"
            placeholder="Node"
            className="w-36"
            defaultValue={search.node}
            onFilter={(node) => set({ node })}
          />
          <CopyAs
            small
            action={{
              method: "GET",
              path: `/api/v1/cluster/moves${given.length ? `?${new URLSearchParams(given)}` : ""}`,
              cli: tidecast(
                "cluster",
                "moves",
                ...given.flatMap(([name, value]) => [`--${name}`, value]),
              ),
            }}
          />
        </>
      }
    >
      {list.isError && <Failed error={list.error} retry={list.refetch} />}
      {list.isPending && <Loading />}
      {list.data && (
        <Table
          label="Moves of leased topics"
          columns={columnsOf((at) => dateTime(at, zone))}
          rows={moves}
          rowKey={(row) => row.id}
          empty={<p className="px-3.5 pb-4 text-muted">No leased topic has moved.</p>}
        />
      )}
      {list.hasNextPage && (
        <div className="px-3.5 py-2">
          <More list={list} size="sm">
            Show older moves
          </More>
        </div>
      )}
    </Card>
  );
}

const columnsOf = (time: (at: string) => string): Column<LeaseMove>[] => [
  {
    id: "at",
    head: "Time",
    cell: (row) => <span className="num font-mono text-muted text-xs">{time(row.at)}</span>,
  },
  {
    id: "topic",
    head: "Topic",
    cell: (row) => <span className="font-mono text-xs">{row.topic}</span>,
  },
  {
    id: "way",
    head: "From, to",
    cell: (row) => (
      <span className="flex flex-wrap items-center gap-1.5">
        {row.from_node || <span className="text-faint">no node</span>}
        <ArrowRight aria-label="to" className="size-3 text-faint" />
        {row.to_node || <Badge tone="warn">no node yet</Badge>}
      </span>
    ),
  },
  { id: "reason", head: "Reason", cell: (row) => <span className="text-sm">{row.reason}</span> },
  {
    id: "away",
    wide: true,
    head: "Without an owner",
    right: true,
    cell: (row) => (row.from_node ? duration(row.away_s) : "–"),
  },
  { id: "epoch", wide: true, head: "Epoch", right: true, cell: (row) => row.epoch },
];
