// Which numbers of a channel are kept over time, and under which names.
// Positions and totals are strings; those that are drawn become floats here, and only here.
import type { ChannelData } from "./types";

type Sample = readonly [name: string, value: number];

const RATES = [
  "messages_out",
  "packets_out",
  "bytes_out",
  "packets_in",
  "bytes_in",
  "packets_resent",
  "bytes_resent",
  "naks_received",
  "naks_sent",
  "losses",
  "lost_for_good",
  "bytes_saved",
  "rate_held",
  "flow_held",
] as const;

type Numbers = Record<string, unknown>;

function* pick(prefix: string, row: object, names: readonly string[]): Iterable<Sample> {
  for (const name of names) {
    const value = (row as Numbers)[name];
    if (value == null) continue;
    const number = Number(value);
    if (Number.isFinite(number)) yield [prefix + name, number];
  }
}

function* rows(
  group: string,
  members: Record<string, object> | undefined,
  names: readonly string[],
  rates: readonly string[] = [],
): Iterable<Sample> {
  for (const [id, row] of Object.entries(members ?? {})) {
    yield* pick(`${group}/${id}/`, row, names);
    const own = (row as { rates?: object }).rates;
    if (own) yield* pick(`${group}/${id}/`, own, rates);
  }
}

export function* samplesOf(channel: string, data: ChannelData): Iterable<Sample> {
  const all = data as Numbers & { rates?: object };
  if (all.rates) yield* pick("", all.rates, RATES);
  const kind = channel.split(":", 1)[0];
  if (kind === "overview") {
    yield* pick("", all, [
      "retransmit_ratio",
      "lag_packets_max",
      "lag_messages",
      "lag_s",
      "ring_fill_max",
      "cache_fill_max",
      "rtt_ms",
      "publishers",
      "subscribers",
    ]);
  }
  const group = (name: string) => all[name] as Record<string, object> | undefined;
  if (kind === "topics") {
    yield* rows(
      "topics",
      group("topics"),
      ["lag_packets", "ring_fill"],
      ["packets_out", "bytes_out"],
    );
  } else if (kind === "topic") {
    const topic = all.topic as { rates?: object } | undefined;
    if (topic) {
      yield* pick("", topic, [
        "retransmit_ratio",
        "ring_fill",
        "lag_packets",
        "lag_messages",
        "lag_s",
      ]);
      if (topic.rates) yield* pick("", topic.rates, RATES);
    }
    yield* rows("publications", group("publications"), ["fill"], ["packets_out"]);
    yield* rows("receivers", group("receivers"), ["lag_packets"]);
    yield* rows("readers", group("readers"), ["lag_packets"]);
  } else if (kind === "reliability") {
    yield* pick("", all, ["retransmit_ratio"]);
    yield* rows("publications", group("publications"), ["fill", "history_s"], ["packets_out"]);
    yield* rows("receivers", group("receivers"), ["lag_packets"]);
    yield* rows("images", group("images"), ["fill"], ["losses"]);
  } else if (kind === "subscriptions") {
    yield* rows("subscriptions", group("subscriptions"), [
      "lag_messages",
      "lag_s",
      "delivered_per_s",
    ]);
    yield* rows("readers", group("readers"), ["lag_packets"]);
  } else if (kind === "kafka") {
    yield* rows("groups", group("groups"), ["lag", "lag_s"]);
  } else if (kind === "nodes") {
    yield* rows(
      "nodes",
      group("nodes"),
      ["duty_cycle_ms_max"],
      ["packets_out", "packets_in", "losses"],
    );
    yield* rows("agents", group("agents"), ["duty_cycles_per_s", "duty_cycle_ms_max"]);
  }
}
