"""Unordered topics: reading past holes. Packets read ahead are skipped when their turn comes.

The reader keeps the order wherever it can; only at a hole (a packet lost and not yet repaired) it
reads ahead, up to the newest packet. A fragmented message is read ahead once all of it is there.
"""

from __future__ import annotations

from tidecast.buffers.reading import (
    ASSEMBLED,
    GAP,
    NEED_BUFFER,
    R_AHEAD,
    R_AHEAD_AT,
    R_AT,
    R_FILLED,
    R_MASK,
    R_SEEN,
    R_SEQ,
    R_SLOT_BYTES,
    R_SLOTS,
    R_SLOTS_AT,
    R_TOTAL,
    fragment,
    is_fragment,
    is_malformed,
    list_messages,
    next_packet,
    note_malformed,
)
from tidecast.buffers.slots import control_at, holds
from tidecast.layout import packet as wire
from tidecast.layout import ring as lay
from tidecast.native.atomics import load_acquire
from tidecast.native.jit import inlined
from tidecast.native.memory import bytes_at, load_u8, load_u32, store_u8

_HEADER = wire.PACKET_HEADER_BYTES


@inlined
def _was_seen(r, seq):
    i = seq & r[R_MASK]
    seen = bytes_at(r[R_SEEN], r[R_SLOTS] >> 3)
    return (load_u8(seen, i >> 3) >> (i & 7)) & 1 != 0


@inlined
def _mark(r, seq, bit):
    i = seq & r[R_MASK]
    seen = bytes_at(r[R_SEEN], r[R_SLOTS] >> 3)
    byte = load_u8(seen, i >> 3) & ~(1 << (i & 7))
    store_u8(seen, i >> 3, byte | (bit << (i & 7)))


@inlined
def resume_behind_hole(r):
    """At R_SEQ: True when it was read ahead (now skipped). The rest of a packet follows there."""
    seq = r[R_SEQ]
    if _was_seen(r, seq):
        _mark(r, seq, 0)
        next_packet(r)
        return True
    if r[R_AHEAD] == seq and r[R_AHEAD_AT] != 0:
        r[R_AT], r[R_AHEAD_AT] = r[R_AHEAD_AT], 0
    return False


@inlined
def forget_seen(r, end):
    """The reader jumps to packet ``end``: forget the packets before it that were read ahead."""
    for seq in range(r[R_SEQ], min(end, r[R_SEQ] + r[R_SLOTS])):
        _mark(r, seq, 0)
    if r[R_AHEAD] < end:
        r[R_AHEAD_AT] = 0


@inlined
def _sealed_length(ring, r, seq):
    """Bytes of a sealed packet, or -1 when it is not there."""
    word = load_acquire(ring, control_at(seq, r[R_MASK]))
    if not holds(word, seq) or (word >> lay.STATE_SHIFT) & 0xFF != lay.SEALED:
        return -1
    length = word & lay.CONTROL_LENGTH_MASK
    if length > r[R_SLOT_BYTES]:
        return -1
    return length


@inlined
def _chain_end(ring, r, seq, highest):
    """Behind the last packet of the fragmented message that begins at ``seq``; -1: not all here."""
    while seq < highest:
        length = _sealed_length(ring, r, seq)
        if length < _HEADER + 4:
            return -1
        slot = r[R_SLOTS_AT] + (seq & r[R_MASK]) * r[R_SLOT_BYTES]
        seq += 1
        if (load_u32(ring, slot + _HEADER) >> 24) & wire.END != 0:
            return seq
    return -1


@inlined
def next_ahead(ring, r):
    """The first packet behind the hole that can be read now, or -1."""
    highest = min(load_acquire(ring, lay.HIGHEST_AT), r[R_SEQ] + r[R_SLOTS])
    assembling = 0 < r[R_FILLED] < r[R_TOTAL]  # the buffer holds half a message, up to the hole
    for seq in range(r[R_SEQ] + 1, highest):
        if _was_seen(r, seq):
            continue
        length = _sealed_length(ring, r, seq)
        if length < 0:
            continue
        slot = r[R_SLOTS_AT] + (seq & r[R_MASK]) * r[R_SLOT_BYTES]
        if not is_fragment(ring, slot + _HEADER, slot + length):
            return seq
        if assembling:
            continue
        begins = (load_u32(ring, slot + _HEADER) >> 24) & wire.BEGIN != 0
        if begins and _chain_end(ring, r, seq, highest) >= 0:
            return seq
    return -1


@inlined
def _assemble_ahead(ring, r, assembly, seq):
    """Assemble the complete fragmented message that begins at ``seq``; as `fragment` returns."""
    hole, at = r[R_SEQ], r[R_AT]
    r[R_SEQ], r[R_AT] = seq, _HEADER
    status = 0
    for _ in range(r[R_SLOTS]):
        current = r[R_SEQ]
        slot = r[R_SLOTS_AT] + (current & r[R_MASK]) * r[R_SLOT_BYTES]
        head = load_u32(ring, slot + _HEADER)
        length = _sealed_length(ring, r, current)
        if length < 0 or (head & 0xFFFFFF) + _HEADER + 4 > length:
            note_malformed(r, current)
            _mark(r, current, 1)
            status = GAP
            break
        status = fragment(ring, r, assembly, slot + _HEADER, head & 0xFFFFFF, head >> 24)
        if status == NEED_BUFFER:
            break
        _mark(r, current, 1)
        if status == ASSEMBLED or status == GAP or (head >> 24) & wire.END != 0:
            break
    r[R_SEQ], r[R_AT] = hole, at
    return status


@inlined
def read_ahead(ring, r, assembly, out, limit):
    """Read packets behind the hole at R_SEQ: the count of messages, or as `fragment` returns."""
    n = 0
    while n < limit:
        seq = r[R_AHEAD]
        if r[R_AHEAD_AT] == 0:
            seq = next_ahead(ring, r)
        if seq < 0:
            break
        length = _sealed_length(ring, r, seq)
        if length < 0:
            break
        slot = r[R_SLOTS_AT] + (seq & r[R_MASK]) * r[R_SLOT_BYTES]
        start, end = slot + max(r[R_AHEAD_AT], _HEADER), slot + length
        first = start == slot + _HEADER and is_fragment(ring, start, end)
        if first and n > 0:
            break
        if first and not is_malformed(ring, start, end):
            status = _assemble_ahead(ring, r, assembly, seq)
            if status != 0:
                return status
            continue
        n, at = list_messages(ring, r, out, n, limit, start, end)
        if at >= end:
            _mark(r, seq, 1)
            r[R_AHEAD_AT] = 0
            continue
        r[R_AHEAD], r[R_AHEAD_AT] = seq, at - slot
        if n > 0:
            break
        # Neither a message nor the beginning of a message: the rest of this packet is lost.
        filled, total = r[R_FILLED], r[R_TOTAL]
        note_malformed(r, seq)
        r[R_FILLED], r[R_TOTAL] = filled, total  # of the message before the hole
        _mark(r, seq, 1)
        r[R_AHEAD_AT] = 0
        return GAP
    return n
