"""The live feed: one tick computes each watched channel once, for all viewers.

Engines send telemetry only while a channel is watched: the first viewer switches it on, and it is
switched off soon after the last viewer has gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections import deque
from dataclasses import replace
from typing import Any

import msgspec
from fastapi.concurrency import run_in_threadpool

from tidecast_control.api.resources import merged
from tidecast_control.db import Database
from tidecast_control.history.recent import Recent
from tidecast_control.kit.models import utc_now
from tidecast_control.kit.problems import ProblemError
from tidecast_control.link.hub import Engine, Hub
from tidecast_control.live import facts as facts_of
from tidecast_control.live import world as worlds
from tidecast_control.live.append import AppendSource, open_source
from tidecast_control.live.channels import Facts, data_of
from tidecast_control.live.patch import difference
from tidecast_control.live.rates import Json
from tidecast_control.supervisor import Turn

LINGER_S, KEPT_S, FACTS_S = 10.0, 60.0, 1.0
"""A channel without a viewer continues for a while: longer while another channel has viewers."""
FRESH_S, FRESH_WAIT_S, SEEN_S = 2.0, 1.0, 5.0
FRAMES_KEPT_MAX, FRAMES_KEPT_BYTES_MAX = 240, 1 << 20
"""A minute at 4 Hz, of a channel that is not huge: a page that opens later shows this minute at
once."""
EARLY, TOGETHER_S = 0.8, 0.01
"""A tick may come after this share of its period; samples that other engines send shortly after the
first are in it, too."""
SOURCES_WAIT_S = 0.05
"""A tick waits so long for entries of append channels; slower sources are in a later one."""
CHANNELS_MAX, CHANNELS_KEPT_MAX = 512, 24
FRAME_ENTRIES_MAX = 200


class EncodedFrame:
    """A frame, encoded once for all viewers."""

    __slots__ = ("at", "channel", "data", "kind", "seq", "text")

    def __init__(self, seq: int, kind: str, channel: str, data: Json | None) -> None:
        self.seq, self.kind, self.channel, self.data = seq, kind, channel, data
        self.at = utc_now().isoformat()
        self.text = encode(seq, kind, channel, data, self.at)


def encode(seq: int, kind: str, channel: str, data: Json | None, at: str = "") -> str:
    """A frame as it is sent; ``at``: the time of its data, now by default."""
    at = at or utc_now().isoformat()
    frame: Json = {"seq": str(seq), "at": at, "kind": kind, "channel": channel}
    if data is not None:
        frame["data"] = data
    return msgspec.json.encode(frame).decode()


class Channel:
    """The newest data of a channel, and the frames that led to it."""

    def __init__(self, name: str, floor: int, source: AppendSource | None) -> None:
        self.name, self.source = name, source
        self.public = name.removesuffix("#withheld")
        self.data: Json = {}
        self.seq = self.floor = floor
        """``seq`` of the newest frame; frames after ``floor`` are held."""
        self.frames: deque[EncodedFrame] = deque()
        self.watchers = 0
        self.begun = asyncio.Event()
        """It has its first figures, or could not get them: ticks compute it from now on."""
        self.idle_since_s = 0.0
        self.taking: asyncio.Task[Json | None] | None = None
        """The running read of new entries from its source."""
        self._bytes = 0
        self._base: Json = {}
        self._base_at = ""
        """The data at ``floor``, and when it was so."""

    def push(self, frame: EncodedFrame) -> None:
        """Add a frame, and drop the oldest frames above the limits."""
        self.frames.append(frame)
        self.seq = frame.seq
        self._bytes += len(frame.text)
        while len(self.frames) > FRAMES_KEPT_MAX or (
            self._bytes > FRAMES_KEPT_BYTES_MAX and len(self.frames) > 1
        ):
            gone = self.frames.popleft()
            self.floor, self._base_at = gone.seq, gone.at
            self._bytes -= len(gone.text)
            if self.source is None:
                self._base = merged(self._base, gone.data)

    async def end(self) -> None:
        """The last viewer is gone: end the source."""
        if self.taking is not None:
            self.taking.cancel()
        if self.source is not None:
            await self.source.close()

    def after(self, seq: int) -> list[EncodedFrame] | None:
        """The frames after ``seq``; None when it does not have all of them."""
        if not self.floor <= seq <= self.seq:
            return None
        return [frame for frame in self.frames if frame.seq > seq]

    @property
    def begins_at(self) -> str:
        """The time of the oldest kept data."""
        return self._base_at or (self.frames[0].at if self.frames else "")

    def replay(self) -> list[str]:
        """Frames for a new viewer: the oldest kept snapshot, and every frame since then."""
        base = encode(self.floor, "snapshot", self.public, self._base, self._base_at)
        if not self._base_at and self.frames:  # nothing is forgotten: the first frame is all of it
            first = self.frames[0]
            base = encode(first.seq, "snapshot", self.public, first.data, first.at)
            return [base, *(frame.text for frame in itertools.islice(self.frames, 1, None))]
        return [base, *(frame.text for frame in self.frames)]


class Feed:
    """See module."""

    def __init__(self, db: Database, hub: Hub, hz: float) -> None:
        self._db, self._hub, self.hz = db, hub, hz
        self._channels: dict[str, Channel] = {}
        self._serial = itertools.count(int(time.time() * 1e6))
        self._recent = Recent()
        self.viewers: set[asyncio.Event] = set()
        """Set at each tick: `Viewer`s wait for it."""
        self._arrived = asyncio.Event()
        self._facts = Facts()
        self._facts_s = 0.0
        self._version = self._shown = 0
        self._silent: list[str] = []
        """Versions of the newest samples, and of the samples in the computed channels."""
        self._built = (0, frozenset[str](), worlds.World())
        self.bad_samples: dict[str, Exception] = {}
        """Engines whose newest sample cannot be read, and why."""
        self._wake = asyncio.Event()
        self._asking: asyncio.Task[None] | None = None
        self._reading: asyncio.Task[None] | None = None
        self._asked_s = float("-inf")
        self.background_ms = 0
        """Interval of telemetry that alert rules need also without viewers; 0 = none."""
        hub.on_telemetry = self._on_telemetry
        hub.on_change = self._on_change

    @property
    def watchers(self) -> int:
        """How many channel subscriptions there are."""
        return sum(channel.watchers for channel in self._channels.values())

    def _on_telemetry(self, _engine: Engine) -> None:
        self._version += 1
        self._arrived.set()

    def _on_change(self) -> None:
        self._version, self._facts_s = self._version + 1, 0.0

    # --- watching ---------------------------------------------------------------------------------

    async def open(self, name: str) -> Channel:
        """Begin to watch a channel. Raises `not_found`, `throttled`, and its source's problems."""
        channel = self._channels.get(name)
        spare: AppendSource | None = None
        if channel is None:
            if len(self._channels) >= CHANNELS_MAX:
                raise ProblemError("throttled", f"at most {CHANNELS_MAX} channels are watched")
            source = await open_source(name, self._db, self._hub)
            if source is None and data_of(name, self._built[2], self._facts, utc_now()) is None:
                raise ProblemError("not_found", f"no channel {name!r}")
            channel = self._channels.get(name)  # another watcher may have been quicker
            if channel is None:
                return await self._begin(Channel(name, next(self._serial), source))
            spare = source
        channel.watchers += 1
        try:
            if spare is not None:
                await spare.close()
            await channel.begun.wait()
        except BaseException:
            self.close(channel)
            raise
        self._wake.set()
        return channel

    async def _begin(self, channel: Channel) -> Channel:
        """Add a new channel, which counts as watched from now on: else a tick would drop it."""
        self._channels[channel.name] = channel
        channel.watchers = 1
        try:
            if channel.source is None:
                await self._hear_all()
                await self._refresh_facts()
                self._compute(channel)
        except BaseException:
            self.close(channel)
            raise
        finally:
            channel.begun.set()
        self._wake.set()
        return channel

    def close(self, channel: Channel) -> None:
        """End watching; the channel lingers, so that a viewer can come back to it."""
        channel.watchers -= 1
        channel.idle_since_s = time.monotonic()

    def replay(self, channel: Channel) -> list[str]:
        """Frames for a new viewer: the minutes before the channel's frames, then all kept frames.

        Frames of the minutes before have seq 0: no viewer resumes behind them.
        """
        texts: list[str] = []
        before: Json | None = None
        for at, data in self._recent.before(
            channel.public, channel.data, time.monotonic(), channel.begins_at
        ):
            kind, told = "delta", difference(before or {}, data)
            if before is None:
                kind = "snapshot"
            texts.append(encode(0, kind, channel.public, told, at))
            before = data
        return texts + channel.replay()

    async def once(self, name: str) -> Json:
        """A channel's data; without viewers, from a sample taken now."""
        if not self._hub.interval_ms:
            first = await self._hub.samples()
            await asyncio.sleep(min(0.1, 1 / self.hz))
            second = await self._hub.samples()
            sources = [
                worlds.Source(node, first.get(node), sample) for node, sample in second.items()
            ]
        else:
            sources = self._sources()
        await self._refresh_facts()
        world, _ = worlds.build_sound(sources)
        known = {n for n, node in self._facts.nodes.items() if node["state"] != "never"}
        facts = replace(self._facts, silent=sorted(known - world.nodes.keys()))
        data = data_of(name, world, facts, utc_now())
        if data is None:
            raise ProblemError("not_found", f"no channel {name!r}")
        return data

    def world(self) -> worlds.World:
        """The world of the newest telemetry."""
        built, version = self._built, self._version  # other threads ask, too
        sources = self._sources()
        names = frozenset(each.node for each in sources)
        if built[:2] != (version, names):
            world, self.bad_samples = worlds.build_sound(sources)
            built = self._built = version, names, world
        return built[2]

    def seen(self) -> worlds.World | None:
        """The newest world, if engines have reported lately. From any thread."""
        now_s = time.monotonic()
        lately = any(now_s - engine.sampled_s < SEEN_S for engine in self._hub.engines)
        return self.world() if lately else None

    async def fresh(self) -> None:
        """Make sure that `seen` has data: one request to the engines serves all callers."""
        if self._hub.interval_ms or not self._hub.connected():
            return
        now_s = time.monotonic()
        if self._asking is None or (self._asking.done() and now_s - self._asked_s > FRESH_S):
            self._asked_s = now_s
            self._asking = asyncio.create_task(self._ask())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FRESH_WAIT_S):
                await asyncio.shield(self._asking)

    async def _hear_all(self) -> None:
        """Ask engines that were silent lately: a channel must not begin with old figures."""
        if any(not engine.heard(0) for engine in self._hub.engines):
            await self._ask()

    async def _ask(self) -> None:
        found = await self._hub.samples(FRESH_WAIT_S)
        for engine in self._hub.engines:
            if engine.name in found:
                engine.keep(found[engine.name])
        self._version += 1

    # --- the tick ---------------------------------------------------------------------------------

    async def run(self, turn: Turn) -> None:
        """Until it is cancelled."""
        while True:
            if not self._channels and not self.background_ms:
                await self._hub.watch(0)
                self._wake.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(1.0):
                        await self._wake.wait()
                turn.done()
                continue
            interval_ms = round(1000 / self.hz) if self._channels else self.background_ms
            await self._hub.watch(interval_ms)
            began_s = time.monotonic()
            self._arrived.clear()
            await self._step(turn)
            turn.done()
            await self._pause(began_s)

    async def _pause(self, began_s: float) -> None:
        """Wait until telemetry comes, which is shown at once; at most ``hz`` ticks a second."""
        period_s = 1 / self.hz
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(period_s * 1.5):
                await self._arrived.wait()
        early_s = began_s + period_s * EARLY - time.monotonic()
        await asyncio.sleep(max(TOGETHER_S, early_s))

    async def _step(self, turn: Turn) -> None:
        """One tick. A failure of a channel, a sample or Postgres delays no other channel."""
        await self._drop_unwatched(turn)
        reading = self._begin_facts()  # figures do not wait for Postgres
        if reading is not None and reading.done() and reading.exception() is not None:
            turn.failed(_error_of(reading))
        silent = self.silent()
        fresh = self._shown != self._version or silent != self._silent
        self._shown, self._silent = self._version, silent
        world = self.world()
        if fresh and world.nodes:
            self._recent.note(
                world.topics, world.subscriptions, time.monotonic(), utc_now().isoformat()
            )
        for channel in list(self._channels.values()):
            if channel.source is None and fresh and channel.begun.is_set():
                try:
                    self._compute(channel)
                except Exception as problem:  # noqa: BLE001 - reported; the others continue
                    turn.failed(problem)
        await self._take_all(turn)
        for bad in self.bad_samples.values():
            turn.failed(bad)
        for viewer in self.viewers:
            viewer.set()

    async def _drop_unwatched(self, turn: Turn) -> None:
        now_s = time.monotonic()
        calm = self.watchers and len(self._channels) <= CHANNELS_KEPT_MAX
        for name, channel in list(self._channels.items()):
            linger_s = KEPT_S if calm and channel.source is None else LINGER_S
            if channel.watchers == 0 and now_s - channel.idle_since_s > linger_s:
                del self._channels[name]
                try:
                    await channel.end()
                except Exception as problem:  # noqa: BLE001 - reported; it is dropped all the same
                    turn.failed(problem)

    async def _take_all(self, turn: Turn) -> None:
        """Take new entries of append channels. A slow source delays no other channel."""
        taking: dict[asyncio.Task[Json | None], Channel] = {}
        for channel in self._channels.values():
            if channel.source is not None:
                if channel.taking is None:
                    channel.taking = asyncio.create_task(channel.source.take(FRAME_ENTRIES_MAX))
                taking[channel.taking] = channel
        if not taking:
            return
        done, _ = await asyncio.wait(taking, timeout=SOURCES_WAIT_S)
        for task in done:
            channel = taking[task]
            channel.taking = None
            if task.exception() is not None:
                turn.failed(_error_of(task))
            elif (entries := task.result()) is not None:
                channel.push(EncodedFrame(next(self._serial), "delta", channel.public, entries))

    def _begin_facts(self) -> asyncio.Task[None] | None:
        """Begin to read facts that are too old. Returns the task that reads."""
        if self._reading is not None and not self._reading.done():
            return self._reading
        if time.monotonic() - self._facts_s < FACTS_S:
            return None
        self._facts_s = time.monotonic()
        self._reading = asyncio.create_task(self._read_facts())
        return self._reading

    async def _refresh_facts(self) -> None:
        for _ in range(2):  # a running read may have begun before the newest change
            reading = self._begin_facts()
            if reading is not None:
                await asyncio.wait({reading})

    async def _read_facts(self) -> None:
        since = self._facts.since
        self._facts = await run_in_threadpool(facts_of.read, self._db)
        self._facts.since = since
        self._version += 1

    def _sources(self) -> list[worlds.Source]:
        """Samples of engines that are heard; other engines' figures count as unknown."""
        interval_ms = self._hub.interval_ms
        return [
            worlds.Source(engine.name, engine.before, engine.sample)
            for engine in self._hub.engines
            if engine.sample is not None and engine.heard(interval_ms)
        ]

    def silent(self) -> list[str]:
        """Nodes that were here and are not heard now: no figure includes them."""
        heard = self.world().nodes
        known = {name for name, node in self._facts.nodes.items() if node["state"] != "never"}
        return sorted((known | set(self._hub.connected())) - heard.keys())

    def _compute(self, channel: Channel) -> None:
        self._facts.silent = self.silent()
        data = data_of(channel.name, self.world(), self._facts, utc_now())
        if data is None:
            return
        patch = difference(channel.data, data)
        if patch:
            channel.data = data
            channel.push(EncodedFrame(next(self._serial), "delta", channel.public, patch))


def _error_of(task: asyncio.Task[Any]) -> Exception:
    problem = task.exception()
    return problem if isinstance(problem, Exception) else RuntimeError(repr(problem))
