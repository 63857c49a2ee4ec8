"""Checks that a packet belongs to Tidecast and is sound. Code behind it may trust the lengths."""

from __future__ import annotations

from tidecast.layout import packet as wire
from tidecast.layout.counters import Counter
from tidecast.native.jit import inlined
from tidecast.native.memory import load_i64, load_u8, load_u16, load_u32
from tidecast.protocol.area import area_begin, check_area
from tidecast.protocol.tables.reading import check_definitions

_SHORT, _VERSION = int(Counter.INVALID_SHORT), int(Counter.INVALID_VERSION)
_TYPE, _FIELD = int(Counter.INVALID_TYPE), int(Counter.INVALID_FIELD)
_AREA = int(Counter.INVALID_AREA)
_SEQ_MAX = 1 << 60


@inlined
def check_packet(buffer, at, n):
    """0 when the packet of ``n`` bytes at ``at`` is sound, else the counter of the problem."""
    if n < wire.PACKET_HEADER_BYTES:
        return _SHORT
    if load_u8(buffer, at + wire.VERSION_AT) != wire.VERSION:
        return _VERSION
    kind = load_u8(buffer, at + wire.TYPE_AT)
    if kind < wire.DATA or kind > wire.TYPE_MAX:
        return _TYPE
    length = load_u16(buffer, at + wire.LENGTH_AT)
    if length < wire.PACKET_HEADER_BYTES or length > n:
        return _SHORT
    seq = load_i64(buffer, at + wire.SEQ_AT)
    if (
        load_u8(buffer, at + wire.CHANNEL_AT) >= wire.CHANNELS
        or load_u32(buffer, at + wire.SESSION_AT) == 0
        or load_u16(buffer, at + wire.SOURCE_AT) == 0
        or seq < 0
        or seq > _SEQ_MAX
    ):
        return _FIELD
    if kind == wire.DATA or kind == wire.HEARTBEAT or kind == wire.LOST:
        return 0
    return _check_body(buffer, at, kind, length)


@inlined
def _check_body(buffer, at, kind, length):
    if kind == wire.NAK:
        if length < wire.NAK_RANGES_AT:
            return _SHORT
        count = load_u32(buffer, at + wire.NAK_COUNT_AT)
        if count > wire.NAK_RANGES_MAX:
            return _FIELD
        if length < wire.NAK_RANGES_AT + count * wire.NAK_RANGE_BYTES:
            return _SHORT
        end = 0  # ranges ascend and do not overlap, so that one NAK costs at most one history
        for i in range(count):
            range_at = at + wire.NAK_RANGES_AT + i * wire.NAK_RANGE_BYTES
            first = load_i64(buffer, range_at)
            if first < end or first > _SEQ_MAX:
                return _FIELD
            end = first + load_u32(buffer, range_at + 8)
        return 0
    if kind == wire.ACK:
        return _check_ack(buffer, at, length)
    if kind == wire.COMPACT:
        return _SHORT if length <= wire.COMPACT_OPERATIONS_AT else 0
    if kind == wire.TABLE:
        if length < wire.TABLE_DEFINITIONS_AT:
            return _SHORT
        return 0 if check_definitions(buffer, at, length) else _FIELD
    if kind == wire.STATUS:
        if length < wire.STATUS_BYTES:
            return _SHORT
        consumed = load_i64(buffer, at + wire.STATUS_CONSUMED_AT)
        contiguous = load_i64(buffer, at + wire.STATUS_CONTIGUOUS_AT)
        if not (0 <= consumed <= contiguous <= _SEQ_MAX):
            return _FIELD
        if load_i64(buffer, at + wire.STATUS_RECEIVER_AT) <= 0:
            return _FIELD
        if length > wire.STATUS_BYTES:
            name_n = load_u8(buffer, at + wire.STATUS_NAME_LEN_AT)
            if name_n > wire.NAME_BYTES_MAX:
                return _FIELD
            if length < wire.STATUS_NAME_AT + name_n:
                return _SHORT
        return 0
    return _check_setup(buffer, at, length)


@inlined
def _check_ack(buffer, at, length):
    if length < wire.ACK_BYTES:
        return _SHORT
    offset = load_u32(buffer, at + wire.ACK_OFFSET_AT)
    if (
        load_i64(buffer, at + wire.ACK_PRODUCER_AT) <= 0
        or not 0 < load_i64(buffer, at + wire.ACK_EPOCH_AT) <= wire.EPOCH_MAX
        or not 0 < load_i64(buffer, at + wire.ACK_FIRST_SEQ_AT) <= wire.MESSAGE_SEQ_MAX
        or not 0 <= load_i64(buffer, at + wire.ACK_COUNT_AT) <= wire.MESSAGE_SEQ_MAX
        or not 0 <= load_i64(buffer, at + wire.ACK_OWNER_AT) <= wire.EPOCH_MAX
        or offset < wire.PACKET_HEADER_BYTES
        or offset > wire.PACKET_BYTES_MAX
    ):
        return _FIELD
    return 0


@inlined
def _check_producer(buffer, at):
    packet = load_i64(buffer, at + wire.SETUP_ACKED_PACKET_AT)
    offset = load_i64(buffer, at + wire.SETUP_ACKED_OFFSET_AT)
    if (
        load_i64(buffer, at + wire.SETUP_PRODUCER_AT) <= 0
        or not 0 <= load_i64(buffer, at + wire.SETUP_EPOCH_AT) <= wire.EPOCH_MAX
        or not 0 <= load_i64(buffer, at + wire.SETUP_FIRST_SEQ_AT) <= wire.MESSAGE_SEQ_MAX
        or not 0 <= packet <= _SEQ_MAX
        or not wire.PACKET_HEADER_BYTES <= offset <= wire.PACKET_BYTES_MAX
        or not 0 <= load_i64(buffer, at + wire.SETUP_ACKED_COUNT_AT) <= wire.MESSAGE_SEQ_MAX
    ):
        return _FIELD
    return 0


@inlined
def _check_setup(buffer, at, length):
    if length < wire.SETUP_NAMES_AT:
        return _SHORT
    node_n = load_u8(buffer, at + wire.SETUP_NODE_LEN_AT)
    topic_n = load_u8(buffer, at + wire.SETUP_TOPIC_LEN_AT)
    names_end = wire.SETUP_NAMES_AT + node_n + topic_n
    end = length - load_u8(buffer, at + wire.SETUP_PLATFORM_LEN_AT)
    if end < names_end:
        return _SHORT
    slots = load_u32(buffer, at + wire.SETUP_SLOTS_AT)
    size = load_u16(buffer, at + wire.SETUP_PACKET_BYTES_AT)
    oldest = load_i64(buffer, at + wire.SETUP_OLDEST_AT)
    if (
        slots == 0
        or slots & (slots - 1) != 0
        or slots > (1 << 20)
        or size < wire.PACKET_BYTES_MIN
        or size > wire.PACKET_BYTES_MAX
        or oldest < 0
        or oldest > load_i64(buffer, at + wire.SEQ_AT)
        or load_u8(buffer, at + wire.SETUP_FLOW_AT) > 2
        or load_u8(buffer, at + wire.SETUP_RELIABILITY_AT) > 2
        or load_i64(buffer, at + wire.SETUP_INCARNATION_AT) <= 0
        or load_i64(buffer, at + wire.SETUP_AGE_AT) < 0
        or load_u8(buffer, at + wire.SETUP_SAMPLING_AT) > wire.SAMPLING_MAX
    ):
        return _FIELD
    flags = load_u8(buffer, at + wire.FLAGS_AT)
    if flags & wire.FLAG_PRODUCER:
        if end < names_end + wire.PRODUCER_BYTES_MIN:
            return _SHORT
        cause = _check_producer(buffer, at + names_end)
        if cause != 0:
            return cause
    if flags & wire.FLAG_AREA:
        begin = area_begin(buffer, at)
        if at + end < begin:  # a block of older nodes is shorter
            return _AREA
        return check_area(buffer, begin, at + end)
    return 0
