"""The reader's side of a packet ring: poll a batch in place, assemble fragments, notice gaps.

The private state of a reader is an ``int64`` array indexed by the ``R_*`` names. `poll` returns the
offsets of messages; the payloads stay in the ring until the next poll, which releases them. The
writer never overwrites packets of a tethered reader. It may overwrite packets of an evicted or
untethered reader, which detects it: a slot that holds a newer packet is a gap, reported as a range,
never skipped in silence.
"""

from __future__ import annotations

import numpy as np

from tidecast.buffers.reading import (
    ASSEMBLED,
    G_ENDED,
    G_LAPPED,
    G_LOST,
    GAP,
    GAP_REASONS,
    NEED_BUFFER,
    OUT_AT,
    OUT_FIELDS,
    OUT_FLAGS,
    OUT_LENGTH,
    OUT_META_AT,
    R_AHEAD,
    R_AHEAD_AT,
    R_AT,
    R_BYTES,
    R_CONSUMER,
    R_ENTRY,
    R_FILLED,
    R_FLAGS,
    R_GAP_END,
    R_GAP_FIRST,
    R_GAP_REASON,
    R_GAPS,
    R_KIND,
    R_LOST_PACKETS,
    R_MALFORMED,
    R_MASK,
    R_MESSAGES,
    R_META_AT,
    R_META_N,
    R_SEEN,
    R_SEQ,
    R_SLOT_BYTES,
    R_SLOTS,
    R_SLOTS_AT,
    R_SUBSCRIBER,
    R_TOTAL,
    READER_FIELDS,
    for_another_node,
    fragment,
    held,
    is_malformed,
    lapped,
    list_messages,
    next_packet,
    note_malformed,
    unfinished,
)
from tidecast.buffers.slots import arm_entry, control_at, disarm_entry, holds, packets_ahead
from tidecast.buffers.unordered import forget_seen, next_ahead, read_ahead, resume_behind_hole
from tidecast.layout import packet as wire
from tidecast.layout import ring as lay
from tidecast.native.atomics import (
    fence_acquire,
    fence_seq_cst,
    load_acquire,
    load_relaxed,
    prefetch,
    store_release,
)
from tidecast.native.jit import held_kernel, hot, inlined
from tidecast.native.mapped import Bytes
from tidecast.native.memory import load_i64, load_u32

__all__ = [
    "ASSEMBLED",
    "GAP",
    "GAP_REASONS",
    "G_LAPPED",
    "NEED_BUFFER",
    "OUT_AT",
    "OUT_FIELDS",
    "OUT_FLAGS",
    "OUT_LENGTH",
    "OUT_META_AT",
    "READER_FIELDS",
    "R_AHEAD",
    "R_AHEAD_AT",
    "R_AT",
    "R_BYTES",
    "R_CONSUMER",
    "R_ENTRY",
    "R_FILLED",
    "R_FLAGS",
    "R_GAPS",
    "R_GAP_END",
    "R_GAP_FIRST",
    "R_GAP_REASON",
    "R_KIND",
    "R_LOST_PACKETS",
    "R_MALFORMED",
    "R_MASK",
    "R_MESSAGES",
    "R_META_AT",
    "R_META_N",
    "R_SEEN",
    "R_SEQ",
    "R_SLOTS",
    "R_SLOTS_AT",
    "R_SLOT_BYTES",
    "R_SUBSCRIBER",
    "R_TOTAL",
    "arm",
    "arm_keeping",
    "disarm",
    "drained",
    "extend_into",
    "has_more",
    "note_torn",
    "oldest_held",
    "poll",
    "poll_into",
    "reader_state",
    "release",
    "skip_lost",
    "still_held",
]
_HEADER = wire.PACKET_HEADER_BYTES
_CACHE_LINE_BYTES = 64


def reader_state(ring: Bytes, consumer: int, subscriber: int = 0) -> np.ndarray:
    """Private state for reading ``ring`` through consumer entry ``consumer``, from its position."""
    from tidecast.buffers.ring_file import consumer_at, describe

    about = describe(ring)
    r = np.zeros(READER_FIELDS, dtype=np.int64)
    entry = consumer_at(ring, consumer)
    fields = ring[entry : entry + lay.CONSUMER_BYTES].view(np.int64)
    r[R_SEQ] = fields[lay.CONSUMER_POSITION_AT // 8]
    r[R_AT] = max(_HEADER, min(fields[lay.CONSUMER_OFFSET_AT // 8], about.slot_bytes))
    r[R_MASK], r[R_SLOTS] = about.slots - 1, about.slots
    r[R_SLOT_BYTES], r[R_SLOTS_AT] = about.slot_bytes, lay.slots_at(about.slots)
    r[R_ENTRY], r[R_CONSUMER], r[R_KIND] = entry, consumer, about.kind
    r[R_SUBSCRIBER] = subscriber
    return r


@hot
def release(ring, r):
    """Give back all packets before R_SEQ."""
    store_release(ring, r[R_ENTRY] + lay.CONSUMER_POSITION_AT, r[R_SEQ])


@inlined
def oldest_held(ring, r):
    """The oldest packet that a lapped reader may start at, some way from the writer."""
    if r[R_KIND] == lay.KIND_IMAGE:  # its base is as old as the last eviction
        first, head = load_acquire(ring, lay.BASE_AT), load_acquire(ring, lay.HIGHEST_AT)
    else:
        first, head = load_relaxed(ring, lay.FIRST_AT), load_acquire(ring, lay.HEAD_AT)
    return max(first, head - r[R_SLOTS] + (r[R_SLOTS] >> 2))


@inlined
def _note_gap(r, end, reason):
    r[R_GAP_FIRST], r[R_GAP_END], r[R_GAP_REASON] = r[R_SEQ], end, reason
    r[R_GAPS] += 1
    r[R_LOST_PACKETS] += end - r[R_SEQ]
    if r[R_SEEN] != 0:
        forget_seen(r, end)
    r[R_SEQ], r[R_AT] = end, _HEADER
    r[R_TOTAL], r[R_FILLED] = 0, 0  # a message that lost a fragment is lost whole


@inlined
def note_torn(ring, r):
    """Messages polled since the last `release` may be torn: a gap from their first packet on.

    Reading resumes at the beginning of a packet: messages at the front of R_SEQ may be torn too.
    """
    first = load_relaxed(ring, r[R_ENTRY] + lay.CONSUMER_POSITION_AT)
    end = max(oldest_held(ring, r), r[R_SEQ], first + 1)
    if r[R_SEEN] != 0:
        end = max(end, load_acquire(ring, lay.HIGHEST_AT))  # packets may be behind a hole
    r[R_SEQ] = first
    _note_gap(r, end, G_LAPPED)


@inlined
def _is_there(ring, r, seq):
    """Whether packet ``seq`` is in the ring, or marked as GONE there."""
    word = load_acquire(ring, control_at(seq, r[R_MASK]))
    return holds(word, seq) and (word >> lay.STATE_SHIFT) & 0xFF != lay.EMPTY


@inlined
def _closed_before(ring, r):
    """The end of a closed image's session when it is behind R_SEQ, else -1.

    Nothing is put into a closed image any more: a packet that is not there never comes.
    """
    if r[R_KIND] != lay.KIND_IMAGE or load_acquire(ring, lay.CLOSED_AT) == 0:
        return -1
    end = load_i64(ring, lay.END_SEQ_AT)
    return end if end > r[R_SEQ] else -1


@inlined
def _skip_to_next(ring, r, last):
    """In a closed image: GAP up to the next packet that is there, at most ``last``."""
    end = r[R_SEQ]
    while end < last and not _is_there(ring, r, end):
        end += 1
        if end - r[R_SEQ] >= r[R_SLOTS]:
            end = last
    if end == r[R_SEQ]:
        return 0  # it came just before the ring was closed
    _note_gap(r, end, G_ENDED)
    return GAP


@inlined
def _start_again(ring, r, state):
    """Evicted, or cut off: start again at the oldest packet in the ring, tethered as before."""
    end = max(oldest_held(ring, r), r[R_SEQ])
    store_release(ring, r[R_ENTRY] + lay.CONSUMER_POSITION_AT, end)
    store_release(ring, r[R_ENTRY] + lay.CONSUMER_STATE_AT, lay.CONSUMER_ACTIVE)
    if end == r[R_SEQ]:
        return 0
    _note_gap(r, end, G_LOST if state == lay.CONSUMER_CUT_OFF else G_LAPPED)
    return GAP


@inlined
def skip_lost(ring, r, word):
    """At a slot that does not hold R_SEQ, or holds it as GONE: GAP and past it, or 0: wait."""
    state = load_acquire(ring, r[R_ENTRY] + lay.CONSUMER_STATE_AT)
    if state == lay.CONSUMER_EVICTED or state == lay.CONSUMER_CUT_OFF:
        return _start_again(ring, r, state)
    if holds(word, r[R_SEQ]) and (word >> lay.STATE_SHIFT) & 0xFF == lay.GONE:
        end = r[R_SEQ] + 1
        while end - r[R_SEQ] < r[R_SLOTS]:
            word = load_acquire(ring, control_at(end, r[R_MASK]))
            if not holds(word, end) or (word >> lay.STATE_SHIFT) & 0xFF != lay.GONE:
                break
            end += 1
        _note_gap(r, end, G_LOST)
        return GAP
    if not holds(word, r[R_SEQ]) and packets_ahead(word, r[R_SEQ]) > 0:
        end = oldest_held(ring, r)
        if end > r[R_SEQ]:
            _note_gap(r, end, G_LAPPED)
            return GAP
    last = _closed_before(ring, r)
    return _skip_to_next(ring, r, last) if last >= 0 else 0


@hot
def poll_into(ring, r, assembly, out, limit):
    """The body of `poll`, for kernels."""
    release(ring, r)
    return extend_into(ring, r, assembly, out, 0, limit)


@hot
def extend_into(ring, r, assembly, out, n, limit):
    """Add to the ``n`` messages of the last poll, up to ``limit``, without releasing any.

    Returns the new count, or a result of `poll` below zero; a GAP invalidates the ``n``, too.
    """
    before = n
    n = _walk(ring, r, assembly, out, n, limit)
    if n <= 0:
        return n
    first = load_relaxed(ring, r[R_ENTRY] + lay.CONSUMER_POSITION_AT)
    if lapped(ring, r, first):
        # Lapped during the walk (untethered or evicted): all messages found may be torn.
        note_torn(ring, r)
        return GAP
    r[R_MESSAGES] += n - before
    for i in range(before, n):
        r[R_BYTES] += out[i, OUT_LENGTH]
    return n


@hot
def _walk(ring, r, assembly, out, n, limit):
    """List the messages from R_SEQ on. Returns the count, or a result of `poll` below zero."""
    while n < limit:
        if r[R_SEEN] != 0 and resume_behind_hole(r):
            continue
        seq = r[R_SEQ]
        # Cache lines of the next message load together with its control word: one round trip
        # instead of two between distant cores.
        ahead = r[R_SLOTS_AT] + (seq & r[R_MASK]) * r[R_SLOT_BYTES] + r[R_AT]
        prefetch(ring, ahead)
        prefetch(ring, ahead + _CACHE_LINE_BYTES)
        word = load_acquire(ring, control_at(seq, r[R_MASK]))
        state = (word >> lay.STATE_SHIFT) & 0xFF
        if not holds(word, seq) or state == lay.GONE or state == lay.EMPTY:
            if n > 0:
                break
            if r[R_SEEN] != 0 and state != lay.GONE:
                status = read_ahead(ring, r, assembly, out, limit)
                if status != 0:
                    return status
            return skip_lost(ring, r, word)
        length = word & lay.CONTROL_LENGTH_MASK
        if length > r[R_SLOT_BYTES]:
            if n > 0:
                break
            note_malformed(r, seq)
            next_packet(r)
            return GAP
        slot = r[R_SLOTS_AT] + (seq & r[R_MASK]) * r[R_SLOT_BYTES]
        end = slot + length
        if for_another_node(ring, r, slot):
            if not held(ring, r, seq):
                continue  # a newer packet's header was read
            r[R_AT] = length
            if state != lay.SEALED:
                break
            next_packet(r)
            continue
        if unfinished(ring, r, slot + r[R_AT], end) and held(ring, r, seq):
            note_malformed(r, seq - 1)
            return GAP
        known = n
        n, at = list_messages(ring, r, out, n, limit, slot + r[R_AT], end)
        if n == known and not held(ring, r, seq):
            continue  # messages for others may be a newer packet's: nothing was passed over
        r[R_AT] = at - slot
        if at >= end:
            if state != lay.SEALED:
                break
            next_packet(r)
        elif n == 0:  # a fragment, or malformed bytes: returned alone
            status = _take_alone(ring, r, assembly, at, end)
            if status != 0:
                return status
        else:
            break
    return n


@inlined
def _take_alone(ring, r, assembly, at, end):
    """A fragment at ``at``, or malformed bytes: as `fragment` returns."""
    if is_malformed(ring, at, end):
        if not held(ring, r, r[R_SEQ]):
            return 0
        note_malformed(r, r[R_SEQ])
        next_packet(r)
        return GAP
    # Its length is the rest of the packet: the header may be a newer packet's by now.
    flags = load_u32(ring, at) >> 24
    return fragment(ring, r, assembly, at, end - at - wire.MESSAGE_HEADER_BYTES, flags)


@held_kernel
def poll(ring, r, assembly, out, limit):
    """Poll up to ``limit`` messages; also releases the messages of the poll before.

    ``out``: int64[limit, 4], see OUT_*. ``assembly``: uint8 buffer for fragmented messages.
    Returns the count, or GAP, NEED_BUFFER, ASSEMBLED (then ``assembly`` has one message of R_TOTAL
    bytes, its optional fields behind it).
    """
    return poll_into(ring, r, assembly, out, limit)


@inlined
def has_more(ring, r):
    """Whether there is anything to poll (a message, a gap, or an eviction)."""
    seq = r[R_SEQ]
    word = load_acquire(ring, control_at(seq, r[R_MASK]))
    if holds(word, seq):
        state = (word >> lay.STATE_SHIFT) & 0xFF
        if state == lay.OPEN:
            return (word & lay.CONTROL_LENGTH_MASK) > r[R_AT]
        if state != lay.EMPTY:
            return True
    elif packets_ahead(word, seq) > 0:
        return True
    state = load_acquire(ring, r[R_ENTRY] + lay.CONSUMER_STATE_AT)
    if state == lay.CONSUMER_EVICTED or state == lay.CONSUMER_CUT_OFF:
        return True
    if r[R_SEEN] != 0 and next_ahead(ring, r) >= 0:
        return True
    return _closed_before(ring, r) >= 0


@held_kernel
def arm(ring, r):
    """Ask to be woken by the next commit. True: there is something already, do not sleep."""
    release(ring, r)
    arm_entry(ring, r[R_CONSUMER], r[R_ENTRY])
    fence_seq_cst()
    return has_more(ring, r)


@held_kernel
def disarm(ring, r):
    """Withdraw `arm`."""
    disarm_entry(ring, r[R_CONSUMER], r[R_ENTRY])


@held_kernel
def drained(ring, r):
    """Is the ring closed and all of it read?"""
    if load_acquire(ring, lay.CLOSED_AT) == 0:
        return False
    return r[R_SEQ] >= load_i64(ring, lay.END_SEQ_AT)


@held_kernel
def still_held(ring, r):
    """After using a batch: was it whole all the time? False: evicted, or lapped (untethered)."""
    fence_acquire()  # the state too is looked at after the bytes
    if load_acquire(ring, r[R_ENTRY] + lay.CONSUMER_STATE_AT) != lay.CONSUMER_ACTIVE:
        return False
    return not lapped(ring, r, load_relaxed(ring, r[R_ENTRY] + lay.CONSUMER_POSITION_AT))


@held_kernel
def arm_keeping(ring, r):
    """Like `arm`, but keeps the messages of the last poll."""
    arm_entry(ring, r[R_CONSUMER], r[R_ENTRY])
    fence_seq_cst()
    return has_more(ring, r)
