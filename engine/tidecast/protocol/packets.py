"""Build control packets into a byte buffer. Every function returns the packet's length."""

from __future__ import annotations

from typing import NamedTuple

from tidecast.layout import packet as wire
from tidecast.native.jit import inlined
from tidecast.native.memory import copy, store_i64, store_u8, store_u16, store_u32


class Route(NamedTuple):
    """The publication that a packet is about, and the node that sends the packet."""

    channel: int
    session: int
    topic: int
    source: int


class Status(NamedTuple):
    """The report of a receiver about an image: see `STATUS_BODY` of the layout."""

    receiver: int
    consumed: int
    contiguous: int
    window: int
    lost: int
    echo_ns: int
    echo_delay_us: int


class Ack(NamedTuple):
    """How far a producer's session is durable: up to ``offset`` in ``packet``."""

    producer: int
    epoch: int
    first_seq: int
    packet: int
    offset: int
    messages: int
    state: int
    owner: int


@inlined
def put_packet_header(out, kind, flags, route, length, seq, time_ns):
    """Write a packet header at offset 0, addressed to all."""
    store_u8(out, wire.VERSION_AT, wire.VERSION)
    store_u8(out, wire.TYPE_AT, kind)
    store_u8(out, wire.FLAGS_AT, flags)
    store_u8(out, wire.CHANNEL_AT, route.channel)
    store_u32(out, wire.SESSION_AT, route.session)
    store_u16(out, wire.TOPIC_AT, route.topic)
    store_u16(out, wire.LENGTH_AT, length)
    store_u16(out, wire.RECEIVER_AT, wire.RECEIVER_ALL)
    store_u16(out, wire.SOURCE_AT, route.source)
    store_i64(out, wire.SEQ_AT, seq)
    store_i64(out, wire.TIME_AT, time_ns)
    return length


@inlined
def put_status(out, flags, route, status):
    """STATUS of one image."""
    n = put_packet_header(out, wire.STATUS, flags, route, wire.STATUS_BYTES, 0, status.echo_ns)
    store_i64(out, wire.STATUS_RECEIVER_AT, status.receiver)
    store_i64(out, wire.STATUS_CONSUMED_AT, status.consumed)
    store_i64(out, wire.STATUS_CONTIGUOUS_AT, status.contiguous)
    store_u32(out, wire.STATUS_WINDOW_AT, status.window)
    store_u32(out, wire.STATUS_ECHO_DELAY_AT, min(status.echo_delay_us, 0xFFFFFFFF))
    store_i64(out, wire.STATUS_LOST_AT, status.lost)
    return n


@inlined
def put_name(out, name):
    """The name of the receiver's node behind its STATUS."""
    store_u8(out, wire.STATUS_NAME_LEN_AT, name.size)
    copy(out, wire.STATUS_NAME_AT, name, 0, name.size)
    n = wire.STATUS_NAME_AT + name.size
    store_u16(out, wire.LENGTH_AT, n)
    return n


@inlined
def put_ack(out, route, ack):
    """ACK of one producer's session."""
    n = put_packet_header(out, wire.ACK, 0, route, wire.ACK_BYTES, ack.packet, 0)
    store_i64(out, wire.ACK_PRODUCER_AT, ack.producer)
    store_i64(out, wire.ACK_EPOCH_AT, ack.epoch)
    store_i64(out, wire.ACK_FIRST_SEQ_AT, ack.first_seq)
    store_i64(out, wire.ACK_COUNT_AT, ack.messages)
    store_u32(out, wire.ACK_OFFSET_AT, ack.offset)
    store_u32(out, wire.ACK_STATE_AT, ack.state & 0xFFFFFFFF)
    store_i64(out, wire.ACK_OWNER_AT, ack.owner)
    return n


@inlined
def put_nak(out, route, receiver, ranges, count, now_ns):
    """NAK with ``count`` ranges {first, packets}."""
    length = wire.NAK_RANGES_AT + count * wire.NAK_RANGE_BYTES
    put_packet_header(out, wire.NAK, 0, route, length, 0, now_ns)
    store_i64(out, wire.NAK_RECEIVER_AT, receiver)
    store_i64(out, wire.NAK_COUNT_AT, count)
    for i in range(count):
        at = wire.NAK_RANGES_AT + i * wire.NAK_RANGE_BYTES
        store_i64(out, at, ranges[i, 0])
        store_u32(out, at + 8, ranges[i, 1])
    return length
