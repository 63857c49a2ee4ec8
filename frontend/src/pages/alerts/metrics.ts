import type { Schemas } from "@/api/client";

export type Metric = Schemas["AlertRuleSpec"]["metric"];

/** It is so, or it is not. */
export const isState = (metric: Metric) =>
  ["node_down", "drift", "waiting", "mirror_failed"].includes(metric);

export const METRICS: Record<Metric, { name: string; unit: string; start: number }> = {
  lag_s: { name: "Lag in time", unit: "seconds", start: 10 },
  lag_messages: { name: "Lag in messages", unit: "messages", start: 10_000 },
  retransmit_ratio: { name: "Retransmit ratio", unit: "a share, 0 to 1", start: 0.02 },
  ring_fill: { name: "Ring fill", unit: "a share, 0 to 1", start: 0.8 },
  cache_fill: { name: "Cache fill", unit: "a share, 0 to 1", start: 0.8 },
  lost_packets_per_s: { name: "Unrecoverable loss", unit: "packets/s", start: 0 },
  packets_out_per_s: { name: "Packets sent", unit: "packets/s", start: 100_000 },
  bytes_out_per_s: { name: "Bytes sent", unit: "bytes/s", start: 100_000_000 },
  rate_held: { name: "Throttled by rate limit", unit: "share of the time, 0 to 1", start: 0.5 },
  flow_held: { name: "Throttled by flow control", unit: "share of the time, 0 to 1", start: 0.5 },
  node_down: { name: "Node down", unit: "1 = down", start: 0 },
  drift: { name: "Out of sync", unit: "1 = out of sync", start: 0 },
  forged_packets_per_s: { name: "Forged packets", unit: "packets/s", start: 0 },
  waiting: { name: "Storage or adapter waiting", unit: "1 = waiting", start: 0 },
  mirror_failed: { name: "Mirror failed", unit: "1 = it does not copy", start: 0 },
  mirror_lag: { name: "Mirror lag", unit: "records", start: 10_000 },
  silent_peers: { name: "Silent unicast peers", unit: "peers", start: 0 },
};
