import type { components } from "@/api/generated/schema";

type Schemas = components["schemas"];

/** Figures that are missing while no engine is heard: unknown, which is not 0. */
type Unmeasured<T, K extends keyof T> = Omit<T, K> & { [F in K]?: T[F] | null } & Heard;

/** Which engines the figures of a channel include. */
interface Heard {
  measured?: boolean;
  silent?: readonly string[];
}

export type Overview = Unmeasured<
  Schemas["Overview"],
  "rates" | "retransmit_ratio" | "lag_packets_max" | "ring_fill_max"
>;
type TopicsLive = Schemas["TopicsLive"] & Heard;
export type TopicDetail = Unmeasured<Schemas["TopicDetail"], "topic">;
export type QueueLive = Schemas["QueueLive"];
export type Reliability = Unmeasured<Schemas["Reliability"], "rates" | "retransmit_ratio">;
export type Flow = Schemas["Flow"];
type SubscriptionsLive = Schemas["SubscriptionsLive"];
type NodesLive = Omit<Schemas["NodesLive"], "nodes"> & Heard & { nodes: Record<string, NodeLive> };
export type KeyLive = Schemas["KeyLive"];
type KeysLive = Schemas["KeysLive"] & Heard;
export type MessagesLive = Schemas["MessagesLive"];
type RecorderLive = Schemas["RecorderLive"];
export type Rates = Schemas["Rates"];
export type AdapterLive = Schemas["AdapterLive"];
export type StorageLive = Schemas["StorageLive"];
export type TopicLive = Schemas["TopicLive"];
export type Slow = Schemas["Slow"];
export type PublicationLive = Schemas["PublicationLive"];
export type ReceiverLive = Schemas["ReceiverLive"];
export type ImageLive = Schemas["ImageLive"];
export type ReaderLive = Schemas["ReaderLive"];
export type AgentLive = Schemas["AgentLive"];
export type NodeLive = Unmeasured<Schemas["NodeLive"], "rates">;
type KafkaLive = Schemas["KafkaLive"] & Heard;
export type KafkaGroupLive = Schemas["KafkaGroupLive"];
export type KafkaClientLive = Schemas["KafkaClientLive"];
export type SubscriptionLive = Schemas["SubscriptionLive"];

interface Fixed {
  overview: Overview;
  topics: TopicsLive;
  reliability: Reliability;
  flow: Flow;
  subscriptions: SubscriptionsLive;
  nodes: NodesLive;
  keys: KeysLive;
  audit: Record<string, unknown>;
  alerts: Record<string, unknown>;
  moves: Schemas["MovesLive"];
  kafka: KafkaLive;
}

/** What a channel carries, by its name. */
export type DataOf<C extends string> = C extends keyof Fixed
  ? Fixed[C]
  : C extends `topic:${string}`
    ? TopicDetail
    : C extends `messages:${string}`
      ? MessagesLive
      : C extends `recorder:${string}`
        ? RecorderLive
        : Record<string, unknown>;

export type ChannelData = object;

export interface Frame {
  seq: string;
  at: string;
  kind: "snapshot" | "delta" | "ping" | "gap" | "error";
  channel: string;
  data?: ChannelData | null | undefined;
}
