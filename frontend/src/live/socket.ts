// One websocket for the page. It watches what components ask for, rests while the tab is hidden, comes
// back with a growing pause, and resumes by sequence.
import type { LiveStore } from "./store";
import type { Frame } from "./types";

export const STALE_MS = 3_000;
/** The service sends something each second: a link that is silent for so long is dead, whatever TCP says. */
export const SILENT_MS = 10_000;
const RETRY_MS_MIN = 250;
const RETRY_MS_MAX = 10_000;
/** What the service closes with when the session is not, or no longer, good. */
const CLOSED_DENIED = new Set([1008, 4401, 4403]);

export interface SocketLike {
  send(text: string): void;
  close(): void;
  onopen: (() => void) | null;
  onmessage: ((event: { data: unknown }) => void) | null;
  onclose: ((event: { code: number }) => void) | null;
}

/** What the link needs of the world, so that tests bring their own. */
export interface World {
  open: () => SocketLike;
  nowMs: () => number;
  random: () => number;
  later: (run: () => void, ms: number) => () => void;
  hidden: () => boolean;
  onVisibility: (listener: () => void) => () => void;
}

export class LiveLink {
  private socket: SocketLike | undefined;
  private cancelRetry: (() => void) | undefined;
  private cancelStale: (() => void) | undefined;
  private cancelSilent: (() => void) | undefined;
  private readonly stops: (() => void)[];
  private attempts = 0;
  private watchQueued = false;
  private stopped = false;

  constructor(
    private readonly store: LiveStore,
    private readonly world: World,
    private readonly hz: () => number = () => 4,
  ) {
    this.stops = [
      store.onWatch(() => this.queueWatch()),
      world.onVisibility(() => (world.hidden() ? this.rest() : this.wake())),
    ];
    if (world.hidden()) store.setLink("paused");
    else this.connect();
  }

  stop(): void {
    this.stopped = true;
    for (const stop of this.stops) stop();
    this.rest();
  }

  private rest(): void {
    this.drop();
    this.store.setLink("paused");
  }

  /** Lets go of the socket, if there is one: what it still says or does counts no more. */
  private drop(): void {
    for (const cancel of [this.cancelRetry, this.cancelStale, this.cancelSilent]) cancel?.();
    this.cancelRetry = undefined;
    const socket = this.socket;
    this.socket = undefined;
    socket?.close();
  }

  private wake(): void {
    if (this.socket || this.stopped) return;
    this.attempts = 0;
    this.connect();
  }

  private connect(): void {
    this.store.setLink(this.isOld() ? "stale" : "connecting");
    const socket = this.world.open();
    this.socket = socket;
    this.watchSilence();
    socket.onopen = () => this.sendWatch(this.store.positions);
    socket.onmessage = (event) => {
      if (socket === this.socket) this.receive(String(event.data));
    };
    socket.onclose = (event) => {
      if (socket === this.socket) this.lost(event.code);
    };
  }

  private isOld(): boolean {
    const { receivedMs } = this.store.times;
    return receivedMs > 0 && this.world.nowMs() - receivedMs >= STALE_MS;
  }

  /** A socket may stay open and say nothing for ever: then it is given up for a new one. */
  private watchSilence(): void {
    this.cancelSilent?.();
    this.cancelSilent = this.world.later(() => {
      this.drop();
      this.retry();
    }, SILENT_MS);
  }

  private receive(text: string): void {
    const parsed = JSON.parse(text) as Frame | Frame[];
    this.attempts = 0;
    for (const frame of Array.isArray(parsed) ? parsed : [parsed]) {
      this.store.apply(frame, this.world.nowMs());
    }
    this.store.setLink("live");
    this.cancelStale?.();
    this.cancelStale = this.world.later(() => this.store.setLink("stale"), STALE_MS);
    this.watchSilence();
  }

  private lost(code: number): void {
    this.socket = undefined;
    this.drop();
    if (CLOSED_DENIED.has(code)) this.store.setLink("denied");
    else this.retry();
  }

  private retry(): void {
    const never = this.store.times.receivedMs === 0;
    const state = this.attempts > 1 || never ? "offline" : this.isOld() ? "stale" : "connecting";
    this.store.setLink(state);
    const pause = Math.min(RETRY_MS_MAX, RETRY_MS_MIN * 2 ** this.attempts);
    this.attempts += 1;
    this.cancelRetry = this.world.later(() => this.connect(), pause * (0.5 + this.world.random()));
  }

  /** Many components come and go in one render: one message says what is watched after it. */
  private queueWatch(): void {
    if (this.watchQueued) return;
    this.watchQueued = true;
    queueMicrotask(() => {
      this.watchQueued = false;
      this.sendWatch();
    });
  }

  /** `after` resumes: the service sends the frames since then, or a snapshot when it has them no more. */
  private sendWatch(after: Record<string, string> = {}): void {
    if (!this.socket) return;
    try {
      this.socket.send(JSON.stringify({ watch: this.store.watched, after, hz: this.hz() }));
    } catch {
      // Not open yet: `onopen` sends it.
    }
  }
}

export function browserWorld(path = "/api/v1/live"): World {
  return {
    open: () => {
      const url = new URL(path, location.href);
      url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
      return new WebSocket(url) as SocketLike;
    },
    nowMs: () => Date.now(),
    random: () => Math.random(),
    later: (run, ms) => {
      const timer = setTimeout(run, ms);
      return () => clearTimeout(timer);
    },
    hidden: () => document.visibilityState === "hidden",
    onVisibility: (listener) => {
      document.addEventListener("visibilitychange", listener);
      return () => document.removeEventListener("visibilitychange", listener);
    },
  };
}
