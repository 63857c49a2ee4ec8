// What the fixture platform says of mirrors.
import { iso, type Row, resource } from "./fixtures";

const SECONDS = 120;

export const mirrors = (nowMs: number): Row[] => {
  const spec = {
    direction: "from_kafka",
    topic: "orders.eu",
    servers: "10.1.0.30:9092",
    kafka_topic: "orders",
    paused: false,
    rate: 0,
    user: "",
    secret: "",
    mechanism: "SCRAM-SHA-512",
    tls: false,
    ca: "",
    start: "earliest",
    place: "auto",
    on_gap: "report",
    gateway: "",
    token: "",
  };
  const status = {
    state: "running",
    error: "",
    error_at: null,
    retry_at: null,
    started_at: iso(nowMs - 3_600_000),
    updated_at: iso(nowMs),
    failures: 1,
    records: "81200000",
    bytes: "9744000000",
    repeated: "0",
    gone: "0",
    left_out: "0",
    retries: "3",
    rate: 40_200,
    lag: "1200",
    eta_s: 0.03,
    position: "81200000",
    queues: [
      { source: 0, position: "40600000", durable: "40599000", end: "40600700" },
      { source: 1, position: "40600000", durable: "40599200", end: "40600500" },
    ],
    events: [
      {
        at: iso(nowMs - 3_600_000),
        event: "Placed",
        text: "2 queues of the source, 2 of orders.eu: records are placed queue to queue",
      },
    ],
  };
  return [
    resource("mirror", "orders", spec, status),
    resource(
      "mirror",
      "trades-out",
      { ...spec, direction: "to_kafka", topic: "trades", kafka_topic: "trades" },
      {
        ...status,
        state: "waiting",
        rate: 0,
        lag: "5000",
        eta_s: null,
        error: "10.1.0.31:9092: connection refused",
        error_at: iso(nowMs - 4_000),
        retry_at: iso(nowMs + 8_000),
      },
    ),
  ];
};

export const mirrorProgress = (nowMs: number) => {
  const at_s = Array.from({ length: SECONDS }, (_, at) => nowMs / 1000 - SECONDS + at);
  return {
    mirror: "orders",
    at_s,
    rate: at_s.map((at) => 40_000 + 4_000 * Math.sin(at / 9)),
    lag: at_s.map(() => "1200"),
  };
};
