import type { Topic } from "@/api/queries";
import type { TopicLive } from "@/live/types";
import type { Sort } from "@/ui/table";

export interface TopicRow {
  name: string;
  topic: Topic | undefined;
  live: TopicLive | undefined;
}

/** Sorted by the service, or, by live figures, here: topics with traffic come first. */
export const LIVE_SORTS: Record<string, (live: TopicLive) => number> = {
  messages: (live) => live.rates.messages_out,
  packets: (live) => live.rates.packets_out,
  bytes: (live) => live.rates.bytes_out,
  lag: (live) => Number(live.lag_packets),
  backlog: (live) => Number(live.lag_messages ?? 0),
  fill: (live) => live.ring_fill,
  resent: (live) => live.retransmit_ratio,
};

/** How many carry traffic now; the platform's own are not counted. */
export const activeIn = (lives: Readonly<Record<string, TopicLive>>) =>
  Object.values(lives).filter(
    ({ name, rates }) => !name.startsWith("tidecast.") && rates.packets_out + rates.packets_in > 0,
  ).length;

export function liveFirst(
  topics: readonly Topic[],
  lives: Readonly<Record<string, TopicLive>>,
  sort: Sort,
  matches: (name: string) => boolean,
): TopicRow[] {
  const value = LIVE_SORTS[sort.id];
  const byName = new Map(topics.map((topic) => [topic.metadata.name, topic]));
  const way = sort.desc ? -1 : 1;
  if (!value)
    return topics.map((topic) => ({
      name: topic.metadata.name,
      topic,
      live: lives[topic.metadata.name],
    }));
  const active = Object.values(lives)
    .filter((live) => matches(live.name))
    .sort((a, b) => way * (value(a) - value(b)) || a.name.localeCompare(b.name))
    .map((live) => ({ name: live.name, topic: byName.get(live.name), live }));
  const quiet = topics
    .filter((topic) => !(topic.metadata.name in lives))
    .map((topic) => ({ name: topic.metadata.name, topic, live: undefined }));
  return sort.desc ? [...active, ...quiet] : [...quiet, ...active];
}

export function labelChoices(topics: readonly Topic[], chosen: string | undefined) {
  const seen = new Set<string>(chosen ? [chosen] : []);
  for (const topic of topics) {
    for (const [key, value] of Object.entries(topic.metadata.labels)) {
      if (seen.size < 50) seen.add(value ? `${key}=${value}` : key);
    }
  }
  return [
    { value: "all", label: "All labels" },
    ...[...seen].sort().map((label) => ({ value: label, label })),
  ];
}
