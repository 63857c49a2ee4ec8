"""The reader's side of a packet ring: poll a batch in place, assemble fragments, notice gaps.

The private state of one reader is an ``int64`` array indexed by the ``R_*`` names. `poll` returns
where messages lie; the payloads stay in the ring until the next poll, which releases them. Readers
of a tethered consumer entry are never overwritten; an evicted or untethered one may be, and finds
out: a slot that holds a newer packet is a gap, reported as a range, never skipped in silence.
"""

from __future__ import annotations

import numpy as np

from tidecast.buffers.slots import control_at, holds, packets_ahead
from tidecast.layout import packet as wire
from tidecast.layout import ring as lay
from tidecast.native.atomics import (
    fence_acquire,
    fence_seq_cst,
    fetch_and,
    fetch_or,
    load_acquire,
    load_relaxed,
    store_release,
)
from tidecast.native.jit import held_kernel, inlined
from tidecast.native.memory import copy, load_i64, load_u16, load_u32
from tidecast.native.mapped import Bytes

R_SEQ, R_AT, R_MASK, R_SLOTS, R_SLOT_BYTES, R_SLOTS_AT = 0, 1, 2, 3, 4, 5
R_ENTRY, R_CONSUMER, R_KIND, R_ORDERED = 6, 7, 8, 9
R_GAP_FIRST, R_GAP_END, R_TOTAL, R_FILLED = 10, 11, 12, 13
R_MESSAGES, R_BYTES, R_MALFORMED, R_GAPS = 14, 15, 16, 17
R_SUBSCRIBER, R_LOST_PACKETS, R_META_AT, R_META_N, R_FLAGS = 18, 19, 20, 21, 22
READER_FIELDS = 24
"""Private reader state: packet and offset within it, geometry, consumer entry, the last gap,
assembly of a fragmented message (total, filled, where its optional fields lie), counts."""

GAP, NEED_BUFFER, ASSEMBLED = -1, -2, -3
"""Poll results below zero. GAP: packets [R_GAP_FIRST, R_GAP_END) are lost. NEED_BUFFER: give an
assembly buffer of R_TOTAL bytes and poll again. ASSEMBLED: the buffer holds one whole message."""

OUT_FIELDS = 4
OUT_AT, OUT_LENGTH, OUT_META_AT, OUT_FLAGS = 0, 1, 2, 3
"""Columns of poll's output: payload offset in the ring, payload bytes, offset of the optional
fields, message flags."""

_HEADER = wire.PACKET_HEADER_BYTES


def reader_state(ring: Bytes, consumer: int, subscriber: int = 0) -> np.ndarray:
    """Private state for reading ``ring`` through consumer entry ``consumer``, from its position."""
    from tidecast.buffers.ring_file import describe

    about = describe(ring)
    r = np.zeros(READER_FIELDS, dtype=np.int64)
    entry = lay.CONSUMERS_AT + consumer * lay.CONSUMER_BYTES
    fields = ring[entry : entry + lay.CONSUMER_BYTES].view(np.int64)
    r[R_SEQ] = fields[lay.CONSUMER_POSITION_AT // 8]
    r[R_AT] = max(_HEADER, min(fields[lay.CONSUMER_OFFSET_AT // 8], about.slot_bytes))
    r[R_MASK], r[R_SLOTS] = about.slots - 1, about.slots
    r[R_SLOT_BYTES], r[R_SLOTS_AT] = about.slot_bytes, lay.slots_at(about.slots)
    r[R_ENTRY], r[R_CONSUMER], r[R_KIND] = entry, consumer, about.kind
    r[R_SUBSCRIBER] = subscriber
    return r


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
    """Is this message for one subscriber, and that is not us?"""
    if flags & wire.TO == 0:
        return False
    if flags & wire.TIMESTAMP:
        at += 8
    return load_u32(ring, at) != subscriber


@inlined
def release(ring, r):
    """Give back all packets before R_SEQ."""
    store_release(ring, r[R_ENTRY] + lay.CONSUMER_POSITION_AT, r[R_SEQ])


@inlined
def next_packet(r):
    """Step to the packet behind the current one."""
    r[R_SEQ] += 1
    r[R_AT] = _HEADER


@inlined
def oldest_held(ring, r):
    """The oldest packet that a lapped reader may start at, some way from the writer."""
    if r[R_KIND] == lay.KIND_IMAGE:
        return load_acquire(ring, lay.BASE_AT)
    head = load_acquire(ring, lay.HEAD_AT)
    return max(load_relaxed(ring, lay.FIRST_AT), head - r[R_SLOTS] + (r[R_SLOTS] >> 2))


@inlined
def held(ring, r, seq):
    """Does the ring hold packet ``seq`` still, after bytes of it were read? (A seqlock's check.)

    Only a reader that is untethered or was evicted can lose a packet it reads.
    """
    fence_acquire()
    return holds(load_acquire(ring, control_at(seq, r[R_MASK])), seq)


@inlined
def _note_gap(r, end):
    r[R_GAP_FIRST], r[R_GAP_END] = r[R_SEQ], end
    r[R_GAPS] += 1
    r[R_LOST_PACKETS] += end - r[R_SEQ]
    r[R_SEQ], r[R_AT] = end, _HEADER
    r[R_TOTAL], r[R_FILLED] = 0, 0  # a message that lost a fragment is lost whole


@inlined
def skip_lost(ring, r, word):
    """At a slot that does not hold R_SEQ, or holds it as GONE: GAP and past it, or 0: wait."""
    if load_acquire(ring, r[R_ENTRY] + lay.CONSUMER_STATE_AT) == lay.CONSUMER_EVICTED:
        # Somebody gave up on us: start again at what is held, tethered anew.
        end = max(oldest_held(ring, r), r[R_SEQ])
        store_release(ring, r[R_ENTRY] + lay.CONSUMER_POSITION_AT, end)
        store_release(ring, r[R_ENTRY] + lay.CONSUMER_STATE_AT, lay.CONSUMER_ACTIVE)
        if end > r[R_SEQ]:
            _note_gap(r, end)
            return GAP
        return 0
    if holds(word, r[R_SEQ]):
        if (word >> lay.STATE_SHIFT) & 0xFF == lay.EMPTY:
            return 0
        end = r[R_SEQ] + 1
        while end - r[R_SEQ] < r[R_SLOTS]:
            word = load_acquire(ring, control_at(end, r[R_MASK]))
            if not holds(word, end) or (word >> lay.STATE_SHIFT) & 0xFF != lay.GONE:
                break
            end += 1
        _note_gap(r, end)
        return GAP
    if packets_ahead(word, r[R_SEQ]) == 0:
        return 0
    end = oldest_held(ring, r)
    if end <= r[R_SEQ]:
        return 0
    _note_gap(r, end)
    return GAP


@inlined
def fragment(ring, r, assembly, at, length, flags):
    """Take one fragment (``length`` bytes behind the message header at ``at``) into ``assembly``.

    Returns 0 to go on, NEED_BUFFER, ASSEMBLED. Advances to the next packet unless NEED_BUFFER.
    """
    body, end = at + 4, at + 4 + length
    if flags & wire.BEGIN:
        lead = -1
        if length >= 8:
            lead = optional_fields_bytes(ring, body + 8, end, flags)
        total = load_i64(ring, body) if length >= 8 else 0
        if lead < 0 or total <= 0 or total > r[R_SLOTS] * r[R_SLOT_BYTES]:
            r[R_MALFORMED] += 1
            r[R_TOTAL] = 0
            next_packet(r)
            return 0
        if addressed_to_other(ring, body + 8, flags, r[R_SUBSCRIBER]):
            r[R_TOTAL] = 0
            next_packet(r)
            return 0
        r[R_TOTAL], r[R_FILLED] = total, 0
        if assembly.size < total + lead:
            r[R_META_N] = lead
            return NEED_BUFFER
        r[R_META_AT], r[R_META_N], r[R_FLAGS] = total, lead, flags
        copy(assembly, total, ring, body + 8, lead)
        body += 8 + lead
    part = end - body
    if r[R_TOTAL] == 0 or part < 0 or r[R_FILLED] + part > r[R_TOTAL]:
        r[R_TOTAL] = 0  # joined amid a message, or it was malformed: wait for the next beginning
        next_packet(r)
        return 0
    copy(assembly, r[R_FILLED], ring, body, part)
    if not held(ring, r, r[R_SEQ]):
        r[R_TOTAL] = 0  # overwritten while we copied: the next look at this slot finds the gap
        return 0
    r[R_FILLED] += part
    next_packet(r)
    if flags & wire.END:
        whole = r[R_FILLED] == r[R_TOTAL]
        if not whole:
            r[R_MALFORMED] += 1
            r[R_TOTAL] = 0
            return 0
        r[R_MESSAGES] += 1
        r[R_BYTES] += r[R_TOTAL]
        return ASSEMBLED
    return 0


@inlined
def poll_into(ring, r, assembly, out, limit):
    """The body of `poll`, for kernels."""
    release(ring, r)
    return extend_into(ring, r, assembly, out, 0, limit)


@inlined
def extend_into(ring, r, assembly, out, n, limit):
    """Add to the ``n`` messages of the last poll, up to ``limit``, without giving any back.

    Returns the count then, or what `poll` returns below zero; GAP takes the ``n`` with it.
    """
    before = n
    n = _walk(ring, r, assembly, out, n, limit)
    if n <= 0:
        return n
    first = load_relaxed(ring, r[R_ENTRY] + lay.CONSUMER_POSITION_AT)
    if not held(ring, r, first):
        # Lapped while we looked (untethered or evicted): what was found may be torn, all of it.
        end = max(oldest_held(ring, r), r[R_SEQ])
        r[R_SEQ] = first
        _note_gap(r, end)
        return GAP
    r[R_MESSAGES] += n - before
    for i in range(before, n):
        r[R_BYTES] += out[i, OUT_LENGTH]
    return n


@inlined
def _walk(ring, r, assembly, out, n, limit):
    """Note where the messages from R_SEQ on lie; the count, or what `poll` returns below zero."""
    while n < limit:
        seq = r[R_SEQ]
        word = load_acquire(ring, control_at(seq, r[R_MASK]))
        state = (word >> lay.STATE_SHIFT) & 0xFF
        if not holds(word, seq) or state == lay.GONE or state == lay.EMPTY:
            if n > 0:
                break
            return skip_lost(ring, r, word)
        length = word & lay.CONTROL_LENGTH_MASK
        if length > r[R_SLOT_BYTES]:
            r[R_MALFORMED] += 1
            next_packet(r)
            continue
        slot = r[R_SLOTS_AT] + (seq & r[R_MASK]) * r[R_SLOT_BYTES]
        at = slot + r[R_AT]
        end = slot + length
        while at + 4 <= end and n < limit:
            head = load_u32(ring, at)
            size = head & 0xFFFFFF
            flags = head >> 24
            if at + 4 + size > end:
                r[R_MALFORMED] += 1
                at = end
                break
            if flags & wire.WHOLE != wire.WHOLE:
                if n > 0:
                    r[R_AT] = at - slot
                    return n
                status = fragment(ring, r, assembly, at, size, flags)
                if status != 0:
                    return status
                at = -1
                break
            lead = 0
            if flags != wire.WHOLE:
                lead = optional_fields_bytes(ring, at + 4, at + 4 + size, flags)
                if lead < 0:
                    r[R_MALFORMED] += 1
                    at += 4 + size
                    continue
                if addressed_to_other(ring, at + 4, flags, r[R_SUBSCRIBER]):
                    at += 4 + size
                    continue
            out[n, OUT_AT] = at + 4 + lead
            out[n, OUT_LENGTH] = size - lead
            out[n, OUT_META_AT] = at + 4
            out[n, OUT_FLAGS] = flags
            n += 1
            at += 4 + size
        if at < 0:
            continue
        r[R_AT] = at - slot
        if at + 4 > end:
            if state != lay.SEALED:
                break
            next_packet(r)
    return n


@held_kernel
def poll(ring, r, assembly, out, limit):
    """Poll up to ``limit`` messages; also releases what the poll before returned.

    ``out``: int64[limit, 4], see OUT_*. ``assembly``: uint8 buffer for fragmented messages.
    Returns the count, or GAP, NEED_BUFFER, ASSEMBLED (then one message of R_TOTAL bytes lies in
    ``assembly``, its optional fields behind it).
    """
    return poll_into(ring, r, assembly, out, limit)


@inlined
def has_more(ring, r):
    """Is there anything to poll (a message, a gap, or an eviction)?"""
    seq = r[R_SEQ]
    word = load_acquire(ring, control_at(seq, r[R_MASK]))
    if holds(word, seq):
        state = (word >> lay.STATE_SHIFT) & 0xFF
        if state == lay.OPEN:
            return (word & lay.CONTROL_LENGTH_MASK) > r[R_AT]
        return state != lay.EMPTY
    if load_acquire(ring, r[R_ENTRY] + lay.CONSUMER_STATE_AT) == lay.CONSUMER_EVICTED:
        return True
    return packets_ahead(word, seq) > 0


@held_kernel
def arm(ring, r):
    """Ask to be woken by the next commit. True: there is something already, do not sleep."""
    release(ring, r)
    fetch_or(ring, lay.ARMED_AT, 1 << r[R_CONSUMER])
    fence_seq_cst()
    return has_more(ring, r)


@held_kernel
def disarm(ring, r):
    """Withdraw `arm`."""
    fetch_and(ring, lay.ARMED_AT, ~(1 << r[R_CONSUMER]))


@held_kernel
def drained(ring, r):
    """Is the ring closed and all of it read?"""
    if load_acquire(ring, lay.CLOSED_AT) == 0:
        return False
    return r[R_SEQ] >= load_i64(ring, lay.END_SEQ_AT)


@held_kernel
def still_held(ring, r):
    """After using a batch: was it whole all the time? False: evicted, or lapped (untethered)."""
    if load_acquire(ring, r[R_ENTRY] + lay.CONSUMER_STATE_AT) != lay.CONSUMER_ACTIVE:
        return False
    return held(ring, r, load_relaxed(ring, r[R_ENTRY] + lay.CONSUMER_POSITION_AT))


@held_kernel
def arm_keeping(ring, r):
    """Like `arm`, and what the last poll returned stays held."""
    fetch_or(ring, lay.ARMED_AT, 1 << r[R_CONSUMER])
    fence_seq_cst()
    return has_more(ring, r)
