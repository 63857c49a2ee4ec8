"""The archiver reads messages of a ring into batches; each queue has one open batch.

Every message of the ring counts: its sequence is the ring's first sequence plus the number of
messages before it. A message of several packets is copied into its batch once all packets are
there.

A client can write to its ring while it is read here. So each length is loaded once, checked, and
passed on; a check of a value that is loaded again afterwards would be worth nothing.
"""

from __future__ import annotations

from tidecast.agents.archiver.state import E_GAP, E_GROW
from tidecast.agents.events import emit
from tidecast.buffers.slots import control_at, holds
from tidecast.layout import packet as wire
from tidecast.layout import ring as lay
from tidecast.layout import segment as seg
from tidecast.layout.counters import QueueCounter as C
from tidecast.log.batch import add_record, begin_batch, record_bytes, seal_batch
from tidecast.native.atomics import load_acquire
from tidecast.native.jit import inlined
from tidecast.native.memory import (
    Span,
    bytes_at,
    copy,
    load_i64,
    load_u16,
    load_u32,
    store_i64,
    store_u32,
)
from tidecast.queues.mapper import SLOT_BITS, key_hash

_HEADER = wire.PACKET_HEADER_BYTES
_KEYLESS_RUN_BITS = 8
_SLOT_SHIFT = 32 - SLOT_BITS


@inlined
def ring_of_source(source):
    """The source's ring."""
    return bytes_at(source.ring_address, source.ring_bytes)


@inlined
def _hash_of_seq(seq):
    """Hash that chooses the queue of a message without a key: 256 in a row go to one queue.

    It depends on the sequence alone, so a message that is sent again goes to the same queue.
    """
    x = (seq >> _KEYLESS_RUN_BITS) * 0x9E3779B1
    return (x ^ (x >> 15)) & 0xFFFFFFFF


@inlined
def _queue_for(topic, hashed):
    """(number in the topic, row in `queues`) for a hash."""
    if topic.queues == 1:
        number = 0
    else:
        number = load_u16(
            bytes_at(topic.table_address, 2 << SLOT_BITS), (hashed >> _SLOT_SHIFT) * 2
        )
        number = min(number, topic.queues - 1)
    return number, load_i64(bytes_at(topic.map_address, topic.queues * 8), number * 8)


@inlined
def seal_open_batches(A, touched, wall_ns):
    """Seal the batches that the source at hand has begun."""
    for i in range(touched):
        queue = A.queues[A.touched[i]]
        buffer = bytes_at(queue.buffer_address, queue.buffer_bytes)
        queue.next_token = seal_batch(buffer, queue.open_at, queue.used, queue.next_token, wall_ns)
        queue.open_at = -1


@inlined
def _batch_with_room(A, topic, source, queue, n, touched):
    """Have an open batch with room for ``n`` more bytes. (touched then, whether)."""
    buffer = bytes_at(queue.buffer_address, queue.buffer_bytes)
    if queue.open_at >= 0:
        count = load_u32(buffer, queue.open_at + seg.BATCH_COUNT_AT)
        fits = queue.used + n <= queue.buffer_bytes and count < seg.BATCH_RECORDS_MAX
        return touched, fits
    need = seg.BATCH_HEADER_BYTES + n
    if queue.used + need > queue.buffer_bytes:
        if queue.used == 0 and queue.grow_bytes == 0:
            if emit(A.events, A.attention, E_GROW, queue.index, need):
                queue.grow_bytes = need
        return touched, False
    queue.open_at = queue.used
    queue.used = begin_batch(
        buffer,
        queue.open_at,
        source.producer,
        source.epoch,
        topic.owner,
        source.first_seq + source.count,
        source.first_seq + source.d_count - 1,
    )
    A.touched[touched] = queue.index
    return touched + 1, True


@inlined
def _chain(source, ring, seq):
    """Packets of the fragmented message that begins at ``seq``, when all are there; else 0."""
    n = 0
    while n < source.slots:
        word = load_acquire(ring, control_at(seq + n, source.slots - 1))
        state = (word >> lay.STATE_SHIFT) & 0xFF
        length = word & lay.CONTROL_LENGTH_MASK
        if not holds(word, seq + n) or state != lay.SEALED:
            return 0
        if length < _HEADER + 4 or length > source.slot_bytes:
            return -1
        slot = source.slots_at + ((seq + n) & (source.slots - 1)) * source.slot_bytes
        head = load_u32(ring, slot + _HEADER)
        if (head & 0xFFFFFF) + _HEADER + 4 > length or (n > 0 and (head >> 24) & wire.BEGIN != 0):
            return -1
        n += 1
        if (head >> 24) & wire.END != 0:
            return n
    return -1


@inlined
def _parse(ring, at, end, flags, wall_ns, out):
    """Optional fields at ``at``: time, key and headers into ``out``; bytes of them, or -1.

    None of them reaches beyond ``end``, whatever the ring's writer does meanwhile.
    """
    start = at
    out[0] = wall_ns
    out[1] = out[3] = 0
    out[2] = out[4] = -1
    if flags & wire.TIMESTAMP:
        if at + 8 > end:
            return -1
        out[0] = load_i64(ring, at)
        at += 8
    if flags & wire.TO:
        at += 4
    if flags & wire.KEY:
        if at + 2 > end:
            return -1
        n = load_u16(ring, at)
        out[1], out[2] = at + 2, n
        at += 2 + n
    if flags & wire.HEADERS:
        if at + 2 > end:
            return -1
        n = load_u16(ring, at)
        out[3], out[4] = at + 2, n
        at += 2 + n
    return at - start if at <= end else -1


@inlined
def _copy_chain(source, ring, seq, packets, lead, buffer, to, total):
    """Copy the payload of a fragmented message; False when its parts do not add up."""
    done = 0
    for i in range(packets):
        slot = source.slots_at + ((seq + i) & (source.slots - 1)) * source.slot_bytes
        size = load_u32(ring, slot + _HEADER) & 0xFFFFFF
        skip = lead if i == 0 else 0
        part = size - skip
        if _HEADER + 4 + size > source.slot_bytes or part < 0 or done + part > total:
            return False
        copy(buffer, to + done, ring, slot + _HEADER + 4 + skip, part)
        done += part
    return done == total


TAKEN, WAIT, MALFORMED = 1, 0, -1


@inlined
def _take(A, topic, source, ring, fields, payload_at, total, packets, lead, touched):
    """Route one message and add it to its batch. (TAKEN, WAIT or MALFORMED; touched)."""
    seq = source.first_seq + source.count
    hashed = 0
    if fields[2] >= 0:
        hashed = key_hash(ring, fields[1], fields[2])
        number, row = _queue_for(topic, hashed)
    else:
        number, row = _queue_for(topic, _hash_of_seq(seq))
    queue = A.queues[row]
    marks = bytes_at(source.marks_address, source.marks * 8)
    if source.producer != 0 and seq <= load_i64(marks, number * 8):
        A.counters[queue.row, C.DUPLICATES] += 1
        return TAKEN, touched
    n = record_bytes(fields[2], fields[4], total)
    touched, fits = _batch_with_room(A, topic, source, queue, n, touched)
    if not fits:
        return WAIT, touched
    buffer = bytes_at(queue.buffer_address, queue.buffer_bytes)
    start, time_ns = queue.used, fields[0]
    key, headers = Span(ring, fields[1], fields[2]), Span(ring, fields[3], fields[4])
    payload = Span(ring, payload_at, total if packets == 0 else 0)
    end = add_record(buffer, queue.open_at, start, seq, time_ns, hashed, key, headers, payload)
    if packets > 0:
        head = load_u32(buffer, start)
        store_u32(buffer, start, head + total)  # the payload follows packet by packet
        if not _copy_chain(source, ring, source.seq, packets, lead, buffer, end, total):
            for i in range(total):
                buffer[end + i] = 0
            A.counters[queue.row, C.MALFORMED] += 1
        end += total
    queue.used = end
    if source.of_engine != 0:
        store_u32(buffer, start, load_u32(buffer, start) | seg.REC_ENGINE)
    A.counters[queue.row, C.RECORDS] += 1
    store_i64(marks, number * 8, seq)
    return TAKEN, touched


@inlined
def _take_chain(A, topic, source, ring, at, size, flags, wall_ns, fields, touched):
    """A message of several packets at the beginning of packet `seq`. As `_take`.

    ``size`` and ``flags`` of its first part, which ends within its slot.
    """
    packets = _chain(source, ring, source.seq)
    if packets == 0:
        return WAIT, touched
    if packets < 0 or size < 8 or flags & wire.BEGIN == 0:
        return MALFORMED, touched
    total = load_i64(ring, at + 4)
    lead = _parse(ring, at + 12, at + 4 + size, flags, wall_ns, fields)
    most = min(wire.MESSAGE_BYTES_MAX, packets * source.slot_bytes)
    if lead < 0 or total <= 0 or total > most:
        return MALFORMED, touched
    status, touched = _take(
        A, topic, source, ring, fields, at + 12 + lead, total, packets, 8 + lead, touched
    )
    if status == TAKEN:
        source.seq, source.at = source.seq + packets, _HEADER
        source.count += 1
    return status, touched


@inlined
def _note_malformed(A, topic, source):
    """A message that cannot be parsed keeps its sequence, and is dropped."""
    row = load_i64(bytes_at(topic.map_address, 8), 0)
    A.counters[A.queues[row].row, C.MALFORMED] += 1
    source.count += 1


@inlined
def read_source(A, topic, source, wall_ns, fields):
    """Read the ring, up to the room in the queues' buffers. True: the position advanced."""
    ring = ring_of_source(source)
    seq, start = source.seq, source.at
    touched = 0
    going = True
    while going:
        word = load_acquire(ring, control_at(source.seq, source.slots - 1))
        state = (word >> lay.STATE_SHIFT) & 0xFF
        if not holds(word, source.seq) or state == lay.EMPTY:
            break
        length = word & lay.CONTROL_LENGTH_MASK
        slot = source.slots_at + (source.seq & (source.slots - 1)) * source.slot_bytes
        if state == lay.GONE or length > source.slot_bytes:
            # how many messages it held is not known: nothing follows it
            if source.gap_reported == 0:
                source.gap_reported = emit(
                    A.events, A.attention, E_GAP, source.index, source.seq, 1
                )
            break
        end = slot + length
        at = slot + source.at
        here = source.seq
        while at + 4 <= end:
            head = load_u32(ring, at)
            size, flags = head & 0xFFFFFF, head >> 24
            if at + 4 + size > end:
                _note_malformed(A, topic, source)
                at = end
                break
            if flags & wire.WHOLE != wire.WHOLE:
                status, touched = _take_chain(
                    A, topic, source, ring, at, size, flags, wall_ns, fields, touched
                )
                if status == MALFORMED:
                    _note_malformed(A, topic, source)
                    source.seq, source.at = source.seq + 1, _HEADER
                going = status != WAIT
                break
            lead = _parse(ring, at + 4, at + 4 + size, flags, wall_ns, fields)
            if lead < 0:
                _note_malformed(A, topic, source)
                at += 4 + size
                continue
            status, touched = _take(
                A, topic, source, ring, fields, at + 4 + lead, size - lead, 0, 0, touched
            )
            if status == WAIT:
                going = False
                break
            source.count += 1
            at += 4 + size
        if source.seq != here:
            continue
        source.at = at - slot
        if not going:
            break
        if state != lay.SEALED:
            break
        source.seq, source.at = source.seq + 1, _HEADER
    seal_open_batches(A, touched, wall_ns)
    return source.seq != seq or source.at != start
