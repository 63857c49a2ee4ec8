"""Common to readers of a packet ring: their private state, and the parsing of messages."""

from __future__ import annotations

from tidecast.buffers.slots import control_at, holds, packets_ahead
from tidecast.layout import packet as wire
from tidecast.layout import ring as lay
from tidecast.native.atomics import fence_acquire, load_acquire
from tidecast.native.jit import hot, inlined
from tidecast.native.memory import copy, load_i64, load_u16, load_u32

R_SEQ, R_AT, R_MASK, R_SLOTS, R_SLOT_BYTES, R_SLOTS_AT = 0, 1, 2, 3, 4, 5
R_ENTRY, R_CONSUMER, R_KIND, R_SEEN = 6, 7, 8, 9
R_GAP_FIRST, R_GAP_END, R_TOTAL, R_FILLED = 10, 11, 12, 13
R_MESSAGES, R_BYTES, R_MALFORMED, R_GAPS = 14, 15, 16, 17
R_SUBSCRIBER, R_LOST_PACKETS, R_META_AT, R_META_N, R_FLAGS = 18, 19, 20, 21, 22
R_AHEAD, R_AHEAD_AT, R_GAP_REASON = 23, 24, 25
READER_FIELDS = 26
"""Private reader state: packet and offset within it, geometry, consumer entry, the last gap and its
reason, assembly of a fragmented message (total, filled, offset of its optional fields), counts; for
unordered topics the address of a bitmap of packets read ahead of a hole (0: ordered), and the
packet, and the offset in it, where reading ahead stopped."""

G_LOST, G_LAPPED, G_MALFORMED, G_ENDED = 0, 1, 2, 3
GAP_REASONS = ("lost", "lapped", "malformed", "ended")
"""Why a reader has a gap: the publisher no longer holds the packets; the ring was overwritten,
because the reader is untethered or was evicted; the content cannot be parsed; the session ended
before the packets came."""

GAP, NEED_BUFFER, ASSEMBLED = -1, -2, -3
"""Poll results below zero. GAP: packets [R_GAP_FIRST, R_GAP_END) are lost. NEED_BUFFER: give an
assembly buffer of R_TOTAL bytes and poll again. ASSEMBLED: the buffer holds one whole message."""

OUT_FIELDS = 4
OUT_AT, OUT_LENGTH, OUT_META_AT, OUT_FLAGS = 0, 1, 2, 3
"""Columns of poll's output: payload offset in the ring, payload bytes, offset of the optional
fields, message flags."""

_HEADER = wire.PACKET_HEADER_BYTES


@inlined
def optional_fields_bytes(ring, at, end, flags):
    """Bytes of the optional fields that start at ``at``; -1 when they do not fit before ``end``."""
    start = at
    if flags & wire.TIMESTAMP:
        at += 8
    if flags & wire.TO:
        at += 4
    if flags & wire.KEY:
        if at + 2 > end:
            return -1
        at += 2 + load_u16(ring, at)
    if flags & wire.HEADERS:
        if at + 2 > end:
            return -1
        at += 2 + load_u16(ring, at)
    if at > end:
        return -1
    return at - start


@inlined
def addressed_to_other(ring, at, flags, subscriber):
    """Whether a message is for another subscriber alone. ``subscriber`` -1 reads all messages."""
    if flags & wire.TO == 0 or subscriber < 0:
        return False
    if flags & wire.TIMESTAMP:
        at += 8
    return load_u32(ring, at) != subscriber


@hot
def next_packet(r):
    """Step to the packet behind the current one."""
    r[R_SEQ] += 1
    r[R_AT] = _HEADER


@hot
def list_messages(ring, r, out, n, limit, at, end):
    """Note the whole messages between ``at`` and ``end`` in ``out``.

    Returns (count, where it stopped): at ``end``, at the limit, at a fragment, or at malformed
    bytes (see `is_malformed`).
    """
    while at + 4 <= end and n < limit:
        head = load_u32(ring, at)
        size = head & 0xFFFFFF
        flags = head >> 24
        if at + 4 + size > end or flags & wire.WHOLE != wire.WHOLE:
            break
        lead = 0
        if flags != wire.WHOLE:
            lead = optional_fields_bytes(ring, at + 4, at + 4 + size, flags)
            if lead < 0:
                break
            if addressed_to_other(ring, at + 4, flags, r[R_SUBSCRIBER]):
                at += 4 + size
                continue
        out[n, OUT_AT] = at + 4 + lead
        out[n, OUT_LENGTH] = size - lead
        out[n, OUT_META_AT] = at + 4
        out[n, OUT_FLAGS] = flags
        n += 1
        at += 4 + size
    return n, at


@inlined
def for_another_node(ring, r, slot):
    """Whether the packet at ``slot`` of a local publication is for another node alone."""
    if r[R_KIND] != lay.KIND_PUBLICATION:
        return False  # an image has no such packets
    receiver = load_u16(ring, slot + wire.RECEIVER_AT)
    return receiver != wire.RECEIVER_ALL and receiver != load_u16(ring, slot + wire.SOURCE_AT)


@hot
def is_malformed(ring, at, end):
    """Whether the bytes from ``at`` to ``end`` begin with neither a message nor a fragment."""
    if at >= end:
        return False
    if at + 4 > end:
        return True
    head = load_u32(ring, at)
    size, flags = head & 0xFFFFFF, head >> 24
    if at + 4 + size > end:
        return True
    if flags & wire.WHOLE != wire.WHOLE:
        return at + 4 + size != end  # a fragment has the rest of its packet to itself
    return optional_fields_bytes(ring, at + 4, at + 4 + size, flags) < 0


@hot
def note_malformed(r, seq):
    """Packet ``seq`` cannot be parsed from here on: a gap. A message begun before it is lost."""
    r[R_GAP_FIRST], r[R_GAP_END], r[R_GAP_REASON] = seq, seq + 1, G_MALFORMED
    r[R_GAPS] += 1
    r[R_LOST_PACKETS] += 1
    r[R_MALFORMED] += 1
    r[R_TOTAL], r[R_FILLED] = 0, 0


@hot
def unfinished(ring, r, at, end):
    """Does a packet that begins at ``at`` leave the message that is being assembled unfinished?"""
    if not 0 < r[R_FILLED] < r[R_TOTAL] or at + 4 > end:
        return False
    return (load_u32(ring, at) >> 24) & wire.BEGIN != 0


@hot
def is_fragment(ring, at, end):
    """Does a fragment of a larger message begin at ``at``?"""
    return at + 4 <= end and (load_u32(ring, at) >> 24) & wire.WHOLE != wire.WHOLE


@inlined
def held(ring, r, seq):
    """Does the ring still hold packet ``seq``, after bytes of it were read? A seqlock's check.

    Only a reader that is untethered or was evicted can lose a packet it reads.
    """
    fence_acquire()
    return holds(load_acquire(ring, control_at(seq, r[R_MASK])), seq)


@hot
def lapped(ring, r, seq):
    """Whether a newer packet has replaced ``seq`` in its slot (False for a hole)."""
    fence_acquire()
    return packets_ahead(load_acquire(ring, control_at(seq, r[R_MASK])), seq) > 0


@inlined
def _malformed_fragment(ring, r):
    """Skip the packet and return GAP; 0 when a newer packet replaced it while it was parsed."""
    r[R_TOTAL] = 0
    if not held(ring, r, r[R_SEQ]):
        return 0
    note_malformed(r, r[R_SEQ])
    next_packet(r)
    return GAP


@inlined
def _pass_over(ring, r):
    """Skip a fragment of another reader, unless a newer packet has replaced the packet."""
    if held(ring, r, r[R_SEQ]):
        next_packet(r)
    return 0


@inlined
def fragment(ring, r, assembly, at, length, flags):
    """Copy a fragment (``length`` bytes behind the message header at ``at``) into ``assembly``.

    Returns 0 to continue, NEED_BUFFER, ASSEMBLED, or GAP when the packet is malformed. Advances to
    the next packet unless NEED_BUFFER.
    """
    body, end = at + 4, at + 4 + length
    if flags & wire.BEGIN:
        lead = -1
        if length >= 8:
            lead = optional_fields_bytes(ring, body + 8, end, flags)
        total = load_i64(ring, body) if length >= 8 else 0
        if lead < 0 or total <= 0 or total > wire.MESSAGE_BYTES_MAX:
            return _malformed_fragment(ring, r)
        if addressed_to_other(ring, body + 8, flags, r[R_SUBSCRIBER]):
            r[R_TOTAL] = 0
            return _pass_over(ring, r)
        r[R_TOTAL], r[R_FILLED] = total, 0
        if assembly.size < total + lead:
            r[R_META_N] = lead
            return NEED_BUFFER
        r[R_META_AT], r[R_META_N], r[R_FLAGS] = total, lead, flags
        copy(assembly, total, ring, body + 8, lead)
        body += 8 + lead
    part = end - body
    if r[R_TOTAL] == 0:
        return _pass_over(ring, r)  # the reader joined within a message, or lost its beginning
    if part < 0 or r[R_FILLED] + part > r[R_TOTAL]:
        return _malformed_fragment(ring, r)
    copy(assembly, r[R_FILLED], ring, body, part)
    if not held(ring, r, r[R_SEQ]):
        r[R_TOTAL] = 0  # overwritten during the copy: the next poll of this slot finds the gap
        return 0
    r[R_FILLED] += part
    if flags & wire.END and r[R_FILLED] != r[R_TOTAL]:
        return _malformed_fragment(ring, r)
    next_packet(r)
    if flags & wire.END:
        r[R_MESSAGES] += 1
        r[R_BYTES] += r[R_TOTAL]
        return ASSEMBLED
    return 0
