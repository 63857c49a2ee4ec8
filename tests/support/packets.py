"""Packets made by hand, field by field, for tests: sound ones, and ones that are not."""

from __future__ import annotations

import struct
from typing import Any

from tidecast.layout import packet as wire

_HEADER = struct.Struct("<BBBBIHHHHqq")


def header(
    kind: int,
    length: int,
    *,
    version: int = wire.VERSION,
    flags: int = 0,
    channel: int = 1,
    session: int = 5,
    topic: int = 7,
    receiver: int = 0,
    source: int = 3,
    seq: int = 0,
    time_ns: int = 0,
) -> bytes:
    return _HEADER.pack(
        version, kind, flags, channel, session, topic, length, receiver, source, seq, time_ns
    )


def message(payload: bytes, flags: int = wire.WHOLE, lead: bytes = b"") -> bytes:
    return struct.pack("<I", len(lead) + len(payload) | flags << 24) + lead + payload


def data(*messages: bytes, **fields: int) -> bytes:
    body = b"".join(messages)
    return header(wire.DATA, wire.PACKET_HEADER_BYTES + len(body), **fields) + body


def compact(
    operations: bytes, *, length: int = 60, entries: int = 1, table: int = 7, **fields: int
) -> bytes:
    body = struct.pack("<IHH", table, entries, length) + operations
    return header(wire.COMPACT, wire.PACKET_HEADER_BYTES + len(body), **fields) + body


def definitions(
    entries: bytes, *, first: int = 0, count: int = 1, table: int = 7, **fields: int
) -> bytes:
    body = struct.pack("<IHH", table, first, count) + entries
    return header(wire.TABLE, wire.PACKET_HEADER_BYTES + len(body), **fields) + body


def heartbeat(**fields: int) -> bytes:
    return header(wire.HEARTBEAT, wire.PACKET_HEADER_BYTES, **fields)


def lost(**fields: int) -> bytes:
    return header(wire.LOST, wire.PACKET_HEADER_BYTES, **fields)


def nak(ranges: list[tuple[int, int]], *, count: int | None = None, **fields: int) -> bytes:
    body = struct.pack("<qII", 99, len(ranges) if count is None else count, 0)
    body += b"".join(struct.pack("<qI", *each) for each in ranges)
    return header(wire.NAK, wire.PACKET_HEADER_BYTES + len(body), **fields) + body


def status(
    *,
    receiver_id: int = 99,
    consumed: int = 0,
    contiguous: int = 0,
    window: int = 64,
    echo_delay_us: int = 0,
    lost_packets: int = 0,
    name: bytes | None = None,
    name_len: int | None = None,
    **fields: int,
) -> bytes:
    body = struct.pack(
        "<qqqIIq", receiver_id, consumed, contiguous, window, echo_delay_us, lost_packets
    )
    if name is not None:
        body += bytes([len(name) if name_len is None else name_len]) + name
    return header(wire.STATUS, wire.PACKET_HEADER_BYTES + len(body), **fields) + body


def ack(
    *,
    producer: int = 9,
    epoch: int = 1,
    first_seq: int = 1,
    count: int = 0,
    offset: int = wire.PACKET_HEADER_BYTES,
    state: int = 0,
    owner: int = 0,
    **fields: int,
) -> bytes:
    body = struct.pack("<qqqqIiq", producer, epoch, first_seq, count, offset, state, owner)
    return header(wire.ACK, wire.ACK_BYTES, **fields) + body


def block(
    producer: int = 9,
    epoch: int = 0,
    first_seq: int = 1,
    packet: int = 0,
    offset: int = wire.PACKET_HEADER_BYTES,
    count: int = 0,
    line: int = 0,
    after: int = 0,
    older_ns: int = 0,
) -> bytes:
    """The producer's block of a SETUP."""
    return struct.pack(
        "<qqqqqqIIq", producer, epoch, first_seq, packet, offset, count, line, after, older_ns
    )


def durable_setup(producer: bytes, **fields: Any) -> bytes:
    """A SETUP with a producer's block."""
    raw = bytearray(setup(**{"flags": wire.FLAG_PRODUCER, **fields}) + producer)
    struct.pack_into("<H", raw, wire.LENGTH_AT, len(raw))
    return bytes(raw)


def area_setup(*entries: tuple[int, bytes], lead: bytes = b"", **fields: Any) -> bytes:
    """A SETUP with an area of further fields: (type, value). ``lead``: bytes of it before those."""
    area = lead + b"".join(bytes((kind, len(value))) + value for kind, value in entries)
    flags = fields.pop("flags", 0) | wire.FLAG_AREA
    return setup(behind=area, flags=flags, **fields)


def setup(
    node_name: str = "x",
    topic_name: str = "t",
    *,
    incarnation: int = 1,
    age_ns: int = 0,
    oldest: int = 0,
    slots: int = 64,
    packet_bytes: int = 1400,
    receivers: int = 0,
    flow: int = 0,
    reliability: int = 0,
    node_len: int | None = None,
    topic_len: int | None = None,
    round_trip: int = 0,
    sampling: int = 0,
    platform: bytes = b"",
    platform_len: int | None = None,
    behind: bytes = b"",
    **fields: int,
) -> bytes:
    names = node_name.encode() + topic_name.encode()
    body = struct.pack(
        "<qqqIHHBBBBHBB",
        incarnation,
        age_ns,
        oldest,
        slots,
        packet_bytes,
        receivers,
        flow,
        reliability,
        len(node_name) if node_len is None else node_len,
        len(topic_name) if topic_len is None else topic_len,
        round_trip,
        sampling,
        len(platform) if platform_len is None else platform_len,
    )
    behind = names + behind + platform
    return header(wire.SETUP, wire.SETUP_NAMES_AT + len(behind), **fields) + body + behind
