"""Each lost packet is in exactly one gap, and what arrived behind a hole is delivered."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from tests.support import packets
from tests.support.simulation import Reader, Stream, network_of, transfer

from tidecast.events import Gap, ImageGone, PeerTimeout
from tidecast.layout import packet as wire
from tidecast.layout import ring as lay
from tidecast.testing import Network, SimulatedNode
from tidecast.testing.switch import Packet

SLOTS = 64
RING = SLOTS * 1400
SIZE = 1300
"""One message a packet."""
QUICK = {"image_timeout_s": 1.0}


class Hole:
    """Packets that never reach one node, nor do repairs of them."""

    def __init__(self, node: SimulatedNode, *seqs: int) -> None:
        self.target, self.seqs = node.id, set(seqs)

    def __call__(self, packet: Packet) -> bool:
        return not (
            packet.type == wire.DATA and packet.target == self.target and packet.seq in self.seqs
        )


def ranges(seqs: list[int]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for seq in seqs:
        if found and found[-1][1] == seq:
            found[-1] = (found[-1][0], seq + 1)
        else:
            found.append((seq, seq + 1))
    return found


def read_for(net: Network, reader: Reader, limit_us: float) -> None:
    net.run(limit_us, until=lambda: reader.take() < 0)


def numbers(reader: Reader) -> list[int]:
    return [int(m.split(b":")[1]) for m in reader.found]


@pytest.mark.parametrize("flow", ["rate", "min"])
@pytest.mark.parametrize("reliability", ["reliable", "unordered"])
def test_a_session_that_ends_with_holes_delivers_the_rest(flow: str, reliability: str) -> None:
    holes = [7, 8, 20, 41]
    with Network(seed=1, delay_us=20) as net:
        a, b, c = network_of(
            net,
            "abc",
            flow=flow,
            reliability=reliability,
            history_bytes=RING,
            receive_bytes=RING,
            close_linger_s=0.2,
            node=QUICK,
        )
        reader, whole = Reader(b), Reader(c)
        net.run(1000)
        net.intercept(Hole(b, *holes))
        stream = Stream(a, count=50, size=SIZE)
        transfer(net, [stream], [reader, whole], until=lambda: len(whole.found) == 50)
        stream.publisher.close()
        read_for(net, reader, 4_000_000)
        assert sorted(numbers(reader)) == [i for i in range(50) if i not in holes]
        assert reader.gaps == ranges(holes)
        assert [gone.reason for gone in reader.events(ImageGone)] == ["timeout"]
        assert b.count("lost_for_good") == len(holes)
        net.run(1_000_000)
        assert not b.engine.images_by_id
        assert whole.found == stream.messages
        assert not whole.gaps


def test_the_end_may_lie_beyond_what_the_ring_can_hold() -> None:
    with Network(seed=2, delay_us=20) as net:
        a, b = network_of(
            net,
            "ab",
            flow="rate",
            history_bytes=RING,
            receive_bytes=RING,
            close_linger_s=0.2,
            node=QUICK,
        )
        reader = Reader(b)
        net.run(1000)
        stream = Stream(a, count=300, size=SIZE, rate_packets_per_s=50_000)
        net.intercept(Hole(b, *range(40, 300)))
        net.intercept(lambda packet: packet.type != wire.LOST)
        transfer(net, [stream], [reader], until=lambda: stream.push())
        stream.publisher.close()
        read_for(net, reader, 4_000_000)
        assert numbers(reader) == list(range(40))
        assert reader.gaps == [(40, 300)]


@pytest.mark.parametrize("end", ["restart", "kill"])
def test_a_publisher_that_dies_with_holes_delivers_the_rest(end: str) -> None:
    with Network(seed=3, delay_us=20) as net:
        a, b = network_of(net, "ab", history_bytes=RING, receive_bytes=RING, node=QUICK)
        reader = Reader(b)
        net.run(1000)
        net.intercept(Hole(b, 5, 30))
        stream = Stream(a, count=40, size=SIZE)
        transfer(net, [stream], [reader], until=stream.push)
        net.run(20_000)
        if end == "restart":
            again = Stream(net.restart("a"), count=1, size=SIZE, name="again")
            assert transfer(net, [again], [reader], until=lambda: len(reader.found) == 39)
            reader.found.remove(again.messages[0])
        else:
            net.kill("a")
            read_for(net, reader, 1_500_000)
            assert numbers(reader) == list(range(5)), "it may come back and repair"
            assert len(reader.events(PeerTimeout)) == 1
            read_for(net, reader, 1_500_000)
        assert numbers(reader) == [i for i in range(40) if i not in (5, 30)]
        assert reader.gaps == [(5, 6), (30, 31)]
        assert len(reader.events(PeerTimeout)) == 1


def test_a_silent_session_that_comes_back_repairs_its_holes() -> None:
    with Network(seed=4, delay_us=20) as net:
        a, b = network_of(
            net, "ab", flow="rate", history_bytes=RING, receive_bytes=RING, node=QUICK
        )
        reader, hole = Reader(b), Hole(b, 5)
        net.run(1000)
        net.intercept(hole)
        stream = Stream(a, count=20, size=SIZE)
        transfer(net, [stream], [reader], until=stream.push)
        net.run(5000)
        net.partition("a", "b")
        hole.seqs.clear()
        net.run(1_500_000)
        assert len(reader.events(PeerTimeout)) == 1
        net.heal()
        assert transfer(net, [stream], [reader])
        assert reader.found == stream.messages
        assert not reader.gaps


@pytest.mark.parametrize("tethered", [True, False])
def test_a_gap_is_reported_once_with_its_reason(tethered: bool) -> None:
    with Network(seed=5) as net:
        a, b = network_of(net, "ab", flow="rate", history_bytes=RING, receive_bytes=RING * 8)
        reader = Reader(b, on_gap="event", tethered=tethered)
        net.run(1000)
        stream = Stream(a, count=10, size=SIZE)
        hole = Hole(b, 12, 20)
        net.intercept(hole)
        stream.count = 300
        transfer(net, [stream], [reader], burst=16, until=lambda: stream.push(16))
        read_for(net, reader, 3_000_000)
        told = reader.events(Gap)
        assert [(g.first, g.end, g.reason) for g in told] == [(12, 13, "lost"), (20, 21, "lost")]
        assert numbers(reader) == [i for i in range(300) if i not in (12, 20)]


def test_more_than_a_ring_lost_is_no_fault_of_the_subscription() -> None:
    with Network(seed=6) as net:
        a, b = network_of(net, "ab", flow="rate", history_bytes=RING, receive_bytes=RING)
        reader = Reader(b, on_gap="event", tethered=False)
        net.run(1000)
        stream = Stream(a, count=10, size=SIZE)
        assert transfer(net, [stream], [reader])
        net.partition("a", "b")
        stream.count = 10 + 5 * SLOTS
        transfer(net, [stream], [reader], until=stream.push)
        net.run(10_000)
        net.heal()
        read_for(net, reader, 2_000_000)
        told = [(g.first, g.end, g.reason) for g in reader.events(Gap)]
        assert told == [(10, 10 + 4 * SLOTS, "lost")]


# --- packets that cannot be parsed ----------------------------------------------------------------

GOOD = packets.message(b"good")
MALFORMED = {
    "a length beyond the packet": (GOOD + b"\xff\xff\xff\x03", [b"good"]),
    "a key beyond its message": (packets.message(b"", wire.WHOLE | wire.KEY, b"\xff\xff"), []),
    "bytes that are no header": (GOOD + b"\1\2\3", [b"good"]),
    "a beginning without its total": (packets.message(b"abc", wire.BEGIN), []),
    "a total below nothing": (packets.message(b"", wire.BEGIN, struct.pack("<q", -5)), []),
    "bytes behind a fragment": (
        packets.message(b"x", wire.BEGIN, struct.pack("<q", 50)) + GOOD,
        [],
    ),
}


def evil_session(net: Network, node: SimulatedNode, bodies: list[bytes], reliability: int) -> None:
    """A publisher whose encoder is broken."""
    topic = int(node.engine.topic_by_name["t"].wire_id)
    fields: dict[str, Any] = {"source": 50, "session": 66, "topic": topic}
    net.switch.inject(
        node.id, packets.setup("evil", "t", incarnation=1, reliability=reliability, **fields)
    )
    net.run(1000)
    for seq, body in enumerate(bodies):
        net.switch.inject(node.id, packets.data(body, seq=seq, **fields))
    net.run(1000)


@pytest.mark.parametrize("reliability", [lay.RELIABLE, lay.UNORDERED])
@pytest.mark.parametrize("case", MALFORMED)
def test_a_packet_that_cannot_be_parsed_is_a_gap(case: str, reliability: int) -> None:
    body, before = MALFORMED[case]
    with Network(seed=7) as net:
        [b] = network_of(net, "b", reliability=lay.RELIABILITY_NAMES[reliability])
        reader = Reader(b, on_gap="event")
        evil_session(
            net, b, [packets.message(b"first"), body, packets.message(b"last")], reliability
        )
        read_for(net, reader, 1000)
        assert reader.found == [b"first", *before, b"last"]
        told = [(g.first, g.end, g.reason) for g in reader.events(Gap)]
        assert told == [(1, 2, "malformed")]
        assert reader.subscription.stats()["malformed"] == 1


@pytest.mark.parametrize("case", MALFORMED)
def test_one_behind_a_hole_of_an_unordered_topic_is_a_gap(case: str) -> None:
    body, before = MALFORMED[case]
    with Network(seed=7) as net:
        [b] = network_of(net, "b", reliability="unordered")
        reader = Reader(b, on_gap="event")
        topic = int(b.engine.topic_by_name["t"].wire_id)
        fields: dict[str, Any] = {"source": 50, "session": 66, "topic": topic}
        evil_session(net, b, [packets.message(b"first")], lay.UNORDERED)
        for seq, content in [
            (2, body),
            (3, packets.message(b"ahead")),
            (1, packets.message(b"repair")),
        ]:
            net.switch.inject(b.id, packets.data(content, seq=seq, **fields))
            read_for(net, reader, 1000)
        assert reader.found == [b"first", *before, b"ahead", b"repair"]
        told = [(g.first, g.end, g.reason) for g in reader.events(Gap)]
        assert told == [(2, 3, "malformed")]


def test_a_message_that_is_left_unfinished_is_a_gap() -> None:
    begin = packets.message(b"part", wire.BEGIN, struct.pack("<q", 100))
    with Network(seed=8) as net:
        [b] = network_of(net, "b")
        reader = Reader(b, on_gap="event")
        evil_session(net, b, [begin, packets.message(b"next"), begin, begin, begin], lay.RELIABLE)
        read_for(net, reader, 100_000)
        assert reader.found == [b"next"]
        told = [(g.first, g.end, g.reason) for g in reader.events(Gap)]
        assert told == [(0, 1, "malformed"), (2, 3, "malformed"), (3, 4, "malformed")]
