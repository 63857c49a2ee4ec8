"""Kernels of remote clients: messages out of a ring into one block of bytes, and back again.

A *block* is messages end to end, each its optional fields (in wire order) and then its payload.
A *mirror* is a member's ring that two hosts hold: bytes cross as they are, at the same positions.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tidecast.buffers.header_names import has_reserved
from tidecast.buffers.reader import OUT_AT, OUT_FLAGS, OUT_LENGTH, OUT_META_AT
from tidecast.buffers.reading import optional_fields_bytes
from tidecast.buffers.slots import control_at, control_word, ring_bell, wake_armed
from tidecast.buffers.writer import (
    FULL,
    W_MASK,
    W_SEQ,
    W_USED,
    append,
    room,
    seal,
)
from tidecast.client.kernels.ports import Port, bells_of, ring_of
from tidecast.layout import member
from tidecast.layout import packet as wire
from tidecast.layout import ring as ring_layout
from tidecast.native.atomics import (
    exchange,
    fence_seq_cst,
    load_acquire,
    load_relaxed,
    store_relaxed,
    store_release,
)
from tidecast.native.jit import held_kernel
from tidecast.native.mapped import Bytes
from tidecast.native.memory import (
    bytes_at,
    copy,
    load_u16,
    load_u32,
    store_u8,
    store_u16,
    store_u32,
)

Positions = np.ndarray[Any, np.dtype[np.int64]]
OPTIONAL = wire.KEY | wire.HEADERS | wire.TIMESTAMP | wire.TO


@held_kernel
def message_bytes(base: int, n_bytes: int, rows: Port, sizes: Port) -> int:
    """Bytes of optional fields (column 0) and in all (1) of each message of a poll; their sum."""
    source = bytes_at(base, n_bytes)
    total = 0
    for i in range(rows.shape[0]):
        lead = 0
        if rows[i, OUT_FLAGS] & OPTIONAL:
            at = rows[i, OUT_META_AT]
            lead = max(optional_fields_bytes(source, at, n_bytes, rows[i, OUT_FLAGS]), 0)
        sizes[i, 0], sizes[i, 1] = lead, lead + rows[i, OUT_LENGTH]
        total += sizes[i, 1]
    return total


@held_kernel
def fill_block(
    base: int,
    n_bytes: int,
    rows: Port,
    sizes: Port,
    first: int,
    end: int,
    mixed: int,
    target: Bytes,
) -> int:
    """A body from messages ``[first, end)``. Returns its bytes.

    Lengths (4 bytes each), with ``mixed`` the bytes of optional fields (4) and flags (1) of each,
    then the block.
    """
    source = bytes_at(base, n_bytes)
    n = end - first
    at = 4 * n
    if mixed:
        at += 5 * n
    for i in range(first, end):
        k = i - first
        lead, size = sizes[i, 0], sizes[i, 1]
        store_u32(target, 4 * k, size)
        if mixed:
            store_u32(target, 4 * n + 4 * k, lead)
            store_u8(target, 8 * n + k, rows[i, OUT_FLAGS] & OPTIONAL)
        copy(target, at, source, rows[i, OUT_META_AT], lead)
        copy(target, at + lead, source, rows[i, OUT_AT], size - lead)
        at += size
    return at


@held_kernel
def check_block(base: int, n_bytes: int, lengths: Port, leads: Port, flags: Port) -> bool:
    """Do the messages fill the block exactly, with optional fields as long as they say?"""
    source = bytes_at(base, n_bytes)
    at = 0
    for i in range(lengths.size):
        size, lead = lengths[i], leads[i]
        if lead < 0 or size < lead or size > n_bytes - at or flags[i] & ~OPTIONAL:
            return False
        end = at + lead
        if flags[i] & wire.TIMESTAMP:
            end -= 8
        if flags[i] & wire.TO:
            end -= 4
        # `optional_fields_bytes` looks at lengths within the fields: they must be inside first.
        if end < at or optional_fields_bytes(source, at, at + lead, flags[i]) != lead:
            return False
        at += size
    return at == n_bytes


@held_kernel
def first_reserved(base: int, n_bytes: int, lengths: Port, leads: Port, flags: Port) -> int:
    """Number of the first message of a checked block with a reserved header; -1: none."""
    source = bytes_at(base, n_bytes)
    at = 0
    for i in range(lengths.size):
        if flags[i] & wire.HEADERS:
            first = at
            if flags[i] & wire.TIMESTAMP:
                first += 8
            if flags[i] & wire.TO:
                first += 4
            if flags[i] & wire.KEY:
                first += 2 + load_u16(source, first)
            if has_reserved(source, first + 2, at + leads[i]):
                return i
        at += lengths[i]
    return -1


@held_kernel
def put_block(
    port: Port,
    base: int,
    n_bytes: int,
    lengths: Port,
    leads: Port,
    flags: Port,
    receiver: int,
    done: Port,
) -> int:
    """Append a checked block's messages, as `append_batch` does: ``done`` {messages, bytes}."""
    ring, bells = ring_of(port), bells_of(port)
    while done[0] < lengths.size and done[1] + lengths[done[0]] <= n_bytes:
        i, at = done[0], done[1]
        payload = bytes_at(base + at + leads[i], lengths[i] - leads[i])
        optional = bytes_at(base + at, leads[i])
        status = append(
            ring, bells, port, payload, payload.size, optional, leads[i], flags[i], receiver, 0
        )
        if status < 0:
            return status
        done[0], done[1] = i + 1, at + lengths[i]
    return 0


@held_kernel
def put_gone(port: Port, packets: int) -> int:
    """Leave ``packets`` packets out, so that readers find a gap. Returns its first, or FULL."""
    ring = ring_of(port)
    if port[W_USED] != 0:
        seal(ring, port)
    if not room(ring, port, packets):
        return FULL
    first = port[W_SEQ]
    for seq in range(first, first + packets):
        store_release(ring, control_at(seq, port[W_MASK]), control_word(seq, ring_layout.GONE, 0))
        store_release(ring, ring_layout.HEAD_AT, seq + 1)
    port[W_SEQ] = first + packets
    wake_armed(ring, bells_of(port))
    return first


@held_kernel
def receiver_run(
    base: int, n_bytes: int, columns: Port, n: int, slots_at: int, slot_bytes: int, found: Port
) -> int:
    """How many messages, from the first on, go to one receiver; ``found[0]``: the node, 0 = all.

    ``columns``: starts and ends in the ring (from 0 on) that begins at ``base``.
    """
    ring = bytes_at(base, n_bytes)
    for i in range(n):
        slot = slots_at + (columns[0, i] - slots_at) // slot_bytes * slot_bytes
        receiver = load_u16(ring, slot + wire.RECEIVER_AT)
        if i == 0:
            found[0] = receiver
        elif receiver != found[0]:
            return i
    return n


# --- durable topics -----------------------------------------------------------------------------
@held_kernel
def report_durable(ring: Bytes, count: int, state: int) -> None:
    """``count`` messages of the ring are durable; ``state`` as of ACK_STATE_AT."""
    store_relaxed(ring, ring_layout.ACK_STATE_AT, state)
    if count > load_relaxed(ring, ring_layout.DURABLE_AT):
        store_release(ring, ring_layout.DURABLE_AT, count)


@held_kernel
def word(ring: Bytes, at: int) -> int:
    """Load a word that another thread writes; all that it wrote before is visible then."""
    return load_acquire(ring, at)


@held_kernel
def set_word(ring: Bytes, at: int, value: int) -> None:
    """Store a word behind all earlier stores."""
    store_release(ring, at, value)


@held_kernel
def mirror_out(ring: Bytes, base: int, size: int, position: int, out: Bytes) -> None:
    """Copy ``out.size`` bytes from ``position`` of a ring of ``size`` bytes at ``base``."""
    at = position & (size - 1)
    first = min(out.size, size - at)
    copy(out, 0, ring, base + at, first)
    copy(out, first, ring, base, out.size - first)


@held_kernel
def mirror_in(ring: Bytes, base: int, size: int, position: int, data_at: int, n: int) -> None:
    """Copy ``n`` bytes from an address into such a ring; no reader sees them before `set_word`."""
    data = bytes_at(data_at, n)
    at = position & (size - 1)
    first = min(n, size - at)
    copy(ring, base + at, data, 0, first)
    copy(ring, base, data, first, n - first)


@held_kernel
def taken_back(ring: Bytes, size: int, first: int, end: int, found: Positions) -> tuple[int, int]:
    """Where PAD frames lie in [first, end) of a member's ring: (how many are found, where next)."""
    n = 0
    while first < end and n < found.size:
        offset = first & (size - 1)
        at = member.MEMBER_HEADER_BYTES + offset
        length = load_u32(ring, at + member.FRAME_LENGTH_AT)
        if length < 8 or length & 7 or length > size - offset:
            break
        if load_u16(ring, at + member.FRAME_KIND_AT) == member.FRAME_PAD:
            found[n] = first
            n += 1
        first += length
    return n, first


@held_kernel
def take_back_at(ring: Bytes, size: int, positions: Positions) -> None:
    """Make PADs of the frames at ``positions``, which are checked, and say that there are some."""
    for i in range(positions.size):
        at = member.MEMBER_HEADER_BYTES + (positions[i] & (size - 1))
        store_u16(ring, at + member.FRAME_KIND_AT, member.FRAME_PAD)
    moved = load_relaxed(ring, member.MEM_MOVED_AT)
    store_release(ring, member.MEM_MOVED_AT, moved + 1)


@held_kernel
def wake_if_armed(memory: Bytes, armed_at: int, bells: Bytes, line: int) -> None:
    """Ring a line if its owner sleeps."""
    fence_seq_cst()
    if load_relaxed(memory, armed_at) != 0:
        exchange(memory, armed_at, 0)
        ring_bell(bells, line)


@held_kernel
def arm_word(memory: Bytes, armed_at: int) -> None:
    """Ask for the bell; look again afterwards, before sleeping."""
    store_relaxed(memory, armed_at, 1)
    fence_seq_cst()
