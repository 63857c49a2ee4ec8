// What the service told last on each channel, and the minutes before it. It lives outside React:
// components read immutable values, charts read typed arrays.
import { useEffect, useSyncExternalStore } from "react";
import { SeriesRing } from "@/lib/ring";
import { mergePatch } from "./patch";
import { samplesOf } from "./samples";
import type { ChannelData, DataOf, Frame } from "./types";

export type LinkState = "connecting" | "live" | "stale" | "paused" | "offline" | "denied";

/** Ten minutes at two samples a second; more frames are shown, but not kept. */
const SAMPLES_MAX = 1_200;
const SPACING_SECONDS = 0.45;
const HOLE_SECONDS = 4;
/** Rings of channels that nobody watches any more are kept for a return, up to this many. */
const CHANNELS_KEPT_MAX = 24;

interface Channel {
  data: ChannelData | undefined;
  error: string | undefined;
  ring: SeriesRing;
  /** Of the newest frame of it: it is resumed from there. "0": its next frame must be all of it. */
  seq: string;
  /** The service has begun to send it. */
  open: boolean;
  watchers: number;
  appended: Set<(data: ChannelData) => void>;
}

const NONE = "0";

/** Channels whose deltas are new entries, not changes. */
const isAppended = (channel: string) =>
  /^(messages|recorder):/.test(channel) || ["audit", "alerts", "moves"].includes(channel);

export class LiveStore {
  private readonly channels = new Map<string, Channel>();
  private link: LinkState = "connecting";
  private readonly frameListeners = new Set<() => void>();
  private readonly linkListeners = new Set<() => void>();
  private readonly watchListeners = new Set<() => void>();
  private lastAtMs = 0;
  private lastReceivedMs = 0;

  /** By watched channel, the seq behind which it is resumed. */
  get positions(): Record<string, string> {
    const found: Record<string, string> = {};
    for (const name of this.watched) {
      const { seq } = this.channel(name);
      if (seq !== NONE) found[name] = seq;
    }
    return found;
  }

  /** When the newest frame was made, and when it came: ms since 1970, 0 before the first. */
  get times(): { atMs: number; receivedMs: number } {
    return { atMs: this.lastAtMs, receivedMs: this.lastReceivedMs };
  }

  get watched(): string[] {
    return [...this.channels].filter(([, one]) => one.watchers > 0).map(([name]) => name);
  }

  private channel(name: string): Channel {
    let found = this.channels.get(name);
    if (!found) {
      this.forgetOldest();
      const ring = new SeriesRing(SAMPLES_MAX);
      found = {
        data: undefined,
        error: undefined,
        ring,
        seq: NONE,
        open: false,
        watchers: 0,
        appended: new Set(),
      };
      this.channels.set(name, found);
    }
    return found;
  }

  private forgetOldest(): void {
    for (const [name, one] of this.channels) {
      if (this.channels.size < CHANNELS_KEPT_MAX) return;
      if (one.watchers === 0) this.channels.delete(name);
    }
  }

  ring(channel: string): SeriesRing {
    return this.channel(channel).ring;
  }

  data<C extends string>(channel: C): DataOf<C> | undefined {
    return this.channels.get(channel)?.data as DataOf<C> | undefined;
  }

  isOpen(channel: string): boolean {
    return this.channels.get(channel)?.open ?? false;
  }

  /** Something that is watched has not come yet. */
  get isWaiting(): boolean {
    return this.watched.some((name) => {
      const channel = this.channels.get(name);
      return !isAppended(name) && channel?.data === undefined && channel?.error === undefined;
    });
  }

  error(channel: string): string | undefined {
    return this.channels.get(channel)?.error;
  }

  apply(frame: Frame, nowMs: number): void {
    this.lastAtMs = Date.parse(frame.at) || this.lastAtMs;
    this.lastReceivedMs = nowMs;
    if (frame.channel) this.applyTo(this.channel(frame.channel), frame);
    if (frame.kind === "ping" && !frame.channel) {
      for (const name of this.watched) this.sample(name, this.channel(name));
    }
    for (const listener of this.frameListeners) listener();
  }

  private applyTo(channel: Channel, frame: Frame): void {
    if (frame.kind === "error") {
      channel.error = String(
        (frame.data as { detail?: unknown } | null)?.detail ?? "cannot be watched",
      );
      return;
    }
    channel.error = undefined;
    channel.open = true;
    // All of the channel follows a gap of one that has snapshots: until then there is nothing to resume.
    channel.seq = frame.kind === "gap" && !isAppended(frame.channel) ? NONE : frame.seq;
    if (frame.data && (frame.kind === "snapshot" || frame.kind === "delta")) {
      if (isAppended(frame.channel)) {
        for (const listener of channel.appended) listener(frame.data);
      } else {
        channel.data =
          frame.kind === "snapshot" ? frame.data : mergePatch(channel.data ?? {}, frame.data);
      }
    }
    if (frame.kind === "gap") channel.ring.push(this.lastAtMs / 1000, []);
    else this.sample(frame.channel, channel);
  }

  private sample(name: string, channel: Channel): void {
    if (!channel.data) return;
    const seconds = this.lastAtMs / 1000;
    const newest = channel.ring.newestTime();
    if (seconds - newest < SPACING_SECONDS) return;
    // Nobody watched in between: a hole, not a line across what is not known.
    if (seconds - newest > HOLE_SECONDS) channel.ring.push(newest + SPACING_SECONDS, []);
    channel.ring.push(seconds, samplesOf(name, channel.data));
  }

  /** Asks for a channel until the returned function is called. */
  watch(name: string, appended?: (data: ChannelData) => void): () => void {
    const channel = this.channel(name);
    channel.watchers += 1;
    if (appended) channel.appended.add(appended);
    if (channel.watchers === 1) for (const listener of this.watchListeners) listener();
    let done = false;
    return () => {
      if (done) return;
      done = true;
      channel.watchers -= 1;
      if (appended) channel.appended.delete(appended);
      if (channel.watchers > 0) return;
      channel.open = false;
      channel.seq = NONE;
      for (const listener of this.watchListeners) listener();
    };
  }

  setLink(link: LinkState): void {
    if (link === this.link) return;
    this.link = link;
    for (const listener of this.linkListeners) listener();
  }

  getLink = (): LinkState => this.link;

  onFrame = (listener: () => void): (() => void) => subscribe(this.frameListeners, listener);
  onLink = (listener: () => void): (() => void) => subscribe(this.linkListeners, listener);
  onWatch = (listener: () => void): (() => void) => subscribe(this.watchListeners, listener);
}

function subscribe(listeners: Set<() => void>, listener: () => void): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

export const live = new LiveStore();

/** A channel's data, watched while the component is on the page. */
export function useLive<C extends string>(
  channel: C,
  store: LiveStore = live,
): DataOf<C> | undefined {
  useEffect(() => store.watch(channel), [channel, store]);
  return useSyncExternalStore(store.onFrame, () => store.data(channel));
}

/** A part of a channel's data; the component renders again only when that part changes. */
export function useLivePart<C extends string, T>(
  channel: C,
  part: (data: DataOf<C>) => T,
  store: LiveStore = live,
): T | undefined {
  useEffect(() => store.watch(channel), [channel, store]);
  return useSyncExternalStore(store.onFrame, () => {
    const data = store.data(channel);
    return data === undefined ? undefined : part(data);
  });
}

export function useLiveError(channel: string, store: LiveStore = live): string | undefined {
  return useSyncExternalStore(store.onFrame, () => store.error(channel));
}

export function useOpen(channel: string, store: LiveStore = live): boolean {
  return useSyncExternalStore(store.onFrame, () => store.isOpen(channel));
}

export function useWaiting(store: LiveStore = live): boolean {
  return useSyncExternalStore(store.onFrame, () => store.isWaiting);
}

export function useLink(store: LiveStore = live): LinkState {
  return useSyncExternalStore(store.onLink, store.getLink);
}
