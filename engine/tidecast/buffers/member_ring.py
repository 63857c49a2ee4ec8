"""A member's two byte rings: frames of deliveries to a client, frames of acks back to the engine.

Neither side trusts the other: positions and lengths are checked before use, and unsound data is
reported by a status (HOSTILE), never read beyond the ring. Each writer publishes its position last,
so a writer that was killed leaves only whole frames.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tidecast.buffers.slots import ring_bell
from tidecast.errors import ConfigError, SharedMemoryError
from tidecast.layout import member as lay
from tidecast.layout import segment as seg
from tidecast.native.atomics import (
    exchange,
    fence_seq_cst,
    fetch_or,
    load_acquire,
    load_relaxed,
    store_relaxed,
    store_release,
)
from tidecast.native.jit import held_kernel, inlined, kernel
from tidecast.native.mapped import MappedFile
from tidecast.native.memory import (
    copy,
    load_i64,
    load_u16,
    load_u32,
    store_i64,
    store_u16,
    store_u32,
)
from tidecast.native.packing import pack_into, unpack_from

NOTHING, HOSTILE, NEED_BUFFER, ASSEMBLED = -1, -2, -3, -4
"""Results below zero. NOTHING: no frame, or no room for a frame. HOSTILE: the other side wrote
invalid data. NEED_BUFFER: `take` needs an assembly buffer of K_TOTAL bytes. ASSEMBLED: that buffer
has a whole large record."""

(
    K_POSITION,
    K_DELIVERIES,
    K_ACKS,
    K_ACKED,
    K_FRAME_DONE,
    K_RECORD_AT,
    K_TOTAL,
    K_FILLED,
    K_TOKEN,
    K_CURSOR,
) = range(10)
CLIENT_FIELDS = 16
"""Private state of the client: position in the deliveries, sizes of both rings, position in the
acks, records of the current frame that were taken, offset of the next record in the frame; assembly
of a large record: bytes in all, bytes so far, token, cursor."""

ROW_FIELDS = 5
ROW_AT, ROW_LENGTH, ROW_RECORD_AT, ROW_POSITION, ROW_KEY_HASH = range(5)
"""Columns of `take`'s rows: offset and bytes of the payload, offset of the record, the position
that marks it as taken, and the hash of its key (-1: it has no key)."""
RUN_FIELDS = 7
RUN_CURSOR, RUN_TOKEN, RUN_COUNT, RUN_ATTEMPTS, RUN_ACKS_SEEN, RUN_ROW, RUN_FRAME = range(7)
"""Columns of `take`'s runs: records of one cursor with contiguous tokens, the row of the first
record, and the offset of their frame in the file (of a large record: its last frame)."""

_DELIVERIES_AT = lay.MEMBER_HEADER_BYTES
_HEADER = lay.FRAME_HEADER_BYTES


class MemberFile:
    """The file of a member, mapped. Raises ConfigError, SharedMemoryError, NotFound."""

    def __init__(self, mapped: MappedFile, deliveries_bytes: int, acks_bytes: int) -> None:
        self.mapped, self.array = mapped, mapped.array
        self.deliveries_bytes, self.acks_bytes = deliveries_bytes, acks_bytes

    @classmethod
    def create(
        cls, path: Path, deliveries_bytes: int, acks_bytes: int, *, member: int, bell: int
    ) -> MemberFile:
        """Make the file."""
        for name, value, least, most in (
            (
                "deliveries_bytes",
                deliveries_bytes,
                lay.DELIVERIES_BYTES_MIN,
                lay.DELIVERIES_BYTES_MAX,
            ),
            ("acks_bytes", acks_bytes, lay.ACKS_BYTES_MIN, lay.ACKS_BYTES_MAX),
        ):
            if not least <= value <= most or value & (value - 1):
                raise ConfigError(f"{name}: {value}: a power of two from {least} to {most}")
        mapped = MappedFile.create(path, lay.member_bytes(deliveries_bytes, acks_bytes))
        pack_into("<II", mapped.array, lay.MEM_VERSION_AT, lay.MEMBER_VERSION, 0)
        pack_into(
            "<qqqqq",
            mapped.array,
            lay.MEM_DELIVERIES_BYTES_AT,
            deliveries_bytes,
            acks_bytes,
            member,
            bell,
            time.time_ns(),
        )
        pack_into("<q", mapped.array, lay.MEM_STATE_AT, lay.MEM_ATTACHED)
        pack_into("<Q", mapped.array, lay.MEM_MAGIC_AT, lay.MEMBER_MAGIC)
        return cls(mapped, deliveries_bytes, acks_bytes)

    @classmethod
    def open(cls, path: Path) -> MemberFile:
        """Map a file that the engine made."""
        mapped = MappedFile.open(path)
        if mapped.size_bytes < lay.MEMBER_HEADER_BYTES:
            raise SharedMemoryError(f"{path}: {mapped.size_bytes} bytes are no member file")
        magic, version, _ = unpack_from("<QII", mapped.array, 0)
        deliveries, acks = unpack_from("<qq", mapped.array, lay.MEM_DELIVERIES_BYTES_AT)
        sizes_sound = (
            lay.DELIVERIES_BYTES_MIN <= deliveries <= lay.DELIVERIES_BYTES_MAX
            and lay.ACKS_BYTES_MIN <= acks <= lay.ACKS_BYTES_MAX
            and deliveries & (deliveries - 1) == 0
            and acks & (acks - 1) == 0
        )
        if magic != lay.MEMBER_MAGIC or version != lay.MEMBER_VERSION or not sizes_sound:
            raise SharedMemoryError(f"{path} is not a member file of version {lay.MEMBER_VERSION}")
        if mapped.size_bytes < lay.member_bytes(deliveries, acks):
            raise SharedMemoryError(f"{path}: cut short at {mapped.size_bytes} bytes")
        return cls(mapped, deliveries, acks)

    @property
    def bell(self) -> int:
        """Doorbell line of the client."""
        return int(unpack_from("<q", self.array, lay.MEM_BELL_AT)[0])

    @property
    def detached(self) -> bool:
        """Nothing more will come."""
        return bool(unpack_from("<q", self.array, lay.MEM_STATE_AT)[0] == lay.MEM_DETACHED)

    def client_state(self) -> np.ndarray:
        """Private state of the client's side, at the beginning."""
        k = np.zeros(CLIENT_FIELDS, dtype=np.int64)
        k[K_DELIVERIES], k[K_ACKS] = self.deliveries_bytes, self.acks_bytes
        k[K_RECORD_AT] = _HEADER
        return k


# --- the engine's side: `m` is its record of the member -------------------------------------------


@inlined
def reserve(ring, m, n):
    """Room for a frame of ``n`` bytes (a multiple of 8): where, or NOTHING, HOSTILE."""
    released = load_acquire(ring, lay.MEM_RELEASED_AT)
    if released < m.released or released > m.head or released & 7:
        return HOSTILE
    m.released = released
    size = m.deliveries_bytes
    at = m.head & (size - 1)
    left = size - at
    pad = 0 if n <= left else left
    if m.head + pad + n - released > size:
        return NOTHING
    if pad:
        store_u32(ring, _DELIVERIES_AT + at + lay.FRAME_LENGTH_AT, pad)
        store_u16(ring, _DELIVERIES_AT + at + lay.FRAME_KIND_AT, lay.FRAME_PAD)
        m.head += pad
        at = 0
    return _DELIVERIES_AT + at


@inlined
def room(ring, m):
    """Bytes that a frame may take now, its header included: 0 when the ring is full."""
    released = load_acquire(ring, lay.MEM_RELEASED_AT)
    if released < m.released or released > m.head:
        return 0
    size = m.deliveries_bytes
    at = m.head & (size - 1)
    free = size - (m.head - released)
    left = size - at
    if free <= left:
        return free
    return max(left, free - left)


class Frame(NamedTuple):
    """The fields of a frame's header: see `FRAME_HEADER` of the layout."""

    kind: int
    attempts: int
    cursor_word: int
    token: int
    records: int
    used: int
    offset: int


@inlined
def put_frame(ring, m, at, n, frame):
    """Write the header of the frame of ``n`` bytes reserved at ``at``; the body is there."""
    store_u32(ring, at + lay.FRAME_LENGTH_AT, n)
    store_u16(ring, at + lay.FRAME_KIND_AT, frame.kind)
    store_u16(ring, at + lay.FRAME_ATTEMPTS_AT, frame.attempts)
    store_i64(ring, at + lay.FRAME_CURSOR_AT, frame.cursor_word)
    store_i64(ring, at + lay.FRAME_TOKEN_AT, frame.token)
    store_i64(ring, at + lay.FRAME_ACKS_SEEN_AT, m.acks_read)
    store_u32(ring, at + lay.FRAME_COUNT_AT, frame.records)
    store_u32(ring, at + lay.FRAME_BYTES_AT, frame.used)
    store_i64(ring, at + lay.FRAME_OFFSET_AT, frame.offset)
    m.head += n


@inlined
def take_back(ring, m, bells, cursor):
    """Turn a cursor's frames in the ring into PAD frames, which readers skip. Returns how many.

    A client that reads such a frame at this moment may still take it, as if it had done so just
    before. It detects this by `MEM_MOVED_AT`, and by the frame's kind.
    """
    size = m.deliveries_bytes
    p = load_acquire(ring, lay.MEM_RELEASED_AT)
    if p < m.released or p > m.head or p & 7:
        return 0
    n = 0
    while p < m.head:
        offset = p & (size - 1)
        at = _DELIVERIES_AT + offset
        length = load_u32(ring, at + lay.FRAME_LENGTH_AT)
        if length < 8 or length & 7 or length > m.head - p or length > size - offset:
            break
        kind = load_u16(ring, at + lay.FRAME_KIND_AT)
        if kind != lay.FRAME_PAD and length >= _HEADER:
            if load_u32(ring, at + lay.FRAME_CURSOR_AT) == cursor:
                store_u16(ring, at + lay.FRAME_KIND_AT, lay.FRAME_PAD)
                n += 1
        p += length
    store_release(ring, lay.MEM_MOVED_AT, load_relaxed(ring, lay.MEM_MOVED_AT) + 1)
    _wake_client(ring, m, bells)
    return n


@inlined
def publish(ring, m, bells):
    """Show the client all frames so far, and wake it if it sleeps."""
    if m.published == m.head:
        return
    m.published = m.head
    store_release(ring, lay.MEM_DELIVERED_AT, m.head)
    _wake_client(ring, m, bells)


@inlined
def _wake_client(ring, m, bells):
    fence_seq_cst()
    if load_relaxed(ring, lay.MEM_ARMED_AT) != 0:
        exchange(ring, lay.MEM_ARMED_AT, 0)
        ring_bell(bells, m.bell)


@inlined
def next_ack(ring, m):
    """Offset of the next ack frame, checked; or NOTHING, HOSTILE. `pass_ack` steps over it."""
    while True:
        acked = load_acquire(ring, lay.MEM_ACKED_AT)
        ahead = acked - m.acks_read
        if ahead == 0:
            return NOTHING
        size = m.acks_bytes
        offset = m.acks_read & (size - 1)
        if ahead < 8 or ahead > size or acked & 7:
            return HOSTILE
        at = _DELIVERIES_AT + m.deliveries_bytes + offset
        length = load_u32(ring, at + lay.ACK_LENGTH_AT)
        kind = load_u16(ring, at + lay.ACK_KIND_AT)
        if length < 8 or length & 7 or length > ahead or length > size - offset:
            return HOSTILE
        if kind == lay.ACK_PAD:
            m.acks_read += length
            continue
        if kind < lay.ACK or kind > lay.TERM or length < lay.ACK_FRAME_BYTES:
            return HOSTILE
        reason = load_u16(ring, at + lay.ACK_REASON_BYTES_AT)
        if reason > lay.ACK_REASON_BYTES_MAX or lay.ACK_FRAME_BYTES + reason > length:
            return HOSTILE
        return at


@inlined
def pass_ack(ring, m, at):
    """Step over the ack frame at ``at`` (which the client may have changed meanwhile)."""
    offset = m.acks_read & (m.acks_bytes - 1)
    length = load_u32(ring, at + lay.ACK_LENGTH_AT)
    length = min(max(length & ~7, lay.ACK_FRAME_BYTES), m.acks_bytes - offset)
    m.acks_read += length


# --- wake-ups -----------------------------------------------------------------------------------


@inlined
def set_wake(wakes, base, index):
    """Set the bit of member (queue) ``index``; the puller clears all bits, then looks.

    Also a bit that is set already: a look at it could come before the caller's writes are seen, and
    the puller's between the two. In a tight loop 1 of 1,000 wake-ups was lost so.
    """
    fetch_or(wakes, base + (index >> 6) * 8, 1 << (index & 63))


@inlined
def wake(wakes, bells, base, index):
    """Say that member (queue) ``index`` has something for the puller."""
    set_wake(wakes, base, index)
    fence_seq_cst()
    if load_relaxed(wakes, lay.WAKE_ARMED_AT) != 0:
        exchange(wakes, lay.WAKE_ARMED_AT, 0)
        ring_bell(bells, load_i64(wakes, lay.WAKE_BELL_AT))


@held_kernel
def wake_member(wakes, bells, member):
    """For clients: the member acked, or made room: wake the puller."""
    if 0 <= member < lay.MEMBERS_MAX:
        wake(wakes, bells, lay.WAKE_MEMBERS_AT, member)


@held_kernel
def note_member(wakes, member):
    """For clients: the puller reads the member in its next cycle, but is not woken for it."""
    if 0 <= member < lay.MEMBERS_MAX:
        set_wake(wakes, lay.WAKE_MEMBERS_AT, member)


@held_kernel
def wake_queue(wakes, bells, queue):
    """A queue has new records (from Python; kernels call `wake`)."""
    if 0 <= queue < lay.QUEUES_MAX:
        wake(wakes, bells, lay.WAKE_QUEUES_AT, queue)


# --- the client's side --------------------------------------------------------------------------


@inlined
def give_back(ring, k):
    """Release all frames whose records were all taken."""
    store_release(ring, lay.MEM_RELEASED_AT, k[K_POSITION])


@inlined
def frame_at(ring, k):
    """Offset of the current frame, checked; or NOTHING, HOSTILE. PAD frames are skipped."""
    size = k[K_DELIVERIES]
    while True:
        ahead = load_acquire(ring, lay.MEM_DELIVERED_AT) - k[K_POSITION]
        if ahead == 0:
            return NOTHING
        offset = k[K_POSITION] & (size - 1)
        if ahead < 8 or ahead > size:
            return HOSTILE
        at = _DELIVERIES_AT + offset
        length = load_u32(ring, at + lay.FRAME_LENGTH_AT)
        kind = load_u16(ring, at + lay.FRAME_KIND_AT)
        if length < 8 or length & 7 or length > ahead or length > size - offset:
            return HOSTILE
        if kind == lay.FRAME_PAD:
            k[K_POSITION] += length
            k[K_FRAME_DONE], k[K_RECORD_AT] = 0, _HEADER
            continue
        if length < _HEADER or _HEADER + load_u32(ring, at + lay.FRAME_BYTES_AT) > length:
            return HOSTILE
        if kind != lay.FRAME_RECORDS and kind != lay.FRAME_FRAGMENT:
            return HOSTILE
        return at


@inlined
def next_frame(ring, k, at):
    """Step behind the frame at ``at``."""
    k[K_POSITION] += load_u32(ring, at + lay.FRAME_LENGTH_AT)
    k[K_FRAME_DONE], k[K_RECORD_AT] = 0, _HEADER


@inlined
def record_bytes(memory, at, limit):
    """Bytes of the record at ``at`` with ``limit`` bytes left, its parts checked; HOSTILE."""
    if limit < seg.RECORD_HEADER_BYTES:
        return HOSTILE
    length = load_u32(memory, at + seg.REC_LENGTH_AT) & seg.REC_LENGTH_MASK
    lead = seg.RECORD_HEADER_BYTES
    lead += load_u16(memory, at + seg.REC_KEY_LENGTH_AT)
    lead += load_u16(memory, at + seg.REC_HEADERS_LENGTH_AT)
    if length > limit or lead > length:
        return HOSTILE
    return length


@inlined
def payload_at(memory, at):
    """Where the payload of a checked record starts."""
    key = load_u16(memory, at + seg.REC_KEY_LENGTH_AT)
    return at + seg.RECORD_HEADER_BYTES + key + load_u16(memory, at + seg.REC_HEADERS_LENGTH_AT)


@inlined
def key_hash_at(memory, at):
    """Hash of a checked record's key; -1: it has no key."""
    if load_u32(memory, at + seg.REC_LENGTH_AT) & seg.REC_KEY == 0:
        return -1
    return load_u32(memory, at + seg.REC_KEY_HASH_AT)


@inlined
def _fragment(ring, k, at, assembly):
    """Take a fragment: 0 to continue, NEED_BUFFER, ASSEMBLED, HOSTILE."""
    total = load_u32(ring, at + lay.FRAME_COUNT_AT)
    used = load_u32(ring, at + lay.FRAME_BYTES_AT)
    offset = load_i64(ring, at + lay.FRAME_OFFSET_AT)
    if total > seg.BATCH_BYTES_MAX or offset < 0 or offset + used > total:
        return HOSTILE
    if offset == 0:
        k[K_TOTAL], k[K_FILLED] = total, 0
        k[K_TOKEN] = load_i64(ring, at + lay.FRAME_TOKEN_AT)
        k[K_CURSOR] = load_i64(ring, at + lay.FRAME_CURSOR_AT)
    elif total != k[K_TOTAL] or offset != k[K_FILLED]:
        k[K_TOTAL] = 0
        return 0  # another member got the beginning: wait for the next record
    if assembly.size < total:
        return NEED_BUFFER
    copy(assembly, offset, ring, at + _HEADER, used)
    k[K_FILLED] = offset + used
    if k[K_FILLED] < total:
        return 0
    if record_bytes(assembly, 0, total) != total:
        return HOSTILE
    return ASSEMBLED


@inlined
def take_into(ring, k, assembly, rows, runs, limit):
    """The body of `take`, for kernels. Returns (records, runs) or (status, 0)."""
    give_back(ring, k)
    n = 0
    r = 0
    while n < limit and r < runs.shape[0]:
        at = frame_at(ring, k)
        if at == NOTHING:
            if n == 0:
                give_back(ring, k)  # the caller has no record of the skipped frames
            break
        if at < 0:
            return at, 0
        kind = load_u16(ring, at + lay.FRAME_KIND_AT)
        if kind == lay.FRAME_PAD:
            continue  # taken back this moment
        if kind == lay.FRAME_FRAGMENT:
            if n > 0:
                break
            status = _fragment(ring, k, at, assembly)
            if status == NEED_BUFFER or status == HOSTILE:
                return status, 0
            if status == ASSEMBLED:
                _note_run(ring, at, runs, 0, 0, 1, 0)
                next_frame(ring, k, at)
                start = payload_at(assembly, 0)
                rows[0, ROW_AT], rows[0, ROW_LENGTH] = start, k[K_TOTAL] - start
                rows[0, ROW_RECORD_AT], rows[0, ROW_POSITION] = 0, k[K_POSITION]
                rows[0, ROW_KEY_HASH] = key_hash_at(assembly, 0)
                return ASSEMBLED, 1
            next_frame(ring, k, at)
            give_back(ring, k)
            continue
        count = load_u32(ring, at + lay.FRAME_COUNT_AT)
        end = at + _HEADER + load_u32(ring, at + lay.FRAME_BYTES_AT)
        first = k[K_FRAME_DONE]
        before = n
        p = at + k[K_RECORD_AT]
        done = first
        while done < count and n < limit:
            length = record_bytes(ring, p, end - p)
            if length < 0:
                return HOSTILE, 0
            start = payload_at(ring, p)
            rows[n, ROW_AT], rows[n, ROW_LENGTH] = start, p + length - start
            rows[n, ROW_RECORD_AT] = p
            rows[n, ROW_POSITION] = k[K_POSITION] + (p - at) + 1
            rows[n, ROW_KEY_HASH] = key_hash_at(ring, p)
            n += 1
            done += 1
            p += length
        if n > before:
            _note_run(ring, at, runs, r, first, n - before, before)
            r += 1
        if done < count:
            k[K_FRAME_DONE], k[K_RECORD_AT] = done, p - at
        else:
            next_frame(ring, k, at)
    return n, r


@inlined
def _note_run(ring, at, runs, r, skip, count, row):
    runs[r, RUN_CURSOR] = load_i64(ring, at + lay.FRAME_CURSOR_AT)
    runs[r, RUN_TOKEN] = load_i64(ring, at + lay.FRAME_TOKEN_AT) + skip
    runs[r, RUN_COUNT], runs[r, RUN_ROW] = count, row
    runs[r, RUN_FRAME] = at
    runs[r, RUN_ATTEMPTS] = load_u16(ring, at + lay.FRAME_ATTEMPTS_AT)
    runs[r, RUN_ACKS_SEEN] = load_i64(ring, at + lay.FRAME_ACKS_SEEN_AT)


@inlined
def mark_taken(ring, rows, n):
    """Report that the user has the first ``n`` rows: their `ack_wait` begins."""
    if n > 0:
        store_release(ring, lay.MEM_TAKEN_AT, rows[n - 1, ROW_POSITION])


@kernel
def take(ring, k, assembly, rows, runs, limit, mark):
    """Take up to ``limit`` records in place; releases the records of the call before.

    ``rows``: int64[limit, 5], see ROW_*. ``runs``: int64[any, 7], see RUN_*. ``mark``: the user
    gets them now (else call `mark_taken` later). Returns (records, runs); (ASSEMBLED, 1): one
    record in ``assembly``; (NEED_BUFFER, 0); (HOSTILE, 0).
    """
    n, r = take_into(ring, k, assembly, rows, runs, limit)
    if mark:
        mark_taken(ring, rows, 1 if n == ASSEMBLED else n)
    return n, r


@inlined
def ack_into(ring, k, kind, cursor, first, end, time_ns, reason, reason_n):
    """The body of `put_ack`, for kernels."""
    size = k[K_ACKS]
    n = (lay.ACK_FRAME_BYTES + reason_n + 7) & ~7
    offset = k[K_ACKED] & (size - 1)
    left = size - offset
    pad = 0 if n <= left else left
    base = _DELIVERIES_AT + k[K_DELIVERIES]
    if k[K_ACKED] + pad + n - load_acquire(ring, lay.MEM_ACKS_READ_AT) > size:
        return NOTHING
    if pad:
        store_u32(ring, base + offset + lay.ACK_LENGTH_AT, pad)
        store_u16(ring, base + offset + lay.ACK_KIND_AT, lay.ACK_PAD)
        k[K_ACKED] += pad
        offset = 0
    at = base + offset
    store_u32(ring, at + lay.ACK_LENGTH_AT, n)
    store_u16(ring, at + lay.ACK_KIND_AT, kind)
    store_u16(ring, at + lay.ACK_REASON_BYTES_AT, reason_n)
    store_i64(ring, at + lay.ACK_CURSOR_AT, cursor)
    store_i64(ring, at + lay.ACK_FIRST_AT, first)
    store_i64(ring, at + lay.ACK_END_AT, end)
    store_i64(ring, at + lay.ACK_TIME_AT, time_ns)
    copy(ring, at + lay.ACK_FRAME_BYTES, reason, 0, reason_n)
    k[K_ACKED] += n
    store_release(ring, lay.MEM_ACKED_AT, k[K_ACKED])
    return 0


@held_kernel
def put_ack(ring, k, kind, cursor, first, end, time_ns, reason, reason_n):
    """Write an ack frame; NOTHING when the ring is full. Then wake the puller, once a batch."""
    return ack_into(ring, k, kind, cursor, first, end, time_ns, reason, reason_n)


@inlined
def _ack_between(ring, k, runs, first, end, empty):
    """Ack runs [first, end), contiguous runs in a single frame. Returns the first run without room.

    Records that members returned come in runs of one record. With a frame for each run, the credit
    came back record by record, so that later deliveries were single records, too: 0.4 M records/s,
    not 8.
    """
    r = first
    while r < end:
        cursor, token = runs[r, RUN_CURSOR], runs[r, RUN_TOKEN]
        behind = token + runs[r, RUN_COUNT]
        n = r + 1
        while n < end and runs[n, RUN_CURSOR] == cursor and runs[n, RUN_TOKEN] == behind:
            behind += runs[n, RUN_COUNT]
            n += 1
        if ack_into(ring, k, lay.ACK, cursor, token, behind, 0, empty, 0) != 0:
            return r
        r = n
    return end


@inlined
def ack_all_into(ring, k, runs, count, empty):
    """`ack_runs`, for kernels."""
    return _ack_between(ring, k, runs, 0, count, empty)


@kernel
def ack_runs(ring, k, runs, first, count, empty):
    """Ack ``count`` runs from ``first``. Returns how many found room."""
    return _ack_between(ring, k, runs, first, first + count, empty) - first


@held_kernel
def arm_client(ring, k):
    """Ask to be woken by the next delivery. True: there is something already, do not sleep."""
    store_relaxed(ring, lay.MEM_ARMED_AT, 1)
    fence_seq_cst()
    if load_acquire(ring, lay.MEM_DELIVERED_AT) != k[K_POSITION]:
        return True
    return load_relaxed(ring, lay.MEM_STATE_AT) != lay.MEM_ATTACHED
