import { describe, expect, it } from "vitest";
import { mergePatch } from "@/live/patch";
import { LiveLink, SILENT_MS, type SocketLike, STALE_MS, type World } from "@/live/socket";
import { LiveStore } from "@/live/store";
import type { Frame } from "@/live/types";

const START = Date.parse("2026-01-01T00:00:00Z");
const frame = (seq: number, kind: Frame["kind"], data?: object, channel = "overview"): Frame => ({
  seq: String(seq),
  at: new Date(START + seq * 1000).toISOString(),
  kind,
  channel,
  data: data ?? null,
});
const sent = (packets_out: number) => ({ rates: { packets_out } });

describe("merge patch", () => {
  it("changes, adds and removes, and keeps what did not change as it was", () => {
    const before: Record<string, unknown> = { a: { x: 1 }, b: { y: 2 }, c: 3 };
    const after = mergePatch(before, { a: { x: 2 }, c: null, d: { z: 4 } });
    expect(after).toEqual({ a: { x: 2 }, b: { y: 2 }, d: { z: 4 } });
    expect(after.b).toBe(before.b);
    expect(before).toEqual({ a: { x: 1 }, b: { y: 2 }, c: 3 });
  });
  it("gives back the very same value when nothing changed", () => {
    const before = { a: { x: 1 } };
    expect(mergePatch(before, { a: { x: 1 }, gone: null })).toBe(before);
  });
  it("replaces arrays, and drops nulls of new objects", () => {
    expect(mergePatch({ a: [1, 2] }, { a: [3], b: { c: null, d: 1 } })).toEqual({
      a: [3],
      b: { d: 1 },
    });
  });
});

describe("LiveStore", () => {
  it("keeps a snapshot, then its deltas, and a sample of each", () => {
    const store = new LiveStore();
    store.apply(frame(1, "snapshot", { ...sent(10), lag_packets_max: "5" }), 0);
    store.apply(frame(2, "delta", sent(20)), 0);
    store.apply(frame(3, "ping"), 0);
    expect(store.data("overview")).toMatchObject({ ...sent(20), lag_packets_max: "5" });
    const [, out, lag] = store.ring("overview").window(["packets_out", "lag_packets_max"], 60);
    expect([...(out ?? [])]).toEqual([10, 20, 20]);
    expect([...(lag ?? [])]).toEqual([5, 5, 5]);
  });

  it("resumes each watched channel behind its own newest frame", () => {
    const store = new LiveStore();
    const stop = store.watch("overview");
    for (const name of ["flow", "topics", "queues", "messages:a"]) store.watch(name);
    store.apply(frame(3, "snapshot", sent(1)), 0);
    store.apply(frame(5, "snapshot", sent(1), "flow"), 0);
    store.apply(frame(4, "delta", sent(2)), 0);
    store.apply(frame(0, "ping", undefined, ""), 0);
    expect(store.positions, "the others never came").toEqual({ overview: "4", flow: "5" });
    store.apply(frame(0, "snapshot", sent(1), "topics"), 0);
    expect(store.positions, "minutes of the past").not.toHaveProperty("topics");
    store.apply(frame(6, "gap", undefined, "flow"), 0);
    store.apply(frame(7, "gap", undefined, "messages:a"), 0);
    expect(store.positions, "a snapshot follows the gap of flow").toEqual({
      overview: "4",
      "messages:a": "7",
    });
    stop();
    store.watch("overview");
    expect(store.positions, "nobody watched in between").toEqual({ "messages:a": "7" });
  });

  it("draws a hole over a gap", () => {
    const store = new LiveStore();
    store.apply(frame(1, "snapshot", sent(10)), 0);
    store.apply(frame(2, "gap"), 0);
    store.apply(frame(3, "snapshot", sent(30)), 0);
    const [, out] = store.ring("overview").window(["packets_out"], 60);
    expect([...(out ?? [])]).toEqual([10, Number.NaN, 30]);
  });

  it("draws a hole while no engine is heard, not the last value and not 0", () => {
    const store = new LiveStore();
    store.apply(frame(1, "snapshot", { ...sent(10), measured: true }), 0);
    store.apply(frame(2, "delta", { rates: null, measured: false } as never), 0);
    store.apply(frame(3, "ping", undefined, ""), 0);
    store.apply(frame(4, "delta", { ...sent(30), measured: true }), 0);
    const [, out] = store.ring("overview").window(["packets_out"], 60);
    expect([...(out ?? [])]).toEqual([10, Number.NaN, 30]);
    expect(store.data("overview")?.measured).toBe(true);
  });

  it("waits for what is watched, until it came or was refused", () => {
    const store = new LiveStore();
    store.watch("overview");
    store.watch("flow");
    expect(store.isWaiting).toBe(true);
    store.apply(frame(1, "snapshot", sent(10)), 0);
    expect(store.isWaiting).toBe(true);
    store.apply(frame(2, "error", { detail: "no" }, "flow"), 0);
    expect(store.isWaiting).toBe(false);
  });

  it("hands new entries of append channels on, and keeps none", () => {
    const store = new LiveStore();
    const seen: object[] = [];
    const stop = store.watch("messages:a", (data) => seen.push(data));
    store.apply(frame(1, "delta", { messages: [1] }, "messages:a"), 0);
    stop();
    store.apply(frame(2, "delta", { messages: [2] }, "messages:a"), 0);
    expect(seen).toEqual([{ messages: [1] }]);
    expect(store.data("messages:a")).toBeUndefined();
  });

  it("says why a channel cannot be watched, until it can", () => {
    const store = new LiveStore();
    store.apply(frame(1, "error", { detail: "needs read_payloads" }, "messages:a"), 0);
    expect(store.error("messages:a")).toBe("needs read_payloads");
    store.apply(frame(2, "snapshot", { messages: [] }, "messages:a"), 0);
    expect(store.error("messages:a")).toBeUndefined();
  });
});

class FakeSocket implements SocketLike {
  sent: { watch: string[]; after: Record<string, string> }[] = [];
  closed = false;
  onopen: (() => void) | null = null;
  onmessage: ((event: { data: unknown }) => void) | null = null;
  onclose: ((event: { code: number }) => void) | null = null;
  send(text: string) {
    this.sent.push(JSON.parse(text));
  }
  close() {
    this.closed = true;
  }
}

function setUp() {
  const sockets: FakeSocket[] = [];
  const timers = new Set<{ run: () => void; ms: number }>();
  let seen = () => {};
  let hidden = false;
  let nowMs = 1;
  const world: World = {
    open: () => {
      const socket = new FakeSocket();
      sockets.push(socket);
      return socket;
    },
    nowMs: () => nowMs,
    random: () => 0.5,
    later: (run, ms) => {
      const timer = { run, ms };
      timers.add(timer);
      return () => timers.delete(timer);
    },
    hidden: () => hidden,
    onVisibility: (listener) => {
      seen = listener;
      return () => {};
    },
  };
  const fire = (ms: number) => {
    for (const timer of [...timers]) {
      if (timer.ms !== ms) continue;
      timers.delete(timer);
      timer.run();
    }
  };
  const hide = (next: boolean) => {
    hidden = next;
    seen();
  };
  const store = new LiveStore();
  const link = new LiveLink(store, world);
  const socket = (at: number) => sockets[at] as FakeSocket;
  const receive = (at: number, one: Frame) => socket(at).onmessage?.({ data: JSON.stringify(one) });
  const wait = (ms: number) => {
    nowMs += ms;
  };
  return { store, link, sockets, socket, timers, fire, hide, receive, wait };
}

const microtasks = () => new Promise<void>((done) => queueMicrotask(done));

describe("LiveLink", () => {
  it("asks for what is watched, once for many changes, and resumes by sequence", async () => {
    const { store, socket, fire, receive } = setUp();
    store.watch("overview");
    socket(0).onopen?.();
    await microtasks();
    const before = socket(0).sent.length;
    const stop = store.watch("topics");
    store.watch("flow");
    stop();
    await microtasks();
    expect(socket(0).sent).toHaveLength(before + 1);
    expect(socket(0).sent.at(-1)?.watch).toEqual(["overview", "flow"]);
    receive(0, frame(7, "snapshot", sent(1)));
    expect(store.getLink()).toBe("live");
    socket(0).onclose?.({ code: 1006 });
    expect(store.getLink(), "what is a moment old is not stale").toBe("connecting");
    fire(250);
    socket(1).onopen?.();
    expect(socket(1).sent[0]).toMatchObject({
      after: { overview: "7" },
      watch: ["overview", "flow"],
    });
  });

  it("says stale when frames stay out, and offline after some tries", () => {
    const { store, socket, fire, receive, wait } = setUp();
    receive(0, frame(1, "snapshot", sent(1)));
    wait(STALE_MS);
    fire(STALE_MS);
    expect(store.getLink()).toBe("stale");
    for (const [at, pause] of [250, 500, 1000].entries()) {
      socket(at).onclose?.({ code: 1006 });
      if (at < 2) fire(pause);
    }
    expect(store.getLink()).toBe("offline");
  });

  it("gives a socket up that stays open and says nothing, again and again", () => {
    const { store, sockets, socket, fire, receive, wait } = setUp();
    receive(0, frame(1, "snapshot", sent(1)));
    for (const [at, pause] of [250, 500, 1000].entries()) {
      wait(SILENT_MS);
      fire(SILENT_MS);
      expect(socket(at).closed).toBe(true);
      expect(store.getLink()).not.toBe("live");
      fire(pause);
      expect(sockets).toHaveLength(at + 2);
    }
    receive(0, frame(2, "delta", sent(2)));
    expect(store.getLink(), "a socket that was given up counts no more").not.toBe("live");
    receive(3, frame(3, "delta", sent(3)));
    expect(store.getLink()).toBe("live");
  });

  it("does not give up a socket that speaks", () => {
    const { timers, sockets, receive } = setUp();
    for (let seq = 1; seq <= 5; seq += 1) receive(0, frame(seq, "ping"));
    expect([...timers].filter((one) => one.ms === SILENT_MS)).toHaveLength(1);
    expect(sockets).toHaveLength(1);
  });

  it("rests while the page is hidden, and wakes at once", () => {
    const { store, sockets, socket, timers, hide } = setUp();
    hide(true);
    expect(socket(0).closed).toBe(true);
    expect(store.getLink()).toBe("paused");
    expect(timers.size).toBe(0);
    hide(false);
    expect(sockets).toHaveLength(2);
  });

  it("does not knock again when access was denied", () => {
    const { store, socket, timers } = setUp();
    socket(0).onclose?.({ code: 4401 });
    expect(store.getLink()).toBe("denied");
    expect(timers.size).toBe(0);
  });
});
