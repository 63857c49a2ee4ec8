"""Unordered topics: each message exactly once, in any order, and nobody waits for a repair."""

from __future__ import annotations

import pytest
from tests.support.simulation import DropOnce, Reader, Stream, network_of, transfer

from tidecast.events import PeerTimeout
from tidecast.testing import Network


@pytest.mark.parametrize("drop", [0.0, 0.01, 0.05, 0.2])
@pytest.mark.parametrize("size", [300, 1300, 6000])
def test_exactly_once_in_any_order(drop: float, size: int) -> None:
    with Network(seed=21, drop=drop, duplicate=0.02, reorder=0.05, delay_us=50) as net:
        a, b = network_of(net, "ab", reliability="unordered")
        reader, stream = Reader(b), Stream(a, count=1200, size=size)
        assert transfer(net, [stream], [reader])
        assert sorted(reader.found) == sorted(stream.messages)
        assert not reader.gaps
        if drop <= 0.05:
            assert a.count("bytes_resent") <= 1.2 * net.switch.counts["dropped_data_bytes"]


def test_what_is_there_does_not_wait_for_what_is_missing() -> None:
    with Network(seed=22, delay_us=1000) as net:
        a, b = network_of(net, "ab", reliability="unordered")
        reader, stream = Reader(b), Stream(a, count=40, size=1300)
        net.run(1000)
        net.intercept(DropOnce(10))
        assert transfer(net, [stream], [reader])
        numbers = [int(m.split(b":")[1]) for m in reader.found]
        assert numbers == [i for i in range(40) if i != 10] + [10]


def test_what_was_read_behind_a_hole_before_a_time_out_is_not_read_twice() -> None:
    with Network(seed=23, delay_us=20) as net:
        a, b = network_of(net, "ab", reliability="unordered", flow="rate")
        reader, stream = Reader(b), Stream(a, count=60, size=1300)
        net.run(1000)
        # packet 10 never comes before the time-out, and nothing after packet 40
        net.intercept(
            lambda p: not (p.source == a.id and (p.seq == 10 or p.seq > 40) and net.now_ns < 16e9)
        )
        transfer(net, [stream], [reader], limit_us=14_500_000)
        assert len(reader.found) == 40
        assert reader.events(PeerTimeout)
        assert transfer(net, [stream], [reader])
        net.run(100_000)
        reader.take()
        assert sorted(reader.found) == sorted(stream.messages)
        assert not reader.gaps
