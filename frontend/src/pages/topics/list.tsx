import { useInfiniteQuery } from "@tanstack/react-query";
import { getRouteApi, useNavigate } from "@tanstack/react-router";
import { Layers, Plus, Tag } from "lucide-react";
import { lazy, Suspense, useCallback, useDeferredValue, useEffect, useMemo, useState } from "react";
import { topicsQuery } from "@/api/queries";
import { useTidecast } from "@/app/commands";
import { useMay } from "@/app/session";
import { Sparkline } from "@/charts/sparkline";
import { byteRate, compact, duration, exact, percent, plural, rate } from "@/lib/format";
import { useLivePart } from "@/live/store";
import type { TopicLive } from "@/live/types";
import { Badge } from "@/ui/badge";
import { Button } from "@/ui/button";
import { SearchInput } from "@/ui/field";
import { Page } from "@/ui/page";
import { Select } from "@/ui/select";
import { Empty, Failed, Loading } from "@/ui/states";
import { type Column, parseSort, sortText } from "@/ui/table";
import { VirtualTable } from "@/ui/virtual-table";
import { AdapterBadge, isAttached } from "./adapter";
import { activeIn, LIVE_SORTS, labelChoices, liveFirst, type TopicRow } from "./rows";
import { StorageBadge } from "./storage";
import { SyncBadge } from "./sync-badge";
import { ThrottleBadge } from "./throttle";

const TopicEditor = lazy(() =>
  import("./editor").then((module) => ({ default: module.TopicEditor })),
);

const route = getRouteApi("/app/topics");

const COLUMNS: Column<TopicRow>[] = [
  {
    id: "name",
    head: "Topic",
    sort: true,
    width: "minmax(11rem,2fr)",
    cell: ({ name, topic, live }) => (
      <span className="flex items-center gap-2">
        <span className="truncate font-medium font-mono text-xs">{name}</span>
        {topic?.spec.mode === "durable" && <Badge tone="info">durable</Badge>}
        <AdapterBadge live={live} />
        <StorageBadge live={live} />
        {topic?.status.paused && <Badge tone="warn">paused</Badge>}
        {topic?.status.drift && <SyncBadge drift since={topic.metadata.updated_at} />}
      </span>
    ),
  },
  {
    id: "shape",
    wide: true,
    head: "Last 2 min",
    width: "7.5rem",
    cell: ({ name, live }) =>
      live ? (
        <Sparkline
          channel="topics"
          name={`topics/${name}/messages_out`}
          label={`${name} over two minutes`}
        />
      ) : (
        <span className="text-faint text-xs">idle</span>
      ),
  },
  {
    id: "messages",
    head: "Messages/s",
    sort: true,
    right: true,
    width: "7.5rem",
    cell: ({ live }) => (live ? rate(live.rates.messages_out, " msg/s") : "–"),
  },
  {
    id: "packets",
    wide: true,
    head: "Packets/s",
    sort: true,
    right: true,
    width: "6.5rem",
    cell: ({ live }) => (live ? rate(live.rates.packets_out, " pkt/s") : "–"),
  },
  {
    id: "bytes",
    wide: true,
    head: "Bytes/s",
    sort: true,
    right: true,
    width: "7rem",
    cell: ({ live }) => (live ? byteRate(live.rates.bytes_out) : "–"),
  },
  {
    id: "lag",
    wide: true,
    head: "Live lag (pkt)",
    sort: true,
    right: true,
    width: "8.5rem",
    cell: ({ live }) => (live ? compact(Number(live.lag_packets)) : "–"),
  },
  {
    id: "backlog",
    wide: true,
    head: "Durable lag (msg)",
    sort: true,
    right: true,
    width: "10.5rem",
    cell: ({ topic, live }) =>
      topic?.spec.mode !== "durable" && live?.lag_messages == null ? (
        "–"
      ) : (
        <span title={live?.lag_s == null ? undefined : `Oldest: ${duration(live.lag_s)}`}>
          {exact(live?.lag_messages ?? null)}
        </span>
      ),
  },
  {
    id: "fill",
    wide: true,
    head: "Ring",
    sort: true,
    right: true,
    width: "5rem",
    cell: ({ live }) => (live ? percent(live.ring_fill) : "–"),
  },
  {
    id: "resent",
    wide: true,
    head: "Resent",
    sort: true,
    right: true,
    width: "5.5rem",
    cell: ({ live }) => (live ? percent(live.retransmit_ratio) : "–"),
  },
  {
    id: "throttle",
    wide: true,
    head: "Throttled",
    width: "8.5rem",
    cell: ({ live }) => <ThrottleBadge live={live} />,
  },
  {
    id: "ends",
    wide: true,
    head: "Pub / sub",
    right: true,
    width: "5.5rem",
    cell: ({ live, topic }) =>
      `${live?.publishers ?? topic?.status.publishers ?? 0} / ${live?.subscribers ?? topic?.status.subscribers ?? 0}`,
  },
  {
    id: "labels",
    wide: true,
    head: "Labels",
    width: "minmax(8rem,1fr)",
    cell: ({ topic }) => (
      <span className="truncate font-mono text-2xs text-faint">
        {Object.entries(topic?.metadata.labels ?? {})
          .map(([key, value]) => (value ? `${key}=${value}` : key))
          .join("  ")}
      </span>
    ),
  },
];

const NO_TOPICS: Readonly<Record<string, TopicLive>> = {};

export function TopicsPage() {
  const tidecast = useTidecast();
  const search = route.useSearch();
  const navigate = useNavigate();
  const may = useMay();
  const [text, setText] = useState(search.q ?? "");
  const wanted = useDeferredValue(text.trim());
  const sort = parseSort(search.sort ?? "name");
  const byLive = sort.id in LIVE_SORTS;
  const list = useInfiniteQuery(
    topicsQuery({ q: search.q, label: search.label, sort: byLive ? "name" : sortText(sort) }),
  );
  const lives = useLivePart("topics", (data) => data.topics) ?? NO_TOPICS;
  const set = (next: Partial<typeof search>) =>
    navigate({ to: "/topics", search: { ...search, ...next }, replace: true });

  // The field is ahead of the URL while somebody types.
  // biome-ignore lint/correctness/useExhaustiveDependencies: it follows the typing alone
  useEffect(() => {
    if ((search.q ?? "") === wanted) return;
    const timer = setTimeout(() => set({ q: wanted || undefined }), 120);
    return () => clearTimeout(timer);
  }, [wanted]);

  const topics = useMemo(() => list.data?.pages.flatMap((page) => page.items) ?? [], [list.data]);
  const matches = useCallback((name: string) => name.includes(search.q ?? ""), [search.q]);
  const listed = search.label ? NO_TOPICS : lives;
  const rows = useMemo(
    () => liveFirst(topics, listed, sort, matches),
    [topics, listed, sort, matches],
  );
  const total = list.data?.pages[0]?.total ?? topics.length;
  const attached = useMemo(() => Object.values(lives).filter(isAttached).length, [lives]);
  // The service lists topics of adapters too; only the live feed says when one comes or goes.
  // biome-ignore lint/correctness/useExhaustiveDependencies: it follows the number alone
  useEffect(() => {
    if (list.data) list.refetch();
  }, [attached]);
  const labels = useMemo(() => labelChoices(topics, search.label), [topics, search.label]);
  const more = useCallback(() => {
    if (list.hasNextPage && !list.isFetchingNextPage) list.fetchNextPage();
  }, [list.hasNextPage, list.isFetchingNextPage, list.fetchNextPage]);
  const create = () => set({ create: true });
  const filtered = Boolean(search.q || search.label);

  return (
    <Page
      fill
      title="Topics"
      lead={
        list.data
          ? `${plural(total, "topic")}${filtered ? " match" : ""}, ${exact(activeIn(lives))} active`
          : undefined
      }
      actions={
        <>
          <SearchInput
            aria-label="Search topics"
            placeholder="Search by name"
            value={text}
            onChange={(event) => setText(event.target.value)}
            className="w-64 max-sm:w-full"
          />
          {labels.length > 1 && (
            <Select
              label="Label"
              className="w-44"
              value={search.label ?? "all"}
              onChange={(label) => set({ label: label === "all" ? undefined : label })}
              options={labels}
            />
          )}
          {may("topics:write") && (
            <Button look="primary" icon={Plus} onClick={create}>
              Create topic
            </Button>
          )}
        </>
      }
    >
      {list.isError ? (
        <Failed error={list.error} retry={list.refetch} />
      ) : list.isPending ? (
        <Loading rows={12} />
      ) : (
        <VirtualTable
          label="Topics"
          columns={COLUMNS}
          rows={rows}
          total={total}
          rowKey={(row) => row.name}
          onRow={(row) => navigate({ to: "/topics/$name", params: { name: row.name } })}
          sort={sort}
          onSort={(next) => set({ sort: sortText(next) })}
          onEnd={more}
          empty={
            filtered ? (
              <Empty
                icon={Tag}
                title="No topic matches"
                action={
                  <Button
                    onClick={() => {
                      setText("");
                      set({ q: undefined, label: undefined });
                    }}
                  >
                    Show all topics
                  </Button>
                }
              >
                The search is by name, in exact case.
              </Empty>
            ) : (
              <Empty
                icon={Layers}
                title="No topics yet"
                commands={[
                  tidecast("pub", "orders.eu", "--message", '{"id": 1}'),
                  tidecast("sub", "orders.>"),
                ]}
                action={
                  may("topics:write") && (
                    <Button look="primary" icon={Plus} onClick={create}>
                      Create topic
                    </Button>
                  )
                }
              >
                A topic is a named channel. It is created here, by the API, or on first use.
              </Empty>
            )
          }
        />
      )}
      {search.create && (
        <Suspense>
          <TopicEditor onClose={() => set({ create: undefined })} />
        </Suspense>
      )}
    </Page>
  );
}
