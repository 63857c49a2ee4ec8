"""The writer's side of a packet ring: append messages, seal packets, respect the limit.

A ring has one writer. Its private state is an ``int64`` array indexed by the ``W_*`` names; nothing
in it is shared, so a killed writer leaves a ring whose readers see committed messages only.

A packet is OPEN while messages are appended. The engine may seal it early: the sender after the
linger time, the conductor when it closes the ring. Writer and engine race by compare-and-swap on
the control word, and a writer that loses puts the messages that were not yet committed into the
next packet.
"""

from __future__ import annotations

import numpy as np

from tidecast.buffers.slots import (
    control_at,
    control_word,
    entries_used,
    entry_at,
    holds,
    wake_armed,
)
from tidecast.layout import packet as wire
from tidecast.layout import ring as lay
from tidecast.native.atomics import (
    compare_and_swap,
    fence_release,
    load_acquire,
    load_relaxed,
    store_relaxed,
    store_release,
)
from tidecast.native.jit import held_kernel, hot, inlined
from tidecast.native.memory import copy, load_i64, store_i64, store_u32

W_SEQ, W_USED, W_COMMITTED, W_LIMIT = 0, 1, 2, 3
W_MASK, W_SLOT_BYTES, W_SLOTS_AT, W_RECEIVER = 4, 5, 6, 7
W_PREFIX, W_TOPIC, W_NODE, W_HAS_NETWORK = 8, 9, 10, 11
W_MESSAGES, W_BYTES, W_FULL, W_SLOTS = 12, 13, 14, 15
W_MESSAGE_BYTES_MAX = 16
WRITER_FIELDS = 17
"""Private writer state: next or open packet, bytes used, bytes committed, cached limit, geometry,
receiver of the open packet, first header word, ids, counts, the most bytes of a message (with key
and headers; half of the ring is a limit too)."""

FULL, TOO_LARGE = -1, -2

_HEADER = wire.PACKET_HEADER_BYTES
_MESSAGE_HEADER = wire.MESSAGE_HEADER_BYTES
_SEAL_TRIES_MAX = 64


def writer_state(ring: np.ndarray) -> np.ndarray:
    """Private state for writing ``ring``, resumed at its head. Geometry is taken once, here."""
    from tidecast.buffers.ring_file import describe

    about = describe(ring)
    w = np.zeros(WRITER_FIELDS, dtype=np.int64)
    w[W_SEQ] = about.head
    w[W_MASK], w[W_SLOTS] = about.slots - 1, about.slots
    w[W_SLOT_BYTES], w[W_SLOTS_AT] = about.slot_bytes, lay.slots_at(about.slots)
    w[W_PREFIX] = wire.VERSION | wire.DATA << 8 | about.channel << 24 | about.session << 32
    w[W_TOPIC], w[W_NODE], w[W_HAS_NETWORK] = about.topic, about.node, int(about.has_network)
    w[W_MESSAGE_BYTES_MAX] = wire.MESSAGE_BYTES_MAX
    return w


@inlined
def _limit_within(ring, w, limit):
    """The first packet that must not be opened yet, at most ``limit``.

    None of a ring that the engine has closed: its writer finds no room, and asks why. So it learns
    of the end within a quarter of the ring, and packets within the limit cost no look.
    """
    if load_acquire(ring, lay.CLOSED_AT) != 0:
        return w[W_SEQ]
    slots = w[W_SLOTS]
    if w[W_HAS_NETWORK] != 0:
        limit = min(limit, load_acquire(ring, lay.NETWORK_LIMIT_AT))
    for i in range(entries_used(ring)):
        entry = entry_at(ring, i)
        if (
            load_acquire(ring, entry + lay.CONSUMER_STATE_AT) == lay.CONSUMER_ACTIVE
            and load_relaxed(ring, entry + lay.CONSUMER_TETHERED_AT) != 0
        ):
            position = load_acquire(ring, entry + lay.CONSUMER_POSITION_AT)
            limit = min(limit, position + slots)
    return limit


@hot
def room(ring, w, packets):
    """Are ``packets`` more packets allowed, from W_SEQ on? Refreshes the cached limit if needed."""
    if w[W_SEQ] + packets <= w[W_LIMIT]:
        return True
    # Look again after a quarter ring at the latest: consumers may have joined.
    w[W_LIMIT] = _limit_within(ring, w, w[W_SEQ] + (w[W_SLOTS] >> 2))
    return w[W_SEQ] + packets <= w[W_LIMIT]


@inlined
def _room_for_run(ring, w, packets):
    """Like `room` for a run longer than a quarter ring: the cap for joiners does not apply."""
    if room(ring, w, packets):
        return True
    if w[W_SEQ] + packets > _limit_within(ring, w, w[W_SEQ] + w[W_SLOTS]):
        return False
    w[W_LIMIT] = w[W_SEQ] + packets
    return True


@hot
def open_packet(ring, w, receiver):
    """Open packet W_SEQ; the caller has checked `room`."""
    seq = w[W_SEQ]
    at = control_at(seq, w[W_MASK])
    # A single store: a reader that spins on this line is disturbed once. Packets before HEAD_AT
    # have their header, and no reader takes a packet that has only the header.
    store_relaxed(ring, at, control_word(seq, lay.OPEN, _HEADER))
    fence_release()  # a reader that still copies the old packet sees the new word first
    slot = w[W_SLOTS_AT] + (seq & w[W_MASK]) * w[W_SLOT_BYTES]
    store_i64(ring, slot, w[W_PREFIX])
    store_i64(ring, slot + 8, w[W_TOPIC] | (receiver << 32) | (w[W_NODE] << 48))
    store_i64(ring, slot + wire.SEQ_AT, seq)
    store_i64(ring, slot + wire.TIME_AT, 0)
    store_i64(ring, lay.MESSAGES_AT, w[W_MESSAGES])
    store_release(ring, lay.HEAD_AT, seq + 1)
    w[W_USED] = _HEADER
    w[W_COMMITTED] = _HEADER
    w[W_RECEIVER] = receiver


@hot
def _move(ring, w, state):
    """Publish the used bytes with ``state``. False: the engine sealed first; they did not count."""
    seq = w[W_SEQ]
    at = control_at(seq, w[W_MASK])
    new = control_word(seq, state, w[W_USED])
    # Also without a network: an engine that stops seals the packet of a writer that still runs.
    done = compare_and_swap(ring, at, control_word(seq, lay.OPEN, w[W_COMMITTED]), new)
    if done and state == lay.OPEN:
        w[W_COMMITTED] = w[W_USED]
    else:
        w[W_SEQ] = seq + 1
        w[W_USED] = 0
        w[W_COMMITTED] = 0
    return done


@hot
def commit(ring, w):
    """Make the used bytes of the open packet visible; False if the packet was sealed before."""
    return _move(ring, w, lay.OPEN)


@hot
def seal(ring, w):
    """Close the open packet with all used bytes; False if it was sealed before, without them."""
    return _move(ring, w, lay.SEALED)


@hot
def _flush_seals(ring, w):
    """Whether a flush seals the packet. Not without a sender: readers see committed messages."""
    return w[W_HAS_NETWORK] != 0 and load_relaxed(ring, lay.NEAR_LIMIT_AT) == 0


@hot
def put_header(ring, at, length, flags):
    """Write a message header."""
    store_u32(ring, at, length | (flags << 24))


@inlined
def _append_fragments(ring, w, source, source_at, n, meta, meta_n, flags, receiver):
    """Append a message that needs several packets. All or nothing."""
    per_packet = w[W_SLOT_BYTES] - _HEADER - _MESSAGE_HEADER
    total = n + meta_n + 8
    packets = (total + per_packet - 1) // per_packet
    if packets > (w[W_SLOTS] >> 1) or 8 + meta_n > per_packet:
        return TOO_LARGE
    if n + meta_n > w[W_MESSAGE_BYTES_MAX]:
        return TOO_LARGE
    if w[W_USED] != 0:
        seal(ring, w)
    if not _room_for_run(ring, w, packets):
        return FULL
    done = 0
    for i in range(packets):
        open_packet(ring, w, receiver)
        at = w[W_SLOTS_AT] + (w[W_SEQ] & w[W_MASK]) * w[W_SLOT_BYTES] + _HEADER
        lead = 0
        bits = 0
        if i == 0:
            bits = wire.BEGIN | flags
            store_i64(ring, at + 4, n)
            copy(ring, at + 12, meta, 0, meta_n)
            lead = 8 + meta_n
        part = min(per_packet - lead, n - done)
        if i == packets - 1:
            bits |= wire.END
        put_header(ring, at, lead + part, bits)
        copy(ring, at + 4 + lead, source, source_at + done, part)
        done += part
        w[W_USED] = _HEADER + _MESSAGE_HEADER + lead + part
        # The engine seals no packet that holds only its header, so this cannot lose.
        seal(ring, w)
    w[W_MESSAGES] += 1
    w[W_BYTES] += n
    return packets


@held_kernel
def append(ring, bells, w, source, n, meta, meta_n, flags, receiver, flush):
    """Append a message. Returns 0 or more when done, else FULL or TOO_LARGE (nothing changed).

    ``source``: payload bytes; ``meta``: optional fields in wire order; ``flags``: their bits.
    """
    return append_into(ring, bells, w, source, n, meta, meta_n, flags, receiver, flush)


@hot
def append_into(ring, bells, w, source, n, meta, meta_n, flags, receiver, flush):
    """The body of `append`, for kernels."""
    need = _MESSAGE_HEADER + meta_n + n
    if need > w[W_SLOT_BYTES] - _HEADER:
        done = _append_fragments(ring, w, source, 0, n, meta, meta_n, flags, receiver)
        if done == FULL:
            w[W_FULL] += 1
        if done > 0:
            wake_armed(ring, bells)
        return done
    while True:
        used = w[W_USED]
        if used != 0 and (used + need > w[W_SLOT_BYTES] or w[W_RECEIVER] != receiver):
            seal(ring, w)
            used = 0
        if used == 0:
            if not room(ring, w, 1):
                w[W_FULL] += 1
                wake_armed(ring, bells)
                return FULL
            open_packet(ring, w, receiver)
            used = _HEADER
        at = w[W_SLOTS_AT] + (w[W_SEQ] & w[W_MASK]) * w[W_SLOT_BYTES] + used
        put_header(ring, at, meta_n + n, wire.WHOLE | flags)
        if meta_n > 0:
            copy(ring, at + 4, meta, 0, meta_n)
        copy(ring, at + 4 + meta_n, source, 0, n)
        w[W_USED] = used + need
        done = seal(ring, w) if flush and _flush_seals(ring, w) else commit(ring, w)
        if done:
            break
    w[W_MESSAGES] += 1
    w[W_BYTES] += n
    wake_armed(ring, bells)
    return 0


@held_kernel
def append_batch(ring, bells, w, source, lengths, fixed, n, receiver, flush, done):
    """Append ``n`` messages that are end to end in ``source``; one atomic store a packet.

    ``lengths``: int64 length of each, or empty when all have ``fixed`` bytes. ``done``: int64[2],
    {messages, bytes} already appended: the call resumes there and updates it. Returns 0 when all
    are appended, FULL when the ring is full (call again later), TOO_LARGE when message ``done[0]``
    is too large.
    """
    empty = source[:0]
    status = 0
    i, at = done[0], done[1]
    first, first_at = i, at  # messages that are written but not yet committed start here
    counted, counted_at = i, at  # in W_MESSAGES, which a packet names when it is opened
    while i < n:
        size = fixed if lengths.size == 0 else lengths[i]
        need = _MESSAGE_HEADER + size
        if need > w[W_SLOT_BYTES] - _HEADER:
            if w[W_USED] != 0 and not seal(ring, w):
                i, at = first, first_at
                continue
            first, first_at = i, at
            w[W_MESSAGES] += i - counted
            w[W_BYTES] += at - counted_at
            counted, counted_at = i, at
            status = _append_fragments(ring, w, source, at, size, empty, 0, 0, receiver)
            if status < 0:
                break
            status = 0
            i += 1
            at += size
            first, first_at, counted, counted_at = i, at, i, at
            continue
        used = w[W_USED]
        if used != 0 and (used + need > w[W_SLOT_BYTES] or w[W_RECEIVER] != receiver):
            if not seal(ring, w):
                i, at = first, first_at
                continue
            first, first_at = i, at
            used = 0
        if used == 0:
            if not room(ring, w, 1):
                status = FULL
                break
            w[W_MESSAGES] += i - counted
            w[W_BYTES] += at - counted_at
            counted, counted_at = i, at
            open_packet(ring, w, receiver)
            used = _HEADER
        to = w[W_SLOTS_AT] + (w[W_SEQ] & w[W_MASK]) * w[W_SLOT_BYTES] + used
        put_header(ring, to, size, wire.WHOLE)
        copy(ring, to + 4, source, at, size)
        w[W_USED] = used + need
        i += 1
        at += size
        if i == n:
            is_visible = seal(ring, w) if flush and w[W_HAS_NETWORK] != 0 else commit(ring, w)
            if not is_visible:
                i, at = first, first_at
    w[W_MESSAGES] += i - counted
    w[W_BYTES] += at - counted_at
    done[0], done[1] = i, at
    if status == FULL:
        w[W_FULL] += 1
    wake_armed(ring, bells)
    return status


@held_kernel
def flush_open(ring, bells, w):
    """Seal the open packet if it holds messages."""
    if w[W_USED] > _HEADER:
        seal(ring, w)
        wake_armed(ring, bells)


@held_kernel
def close_ring(ring, bells, w):
    """Seal the open packet and mark the ring as closed: readers and the sender drain it.

    Nothing changes when the engine has closed it: messages added later are not part of it.
    """
    if w[W_USED] >= _HEADER:
        # an open packet without messages is sealed, too, so that sequences stay contiguous
        seal(ring, w)
    if load_acquire(ring, lay.CLOSED_AT) != 0:
        return
    store_i64(ring, lay.END_SEQ_AT, w[W_SEQ])
    store_release(ring, lay.CLOSED_AT, 1)
    wake_armed(ring, bells)


@held_kernel
def close_abandoned(ring, bells, slots):
    """Close a ring from the engine's side. Its writer is gone, or still runs and does not know yet.

    The committed messages are part of the ring, up to END_SEQ. Messages that a running writer adds
    go into packets behind it. ``slots``: as at creation, because the client may have changed the
    header.
    """
    if load_acquire(ring, lay.CLOSED_AT) != 0:
        return
    end = load_i64(ring, lay.FIRST_AT)
    for _ in range(_SEAL_TRIES_MAX):
        head = load_acquire(ring, lay.HEAD_AT)
        if head <= end:
            break
        at = control_at(head - 1, slots - 1)
        word = load_acquire(ring, at)
        if not holds(word, head - 1) or (word >> lay.STATE_SHIFT) & 0xFF != lay.OPEN:
            end = head
            break
        length = word & lay.CONTROL_LENGTH_MASK
        end = head - 1  # the packet of a writer that has committed nothing to it yet stays its own
        if length <= _HEADER:
            break
        if compare_and_swap(ring, at, word, control_word(head - 1, lay.SEALED, length)):
            end = head
            break
    store_i64(ring, lay.END_SEQ_AT, end)
    store_release(ring, lay.CLOSED_AT, 1)
    wake_armed(ring, bells)
