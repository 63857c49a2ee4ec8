"""A channel of the live feed: what it keeps, and what who comes later begins with."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidecast_control.api.resources import merged
from tidecast_control.history.recent import RECENT_S, ROWS_MAX, STEP_S
from tidecast_control.kit.models import utc_now
from tidecast_control.link.hub import HEARD_S, Engine
from tidecast_control.live import facts as facts_of
from tidecast_control.live.channels import Facts, data_of
from tidecast_control.live.feed import (
    FRAMES_KEPT_BYTES_MAX,
    FRAMES_KEPT_MAX,
    Channel,
    EncodedFrame,
    Feed,
)
from tidecast_control.live.patch import combined, difference
from tidecast_control.live.socket import Viewer
from tidecast_control.supervisor import Unsupervised


def _filled(moments: int, width: int = 1) -> tuple[Channel, dict[str, Any]]:
    """A channel after so many changes, and its data."""
    channel = Channel("overview", 0, None)
    data: dict[str, Any] = {}
    for n in range(moments):
        after = {"n": n, "pad": {str(w): n * w for w in range(width)}, f"only{n % 3}": n}
        patch = difference(data, after)
        data = channel.data = after
        channel.push(EncodedFrame(n + 1, "delta", "overview", patch))
    return channel, data


def _played(texts: list[str]) -> dict[str, Any]:
    frames = [json.loads(text) for text in texts]
    assert [f["kind"] for f in frames] == ["snapshot", *["delta"] * (len(frames) - 1)]
    assert [f["at"] for f in frames] == sorted(f["at"] for f in frames)
    data: Any = {}
    for frame in frames:
        data = merged(data, frame["data"])
    return data


def test_who_comes_later_begins_with_the_last_minute() -> None:
    """Charts are full at once, and the data is what the others see."""
    for moments in (1, 5, FRAMES_KEPT_MAX, FRAMES_KEPT_MAX + 30):
        channel, data = _filled(moments)
        texts = channel.replay()
        assert _played(texts) == data
        assert len(texts) in (moments, FRAMES_KEPT_MAX + 1)
        assert json.loads(texts[-1])["seq"] == str(channel.seq)


def test_a_huge_channel_keeps_less() -> None:
    channel, data = _filled(60, width=5_000)
    assert 1 <= len(channel.frames) < 60
    assert sum(len(frame.text) for frame in channel.frames) <= FRAMES_KEPT_BYTES_MAX
    assert _played(channel.replay()) == data


def test_a_channel_without_data_begins_empty() -> None:
    assert _played(Channel("overview", 7, None).replay()) == {}


def _topics(moment: int, names: int) -> dict[str, dict[str, Any]]:
    """Rows of topics, of which `t0` sends most."""
    return {
        f"t{n}": {
            "name": f"t{n}",
            "rates": {"packets_out": float(1000 * moment - n)},
            "ring_fill": 0.5,
            "lag_packets": "3",
            "publishers": 1,
        }
        for n in range(names)
    }


def test_who_opens_a_topic_or_the_subscriptions_gets_the_minutes_before() -> None:
    feed = Feed(cast(Any, None), cast(Any, _Hub()), 4.0)
    now_s, steps = time.monotonic(), int(RECENT_S / STEP_S) + 20
    began = utc_now() - timedelta(seconds=steps * STEP_S)
    for n in range(steps):
        mono_s = now_s - (steps - n) * STEP_S
        at = (began + timedelta(seconds=n * STEP_S)).isoformat()
        behind = {"s": {"name": "s", "lag_messages": str(n), "state": "active"}}
        feed._recent.note(_topics(n, ROWS_MAX + 5), behind, mono_s, at)
        feed._recent.note({}, {}, mono_s + 0.1, at)  # too soon: not kept
    newest = steps - 1

    def replayed(name: str, data: dict[str, Any]) -> list[tuple[dict[str, Any], Any]]:
        channel = Channel(name, 0, None)
        channel.data = data
        channel.push(EncodedFrame(1, "delta", name, data))
        found: list[tuple[dict[str, Any], Any]] = []
        for frame in map(json.loads, feed.replay(channel)):
            before = {} if frame["kind"] == "snapshot" or not found else found[-1][1]
            found.append((frame, merged(before, frame["data"])))
        ats = [frame["at"] for frame, _ in found]
        assert ats == sorted(ats)
        assert found[-1][1] == data, "it ends with the present"
        return found[:-1]

    row = {"name": "t0", "rates": {"packets_out": 7.0}, "lag_s": 1.5, "publishers": 2}
    present = {"topic": row, "publications": {"p": {"fill": 1}}, "queues": {"q": {}}}
    before = replayed("topic:t0", present)
    drawn = [data["topic"]["rates"]["packets_out"] for _, data in before]
    assert drawn == [1000.0 * n for n in range(newest - len(drawn) + 1, newest + 1)]
    assert RECENT_S / STEP_S - 2 <= len(drawn) <= RECENT_S / STEP_S
    for _, data in before:
        assert "lag_s" not in data["topic"], "that of now is not known of then"
        assert (data["publications"], data["queues"]) == ({}, {"q": {}})
        assert data["topic"]["publishers"] == 2
    assert replayed(f"topic:t{ROWS_MAX}", present) == [], "it was not among the busiest"
    rows = {"s": {"name": "s", "lag_messages": "9"}, "new": {"name": "new", "lag_messages": "1"}}
    seen = [data["subscriptions"] for _, data in replayed("subscriptions", {"subscriptions": rows})]
    assert [each["s"]["lag_messages"] for each in seen[-3:]] == [
        str(newest - 2),
        str(newest - 1),
        str(newest),
    ]
    assert all(each["new"] == {"name": "new"} for each in seen)
    assert replayed("nodes", {"nodes": {}}) == []


class _Hub:
    """One engine that reports the rows it is given."""

    def __init__(self) -> None:
        self.engines = [Engine("a", cast(Any, None), 0)]
        self.interval_ms = 0
        self.on_telemetry: Callable[[Engine], None]
        self.answers: dict[str, Any] = {}

    def connected(self) -> list[str]:
        return [engine.name for engine in self.engines]

    async def samples(self, timeout_s: float = 2.0) -> dict[str, Any]:
        return self.answers

    async def watch(self, interval_ms: int) -> None:
        self.interval_ms = interval_ms

    def tell(self, second: int) -> None:
        [engine] = self.engines
        engine.keep(_sample(second))
        self.on_telemetry(engine)


def _sample(second: int) -> dict[str, Any]:
    sample = {"at_ns": second * 10**9, "mono_ns": second * 10**9, "clients": second}
    rows = ("publications", "images", "receivers", "durable_subscriptions", "queues")
    return {**sample, "counters": {}, "subscriptions": {}, **{row: [] for row in rows}}


def test_a_channel_begins_with_figures_of_now(monkeypatch: pytest.MonkeyPatch) -> None:
    """When nobody had watched, the first snapshot was up to a minute old."""
    monkeypatch.setattr(facts_of, "read", lambda _db: Facts(nodes={"a": {"state": "up"}}))

    async def watch() -> None:
        hub = _Hub()
        feed = Feed(cast(Any, None), cast(Any, hub), 50.0)
        await feed._refresh_facts()
        hub.tell(1)
        hub.engines[0].sampled_s -= 56
        hub.answers = {"a": _sample(57)}
        channel = await feed.open("nodes")
        assert channel.data["nodes"]["a"]["clients"] == 57
        assert channel.data["nodes"]["a"]["heard"]

    asyncio.run(asyncio.wait_for(watch(), 20.0))


def test_who_asks_for_the_world_takes_nothing_from_those_who_watch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A request or an alert rule looks at the newest figures before the feed does."""
    monkeypatch.setattr(facts_of, "read", lambda _db: Facts(nodes={"a": {"state": "up"}}))

    async def watch() -> None:
        hub = _Hub()
        feed = Feed(cast(Any, None), cast(Any, hub), 50.0)
        channel, ticked = await feed.open("nodes"), asyncio.Event()
        feed.viewers.add(ticked)
        running = asyncio.create_task(feed.run(Unsupervised()))
        for second in range(1, 6):
            hub.tell(second)
            assert feed.world().nodes["a"]["clients"] == second
            while channel.data["nodes"]["a"].get("clients") != second:
                ticked.clear()
                await asyncio.wait_for(ticked.wait(), 5.0)
        running.cancel()

    asyncio.run(asyncio.wait_for(watch(), 20.0))


def test_an_engine_that_is_not_heard_has_no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """A frozen engine was drawn with the last value for half a minute, and with 0 after that."""
    facts = Facts(
        nodes={"a": {"state": "up", "drift": False}, "new": {"state": "never", "drift": False}}
    )
    monkeypatch.setattr(facts_of, "read", lambda _db: facts)

    async def watch() -> None:
        hub = _Hub()
        feed = Feed(cast(Any, None), cast(Any, hub), 50.0)
        hub.tell(1)
        await feed._refresh_facts()
        shown = {}
        for heard in (True, False):
            if not heard:
                hub.engines[0].sampled_s -= HEARD_S + 1
            for name in ("overview", "topic:t", "nodes", "reliability"):
                feed._facts.silent = feed.silent()
                shown[name] = data_of(name, feed.world(), feed._facts, utc_now()) or {}
                assert shown[name]["measured"] is heard
                assert shown[name]["silent"] == ([] if heard else ["a"])
            assert ("rates" in shown["overview"]) is heard
            assert ("ring_fill_max" in shown["overview"]) is heard
            assert ("rates" in shown["reliability"]) is heard
            assert ("topic" in shown["topic:t"]) is heard
            node = shown["nodes"]["nodes"]["a"]
            assert (node["heard"], "rates" in node, node["state"]) == (heard, heard, "up")

    asyncio.run(asyncio.wait_for(watch(), 20.0))


def test_a_source_that_is_slow_holds_up_no_other_channel(monkeypatch: pytest.MonkeyPatch) -> None:
    """The recorder of a frozen engine took two seconds of each tick, for all viewers."""
    monkeypatch.setattr(facts_of, "read", lambda _db: Facts(nodes={"a": {"state": "up"}}))

    class Stuck:
        async def take(self, limit: int) -> None:
            await asyncio.Event().wait()

        async def close(self) -> None:
            return

    async def watch() -> None:
        hub = _Hub()
        feed = Feed(cast(Any, None), cast(Any, hub), 50.0)
        feed._channels["recorder:a"] = Channel("recorder:a", 0, Stuck())
        feed._channels["recorder:a"].watchers = 1
        hub.tell(1)
        channel = await feed.open("nodes")
        running = asyncio.create_task(feed.run(Unsupervised()))
        ticked = asyncio.Event()
        feed.viewers.add(ticked)
        for second in range(2, 8):
            hub.tell(second)
            while channel.data["nodes"]["a"].get("clients") != second:
                ticked.clear()
                await asyncio.wait_for(ticked.wait(), 1.0)
        running.cancel()

    asyncio.run(asyncio.wait_for(watch(), 20.0))


def test_a_channel_that_is_opened_while_a_tick_comes_gets_what_is_new(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The tick dropped it as unwatched while its first figures were asked for: its viewer had the
    first figures for ever (a key's "1 denied" was not shown)."""
    monkeypatch.setattr(facts_of, "read", lambda _db: Facts(nodes={"a": {"state": "up"}}))

    class HeldHub(_Hub):
        def __init__(self) -> None:
            super().__init__()
            self.asked, self.may_answer = asyncio.Event(), asyncio.Event()

        async def samples(self, timeout_s: float = 2.0) -> dict[str, Any]:
            self.asked.set()
            await self.may_answer.wait()
            return self.answers

    async def watch() -> None:
        hub = HeldHub()
        feed = Feed(cast(Any, None), cast(Any, hub), 50.0)
        opening = asyncio.create_task(feed.open("nodes"))
        await hub.asked.wait()
        later = asyncio.create_task(feed.open("nodes"))
        await asyncio.sleep(0)
        await feed._step(Unsupervised())
        assert not later.done(), "it would begin with nothing"
        hub.answers = {"a": _sample(1)}
        hub.may_answer.set()
        channel = await opening
        assert channel.data["nodes"]["a"]["clients"] == 1
        assert len(channel.frames) == 1, "nothing came before the figures of now"
        assert await later is channel
        hub.tell(2)
        await feed._step(Unsupervised())
        assert channel.data["nodes"]["a"]["clients"] == 2
        assert channel.watchers == feed.watchers == 2
        feed.close(channel)
        feed.close(channel)
        assert feed.watchers == 0

    asyncio.run(asyncio.wait_for(watch(), 20.0))


@pytest.mark.parametrize("failure", [ZeroDivisionError, asyncio.CancelledError])
def test_a_channel_whose_opening_fails_has_no_watcher(
    monkeypatch: pytest.MonkeyPatch, failure: type[BaseException]
) -> None:
    monkeypatch.setattr(facts_of, "read", lambda _db: Facts(nodes={"a": {"state": "up"}}))

    async def watch() -> None:
        feed = Feed(cast(Any, None), cast(Any, _Hub()), 50.0)

        async def fail() -> None:
            raise failure

        monkeypatch.setattr(feed, "_hear_all", fail)
        with pytest.raises(failure):
            await feed.open("nodes")
        assert feed.watchers == 0
        channel = feed._channels["nodes"]
        assert time.monotonic() - channel.idle_since_s < 60.0, "it lingers like any other"

    asyncio.run(asyncio.wait_for(watch(), 20.0))


class _SlowSocket:
    """A viewer's websocket. ``before_sent``: what other tasks do while a frame leaves."""

    def __init__(self, before_sent: Callable[[], None]) -> None:
        self.got: list[dict[str, Any]] = []
        self._before_sent = before_sent

    async def send_text(self, text: str) -> None:
        self._before_sent()
        await asyncio.sleep(0)
        self.got.append(json.loads(text))


def _viewer(channel: Channel, before_sent: Callable[[], None]) -> tuple[Viewer, _SlowSocket]:
    """Somebody who watches a channel, and the socket."""
    feed = SimpleNamespace(replay=lambda channel: channel.replay())
    recent = SimpleNamespace(changes=0)
    db = SimpleNamespace(statements=SimpleNamespace(recent=recent))
    socket = _SlowSocket(before_sent)
    ctx = cast(Any, SimpleNamespace(feed=feed, db=db))
    viewer = Viewer(ctx, cast(Any, socket), cast(Any, None))
    viewer._channels[channel.public] = channel
    viewer._sent[channel.public] = None
    return viewer, socket


@pytest.mark.parametrize("piled_up", [1, 3])
def test_what_changes_while_a_frame_leaves_is_sent_with_the_next(piled_up: int) -> None:
    """A tick of the feed beside a viewer's frame: its change was never sent, nor was it a gap."""
    channel = Channel("overview", 0, None)
    number = 0

    def change() -> None:
        nonlocal number
        number += 1
        data = channel.data | {f"n{number}": number}
        patch = difference(channel.data, data)
        channel.data = data
        channel.push(EncodedFrame(number, "delta", "overview", patch))

    async def run() -> None:
        viewer, socket = _viewer(channel, lambda: change() if number < 40 else None)
        change()
        while await viewer._send_new():
            for _ in range(piled_up - 1 if number < 40 else 0):
                change()
        assert _played([json.dumps(frame) for frame in socket.got]) == channel.data

    asyncio.run(run())


def test_entries_that_come_while_a_frame_leaves_are_sent() -> None:
    """Of channels of entries, too: each is sent once."""
    channel = Channel("audit", 0, cast(Any, object()))
    number = 0

    def add() -> None:
        nonlocal number
        number += 1
        channel.push(EncodedFrame(number, "delta", "audit", {"rows": [number]}))

    async def run() -> None:
        viewer, socket = _viewer(channel, lambda: add() if number < 40 else None)
        viewer._sent["audit"] = None
        await viewer._begin("audit", channel, None)
        while await viewer._send_new():
            pass
        entries = [frame["data"]["rows"] for frame in socket.got if frame["kind"] == "delta"]
        assert entries == [[n] for n in range(1, number + 1)]

    asyncio.run(run())


def test_a_row_that_goes_and_comes_back_has_nothing_of_the_old_one() -> None:
    """No one patch says so: frames that piled up are sent one by one then."""
    states: list[dict[str, Any]] = [
        {"topics": {"t": {"lag_s": 3, "nodes": ["a"]}}},
        {"topics": {}},
        {"topics": {"t": {"nodes": ["b"]}}},
    ]
    channel = Channel("overview", 0, None)

    def change(number: int) -> None:
        patch = difference(channel.data, states[number])
        channel.data = states[number]
        channel.push(EncodedFrame(number + 1, "delta", "overview", patch))

    async def run() -> None:
        viewer, socket = _viewer(channel, lambda: None)
        change(0)
        assert await viewer._send_new()
        change(1)
        change(2)
        assert await viewer._send_new()
        assert _played([json.dumps(frame) for frame in socket.got]) == states[2]

    asyncio.run(run())


_VALUES = st.recursive(
    st.integers(0, 2),
    lambda inner: st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
    max_leaves=6,
)
_STATES = st.dictionaries(st.sampled_from("ab"), _VALUES, max_size=2)


@given(_STATES, _STATES, _STATES)
def test_a_combined_patch_does_what_both_do(first: Any, second: Any, third: Any) -> None:
    patch = combined(difference(first, second), difference(second, third))
    if patch is not None:
        assert merged(first, patch) == third
