import {
  Activity,
  ArrowRightLeft,
  Bell,
  Boxes,
  CircleGauge,
  Gauge,
  History,
  KeyRound,
  Layers,
  type LucideIcon,
  MessageSquareText,
  Network,
  Server,
  Split,
  Workflow,
} from "lucide-react";

export interface Place {
  path: string;
  name: string;
  icon: LucideIcon;
  /** Second key after `g`. */
  key: string;
  says: string;
  /** Offered to those with one of these rights; without any, to everybody. */
  rights?: readonly string[];
}

interface Group {
  title: string;
  places: readonly Place[];
}

/** The places that somebody with these rights can read. */
export const placesFor = (may: (right: string) => boolean): readonly Group[] =>
  PLACES.map(({ title, places }) => ({
    title,
    places: places.filter(({ rights }) => rights?.some(may) ?? true),
  })).filter(({ places }) => places.length > 0);

const PLACES: readonly Group[] = [
  {
    title: "Watch",
    places: [
      { path: "/", name: "Overview", icon: Gauge, key: "o", says: "health at a glance" },
      {
        path: "/flow",
        name: "Flow",
        icon: Network,
        key: "f",
        says: "publishers, topics and subscribers",
      },
      {
        path: "/reliability",
        name: "Reliability",
        icon: Activity,
        key: "r",
        says: "loss and repair",
      },
      { path: "/alerts", name: "Alerts", icon: Bell, key: "a", says: "rules, silences, webhooks" },
    ],
  },
  {
    title: "Data",
    places: [
      {
        path: "/topics",
        name: "Topics",
        icon: Layers,
        key: "t",
        says: "channels and their limits",
      },
      {
        path: "/subscriptions",
        name: "Subscriptions",
        icon: Split,
        key: "s",
        says: "lag, positions, dead letters",
      },
      {
        path: "/messages",
        name: "Messages",
        icon: MessageSquareText,
        key: "m",
        says: "browse, tail, publish",
      },
      {
        path: "/limits",
        name: "Rate limits",
        icon: CircleGauge,
        key: "l",
        says: "policies, and the effective limits of a topic",
      },
    ],
  },
  {
    title: "Platform",
    places: [
      { path: "/nodes", name: "Nodes", icon: Server, key: "n", says: "engines and transports" },
      {
        path: "/cluster",
        name: "Cluster",
        icon: Boxes,
        key: "c",
        says: "levels, drains, moves of leased topics, keys of sealed transports",
      },
      {
        path: "/pipelines",
        name: "Pipelines",
        icon: Workflow,
        key: "p",
        says: "archive, replay, rollups, capacity: schedules and runs",
      },
      {
        path: "/mirrors",
        name: "Mirrors",
        icon: ArrowRightLeft,
        key: "i",
        says: "Kafka topics to durable topics and back: progress, rate, errors",
      },
      {
        path: "/access",
        name: "Keys & users",
        icon: KeyRound,
        key: "k",
        says: "users, API keys and their permissions",
        rights: ["users:read", "keys:read"],
      },
      {
        path: "/audit",
        name: "Audit",
        icon: History,
        key: "u",
        says: "changes and denials by actor",
        rights: ["audit:read"],
      },
    ],
  },
];
