"""Lost packets: everything arrives once and in order, and what the repair costs."""

from __future__ import annotations

import collections
import itertools

import pytest
from tests.support.simulation import (
    Census,
    DropOnce,
    Reader,
    Stream,
    network_of,
    settle_and_read,
    transfer,
)

from tidecast.config.topology import FaultSettings
from tidecast.layout import packet as wire
from tidecast.testing import Network
from tidecast.testing.network import TRANSPORT
from tidecast.testing.switch import Packet

PACKETS = 40


@pytest.mark.parametrize(
    "lost", [(0,), (17,), (PACKETS - 1,), (0, 1, 2), (5, 7, 9, 20, 21), (38, 39)]
)
def test_lost_packets_are_asked_for_once_and_sent_once(lost: tuple[int, ...]) -> None:
    with Network(seed=1, delay_us=50) as net:
        a, b = network_of(net, "ab")
        reader, stream = Reader(b), Stream(a, count=PACKETS, size=1200)
        drop, census = DropOnce(*lost), Census()
        net.intercept(drop)
        net.intercept(census)
        assert transfer(net, [stream], [reader])
        assert reader.found == stream.messages
        assert sorted(drop.dropped) == sorted(lost)
        assert sorted(p.seq for p in census.resent) == sorted(lost), "nothing else was sent again"
        assert a.count("packets_sent") == PACKETS
        assert a.count("packets_resent") == len(lost) == b.count("recovered") == b.count("losses")
        runs = 1 + sum(y - x > 1 for x, y in itertools.pairwise(lost))
        assert b.count("naks_sent") <= runs
        assert b.count("duplicates") == 0 == b.count("lost_for_good")


@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_a_nak_names_all_gaps_that_are_due(rounds: int) -> None:
    """Half of a burst is missing, then some repairs: one NAK a round."""
    with Network(seed=12, delay_us=20) as net:
        a, b = network_of(net, "ab")
        reader, stream = Reader(b), Stream(a, count=10, size=1200)
        assert transfer(net, [stream], [reader])
        holes = range(10, 50, 2)  # more follows: the last packet waits for its linger
        losses = collections.Counter[int]()

        def lose(packet: Packet) -> bool:
            if packet.type != wire.DATA or packet.seq not in holes:
                return True
            losses[packet.seq] += 1
            return losses[packet.seq] > rounds

        net.intercept(lose)
        stream.count += 45
        assert transfer(net, [stream], [reader])
        assert reader.found == stream.messages
        assert b.count("nak_ranges_sent") == rounds * len(holes)
        assert b.count("naks_sent") == rounds
        assert a.count("packets_resent") == rounds * len(holes)


@pytest.mark.parametrize("drop", [0.01, 0.05, 0.2])
def test_exactly_once_in_order_under_loss(drop: float) -> None:
    with Network(seed=11, drop=drop, duplicate=0.02, reorder=0.05, delay_us=50) as net:
        a, b = network_of(net, "ab")
        reader, stream = Reader(b), Stream(a, count=4000, size=600)
        assert transfer(net, [stream], [reader], limit_us=30_000_000)
        assert reader.found == stream.messages
        assert not reader.gaps
        lost = net.switch.counts["dropped_data_bytes"]
        resent = a.count("bytes_resent")
        assert lost > 0
        if drop <= 0.05:
            assert resent <= 1.2 * lost, f"resent {resent} for {lost} lost"
        naks = b.count("naks_sent")
        assert naks <= 1.2 * b.count("losses") + 10, "a NAK names all gaps that are due"


def test_faults_of_the_engine_itself_cost_no_more() -> None:
    with Network(seed=5, delay_us=20) as net:
        a, b = network_of(net, "ab")
        b.engine.set_faults(
            TRANSPORT, FaultSettings(drop=0.05, duplicate=0.02, reorder=0.05, corrupt=0.001, seed=7)
        )
        reader, stream = Reader(b), Stream(a, count=4000, size=600)
        assert transfer(net, [stream], [reader])
        assert reader.found == stream.messages
        lost = b.count("faults_dropped_bytes")
        assert lost > 20_000
        assert b.count("faults_duplicated") > 0 < b.count("faults_delayed")
        assert a.count("bytes_resent") <= 1.2 * lost


@pytest.mark.parametrize("delay_us", [20, 200, 1000])
def test_tail_loss_is_repaired_by_a_probe_not_a_heartbeat(delay_us: int) -> None:
    with Network(seed=3, delay_us=delay_us) as net:
        a, b = network_of(net, "ab")
        reader, stream = Reader(b), Stream(a, count=30, size=1200)
        transfer(net, [stream], [reader], burst=1)
        net.run(3_000_000)
        reader.take()
        net.intercept(DropOnce(30))
        stream.count = 31
        published = net.now_ns
        assert transfer(net, [stream], [reader], until=lambda: len(reader.found) == 31)
        took_us = (net.now_ns - published) / 1000
        # linger 20 us; probe 1.5 RTT later (60 us at least); its way, the NAK's, the repair's
        rtt_us = 2 * delay_us
        steps_us = 60
        assert took_us <= 20 + max(1.5 * rtt_us, 60) + 1.5 * rtt_us + 50 + steps_us
        assert took_us < 100_000 / 2, "long before a heartbeat"


def test_a_lost_probe_is_followed_by_another() -> None:
    with Network(seed=3, delay_us=50) as net:
        a, b = network_of(net, "ab")
        reader, stream = Reader(b), Stream(a, count=30, size=1200)
        transfer(net, [stream], [reader], burst=1)
        net.run(1_000_000)
        net.intercept(DropOnce(30))
        probes: list[Packet] = []

        def first_two(packet: Packet) -> bool:
            if packet.type == wire.HEARTBEAT and stream.done == 31:
                probes.append(packet)
                return len(probes) > 2
            return True

        net.intercept(first_two)
        stream.count = 31
        published = net.now_ns
        assert transfer(net, [stream], [reader])
        assert (net.now_ns - published) / 1000 < 2500
        assert len(probes) >= 3


def test_lost_naks_and_lost_repairs_are_repeated() -> None:
    with Network(seed=4, delay_us=50) as net:
        a, b = network_of(net, "ab")
        reader, stream = Reader(b), Stream(a, count=60, size=1200)
        left = {wire.NAK: 2, wire.DATA: 2}

        def lose(packet: Packet) -> bool:
            if packet.type == wire.NAK or packet.is_resent:
                left[packet.type] -= 1
                return left[packet.type] < 0
            return True

        net.intercept(DropOnce(10))
        net.intercept(lose)
        assert transfer(net, [stream], [reader], limit_us=200_000)
        assert reader.found == stream.messages
        assert b.count("naks_sent") == 5


def test_unreliable_reports_gaps_and_asks_for_nothing() -> None:
    with Network(seed=6, drop=0.05) as net:
        a, b = network_of(net, "ab", reliability="unreliable", flow="rate")
        reader, stream = Reader(b, on_gap="raise"), Stream(a, count=2000, size=1200)
        transfer(net, [stream], [reader], until=lambda: stream.done == 2000, burst=4)
        net.run(300_000)
        reader.take()
        lost = sum(end - first for first, end in reader.gaps)
        assert 50 < lost < 200
        kept = [int(m.split(b":")[1]) for m in reader.found]
        missing = {i for first, end in reader.gaps for i in range(first, end)}
        tail = 2000 - (len(kept) + lost)
        assert kept == [i for i in range(2000 - tail) if i not in missing]
        assert tail <= 5
        assert b.count("naks_sent") == 0 == a.count("packets_resent")


def test_reordering_alone_costs_nothing() -> None:
    with Network(seed=9, reorder=0.2, duplicate=0.1) as net:
        a, b = network_of(net, "ab", nak_delay_us=100)
        reader, stream = Reader(b), Stream(a, count=1000, size=1200)
        assert transfer(net, [stream], [reader])
        assert reader.found == stream.messages
        assert a.count("packets_resent") == 0
        assert b.count("naks_sent") == 0


def test_lost_setups_only_delay_the_beginning() -> None:
    with Network(seed=10) as net:
        a, b = network_of(net, "ab")
        reader = Reader(b)
        setups: list[int] = []

        def lose(packet: Packet) -> bool:
            if packet.type == wire.SETUP:
                setups.append(packet.seq)
                return len(setups) > 5
            return True

        net.intercept(lose)
        stream = Stream(a, count=100)
        stream.push()
        assert settle_and_read(net, reader, 100_000) == stream.messages
