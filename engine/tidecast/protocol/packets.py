"""Build control packets into a byte buffer. Every function returns the packet's length."""

from __future__ import annotations

from tidecast.layout import packet as wire
from tidecast.native.jit import inlined
from tidecast.native.memory import copy, store_i64, store_u8, store_u16, store_u32


@inlined
def put_packet_header(out, kind, flags, channel, session, topic, length, source, seq, time_ns):
    """Write a packet header at offset 0, addressed to all."""
    store_u8(out, wire.VERSION_AT, wire.VERSION)
    store_u8(out, wire.TYPE_AT, kind)
    store_u8(out, wire.FLAGS_AT, flags)
    store_u8(out, wire.CHANNEL_AT, channel)
    store_u32(out, wire.SESSION_AT, session)
    store_u16(out, wire.TOPIC_AT, topic)
    store_u16(out, wire.LENGTH_AT, length)
    store_u16(out, wire.RECEIVER_AT, wire.RECEIVER_ALL)
    store_u16(out, wire.SOURCE_AT, source)
    store_i64(out, wire.SEQ_AT, seq)
    store_i64(out, wire.TIME_AT, time_ns)
    return length


@inlined
def put_status(
    out,
    flags,
    channel,
    session,
    topic,
    source,
    receiver,
    consumed,
    contiguous,
    window,
    lost,
    echo_ns,
    echo_delay_us,
):
    """STATUS of one image."""
    n = put_packet_header(
        out, wire.STATUS, flags, channel, session, topic, wire.STATUS_BYTES, source, 0, echo_ns
    )
    store_i64(out, wire.STATUS_RECEIVER_AT, receiver)
    store_i64(out, wire.STATUS_CONSUMED_AT, consumed)
    store_i64(out, wire.STATUS_CONTIGUOUS_AT, contiguous)
    store_u32(out, wire.STATUS_WINDOW_AT, window)
    store_u32(out, wire.STATUS_ECHO_DELAY_AT, min(echo_delay_us, 0xFFFFFFFF))
    store_i64(out, wire.STATUS_LOST_AT, lost)
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
def put_ack(
    out,
    channel,
    session,
    topic,
    source,
    producer,
    epoch,
    first_seq,
    packet,
    offset,
    count,
    state,
    owner,
):
    """ACK of one producer's session: durable up to ``offset`` in ``packet``."""
    n = put_packet_header(
        out, wire.ACK, 0, channel, session, topic, wire.ACK_BYTES, source, packet, 0
    )
    store_i64(out, wire.ACK_PRODUCER_AT, producer)
    store_i64(out, wire.ACK_EPOCH_AT, epoch)
    store_i64(out, wire.ACK_FIRST_SEQ_AT, first_seq)
    store_i64(out, wire.ACK_COUNT_AT, count)
    store_u32(out, wire.ACK_OFFSET_AT, offset)
    store_u32(out, wire.ACK_STATE_AT, state & 0xFFFFFFFF)
    store_i64(out, wire.ACK_OWNER_AT, owner)
    return n


@inlined
def put_nak(out, channel, session, topic, source, receiver, ranges, count, now_ns):
    """NAK with ``count`` ranges {first, packets}."""
    length = wire.NAK_RANGES_AT + count * wire.NAK_RANGE_BYTES
    put_packet_header(out, wire.NAK, 0, channel, session, topic, length, source, 0, now_ns)
    store_i64(out, wire.NAK_RECEIVER_AT, receiver)
    store_i64(out, wire.NAK_COUNT_AT, count)
    for i in range(count):
        at = wire.NAK_RANGES_AT + i * wire.NAK_RANGE_BYTES
        store_i64(out, at, ranges[i, 0])
        store_u32(out, at + 8, ranges[i, 1])
    return length
