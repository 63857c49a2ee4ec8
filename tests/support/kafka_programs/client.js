// kafkajs against an endpoint: node client.js ADDRESS produce|consume|rebalance|transaction|scram ...
// It writes its findings as one line of JSON.
"use strict";
const { CompressionTypes, Kafka, logLevel } = require("kafkajs");

const [, , address, action, topic, ...rest] = process.argv;
const settings = { clientId: "kafkajs", brokers: [address], logLevel: logLevel.NOTHING };
const kafka = new Kafka({ ...settings, retry: { retries: 2 } });
const tell = (found) => process.stdout.write(`${JSON.stringify(found)}\n`);

async function produce(n, codec, idempotent) {
  const producer = kafka.producer({ idempotent: idempotent === "idempotent" });
  await producer.connect();
  const messages = Array.from({ length: Number(n) }, (_, i) => ({
    key: `k${i % 9}`, value: `v${i}`, headers: { n: `${i}` },
  }));
  const compression = CompressionTypes[codec];
  tell(await producer.send({ topic, messages, compression, acks: -1 }));
  await producer.disconnect();
}

async function consume(group, n) {
  const consumer = kafka.consumer({ groupId: group, maxWaitTimeInMs: 200 });
  const found = [];
  await consumer.connect();
  await consumer.subscribe({ topics: [topic], fromBeginning: true });
  await new Promise((resolve, reject) => {
    consumer.on(consumer.events.CRASH, (event) => reject(event.payload.error));
    consumer.run({
      eachMessage: async ({ partition, message }) => {
        const { key, value, offset, headers } = message;
        const n = headers.n === undefined ? null : `${headers.n}`;
        found.push([partition, Number(offset), key && `${key}`, `${value}`, n]);
      },
    }).catch(reject);
    const timer = setInterval(() => {
      if (found.length >= Number(n)) { clearInterval(timer); resolve(); }
    }, 20);
  });
  const ends = new Map();
  for (const [partition, offset] of found) {
    ends.set(partition, Math.max(ends.get(partition) ?? 0, offset + 1));
  }
  await consumer.commitOffsets(
    [...ends].map(([partition, offset]) => ({ topic, partition, offset: `${offset}` })),
  );
  await consumer.disconnect();
  tell(found);
}

async function rebalance(group, partitions) {
  const owned = new Map();
  const settled = (names) => new Promise((resolve) => {
    const timer = setInterval(() => {
      const sets = names.map((name) => owned.get(name) ?? []);
      const all = new Set(sets.flat());
      const n = sets.reduce((sum, each) => sum + each.length, 0);
      if (all.size === Number(partitions) && n === all.size && sets.every((each) => each.length)) {
        clearInterval(timer);
        resolve(sets.map((each) => each.length));
      }
    }, 20);
  });
  const member = async (name) => {
    const consumer = kafka.consumer({ groupId: group, heartbeatInterval: 100 });
    consumer.on(consumer.events.GROUP_JOIN, ({ payload }) => {
      owned.set(name, payload.memberAssignment[topic] ?? []);
    });
    await consumer.connect();
    await consumer.subscribe({ topics: [topic] });
    consumer.run({ eachMessage: async () => {} });
    return consumer;
  };
  const a = await member("a");
  const steps = [await settled(["a"])];
  const b = await member("b");
  steps.push(await settled(["a", "b"]));
  await b.disconnect();
  steps.push(await settled(["a"]));
  await a.disconnect();
  tell(steps);
}

async function refused(client) {
  try {
    await client();
    tell({ error: "" });
  } catch (problem) {
    tell({ error: `${problem.name}: ${problem.message}` });
  }
}

const transaction = () => refused(async () => {
  const producer = kafka.producer({ transactionalId: "t", idempotent: true, maxInFlightRequests: 1 });
  await producer.connect();
  const begun = await producer.transaction();
  await begun.send({ topic, messages: [{ value: "no" }] });
  await begun.commit();
});

const scram = () => refused(async () => {
  const sasl = { mechanism: "scram-sha-256", username: "shop", password: "secret" };
  await new Kafka({ ...settings, sasl, retry: { retries: 0 } }).admin().connect();
});

const actions = { produce, consume, rebalance, transaction, scram };
actions[action](...rest).then(() => process.exit(0), (problem) => {
  process.stderr.write(`${problem.stack}\n`);
  process.exit(1);
});
