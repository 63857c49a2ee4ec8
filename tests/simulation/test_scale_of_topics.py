"""Opening and closing a topic's publisher and subscription costs the same among many others.

Counted in lines of Python that are run, not in time.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest
from tests.support import packets
from tests.support.simulation import Reader, Stream

from tidecast.testing import Network, SimulatedNode


@contextmanager
def counted_lines() -> Iterator[list[int]]:
    """How many lines of the node are run."""
    lines = [0]

    def in_frame(_frame: FrameType, what: str, _argument: Any) -> Any:
        lines[0] += what == "line"
        return in_frame

    def on_call(frame: FrameType, _what: str, _argument: Any) -> Any:
        return in_frame if "/tidecast/node/" in frame.f_code.co_filename else None

    before = sys.gettrace()
    sys.settrace(on_call)
    try:
        yield lines
    finally:
        sys.settrace(before)


def open_and_close(node: SimulatedNode, name: str) -> None:
    client = node.connect()
    with client.subscribe(name), client.publisher(name) as publisher:
        publisher.try_publish(b"x")
    client.close()


def cost_among(others: int) -> int:
    """Of one more topic that is opened and closed, beside others that stay open."""
    with Network(seed=1) as net:
        b = net.node("b", topics=["wanted"])
        client = b.connect()
        for i in range(others):
            name = f"other.{i}"
            client.subscribe(name).__enter__()
            client.publisher(name, history_bytes=16 << 10).__enter__()
        open_and_close(b, "first")
        b.engine._next_tick = float("inf")  # what looks after all of them is not counted
        with counted_lines() as lines:
            open_and_close(b, "one.more")
        return lines[0]


def test_opening_and_closing_costs_the_same_among_many_topics() -> None:
    few, many = cost_among(10), cost_among(300)
    assert few > 100, "else nothing was counted"
    assert many < 1.3 * few


def cost_of_a_setup(others: int) -> int:
    """Of one more session of another node, beside others that are received or ignored."""
    with Network(seed=2) as net:
        b = net.node("b", topics=["wanted"], receive_bytes=16 << 10)
        reader = Reader(b, "wanted")
        topic = int(b.engine.topic_by_name["wanted"].wire_id)

        def announce(i: int, name: str, number: int) -> None:
            setup = packets.setup("x", name, source=50, session=1000 + i, topic=number)
            net.switch.inject(b.id, setup)
            net.run(20)

        for i in range(others):
            announce(2 * i, "wanted", topic)
            announce(2 * i + 1, f"unwanted.{i}", 999)
        reader.take()
        with counted_lines() as lines:
            net.switch.inject(
                b.id, packets.setup("x", "wanted", source=50, session=999, topic=topic)
            )
            b.engine.work(net.now_ns)
        assert len(b.engine.images_by_id) == others + 1
        return lines[0]


def test_a_session_more_costs_the_same_among_many() -> None:
    few, many = cost_of_a_setup(5), cost_of_a_setup(35)
    assert few > 100
    assert many < 1.3 * few


@pytest.mark.parametrize("pattern", ["many.7", "many.*"])
def test_who_subscribes_later_gets_sessions_that_were_ignored(pattern: str) -> None:
    with Network(seed=3) as net:
        names = [f"many.{i}" for i in range(10)]
        a, b = net.node("a", topics=names), net.node("b", topics=names)
        streams = [Stream(a, name, count=2, name=name) for name in names]
        other = Reader(b, "many.3")
        net.run(100_000, until=lambda: sum(s.push() for s in streams) == 10)
        net.run(100_000)
        late = Reader(b, pattern)
        net.run(2_000_000)
        for stream in streams:
            stream.count = 5
        expected = sum(3 for name in names if pattern in (name, "many.*"))

        def done() -> bool:
            pushed = [stream.push() for stream in streams]
            late.take()
            other.take()
            return all(pushed) and len(late.found) >= expected

        assert net.run(2_000_000, until=done)
        assert len(late.found) == expected
        assert len(other.found) == 5


def test_ids_are_wanted_as_long_as_somebody_reads_one_of_their_topics() -> None:
    with Network(seed=4) as net:
        [same, other] = ["s.one", "s.two"]
        b = net.node("b", topics=[same, other])
        wanted = b.engine.runtimes["memory"].rx_state.wanted
        before = wanted.copy()
        first, second = Reader(b, same), Reader(b, same)
        third = Reader(b, other)
        assert _bits(wanted) == _bits(before) + 2
        first.subscription.close()
        assert _bits(wanted) == _bits(before) + 2
        second.subscription.close()
        third.subscription.close()
        assert (wanted == before).all()


def _bits(words: Any) -> int:
    count: Callable[[int], int] = int.bit_count
    return sum(count(int(word) & ((1 << 64) - 1)) for word in words)
