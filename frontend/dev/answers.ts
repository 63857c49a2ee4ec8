// What the fixture platform answers to requests.

import {
  iso,
  type makeTopics,
  NODES,
  type Row,
  resource,
  START_MS,
  SUBSCRIPTIONS,
  subscriptionLive,
  topic,
} from "./fixtures";
import { message } from "./messages";
import { mirrorProgress, mirrors } from "./mirrors";
import { capacity, history, pipelines, runs } from "./pipelines";

export { message };

const recorder = (nowMs: number) =>
  Array.from({ length: 24 }, (_, at) => {
    const when = nowMs - (24 - at) * 7_300;
    const section = at % 11 === 3 ? "alert" : at % 3 ? "low" : "high";
    const [code, says] =
      section === "alert"
        ? [
            "RECEIVER_TIMEOUT",
            "receiver gamma of md.us.equities sent no STATUS for 5.0 s and was dropped",
          ]
        : section === "low"
          ? ["PUBLICATION_OPENED", "publication md.eu.equities opened by feed-handler, 3,000 slots"]
          : ["NAK_SENT", "NAK for 3 ranges, 11 packets of md.us.equities to alpha"];
    return {
      at: iso(when),
      at_ns: `${BigInt(when) * 1_000_000n}`,
      section,
      writer: ["sender", "receiver", "conductor"][at % 3],
      code,
      entity: String(at),
      values: {},
      text: says,
    };
  });

const RIGHTS =
  "topics transports rate_limits subscriptions traffic faults alerts nodes users keys enrolments queues pipelines mirrors"
    .split(" ")
    .flatMap((kind) => [`${kind}:read`, `${kind}:write`])
    .concat(["messages:publish", "messages:read", "apply:write", "export:read", "audit:read"]);

export const identity = {
  kind: "user",
  name: "admin",
  role: "admin",
  rights: RIGHTS,
  scopes: [],
  must_change_password: false,
  csrf_token: "fixture",
};

function audit(nowMs: number) {
  const entries: [string, string, string, string, string, unknown, unknown, string][] = [
    [
      "admin",
      "user",
      "update",
      "topic",
      "md.us.equities",
      { spec: { rate_packets_per_s: 120_000 } },
      { spec: { rate_packets_per_s: 150_000 } },
      "done",
    ],
    [
      "deploy",
      "key",
      "apply",
      "topic",
      "orders.eu",
      { spec: { queues: 4, fsync: "interval" } },
      { spec: { queues: 8, fsync: "interval" } },
      "done",
    ],
    ["reader", "key", "delete", "topic", "orders.eu", null, null, "denied"],
    ["mia", "user", "seek", "subscription", "settlement", { at: "token" }, { at: "time" }, "done"],
    [
      "mia",
      "user",
      "pause",
      "subscription",
      "archive",
      { spec: { paused: false } },
      { spec: { paused: true } },
      "done",
    ],
    ["", "anonymous", "login", "session", "root", null, null, "denied"],
    ["alpha", "engine", "register", "node", "alpha", null, { state: "up" }, "done"],
  ];
  return Array.from({ length: 60 }, (_, at) => {
    const [actor, actor_kind, action, kind, name, before, after, outcome] =
      entries[at % entries.length]!;
    return {
      id: String(9_000 - at),
      at: iso(nowMs - at * 341_000),
      actor,
      actor_kind,
      action,
      kind,
      name,
      outcome,
      status: outcome === "done" ? 200 : outcome === "denied" ? 403 : 500,
      before,
      after,
      detail: outcome === "denied" ? "needs the right topics:write on orders.eu" : "",
      request_id: `req-${9_000 - at}`,
      address: "10.1.0.17",
    };
  });
}

const page = (items: unknown[], more: Row = {}) => ({
  items,
  next_cursor: null,
  total: items.length,
  ...more,
});

/** Answers a request of the API; undefined: no such thing. Writes change only what they answer. */
export function answer(
  method: string,
  url: URL,
  body: unknown,
  topics: ReturnType<typeof makeTopics>,
  nowMs: number,
): { status: number; body: unknown } | undefined {
  const path = decodeURIComponent(url.pathname.replace(/^\/api\/v1\//, ""));
  const [head = "", name = "", tail = ""] = path.split("/");
  const ok = (value: unknown, status = 200) => ({ status, body: value });
  const dry = url.searchParams.get("dry_run") === "true";
  if (path === "auth/me" || path === "auth/login") return ok(identity);
  if (path === "auth/logout") return ok(null, 204);
  if (path === "system")
    return ok({
      version: "0.2.0",
      api: "v1",
      started_at: iso(START_MS),
      now: iso(nowMs),
      uptime_s: 3_600,
      topology_version: "4711",
      first_run: false,
      faults_allowed: true,
      telemetry_hz_max: 4,
      postgres: "18.1",
      nodes_up: 3,
      watchers: 1,
      spark: true,
      data_dir: "",
    });
  if (path === "history") return ok(history(url, nowMs));
  if (head === "pipelines" && tail === "runs") return ok(page(runs(nowMs)));
  if (head === "mirrors" && tail === "progress") return ok(mirrorProgress(nowMs));
  if (head === "capacity")
    return name
      ? ok(plan(name, method, { history_bytes: 4 << 20 }, capacity(nowMs).items[0]?.spec ?? {}))
      : ok(capacity(nowMs));
  if (head === "topics" && !name) return listTopics(url, topics);
  if (head === "topics" && tail === "messages") {
    if (method === "POST")
      return ok(
        { topic: name, node: "alpha", ack: "engine", queue: 3, token: "9007199254740993" },
        201,
      );
    return ok({
      topic: name,
      messages: Array.from({ length: 60 }, (_, at) => message(name, at, nowMs - at * 83)),
      scanned: 60,
      complete: true,
      next_token: null,
      withheld: false,
    });
  }
  if (head === "topics") {
    const found = topics.find((one) => one.metadata.name === name);
    if (method === "GET")
      return found
        ? ok(found)
        : {
            status: 404,
            body: {
              title: "Not found",
              status: 404,
              code: "not_found",
              detail: `There is no topic ${name}.`,
            },
          };
    const spec = (body as { spec?: Row } | null)?.spec ?? {};
    if (dry) return ok(plan(name, method, found?.spec, spec));
    const base = found ?? topic(name, 99);
    if (found) Object.assign(found.spec, spec);
    return ok({ ...base, spec: { ...base.spec, ...spec } }, found ? 200 : 201);
  }
  if (head === "subscriptions") {
    const made = SUBSCRIPTIONS.map(([one, of, state], at) =>
      subscription(one, of, state, (nowMs - START_MS) / 1000, at),
    );
    if (tail)
      return ok({
        id: "op-1",
        action: tail,
        kind: "subscription",
        name,
        state: "done",
        dry_run: dry,
        request: {},
        results: [
          { node: "beta", ok: true, value: { messages: 184_000, from: "0:4711", to: "0:12" } },
        ],
        cli: `tidecast subscription ${tail} ${name} --to earliest`,
        created_at: iso(nowMs),
        created_by: "admin",
      });
    return name ? ok(made.find((one) => one.metadata.name === name) ?? null) : ok(page(made));
  }
  const lists: Record<string, () => unknown[]> = {
    transports: () => [
      resource(
        "transport",
        "lan",
        {
          kind: "udp-multicast",
          group: "239.255.84.67",
          port: 7400,
          interface: "eth0",
          packet_bytes: 1400,
          socket_buffer_bytes: 4 << 20,
          idle: "backoff",
          allow_faults: true,
          peers: [],
        },
        { topics: 9_994, nodes: NODES },
      ),
      resource(
        "transport",
        "local",
        {
          kind: "ipc",
          packet_bytes: 4096,
          socket_buffer_bytes: 4 << 20,
          idle: "busy",
          allow_faults: false,
          peers: [],
        },
        { topics: 6, nodes: ["alpha"] },
      ),
    ],
    "rate-limits": () => [
      resource(
        "rate_limit",
        "everything",
        { pattern: ">", priority: 0, rate_bytes_per_s: 200_000_000, publisher: "" },
        { topics_matched: 10_000, topics_effective: 10_000 },
      ),
    ],
    faults: () => [],
    pipelines: () => pipelines(nowMs),
    mirrors: () => mirrors(nowMs),
    traffic: () => [
      resource(
        "traffic",
        "example.ticks",
        {
          topic: "example.ticks",
          running: false,
          messages_per_s: 1_000,
          message_bytes: 100,
          keys: 16,
          subscribers: 1,
          node: "",
        },
        { running: false, node: "alpha", published: "0", received: "0" },
      ),
    ],
    nodes: () =>
      NODES.map((one, at) =>
        resource(
          "node",
          one,
          { quarantined: false, site: "fra1" },
          {
            state: "up",
            node_id: at + 1,
            incarnation: "17",
            version: "0.2.0",
            host: `${one}.fra1`,
            address: `10.1.0.${17 + at}:7400`,
            topology_version: "4711",
            wanted_version: "4711",
            connected_at: iso(nowMs - 7_200_000),
            seen_at: iso(nowMs - 200),
            restart_needed: at === 2 ? ["lan.packet_bytes"] : [],
            errors: {},
          },
        ),
      ),
    users: () => [
      {
        name: "admin",
        role: "admin",
        display_name: "",
        disabled: false,
        must_change_password: false,
        created_at: iso(START_MS),
        updated_at: iso(START_MS),
        login_at: iso(nowMs - 60_000),
        generation: 1,
      },
      {
        name: "mia",
        role: "operator",
        display_name: "Trading operations",
        disabled: false,
        must_change_password: false,
        created_at: iso(START_MS),
        updated_at: iso(START_MS),
        login_at: iso(nowMs - 5_400_000),
        generation: 2,
      },
      {
        name: "board",
        role: "viewer",
        display_name: "Wall display",
        disabled: false,
        must_change_password: true,
        created_at: iso(START_MS),
        updated_at: iso(START_MS),
        login_at: null,
        generation: 1,
      },
    ],
    keys: () => [
      {
        id: "k1",
        name: "deploy",
        prefix: "tc_8f31",
        role: "operator",
        scopes: [{ pattern: ">", rights: ["manage"] }],
        description: "applies topology from the pipeline",
        created_at: iso(START_MS),
        created_by: "admin",
        expires_at: iso(nowMs + 30 * 86_400_000),
        used_at: iso(nowMs - 900_000),
        revoked_at: null,
      },
      {
        id: "k2",
        name: "pricer",
        prefix: "tc_a90c",
        role: "viewer",
        scopes: [
          { pattern: "md.>", rights: ["subscribe", "read_payloads"] },
          { pattern: "quotes.eu", rights: ["publish"] },
        ],
        description: "",
        created_at: iso(START_MS),
        created_by: "mia",
        expires_at: null,
        used_at: iso(nowMs - 4_000),
        revoked_at: null,
      },
      {
        id: "k3",
        name: "old-gateway",
        prefix: "tc_11de",
        role: "viewer",
        scopes: [{ pattern: "orders.*", rights: ["publish"] }],
        description: "",
        created_at: iso(START_MS),
        created_by: "admin",
        expires_at: null,
        used_at: null,
        revoked_at: iso(nowMs - 86_400_000),
      },
    ],
    alerts: () => [
      {
        id: "a1",
        rule: "consumer-lag",
        target: "settlement",
        severity: "warning",
        metric: "lag_s",
        value: 43.2,
        threshold: 10,
        state: "firing",
        silenced: false,
        started_at: iso(nowMs - 610_000),
        resolved_at: null,
        delivery: "200",
      },
      {
        id: "a2",
        rule: "repairs",
        target: "md.us.equities",
        severity: "info",
        metric: "retransmit_ratio",
        value: 0.021,
        threshold: 0.02,
        state: "resolved",
        silenced: false,
        started_at: iso(nowMs - 7_200_000),
        resolved_at: iso(nowMs - 6_900_000),
        delivery: "200",
      },
    ],
    "alert-rules": () => [
      resource(
        "alert_rule",
        "consumer-lag",
        {
          metric: "lag_s",
          target: ">",
          comparison: "above",
          threshold: 10,
          for_s: 60,
          severity: "warning",
          webhook: "https://hooks.example.com/tidecast",
          enabled: true,
        },
        { firing: 1, evaluated_at: iso(nowMs), error: "" },
      ),
      resource(
        "alert_rule",
        "node-down",
        {
          metric: "node_down",
          target: ">",
          comparison: "above",
          threshold: 0,
          for_s: 10,
          severity: "critical",
          webhook: "",
          enabled: true,
        },
        { firing: 0, evaluated_at: iso(nowMs), error: "" },
      ),
      resource(
        "alert_rule",
        "repairs",
        {
          metric: "retransmit_ratio",
          target: "md.>",
          comparison: "above",
          threshold: 0.02,
          for_s: 30,
          severity: "info",
          webhook: "",
          enabled: true,
        },
        { firing: 0, evaluated_at: iso(nowMs), error: "" },
      ),
    ],
    silences: () => [
      resource(
        "silence",
        "maintenance",
        {
          rule: "node-down",
          target: "gamma",
          until: iso(nowMs + 3_600_000),
          reason: "kernel update",
        },
        { active: true },
      ),
    ],
    audit: () => audit(nowMs),
    queues: () => [],
    operations: () => [],
  };
  if (head === "cluster" && name === "moves") return ok(page(moves(nowMs)));
  if (head === "cluster" && name === "nodes") return ok(drain(tail));
  if (head === "cluster") return ok(name === "finalize" ? finalized(dry) : cluster(nowMs));
  if (head === "nodes" && tail === "recorder") return ok({ node: name, records: recorder(nowMs) });
  const list = lists[head];
  if (!list) return undefined;
  if (method !== "GET")
    return ok({ ...(body as Row | null), name, secret: "tc_fixture_secret", id: "new" });
  return ok(page(list()));
}

/** During a rolling upgrade: one engine is still of the build before, one came back too old. */
const cluster = (nowMs: number) => ({
  level: 2,
  level_max: 3,
  finalized_at: iso(START_MS),
  finalized_by: "admin",
  blocked_by: ["node gamma (0.2.0) reads levels 1 to 2: install tidecast >= 0.3.0 there"],
  engines: [
    ...NODES.map((node, at) => ({
      node,
      state: "up",
      version: at === 2 ? "0.2.0" : "0.3.0",
      level: 2,
      level_min: at === 2 ? 1 : 2,
      level_max: at === 2 ? 2 : 3,
      seen_at: iso(nowMs - 200),
      refused: "",
      blocks: at === 2,
      drained: at === 0,
      addresses: { lan: `10.0.0.${5 + at}:7400` },
    })),
    {
      node: "delta",
      state: "down",
      version: "0.1.0",
      level: 1,
      level_min: 1,
      level_max: 1,
      seen_at: iso(nowMs - 9 * 86_400_000),
      refused:
        "engine 0.1.0 reads level 1, the cluster is at level 2: install tidecast >= 0.2.0 on this node",
      blocks: false,
      drained: false,
    },
  ],
});

/** What a drain of any node would do. */
const drain = (node: string | undefined) => ({
  node: node ?? "",
  wanted: false,
  drained: false,
  empty: false,
  keeps: ["orders.eu", "orders.us"],
  moving: [],
  stays: [
    {
      kind: "topic",
      name: "jobs",
      reason: "its queues are in the directory of this node alone: owner is not *",
    },
  ],
  stays_total: 1,
  moves: [],
});

const moves = (nowMs: number) => [
  {
    id: "12",
    at: iso(nowMs - 30_000),
    taken_at: iso(nowMs - 29_880),
    away_s: 0.12,
    topic: "orders.us",
    from_node: "alpha",
    to_node: "beta",
    epoch: "7",
    reason: "the node is drained",
  },
  {
    id: "11",
    at: iso(nowMs - 31_000),
    topic: "orders.eu",
    from_node: "alpha",
    to_node: "",
    epoch: "6",
    reason: "the node is drained",
  },
];

const finalized = (dry_run: boolean) => ({
  dry_run,
  kind: "cluster",
  name: "cluster",
  action: "update",
  impact: "live",
  changes: [{ path: "/level", old: 2, new: 3 }],
});

function subscription(name: string, of: string, state: string, seconds: number, at: number) {
  const live = subscriptionLive(name, of, state, seconds, at);
  const cursors = Array.from({ length: 4 }, (_, queue) => {
    const lag = Math.round((Number(live.lag_messages) / 4) * (0.7 + 0.2 * queue));
    return {
      queue,
      earliest: "1000",
      acked: String(402_000 - lag - 80),
      delivered: String(402_000 - lag),
      latest: "402000",
      lag_messages: String(lag),
      lag_s: lag / 4_000,
      pressure: lag > 1_000 && state === "behind" ? "members too slow" : "",
    };
  });
  return resource(
    "subscription",
    name,
    {
      topic: of,
      start: { at: "earliest" },
      filter: "",
      ack: "explicit",
      ack_wait_s: 30,
      max_deliver: 5,
      max_in_flight: 500,
      dead_letter: `${of}.dead`,
      paused: state === "paused",
    },
    {
      state,
      members: live.members,
      lag_messages: live.lag_messages,
      lag_s: live.lag_s,
      drain_s: live.drain_s,
      outstanding: live.outstanding,
      scheduled: live.scheduled,
      dead_letters: name === "settlement" ? "37" : "0",
      given_up: name === "settlement" ? "41" : "0",
      cursors,
    },
  );
}

function plan(name: string, method: string, before: Row | undefined, after: Row) {
  if (method === "DELETE")
    return {
      dry_run: true,
      kind: "topic",
      name,
      action: "delete",
      impact: "data_loss",
      changes: [{ path: "/spec", old: before, new: null, impact: "data_loss" }],
      warnings: ["2 publishers and 4 subscribers are connected."],
    };
  const live = new Set(["rate_packets_per_s", "rate_bytes_per_s", "linger_us"]);
  const changes = Object.entries(after)
    .filter(([field, value]) => JSON.stringify(before?.[field] ?? null) !== JSON.stringify(value))
    .map(([field, value]) => ({
      path: `/spec/${field}`,
      old: before?.[field] ?? null,
      new: value,
      impact: !before || live.has(field) ? "live" : "recreate",
    }));
  const action = !before ? "create" : changes.length ? "update" : "none";
  const impact = changes.some((one) => one.impact === "recreate")
    ? "recreate"
    : changes.length
      ? "live"
      : "none";
  return {
    dry_run: true,
    kind: "topic",
    name,
    action,
    impact,
    changes,
    warnings: impact === "recreate" ? ["2 publishers are connected and will open anew."] : [],
  };
}

function listTopics(url: URL, topics: ReturnType<typeof makeTopics>) {
  const query = url.searchParams.get("q") ?? "";
  const labels = url.searchParams.getAll("label");
  const down = (url.searchParams.get("sort") ?? "name").startsWith("-");
  const limit = Number(url.searchParams.get("limit") ?? 50);
  const from = Number(url.searchParams.get("cursor") ?? 0);
  const found = topics.filter(
    (one) =>
      one.metadata.name.includes(query) &&
      labels.every((label) => {
        const [key = "", value = ""] = label.split("=");
        return (one.metadata.labels as Record<string, string>)[key] === value;
      }),
  );
  const sorted = down ? found.toReversed() : found;
  const next = from + limit < sorted.length ? String(from + limit) : null;
  return {
    status: 200,
    body: { items: sorted.slice(from, from + limit), next_cursor: next, total: sorted.length },
  };
}
