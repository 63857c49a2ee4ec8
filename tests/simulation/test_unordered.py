"""Unordered topics: every message exactly once, and a hole delays nobody behind it."""

from __future__ import annotations

from collections import Counter

import pytest
from tests.support.simulation import DropOnce, Reader, Stream, network_of, transfer

from tidecast.testing import Network

PACKETS = 60


def test_what_lies_behind_a_hole_is_read_before_the_hole_is_filled() -> None:
    with Network(seed=3, delay_us=500) as net:
        a, b = network_of(net, "ab", reliability="unordered")
        reader, stream = Reader(b), Stream(a, count=PACKETS, size=1200)
        net.intercept(DropOnce(10))
        assert transfer(net, [stream], [reader])
        assert sorted(reader.found) == sorted(stream.messages)
        late = reader.found.index(stream.message(10))
        assert late > 10, "packet 10 was lost first, so others came before it"
        others = [m for m in reader.found if m != stream.message(10)]
        assert others == [m for m in stream.messages if m != stream.message(10)]


@pytest.mark.parametrize("size", [70, 900, 5000])
@pytest.mark.parametrize("drop", [0.01, 0.05, 0.2])
def test_exactly_once_in_any_order_under_loss(drop: float, size: int) -> None:
    with Network(seed=13, drop=drop, duplicate=0.02, reorder=0.05, delay_us=50) as net:
        a, b = network_of(net, "ab", reliability="unordered")
        reader, stream = Reader(b), Stream(a, count=1500, size=size)
        assert transfer(net, [stream], [reader], limit_us=30_000_000)
        assert Counter(reader.found) == Counter(stream.messages)
        assert not reader.gaps
        assert b.count("lost_for_good") == 0
        assert b.count("losses") > 0


def test_one_message_at_a_time_resumes_within_a_packet_read_ahead() -> None:
    with Network(seed=17, delay_us=200) as net:
        a, b = network_of(net, "ab", reliability="unordered")
        reader, stream = Reader(b), Stream(a, count=400, size=50)
        net.intercept(DropOnce(2, 5, 6))
        taken: list[bytes] = []

        def one_by_one() -> bool:
            stream.push()
            batch = reader.subscription.step(1)
            if batch is not None:
                taken.extend(batch.payloads())
            return len(taken) >= 400

        assert net.run(until=one_by_one, duration_us=10_000_000)
        assert Counter(taken) == Counter(stream.messages)
