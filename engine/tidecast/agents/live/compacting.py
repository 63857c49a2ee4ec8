"""COMPACT packets at the sender: a run of new packets is staged with references to its table.

Packets stay in full in the ring, so local readers, repairs and history know no tables. Definitions
leave in TABLE packets in front of the first run that refers to them.
"""

from __future__ import annotations

from tidecast.buffers.slots import control_at
from tidecast.layout import packet as wire
from tidecast.layout import ring as lay
from tidecast.layout.counters import Counter as C
from tidecast.native.atomics import load_acquire
from tidecast.native.jit import inlined
from tidecast.native.memory import bytes_at, copy, load_i64, load_u8, load_u16, store_i64, store_u16
from tidecast.protocol.flow_control import RECEIVERS_MAX
from tidecast.protocol.packets import Route, put_packet_header
from tidecast.protocol.tables.writing import (
    T_DEFINED,
    T_ENTRIES,
    WRITER_BYTES,
    begin_table,
    compact,
    is_worn_out,
    put_definitions,
)
from tidecast.transport.wire_io import send_run_to_all

TABLE_AGAIN_NS = 20_000_000
"""All of a table is defined again at most so often, however many receivers ask."""
JUDGED_BYTES = 256 * 1024
SAVED_SHIFT = 4
SKIPPED_PACKETS = 4096
"""Tables that save less than 1/16 of the judged bytes rest for so many packets."""
IN_FULL = 0
_HEADER = wire.PACKET_HEADER_BYTES


@inlined
def table_of(pub):
    """The publication's table."""
    return bytes_at(pub.table_address, WRITER_BYTES)


@inlined
def use_tables(S, p, pub):
    """Use tables while there are receivers, and all of them read tables."""
    pub.compacts = 0
    if pub.tables == 0 or pub.receivers == 0:
        return
    for i in range(RECEIVERS_MAX):
        if S.receivers[p, i].id != 0 and S.receivers[p, i].tables == 0:
            return
    pub.compacts = 1


@inlined
def define_again(pub, now_ns):
    """A receiver has no table, or lacks a part: the next run follows all definitions."""
    if pub.table_address != 0 and now_ns - pub.table_ns >= TABLE_AGAIN_NS:
        pub.table_ns = now_ns
        store_i64(table_of(pub), T_DEFINED, 0)


@inlined
def _define(S, pub, block, node, now_ns):
    """Send the entries that were not yet defined. 1: done; else as `send_run_to_all` returns."""
    length_max = min(pub.slot_bytes, wire.TABLE_PACKET_BYTES_MAX)
    first = load_i64(block, T_DEFINED)
    while first < load_i64(block, T_ENTRIES):
        length, following = put_definitions(block, first, S.packet, length_max)
        route = Route(pub.channel, pub.session, pub.topic, node)
        put_packet_header(S.packet, wire.TABLE, 0, route, length, pub.sent, now_ns)
        sent = send_run_to_all(S.tx, pub.channel, S.packet, 0, length, 1, False)
        if sent <= 0:
            return sent
        pub.table_debt += length
        pub.wire_bytes += length
        first = following
        store_i64(block, T_DEFINED, first)
    return 1


@inlined
def _judge(pub, full, saved):
    """Let tables rest where they save little."""
    pub.table_seen += full
    pub.table_saved += saved
    if pub.table_seen >= JUDGED_BYTES:
        if pub.table_saved << SAVED_SHIFT < pub.table_seen:
            pub.table_skip = SKIPPED_PACKETS
        pub.table_seen = pub.table_saved = 0


@inlined
def stage_run(S, pub, ring, packets, node, now_ns):
    """Stage the sealed packets from `sent` on: (stride, bytes) of the run in ``S.compact``.

    The stride is IN_FULL when nothing refers to the table, and below it when the definitions could
    not be sent: then the second is as `send_run_to_all` returns.
    """
    if pub.table_skip > 0:
        pub.table_skip -= packets
        return IN_FULL, 0
    block = table_of(pub)
    if is_worn_out(block, now_ns):
        begin_table(block, now_ns)
    widest, total, full = 0, 0, 0
    for i in range(packets):
        seq, to = pub.sent + i, i * pub.slot_bytes
        word = load_acquire(ring, control_at(seq, pub.slots - 1))
        length = min(max(word & lay.CONTROL_LENGTH_MASK, _HEADER), pub.slot_bytes)
        slot = pub.slots_at + (seq & (pub.slots - 1)) * pub.slot_bytes
        made = compact(block, ring, slot, length, S.bounce, to)
        if made == 0:
            made = length
            copy(S.bounce, to, ring, slot, length)
            store_u16(S.bounce, to + wire.LENGTH_AT, length)
        full += length
        total += made
        widest = max(widest, made)
    _judge(pub, full, full - total)
    if total == full:
        return IN_FULL, 0
    sent = _define(S, pub, block, node, now_ns)
    if sent <= 0:
        return -1, sent
    for i in range(packets):
        at = i * pub.slot_bytes
        copy(S.compact, i * widest, S.bounce, at, load_u16(S.bounce, at + wire.LENGTH_AT))
    return widest, total


@inlined
def staged_bytes(S, pub, stride, packets):
    """Bytes of the first staged packets, which are sent; counts the COMPACT packets of them."""
    total = 0
    saved = 0
    for i in range(packets):
        at = i * stride
        length = load_u16(S.compact, at + wire.LENGTH_AT)
        total += length
        if load_u8(S.compact, at + wire.TYPE_AT) == wire.COMPACT:
            saved += load_u16(S.compact, at + wire.COMPACT_LENGTH_AT) - length
            S.counters[pub.row, C.COMPACTED] += 1
    paid = min(saved, pub.table_debt)
    pub.table_debt -= paid
    S.counters[pub.row, C.BYTES_SAVED] += saved - paid
    return total
