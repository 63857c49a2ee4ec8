"""`check_packet`: sound packets pass, each fault has its cause, nothing is read beyond the end."""

from __future__ import annotations

import struct
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st
from tests.support import packets

from tidecast.layout import packet as wire
from tidecast.layout.counters import Counter
from tidecast.native.jit import kernel
from tidecast.protocol.check import check_packet
from tidecast.protocol.packets import Route, Status, put_nak, put_name, put_status

SHORT, VERSION = Counter.INVALID_SHORT, Counter.INVALID_VERSION
TYPE, FIELD, AREA = Counter.INVALID_TYPE, Counter.INVALID_FIELD, Counter.INVALID_AREA


@kernel
def checked(buffer, at, n):  # type: ignore[no-untyped-def]
    return check_packet(buffer, at, n)


def cause(packet: bytes, lead: int = 3) -> int:
    """The fault of a packet. It ends where its array ends: a checked build sees any step beyond."""
    buffer = np.frombuffer(bytes(lead) + packet, dtype=np.uint8).copy()
    return int(checked(buffer, lead, len(packet)))


SOUND = {
    "data": packets.data(packets.message(b"hello")),
    "empty data": packets.data(),
    "data behind": packets.data(packets.message(b"hello")) + b"padding of a segment",
    "compact": packets.compact(b"\x80"),
    "definitions": packets.definitions(b"\4keys\1x", count=2),
    "no definitions": packets.definitions(b"", count=0),
    "heartbeat": packets.heartbeat(seq=1 << 60),
    "lost": packets.lost(seq=3),
    "nak": packets.nak([(0, 1), (5, 7)]),
    "nak of nothing": packets.nak([]),
    "nak of most": packets.nak([(i * 2, 1) for i in range(wire.NAK_RANGES_MAX)]),
    "status": packets.status(consumed=4, contiguous=9),
    "setup": packets.setup(),
    "setup of long names": packets.setup("n" * 64, "t" * 200),
    "setup of an empty area": packets.area_setup(),
    "setup that names what was published": packets.area_setup((1, bytes(8)), platform=bytes(8)),
    "setup of unknown fields": packets.area_setup((9, b""), (1, bytes(8)), (127, b"abc")),
    "setup of a field that must be known": packets.area_setup((200, b"x")),
    "setup of the longest area": packets.area_setup((9, bytes(126))),
    "setup of a producer and an area": packets.area_setup(
        (1, bytes(8)), lead=packets.block(), flags=wire.FLAG_PRODUCER, platform=bytes(8)
    ),
    "setup of a platform": packets.setup(platform=bytes(8)),
    "setup of a platform of another length": packets.setup(platform=bytes(3)),
    "setup of a producer and a platform": packets.durable_setup(
        packets.block() + bytes(8), platform_len=8
    ),
    "setup of an older producer and a platform": packets.durable_setup(
        packets.block()[: wire.PRODUCER_BYTES_MIN] + bytes(8), platform_len=8
    ),
}


@pytest.mark.parametrize("name", SOUND)
def test_sound_packets_pass(name: str) -> None:
    assert cause(SOUND[name]) == 0


@pytest.mark.parametrize("name", SOUND)
def test_every_truncation_is_short(name: str) -> None:
    packet = SOUND[name]
    length = struct.unpack_from("<H", packet, wire.LENGTH_AT)[0]
    for n in range(length):
        assert cause(packet[:n]) == SHORT


BROKEN = {
    "compact without operations": (SHORT, packets.compact(b"")),
    "table number 0": (FIELD, packets.definitions(b"\4keys", table=0)),
    "definitions beyond the packet": (FIELD, packets.definitions(b"\5keys")),
    "bytes behind the definitions": (FIELD, packets.definitions(b"\4keys!")),
    "an empty definition": (FIELD, packets.definitions(b"\0")),
    "definitions beyond the table": (FIELD, packets.definitions(b"\4keys", first=1024)),
    "version 2": (VERSION, packets.data(version=2)),
    "version 0": (VERSION, bytes(64)),
    "type 0": (TYPE, packets.header(0, 32)),
    "type 10": (TYPE, packets.header(10, 32)),
    "length below header": (SHORT, packets.header(wire.DATA, 31)),
    "length beyond the datagram": (SHORT, packets.header(wire.DATA, 33)),
    "channel 3": (FIELD, packets.data(channel=3)),
    "session 0": (FIELD, packets.data(session=0)),
    "source 0": (FIELD, packets.data(source=0)),
    "negative sequence": (FIELD, packets.data(seq=-1)),
    "sequence beyond reason": (FIELD, packets.data(seq=(1 << 60) + 1)),
    "nak without body": (SHORT, packets.header(wire.NAK, 32)),
    "nak with more ranges than it holds": (SHORT, packets.nak([(0, 1)], count=2)),
    "nak with too many ranges": (FIELD, packets.nak([(0, 1)], count=wire.NAK_RANGES_MAX + 1)),
    "nak with 2^32 - 1 ranges": (FIELD, packets.nak([(0, 1)], count=0xFFFFFFFF)),
    "nak of negative": (FIELD, packets.nak([(-5, 1)])),
    "nak out of order": (FIELD, packets.nak([(9, 1), (5, 1)])),
    "nak that asks twice": (FIELD, packets.nak([(5, 4), (6, 1)])),
    "status without body": (SHORT, packets.header(wire.STATUS, 32)),
    "status that consumed more than it has": (FIELD, packets.status(consumed=5, contiguous=4)),
    "status that consumed -1": (FIELD, packets.status(consumed=-1)),
    "status of receiver 0": (FIELD, packets.status(receiver_id=0)),
    "status of receiver -1": (FIELD, packets.status(receiver_id=-1)),
    "status that ends amid a name": (SHORT, packets.status(name=b"abc", name_len=4)),
    "status with a name of 201 bytes": (FIELD, packets.status(name=b"n" * 201)),
    "setup without body": (SHORT, packets.header(wire.SETUP, 32)),
    "setup with a long node name": (SHORT, packets.setup(node_len=200)),
    "setup with a long topic": (SHORT, packets.setup(topic_len=200)),
    "setup whose platform is in its names": (SHORT, packets.setup(platform_len=2)),
    "setup that ends amid its platform": (
        SHORT,
        packets.setup(platform=bytes(7), platform_len=8),
    ),
    "setup with a platform of 255 bytes": (SHORT, packets.setup(platform_len=255)),
    "setup whose platform is in the producer's block": (
        SHORT,
        packets.durable_setup(packets.block()[: wire.PRODUCER_BYTES_MIN], platform_len=8),
    ),
    "area that ends amid its entry's head": (AREA, packets.area_setup(lead=b"\x01")),
    "area that ends amid a value": (AREA, packets.area_setup(lead=b"\x09\x04abc")),
    "area of 129 bytes": (AREA, packets.area_setup((9, bytes(127)))),
    "area with type 0": (AREA, packets.area_setup((0, b"x"))),
    "area with a short number": (AREA, packets.area_setup((1, bytes(7)))),
    "area with a long number": (AREA, packets.area_setup((1, bytes(9)))),
    "area with a negative number": (AREA, packets.area_setup((1, b"\xff" * 8))),
    "area with a number too high": (AREA, packets.area_setup((1, b"\x01" + b"\0" * 6 + b"\x40"))),
    "area with a number twice": (AREA, packets.area_setup((1, bytes(8)), (1, bytes(8)))),
    "area with an engine that has a value": (AREA, packets.area_setup((2, b"x"))),
    "area behind an older producer's block": (
        AREA,
        packets.area_setup(
            lead=packets.block()[: wire.PRODUCER_BYTES_MIN], flags=wire.FLAG_PRODUCER
        ),
    ),
    "setup of 0 slots": (FIELD, packets.setup(slots=0)),
    "setup of 65 slots": (FIELD, packets.setup(slots=65)),
    "setup of 2^21 slots": (FIELD, packets.setup(slots=1 << 21)),
    "setup of small packets": (FIELD, packets.setup(packet_bytes=575)),
    "setup of large packets": (FIELD, packets.setup(packet_bytes=65_001)),
    "setup whose oldest is to come": (FIELD, packets.setup(oldest=5, seq=4)),
    "setup of flow 3": (FIELD, packets.setup(flow=3)),
    "setup of reliability 3": (FIELD, packets.setup(reliability=3)),
    "setup of incarnation 0": (FIELD, packets.setup(incarnation=0)),
    "setup of a sample of 2^-21": (FIELD, packets.setup(sampling=21)),
    "setup from the future": (FIELD, packets.setup(age_ns=-1)),
}


@pytest.mark.parametrize("name", BROKEN)
def test_each_fault_has_its_cause(name: str) -> None:
    expected, packet = BROKEN[name]
    assert cause(packet) == expected


@hypothesis.settings(max_examples=300)
@hypothesis.given(st.binary(max_size=700))
def test_any_bytes_are_judged(packet: bytes) -> None:
    assert cause(packet) in (0, SHORT, VERSION, TYPE, FIELD)


@kernel
def built(out, ranges, count, name):  # type: ignore[no-untyped-def]
    route, status = Route(1, 5, 7, 3), Status(99, 4, 9, 64, 2, 33, 44)
    n = put_nak(out, route, 99, ranges, count, 11)
    m = put_status(out[1000:], 0, route, status)
    put_status(out[1500:], 0, route, status)
    return n, m, put_name(out[1500:], name)


def test_what_we_build_is_what_the_layout_says() -> None:
    out = np.zeros(2000, dtype=np.uint8)
    ranges = np.array([[0, 1], [5, 7]], dtype=np.int64)
    n, m, k = built(out, ranges, 2, np.frombuffer(bytearray(b"node-7"), dtype=np.uint8))
    assert out[:n].tobytes() == packets.nak([(0, 1), (5, 7)], time_ns=11)
    about: dict[str, Any] = {
        "consumed": 4,
        "contiguous": 9,
        "window": 64,
        "lost_packets": 2,
        "echo_delay_us": 44,
        "time_ns": 33,
    }
    assert out[1000 : 1000 + m].tobytes() == packets.status(**about)
    assert out[1500 : 1500 + k].tobytes() == packets.status(**about, name=b"node-7")
    assert cause(out[1500 : 1500 + k].tobytes()) == 0
    assert cause(out[:n].tobytes()) == 0
