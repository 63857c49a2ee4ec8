import { useInfiniteQuery, useQuery } from "@tanstack/react-query";
import { useNavigate } from "@tanstack/react-router";
import {
  ArrowRightLeft,
  Bell,
  CircleGauge,
  KeyRound,
  Layers,
  Split,
  UserRound,
  Workflow,
} from "lucide-react";
import { useMemo, useState } from "react";
import {
  alertRulesQuery,
  keysQuery,
  mirrorsQuery,
  pipelinesQuery,
  rateLimitsQuery,
  subscriptionsQuery,
  usersQuery,
} from "@/api/queries";
import type { Found } from "./palette";
import { queries } from "./query-client";
import { useTopicNames } from "./topic-names";

const TOPICS_MAX = 12;
const OTHERS_MAX = 6;

interface Named {
  name?: string;
  metadata?: { name: string };
}

const nameOf = (one: Named): string => one.metadata?.name ?? one.name ?? "";

/** Names for the palette: topics by the service's search, the rest from what is loaded. */
export function useFinder(
  open: boolean,
  may: (right: string) => boolean,
): (query: string) => readonly Found[] {
  const navigate = useNavigate();
  const [query, setQuery] = useState("");
  const topics = useTopicNames(open ? query : "", open);
  const on = (right: string) => ({ enabled: open && may(right) });
  const subscriptions = useQuery({ ...subscriptionsQuery, enabled: open }, queries).data?.items;
  const policies = useQuery({ ...rateLimitsQuery, ...on("rate_limits:read") }, queries).data?.items;
  const rules = useQuery({ ...alertRulesQuery, ...on("alert_rules:read") }, queries).data?.items;
  const pipelines = useQuery({ ...pipelinesQuery, ...on("pipelines:read") }, queries).data?.items;
  const mirrors = useQuery({ ...mirrorsQuery, ...on("mirrors:read") }, queries).data?.items;
  const users = useInfiniteQuery({ ...usersQuery, ...on("users:read") }, queries).data?.pages;
  const keys = useInfiniteQuery({ ...keysQuery, ...on("keys:read") }, queries).data?.pages;
  return useMemo(() => {
    const groups = [
      {
        kind: "subscription",
        icon: Split,
        items: subscriptions,
        open: (name: string) => navigate({ to: "/subscriptions/$name", params: { name } }),
      },
      {
        kind: "policy",
        icon: CircleGauge,
        items: policies,
        open: (edit: string) => navigate({ to: "/limits", search: { edit } }),
      },
      {
        kind: "alert rule",
        icon: Bell,
        items: rules,
        open: (edit: string) => navigate({ to: "/alerts", search: { tab: "rules", edit } }),
      },
      {
        kind: "pipeline",
        icon: Workflow,
        items: pipelines,
        open: (name: string) => navigate({ to: "/pipelines", search: { name } }),
      },
      {
        kind: "mirror",
        icon: ArrowRightLeft,
        items: mirrors,
        open: (name: string) => navigate({ to: "/mirrors", search: { name } }),
      },
      {
        kind: "user",
        icon: UserRound,
        items: users?.flatMap((page) => page.items),
        open: (edit: string) => navigate({ to: "/access", search: { tab: "users", edit } }),
      },
      {
        kind: "API key",
        icon: KeyRound,
        items: keys?.flatMap((page) => page.items),
        open: () => navigate({ to: "/access", search: { tab: "keys" } }),
      },
    ] as const;
    return (text: string) => {
      if (text !== query) queueMicrotask(() => setQuery(text));
      const has = (name: string) => name.toLowerCase().includes(text.toLowerCase());
      return [
        ...topics
          .filter(has)
          .slice(0, TOPICS_MAX)
          .map((name) => ({
            kind: "topic",
            name,
            icon: Layers,
            open: () => navigate({ to: "/topics/$name", params: { name } }),
          })),
        ...groups.flatMap(({ kind, icon, items, open: go }) =>
          ((items ?? []) as readonly Named[])
            .map(nameOf)
            .filter(has)
            .slice(0, OTHERS_MAX)
            .map((name) => ({ kind, name, icon, open: () => go(name) })),
        ),
      ];
    };
  }, [query, topics, subscriptions, policies, rules, pipelines, mirrors, users, keys, navigate]);
}
