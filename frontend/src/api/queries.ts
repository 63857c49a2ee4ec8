// What pages read. One place knows the paths; pages know names.
import { infiniteQueryOptions, keepPreviousData, queryOptions } from "@tanstack/react-query";
import { bodyOf, http, type Schemas } from "./client";

export type Topic = Schemas["Topic"];
export type TopicSpec = Schemas["TopicSpec"];
export type Subscription = Schemas["Subscription"];
export type Node = Schemas["Node"];
export type Cluster = Schemas["Cluster"];
export type ClusterEngine = Schemas["ClusterEngine"];
export type LeaseMove = Schemas["LeaseMove"];
export type NodeDrain = Schemas["NodeDrain"];
export type WireKeyState = Schemas["WireKeyState"];
export type Transport = Schemas["Transport"];
export type RateLimit = Schemas["RateLimit"];
export type Fault = Schemas["Fault"];
export type Traffic = Schemas["Traffic"];
export type Plan = Schemas["Plan"];
export type Identity = Schemas["Identity"];
export type User = Schemas["User"];
export type Key = Schemas["Key"];
export type AuditEntry = Schemas["AuditEntry"];
export type AlertRule = Schemas["AlertRule"];
export type Alert = Schemas["Alert"];
export type Silence = Schemas["Silence"];
export type Operation = Schemas["Operation"];
export type MessageView = Schemas["MessageView"];
export type KafkaGroup = Schemas["KafkaGroup"];
export type Queue = Schemas["Queue"];
export type Pipeline = Schemas["Pipeline"];
export type Mirror = Schemas["Mirror"];
export type PipelineRun = Schemas["PipelineRun"];

const PAGE_ROWS = 200;
const ALL = { limit: 500 } as const;

export const identityQuery = queryOptions({
  queryKey: ["session"],
  queryFn: () => http.GET("/api/v1/auth/me").then(bodyOf),
  staleTime: 60_000,
  retry: false,
});

export const systemQuery = queryOptions({
  queryKey: ["system"],
  queryFn: () => http.GET("/api/v1/system").then(bodyOf),
  staleTime: 30_000,
});

interface ListSearch {
  q?: string | undefined;
  sort?: string | undefined;
  label?: string | undefined;
}

export const topicsQuery = (search: ListSearch) =>
  infiniteQueryOptions({
    queryKey: ["topics", "list", search],
    queryFn: ({ pageParam }) =>
      http
        .GET("/api/v1/topics", {
          params: {
            query: {
              limit: PAGE_ROWS,
              count: pageParam === undefined,
              adapters: true,
              ...(pageParam ? { cursor: pageParam } : {}),
              ...(search.q ? { q: search.q } : {}),
              ...(search.sort ? { sort: search.sort } : {}),
              ...(search.label ? { label: search.label.split(",") } : {}),
            },
          },
        })
        .then(bodyOf),
    initialPageParam: undefined as string | undefined,
    getNextPageParam: (page) => page.next_cursor ?? undefined,
    placeholderData: keepPreviousData,
    staleTime: 5_000,
  });

export const topicQuery = (name: string) =>
  queryOptions({
    queryKey: ["topics", "one", name],
    queryFn: () => http.GET("/api/v1/topics/{name}", { params: { path: { name } } }).then(bodyOf),
    refetchInterval: 15_000,
  });

export const transportsQuery = queryOptions({
  queryKey: ["transports"],
  queryFn: () => http.GET("/api/v1/transports", { params: { query: ALL } }).then(bodyOf),
  staleTime: 10_000,
});

export const subscriptionsQuery = queryOptions({
  queryKey: ["subscriptions", "list"],
  queryFn: () => http.GET("/api/v1/subscriptions", { params: { query: ALL } }).then(bodyOf),
  staleTime: 5_000,
});

export const subscriptionQuery = (name: string) =>
  queryOptions({
    queryKey: ["subscriptions", "one", name],
    queryFn: () =>
      http.GET("/api/v1/subscriptions/{name}", { params: { path: { name } } }).then(bodyOf),
    refetchInterval: 2_000,
  });

/** Groups of Kafka clients whose name holds a text. */
export const kafkaGroupsQuery = (q: string) =>
  queryOptions({
    queryKey: ["kafka", "groups", q],
    queryFn: () =>
      http.GET("/api/v1/kafka/groups", { params: { query: { ...ALL, q } } }).then(bodyOf),
    placeholderData: keepPreviousData,
  });

export const kafkaGroupQuery = (name: string, node: string) =>
  queryOptions({
    queryKey: ["kafka", "group", node, name],
    queryFn: () =>
      http
        .GET("/api/v1/kafka/groups/{name}", { params: { path: { name }, query: { node } } })
        .then(bodyOf),
    refetchInterval: 1_000,
    retry: false,
  });

export const nodesQuery = queryOptions({
  queryKey: ["nodes"],
  queryFn: () => http.GET("/api/v1/nodes", { params: { query: ALL } }).then(bodyOf),
  refetchInterval: 10_000,
});

export const clusterQuery = queryOptions({
  queryKey: ["cluster"],
  queryFn: () => http.GET("/api/v1/cluster").then(bodyOf),
  refetchInterval: 10_000,
});

/** What raising the cluster to a level would change; refused while an engine does not read it. */
export const clusterPlanQuery = (level: number) =>
  queryOptions({
    queryKey: ["cluster", "plan", level],
    queryFn: () =>
      http
        .POST("/api/v1/cluster/finalize", { params: { query: { level, dry_run: true } } })
        .then(bodyOf),
    retry: false,
  });

/** What a drain of a node moves, and what stays: its engine is asked. */
export const drainQuery = (name: string) =>
  queryOptions({
    queryKey: ["cluster", "drain", name],
    queryFn: () =>
      http.GET("/api/v1/cluster/nodes/{name}/drain", { params: { path: { name } } }).then(bodyOf),
    refetchInterval: 2_000,
    retry: false,
  });

interface MovesSearch {
  topic?: string | undefined;
  node?: string | undefined;
}

export const movesQuery = (search: MovesSearch) =>
  infiniteQueryOptions({
    queryKey: ["cluster", "moves", search],
    queryFn: ({ pageParam }) =>
      http
        .GET("/api/v1/cluster/moves", {
          params: { query: { limit: 50, ...(pageParam ? { cursor: pageParam } : {}), ...search } },
        })
        .then(bodyOf),
    initialPageParam: undefined as string | undefined,
    getNextPageParam: (page) => page.next_cursor ?? undefined,
    placeholderData: keepPreviousData,
  });

export const wireKeysQuery = (name: string) =>
  queryOptions({
    queryKey: ["transports", "keys", name],
    queryFn: () =>
      http.GET("/api/v1/transports/{name}/keys", { params: { path: { name } } }).then(bodyOf),
    refetchInterval: 10_000,
  });

export const recorderQuery = (node: string) =>
  queryOptions({
    queryKey: ["nodes", "recorder", node],
    queryFn: () =>
      http.GET("/api/v1/nodes/{name}/recorder", { params: { path: { name: node } } }).then(bodyOf),
    enabled: node !== "",
    refetchInterval: 5_000,
  });

export const rateLimitsQuery = queryOptions({
  queryKey: ["rate-limits"],
  queryFn: () => http.GET("/api/v1/rate-limits", { params: { query: ALL } }).then(bodyOf),
  staleTime: 5_000,
});

export const faultsQuery = queryOptions({
  queryKey: ["faults"],
  queryFn: () => http.GET("/api/v1/faults", { params: { query: ALL } }).then(bodyOf),
  refetchInterval: 5_000,
});

export const trafficQuery = queryOptions({
  queryKey: ["traffic"],
  queryFn: () => http.GET("/api/v1/traffic", { params: { query: ALL } }).then(bodyOf),
  refetchInterval: 5_000,
});

const accounts = (pageParam: string | undefined) => ({
  params: {
    query: {
      limit: PAGE_ROWS,
      count: pageParam === undefined,
      ...(pageParam ? { cursor: pageParam } : {}),
    },
  },
});

export const usersQuery = infiniteQueryOptions({
  queryKey: ["users"],
  queryFn: ({ pageParam }) => http.GET("/api/v1/users", accounts(pageParam)).then(bodyOf),
  initialPageParam: undefined as string | undefined,
  getNextPageParam: (page) => page.next_cursor ?? undefined,
});

export const keysQuery = infiniteQueryOptions({
  queryKey: ["keys"],
  queryFn: ({ pageParam }) => http.GET("/api/v1/keys", accounts(pageParam)).then(bodyOf),
  initialPageParam: undefined as string | undefined,
  getNextPageParam: (page) => page.next_cursor ?? undefined,
});

export const alertsQuery = queryOptions({
  queryKey: ["alerts", "fired"],
  queryFn: () => http.GET("/api/v1/alerts", { params: { query: { limit: 100 } } }).then(bodyOf),
  refetchInterval: 5_000,
});

export const alertRulesQuery = queryOptions({
  queryKey: ["alerts", "rules"],
  queryFn: () => http.GET("/api/v1/alert-rules", { params: { query: ALL } }).then(bodyOf),
});

export const silencesQuery = queryOptions({
  queryKey: ["alerts", "silences"],
  queryFn: () => http.GET("/api/v1/silences", { params: { query: ALL } }).then(bodyOf),
});

interface HistoryAsked {
  scope: Schemas["History"]["scope"];
  name: string;
  metrics: readonly Schemas["HistorySeries"]["metric"][];
  seconds: number;
}

/** The same as a link of the API; without times it ends now, a day back. */
export const historyPath = (asked: HistoryAsked) =>
  `/api/v1/history?${new URLSearchParams([
    ["scope", asked.scope],
    ["name", asked.name],
    ...asked.metrics.map((metric) => ["metric", metric]),
    ["from", new Date(Date.now() - asked.seconds * 1000).toISOString()],
  ])}`;

export const historyQuery = (asked: HistoryAsked) =>
  queryOptions({
    queryKey: ["history", asked],
    queryFn: () =>
      http
        .GET("/api/v1/history", {
          params: {
            query: {
              scope: asked.scope,
              name: asked.name,
              metric: [...asked.metrics],
              from: new Date(Date.now() - asked.seconds * 1000).toISOString(),
            },
          },
        })
        .then(bodyOf),
    refetchInterval: 60_000,
    placeholderData: keepPreviousData,
  });

export const pipelinesQuery = queryOptions({
  queryKey: ["pipelines", "list"],
  queryFn: () => http.GET("/api/v1/pipelines", { params: { query: ALL } }).then(bodyOf),
  refetchInterval: 3_000,
});

export const mirrorsQuery = queryOptions({
  queryKey: ["mirrors", "list"],
  queryFn: () => http.GET("/api/v1/mirrors", { params: { query: ALL } }).then(bodyOf),
  refetchInterval: 2_000,
});

export const mirrorProgressQuery = (name: string) =>
  queryOptions({
    queryKey: ["mirrors", "progress", name],
    queryFn: () =>
      http.GET("/api/v1/mirrors/{name}/progress", { params: { path: { name } } }).then(bodyOf),
    refetchInterval: 2_000,
  });

export const runsQuery = (name: string) =>
  queryOptions({
    queryKey: ["pipelines", "runs", name],
    queryFn: () =>
      http
        .GET("/api/v1/pipelines/{name}/runs", {
          params: { path: { name }, query: { limit: 50 } },
        })
        .then(bodyOf),
    refetchInterval: 3_000,
  });

export const runLogQuery = (name: string, run_id: string, running: boolean) =>
  queryOptions({
    queryKey: ["pipelines", "log", run_id],
    queryFn: () =>
      http
        .GET("/api/v1/pipelines/{name}/runs/{run_id}/log", { params: { path: { name, run_id } } })
        .then(bodyOf),
    refetchInterval: running ? 2_000 : false,
  });

export const capacityQuery = queryOptions({
  queryKey: ["capacity"],
  queryFn: () => http.GET("/api/v1/capacity").then(bodyOf),
  staleTime: 30_000,
});

interface AuditSearch {
  actor?: string | undefined;
  kind?: string | undefined;
  outcome?: string | undefined;
  name?: string | undefined;
  since?: string | undefined;
  until?: string | undefined;
}

/** Where all entries that match can be downloaded, as JSON lines. */
export const auditExport = (search: AuditSearch) => {
  const given = Object.entries(search).filter(([, value]) => value);
  return `/api/v1/audit/export?${new URLSearchParams(given as [string, string][])}`;
};

export const auditQuery = (search: AuditSearch) =>
  infiniteQueryOptions({
    queryKey: ["audit", search],
    queryFn: ({ pageParam }) =>
      http
        .GET("/api/v1/audit", {
          params: { query: { limit: 100, ...(pageParam ? { cursor: pageParam } : {}), ...search } },
        })
        .then(bodyOf),
    initialPageParam: undefined as string | undefined,
    getNextPageParam: (page) => page.next_cursor ?? undefined,
    placeholderData: keepPreviousData,
  });
