// A platform that is not there: resources, live figures and messages as the service would tell them. For work
// on pages without a service, and for tests of pages. Everything follows from a clock, so it is repeatable.

export type Row = Record<string, unknown>;
export const START_MS = Date.parse("2026-05-04T09:00:00Z");
export const iso = (ms: number) => new Date(ms).toISOString();
const wave = (seconds: number, period: number, phase = 0) =>
  0.5 + 0.5 * Math.sin((2 * Math.PI * seconds) / period + phase);
/** Repeatable noise of 0 to 1. */
export const noise = (seed: number) => {
  const value = Math.sin(seed * 12.9898) * 43_758.5453;
  return value - Math.floor(value);
};

const metadata = (name: string, more: Row = {}) => ({
  name,
  uid: `0192f1c0-7000-7000-8000-${name.length.toString(16).padStart(12, "0")}`,
  labels: {},
  owner: "",
  description: "",
  deletion_protection: false,
  managed_by: "",
  generation: 3,
  created_at: iso(START_MS - 86_400_000),
  updated_at: iso(START_MS - 3_600_000),
  updated_by: "admin",
  ...more,
});
export const resource = (
  kind: string,
  name: string,
  spec: Row,
  status: Row = {},
  more: Row = {},
) => ({
  kind,
  metadata: metadata(name, more),
  spec,
  status: { observed_generation: 3, drift: false, conditions: [], ...status },
});

const REGIONS = ["eu", "us", "apac", "latam"];
const KINDS = ["equities", "fx", "rates", "credit", "crypto"];
const ACTIVE = [
  ["md.eu.equities", 184_000],
  ["md.us.equities", 152_000],
  ["md.eu.fx", 96_000],
  ["orders.eu", 42_000],
  ["risk.positions", 8_200],
  ["telemetry.hosts", 2_300],
  ["orders.audit", 640],
] as const;

export function topic(name: string, index: number) {
  const durable = name.startsWith("orders") || name.startsWith("risk");
  const limited = name === "md.us.equities";
  const spec = {
    mode: durable ? "durable" : "live",
    transport: "",
    reliability: "reliable",
    flow: "min",
    on_full: "block",
    history_bytes: 4 << 20,
    receive_bytes: 4 << 20,
    large_history_bytes: 64 << 20,
    rate_packets_per_s: limited ? 150_000 : null,
    rate_bytes_per_s: null,
    linger_us: 20,
    nak_delay_us: 50,
    nak_retry_us: 200,
    receiver_timeout_s: 5,
    close_linger_s: 5,
    storage: name === STORED ? STORAGE : "local",
    queues: durable ? 8 : 1,
    fsync: "interval",
    fsync_interval_ms: 50,
    segment_bytes: 128 << 20,
    retention_bytes: 0,
    retention_s: durable ? 604_800 : 0,
  };
  const status = {
    effective_rate: {
      packets_per_s: limited ? 150_000 : 0,
      bytes_per_s: 200_000_000,
      packets_source: limited ? "spec" : "none",
      bytes_source: "rate_limit/everything",
      per_publisher: true,
      shadowed: [],
    },
    publishers: index < ACTIVE.length ? 2 : 0,
    subscribers: index < ACTIVE.length ? 4 : 0,
    nodes: ["alpha", "beta"],
    unwired: [],
    paused: false,
    conditions: [
      {
        type: "Applied",
        status: true,
        reason: "Applied",
        message: "generation 3 holds",
        node: "alpha",
      },
    ],
  };
  const labels = {
    team: ["markets", "risk", "platform"][index % 3],
    tier: String(1 + (index % 3)),
  };
  return resource("topic", name, spec, status, {
    labels,
    owner: "markets",
    description: index < 3 ? "Quotes and trades, normalised." : "",
  });
}

export function makeTopics(count: number) {
  const names: string[] = ACTIVE.map(([name]) => name);
  for (let at = 0; names.length < count; at += 1) {
    names.push(`${KINDS[at % 5]}.${REGIONS[(at >> 2) % 4]}.book-${String(at).padStart(5, "0")}`);
  }
  return names.map(topic).sort((a, b) => a.metadata.name.localeCompare(b.metadata.name));
}

const rates = (out: number, seconds: number, losing: boolean) => {
  const lost = losing ? out * 0.004 * wave(seconds, 40) : 0;
  return {
    messages_out: Math.round(out * 12),
    packets_out: Math.round(out),
    bytes_out: Math.round(out * 1180),
    packets_in: Math.round(out * 1.98),
    bytes_in: Math.round(out * 1180 * 1.98),
    packets_resent: Math.round(lost * 1.02),
    bytes_resent: Math.round(lost * 1204),
    naks_received: Math.round(lost * 0.4),
    naks_sent: Math.round(lost * 0.4),
    losses: Math.round(lost),
    lost_for_good: 0,
    bytes_saved: losing ? Math.round(out * 295) : 0,
    rate_held: losing ? 0.12 * wave(seconds, 25) : 0,
    flow_held: losing ? 0.35 * wave(seconds, 17, 1) : 0,
  };
};

function topicLive(name: string, base: number, seconds: number) {
  const losing = name === "md.us.equities";
  const out = base * (0.82 + 0.22 * wave(seconds, 90, base) + 0.05 * noise(seconds + base));
  return {
    name,
    rates: rates(out, seconds, losing),
    retransmit_ratio: losing ? 0.004 * wave(seconds, 40) : 0,
    publishers: 2,
    receivers: 3,
    subscribers: 4,
    ring_fill: losing ? 0.42 + 0.4 * wave(seconds, 30) : 0.04 + 0.05 * noise(seconds * 3 + base),
    lag_packets: String(Math.round(losing ? 4_000 * wave(seconds, 30) + 900 : 40 * noise(seconds))),
    throttle: losing ? "rate" : name === "risk.positions" ? "flow" : "none",
    nodes: ["alpha", "beta"],
    traffic: false,
  };
}

const sum = (rows: ReturnType<typeof topicLive>[], field: string) =>
  rows.reduce((total, row) => total + (row.rates as Record<string, number>)[field]!, 0);

function totals(rows: ReturnType<typeof topicLive>[]) {
  return Object.fromEntries(Object.keys(rows[0]!.rates).map((field) => [field, sum(rows, field)]));
}

const publication = (
  row: ReturnType<typeof topicLive>,
  node: string,
  at: number,
  seconds: number,
) => {
  const head = 812_000_000 + Math.round(seconds * row.rates.packets_out);
  const waiting = Math.round(3_000 * row.ring_fill);
  return {
    id: `${row.name}@${node}`,
    topic: row.name,
    node,
    session: String(71_200_000 + at),
    channel: "ordinary",
    client: ["feed-handler", "gateway", "pricer"][at % 3],
    transport: "lan",
    slots: "3000",
    packet_bytes: 1400,
    head: String(head),
    sent: String(head - Math.round(waiting * 0.2)),
    slowest_consumed: String(head - waiting),
    fill: row.ring_fill,
    history_s: 3_000 / Math.max(1, row.rates.packets_out / 2),
    receivers: 2,
    rtt_ms: 0.11 + 0.04 * noise(seconds + at),
    rates: { ...row.rates, packets_out: Math.round(row.rates.packets_out / 2) },
    naks_too_late: "0",
    receiver_timeouts: "0",
    closing: false,
  };
};

const receiver = (row: ReturnType<typeof topicLive>, node: string, at: number) => ({
  id: `${row.name}>${node}`,
  topic: row.name,
  session: String(71_200_000 + at),
  publisher: "alpha",
  node,
  consumed: "811999000",
  contiguous: "811999400",
  window: "2980",
  lag_packets: node === "gamma" ? row.lag_packets : String(Number(row.lag_packets) >> 3),
  lost: "0",
  excluded: false,
  slowest: node === "gamma",
});

const reader = (row: ReturnType<typeof topicLive>, client: string, node: string) => ({
  id: `${client}/${row.name}/${node}`,
  topic: row.name,
  node,
  client,
  source: "alpha",
  position: "811999000",
  lag_packets: String(Number(row.lag_packets) >> (client === "ui" ? 0 : 4)),
  tethered: client !== "ui",
});

const image = (row: ReturnType<typeof topicLive>, node: string) => ({
  id: `${row.name}<${node}`,
  topic: row.name,
  node,
  source: "alpha",
  session: "71200000",
  slots: "3000",
  highest: "812000000",
  contiguous: "811999990",
  consumed: "811999400",
  gaps: row.name === "md.us.equities" ? 2 : 0,
  lost: "0",
  fill: row.ring_fill * 0.6,
  mode: "reliable",
  rates: row.rates,
  duplicates: "18",
  recovered: String(Math.round(row.rates.losses * 300)),
  overruns: "0",
  repairs_unneeded: "3",
});

const byId = <T extends { id: string }>(rows: T[]) =>
  Object.fromEntries(rows.map((row) => [row.id, row]));
export const NODES = ["alpha", "beta", "gamma"];
const agents = (seconds: number) =>
  byId(
    NODES.flatMap((node, at) =>
      ["sender", "receiver", "archiver", "puller"].map((name, index) => ({
        id: `${node}/${name}`,
        node,
        name,
        duty_cycles_per_s: Math.round(41_000 + 9_000 * noise(seconds + at * 7 + index)),
        duty_cycle_ms_max: 0.8 + 1.9 * noise(at + index * 3),
        parks_per_s: Math.round(3_000 + 500 * noise(seconds + index)),
        system_calls_per_s: Math.round(12_000 * (index < 2 ? 1 : 0.1)),
        short_sends: index === 0 ? "12" : "0",
        send_errors: "0",
      })),
    ),
  );

export const SUBSCRIPTIONS = [
  ["billing", "orders.eu", "active"],
  ["settlement", "orders.eu", "behind"],
  ["risk-engine", "risk.positions", "active"],
  ["archive", "orders.audit", "paused"],
] as const;

export function subscriptionLive(
  name: string,
  of: string,
  state: string,
  seconds: number,
  at: number,
) {
  const lag =
    state === "behind"
      ? Math.round(184_000 - 900 * (seconds % 180))
      : state === "paused"
        ? Math.round(900 + seconds * 6)
        : Math.round(30 * noise(seconds + at));
  const speed = state === "paused" ? 0 : 4_200 + 900 * wave(seconds, 33, at);
  return {
    name,
    topic: of,
    state,
    members: state === "paused" ? 0 : 3 - (at % 2),
    lag_messages: String(lag),
    lag_s: lag / 4_000,
    lag_trend_per_s: state === "paused" ? 6 : state === "behind" ? -900 : 0,
    drain_s: state === "behind" ? lag / 900 : 0,
    outstanding: String(state === "paused" ? 0 : 240),
    scheduled: state === "behind" ? "12" : "0",
    delivered_per_s: speed,
    pressure: state === "behind" ? "members too slow" : "",
  };
}

const slow = (nowMs: number) => ({
  a: {
    kind: "topic",
    name: "md.us.equities",
    node: "alpha",
    reason: "rate_limit",
    detail: "Held back 84 times a second by its own limit of 150,000 packets/s.",
    value: 84,
    since: iso(nowMs - 42_000),
  },
  b: {
    kind: "receiver",
    name: "gamma on md.us.equities",
    node: "alpha",
    reason: "slow_reader",
    detail: "4,180 packets behind: 61% of the ring. Subscriber ui reads one message a call.",
    value: 4180,
    since: iso(nowMs - 95_000),
  },
  c: {
    kind: "subscription",
    name: "settlement",
    node: "beta",
    reason: "slow_reader",
    detail: "Two members handle 4,200/s; 5,100/s come in. It would take a third.",
    value: 184_000,
    since: iso(nowMs - 600_000),
  },
});

const STORED = "orders.audit";
const STORAGE = "kafka://10.1.0.40:9092/audit";

/** The live row of a topic; the storage of one is away. */
function storedLive(name: string, base: number, seconds: number) {
  const row = topicLive(name, base, seconds);
  if (name !== STORED) return row;
  const alpha = {
    storage: STORAGE,
    state: "waiting",
    detail: "no broker answers",
    since: iso(START_MS - 240_000),
    waiting_records: "12345",
    records: "184302",
    failures: "7",
  };
  return { ...row, storages: { alpha } };
}

/** A topic that adapters keep: the system of one is away. */
const attached = (nowMs: number) => ({
  ...topicLive("feed.kafka", 0, 0),
  publishers: 0,
  subscribers: 0,
  adapters: {
    alpha: {
      adapter: "kafka",
      state: "waiting",
      detail: "10.1.0.30:9092: connection refused",
      since: iso(nowMs - 480_000),
      queues: 0,
      records: "0",
      errors: "0",
      reconnects: "0",
      left_out: "0",
      lag: "0",
    },
    beta: {
      adapter: "kafka",
      state: "open",
      detail: "",
      queues: 6,
      records: "184302",
      errors: "2",
      reconnects: "1",
      left_out: "3",
      lag: "740",
    },
  },
});

/** The data of a live channel at a moment; undefined when there is none of that name. */
export function channelData(channel: string, nowMs: number): object | undefined {
  const seconds = (nowMs - START_MS) / 1000;
  const rows = ACTIVE.map(([name, base]) => storedLive(name, base, seconds));
  const all = totals(rows);
  const ratio = all.packets_resent! / Math.max(1, all.packets_out!);
  if (channel === "overview") {
    return {
      rates: all,
      retransmit_ratio: ratio,
      nodes_up: 3,
      nodes_total: 3,
      nodes_drifting: 0,
      topics_total: 10_000,
      topics_active: rows.length,
      publishers: 14,
      subscribers: 31,
      lag_packets_max: rows[1]!.lag_packets,
      lag_messages: "184000",
      lag_s: 41 + 4 * wave(seconds, 30),
      ring_fill_max: rows[1]!.ring_fill,
      cache_fill_max: 0.31 + 0.1 * wave(seconds, 50),
      alerts_firing: 1,
      alerts_silenced: 0,
      rtt_ms: 0.12 + 0.02 * noise(seconds),
      slow: slow(nowMs),
      busiest: rows.map((row) => row.name),
    };
  }
  if (channel === "topics")
    return { topics: Object.fromEntries([...rows, attached(nowMs)].map((row) => [row.name, row])) };
  if (channel === "keys")
    return {
      keys: {
        deploy: { name: "deploy", denied: "12", over_quota: "0", refused_per_s: 0 },
        pricer: { name: "pricer", denied: "1041", over_quota: "3", refused_per_s: 4.2 },
        "(others)": { name: "(others)", denied: "7", over_quota: "0", refused_per_s: 0 },
      },
    };
  const publications = byId(
    rows.flatMap((row, at) => [
      publication(row, "alpha", at, seconds),
      ...(at < 3 ? [publication(row, "beta", at + 10, seconds)] : []),
    ]),
  );
  const receivers = byId(
    rows.slice(0, 4).flatMap((row, at) => ["beta", "gamma"].map((node) => receiver(row, node, at))),
  );
  if (channel.startsWith("topic:")) {
    const found = [...rows, attached(nowMs)].find((row) => row.name === channel.slice(6));
    if (!found)
      return {
        topic: { ...topicLive(channel.slice(6), 0, seconds), publishers: 0, subscribers: 0 },
        publications: {},
        receivers: {},
        images: {},
        readers: {},
      };
    return {
      topic: found,
      publications: byId(Object.values(publications).filter((one) => one.topic === found.name)),
      receivers: byId(["beta", "gamma"].map((node) => receiver(found, node, 0))),
      images: byId([image(found, "beta")]),
      readers: byId([reader(found, "pricer", "beta"), reader(found, "ui", "gamma")]),
    };
  }
  if (channel === "reliability") {
    return {
      rates: all,
      retransmit_ratio: ratio,
      publications,
      receivers,
      images: byId(
        rows.slice(0, 3).flatMap((row) => ["beta", "gamma"].map((node) => image(row, node))),
      ),
      agents: agents(seconds),
      invalid: { version: "2", checksum: "0", unknown_session: "118" },
      faults: { dropped: "0" },
      slowest_receiver: "md.us.equities>gamma",
    };
  }
  if (channel === "subscriptions") {
    const live = SUBSCRIPTIONS.map(([name, of, state], at) =>
      subscriptionLive(name, of, state, seconds, at),
    );
    return {
      subscriptions: Object.fromEntries(live.map((one) => [one.name, one])),
      readers: byId(
        rows
          .slice(0, 4)
          .flatMap((row) => [reader(row, "pricer", "beta"), reader(row, "ui", "gamma")]),
      ),
    };
  }
  if (channel === "nodes") {
    return {
      nodes: Object.fromEntries(
        NODES.map((name, at) => [
          name,
          {
            name,
            state: "up",
            rates: rates(160_000 / (at + 1), seconds, at === 2),
            publications: 9 - at * 3,
            images: 4 + at,
            clients: 11 - at,
            drift: false,
            drained: at === 0,
            peers: 2,
            peers_silent: at === 1 ? ["gamma on lan"] : [],
            level: 2,
            keeps: at === 0 ? 1 : 3,
            topology_version: "4711",
            telemetry_age_s: 0.2,
            duty_cycle_ms_max: 1.4 + at,
          },
        ]),
      ),
      agents: agents(seconds),
    };
  }
  if (channel === "flow") return flow(rows);
  return undefined;
}

function flow(rows: ReturnType<typeof topicLive>[]) {
  const nodes: Record<string, Row> = {};
  const edges: Record<string, Row> = {};
  const node = (
    id: string,
    kind: string,
    label: string,
    on: string,
    packets: number,
    more: Row = {},
  ) => {
    nodes[id] = {
      id,
      kind,
      label,
      node: on,
      packets_per_s: packets,
      bytes_per_s: packets * 1180,
      state: packets > 0 ? "active" : "idle",
      ...more,
    };
  };
  const edge = (source: string, target: string, packets: number, more: Row = {}) => {
    edges[`${source}>${target}`] = {
      id: `${source}>${target}`,
      source,
      target,
      packets_per_s: packets,
      bytes_per_s: packets * 1180,
      loss_per_s: 0,
      resent_per_s: 0,
      throttle: "none",
      pressure: 0,
      lag_packets: "0",
      ...more,
    };
  };
  for (const [at, row] of rows.slice(0, 5).entries()) {
    const out = row.rates.packets_out;
    const slowly = row.throttle === "rate";
    node(row.name, "topic", row.name, "", out, {
      fill: row.ring_fill,
      state: slowly ? "slow" : "active",
    });
    const publisher = ["feed-handler", "gateway", "pricer"][at % 3]!;
    node(`p-${at}`, "publisher", publisher, "alpha", out);
    edge(`p-${at}`, row.name, out, { throttle: row.throttle, pressure: row.ring_fill });
    if (row.name.startsWith("orders")) {
      node("queue", "queue", "orders.eu:0–7", "beta", out, { fill: 0.31 });
      node("agent", "agent", "puller", "beta", out);
      edge(row.name, "queue", out);
      edge("queue", "agent", out, { pressure: 0.31 });
      for (const name of ["billing", "settlement"]) {
        node(name, "subscription", name, "", out, {
          state: name === "settlement" ? "slow" : "active",
        });
        edge(
          "agent",
          name,
          name === "settlement" ? out * 0.8 : out,
          name === "settlement" ? { lag_packets: "184000", pressure: 0.84 } : {},
        );
      }
    } else {
      for (const client of at < 2 ? ["pricer", "ui"] : ["pricer"]) {
        const id = `s-${client}-${client === "ui" ? "gamma" : "beta"}`;
        node(id, "subscriber", client, client === "ui" ? "gamma" : "beta", out);
        edge(
          row.name,
          id,
          out,
          slowly && client === "ui"
            ? {
                loss_per_s: row.rates.losses,
                resent_per_s: row.rates.packets_resent,
                lag_packets: row.lag_packets,
                pressure: row.ring_fill,
              }
            : {},
        );
      }
    }
  }
  return { nodes, edges, truncated: false };
}
