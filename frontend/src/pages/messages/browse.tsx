import { useInfiniteQuery, useQuery } from "@tanstack/react-query";
import { Archive } from "lucide-react";
import { useState } from "react";
import { bodyOf, http } from "@/api/client";
import { type MessageView, nodesQuery, topicQuery } from "@/api/queries";
import { exact } from "@/lib/format";
import { Badge } from "@/ui/badge";
import { Button } from "@/ui/button";
import { CopyAs } from "@/ui/copy-as";
import { Input, SearchInput } from "@/ui/field";
import { More } from "@/ui/more";
import { Select } from "@/ui/select";
import { Empty, Failed, Loading } from "@/ui/states";
import { TimeField } from "@/ui/time-field";
import { DecoderSelect, MessageTable, type Wanted } from "./message-table";
import { nanosOf, parsePlace } from "./place";

type From = "earliest" | "latest" | "token" | "time";

interface Search {
  decoder?: Wanted | undefined;
  from?: From | undefined;
  at?: string | undefined;
  q?: string | undefined;
  queue?: string | undefined;
  node?: string | undefined;
}

const ALL = "all";
const PAGE_MESSAGES = 100;

export function Browse({
  topic,
  search,
  set,
}: {
  topic: string;
  search: Search;
  set: (search: Partial<Search>) => void;
}) {
  const { decoder = "auto", from = "latest", at = "", q = "", queue = "", node = "" } = search;
  const [text, setText] = useState(q);
  const { data: about } = useQuery(topicQuery(topic));
  const queues = about?.spec.mode === "durable" ? (about.spec.queues ?? 1) : 1;
  const nodes = useQuery(nodesQuery).data?.items ?? [];
  const place = from === "token" ? parsePlace(at) : null;
  const time = from === "time" ? nanosOf(at) : null;
  const ready = (from !== "token" || place !== null) && (from !== "time" || time !== null);
  const start = {
    start: from,
    limit: PAGE_MESSAGES,
    ...(queue && !place ? { queue: Number(queue) } : {}),
    ...(node ? { node } : {}),
    ...(place ?? {}),
    ...(time ? { time_ns: time } : {}),
    ...(q ? { q } : {}),
  };
  const found = useInfiniteQuery({
    queryKey: ["messages", topic, start],
    queryFn: ({ pageParam: cursor }) =>
      http
        .GET("/api/v1/topics/{name}/messages", {
          params: {
            path: { name: topic },
            query: cursor
              ? { cursor, limit: PAGE_MESSAGES, ...(q ? { q } : {}), ...(node ? { node } : {}) }
              : start,
          },
        })
        .then(bodyOf),
    initialPageParam: undefined as string | undefined,
    getNextPageParam: (page) => (page.complete ? undefined : (page.next_cursor ?? undefined)),
    getPreviousPageParam: (page) => page.previous_cursor ?? undefined,
    enabled: ready,
    retry: false,
  });
  const pages = found.data?.pages ?? [];
  const messages: readonly MessageView[] = pages.flatMap((page) => page.messages);
  const scanned = pages.reduce((sum, page) => sum + page.scanned, 0);
  const missing = pages.at(-1)?.missing ?? [];
  const path = `/api/v1/topics/${encodeURIComponent(topic)}/messages?${new URLSearchParams(
    Object.entries(start).map(([key, value]) => [key, String(value)]),
  )}`;
  return (
    <div className="flex h-full min-h-0 flex-col gap-2">
      <form
        className="flex flex-wrap items-end gap-2"
        onSubmit={(event) => {
          event.preventDefault();
          set({ q: text || undefined });
          found.refetch();
        }}
      >
        <Select
          label="From"
          className="w-32"
          value={from}
          onChange={(next) => set({ from: next, at: undefined })}
          options={[
            { value: "latest", label: "Latest" },
            { value: "earliest", label: "Earliest" },
            { value: "time", label: "Time" },
            { value: "token", label: "Offset" },
          ]}
        />
        {from === "time" && (
          <TimeField
            label="Time"
            className="w-60"
            value={at}
            onChange={(next) => set({ at: next || undefined })}
          />
        )}
        {from === "token" && (
          <Input
            aria-label="Offset, or queue:offset"
            placeholder="queue:offset"
            className="w-40 font-mono"
            value={at}
            onChange={(event) => set({ at: event.target.value })}
          />
        )}
        {queues > 1 && from !== "token" && (
          <Select
            label="Queue"
            className="w-32"
            value={queue || ALL}
            onChange={(next) => set({ queue: next === ALL ? undefined : next })}
            options={[
              { value: ALL, label: "All queues" },
              ...Array.from({ length: queues }, (_, number) => ({
                value: String(number),
                label: `Queue ${number}`,
              })),
            ]}
          />
        )}
        {nodes.length > 1 && (
          <Select
            label="Node"
            className="w-36"
            value={node || ALL}
            onChange={(next) => set({ node: next === ALL ? undefined : next })}
            options={[
              { value: ALL, label: "Any node" },
              ...nodes.map(({ metadata }) => ({ value: metadata.name, label: metadata.name })),
            ]}
          />
        )}
        <SearchInput
          aria-label="Only messages that contain"
          placeholder="Contains"
          className="w-56 max-sm:w-full"
          value={text}
          onChange={(event) => setText(event.target.value)}
        />
        <Button type="submit" busy={found.isFetching}>
          Search
        </Button>
        <DecoderSelect value={decoder} onChange={(next) => set({ decoder: next })} />
        <CopyAs action={{ method: "GET", path }} />
        <span className="num ml-auto flex items-center gap-2 text-muted text-xs">
          {pages.some((page) => page.withheld) && <Badge tone="warn">payloads withheld</Badge>}
          {found.data && (
            <span data-testid="found">
              {exact(messages.length)} found, {exact(scanned)} scanned
            </span>
          )}
          {found.hasPreviousPage && (
            <Button
              size="sm"
              busy={found.isFetchingPreviousPage}
              onClick={() => found.fetchPreviousPage()}
            >
              Older
            </Button>
          )}
          <More list={found} size="sm" />
        </span>
      </form>
      {found.isError && <Failed error={found.error} retry={found.refetch} />}
      {missing.map((one) => (
        <p key={`${one.node}/${one.queues}`} role="alert" className="text-sm text-warn">
          Not searched: {one.node || "queues"} {(one.queues ?? []).join(", ")} ({one.reason})
        </p>
      ))}
      <div className="min-h-0 flex-1">
        {found.isLoading ? (
          <Loading />
        ) : (
          <MessageTable
            messages={messages}
            decoder={decoder}
            empty={
              <Empty icon={Archive} title={ready ? "Nothing found" : "Choose where to start"}>
                {ready
                  ? "A live topic keeps only what its ring holds; a durable topic keeps its log."
                  : "A time, or an offset such as 0:4711: queue 0, offset 4711."}
              </Empty>
            }
          />
        )}
      </div>
    </div>
  );
}
