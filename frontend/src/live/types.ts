import type { components } from "@/api/generated/schema";

type Schemas = components["schemas"];

export type Overview = Schemas["Overview"];
export type TopicsLive = Schemas["TopicsLive"];
export type TopicDetail = Schemas["TopicDetail"];
export type QueueLive = Schemas["QueueLive"];
export type Reliability = Schemas["Reliability"];
export type Flow = Schemas["Flow"];
export type SubscriptionsLive = Schemas["SubscriptionsLive"];
export type NodesLive = Schemas["NodesLive"];
export type MessagesLive = Schemas["MessagesLive"];
export type RecorderLive = Schemas["RecorderLive"];
export type Rates = Schemas["Rates"];
export type TopicLive = Schemas["TopicLive"];
export type Slow = Schemas["Slow"];
export type PublicationLive = Schemas["PublicationLive"];
export type ReceiverLive = Schemas["ReceiverLive"];
export type ImageLive = Schemas["ImageLive"];
export type ReaderLive = Schemas["ReaderLive"];
export type AgentLive = Schemas["AgentLive"];
export type NodeLive = Schemas["NodeLive"];
export type SubscriptionLive = Schemas["SubscriptionLive"];

interface Fixed {
  overview: Overview;
  topics: TopicsLive;
  reliability: Reliability;
  flow: Flow;
  subscriptions: SubscriptionsLive;
  nodes: NodesLive;
  audit: Record<string, unknown>;
  alerts: Record<string, unknown>;
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
