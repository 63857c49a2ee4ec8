"""Kernels of remote clients: messages out of a ring into one block of bytes, and back again.

A *block* is messages end to end, each its optional fields (in wire order) and then its payload.
"""

from __future__ import annotations

from tidecast.buffers.reader import OUT_AT, OUT_FLAGS, OUT_LENGTH, OUT_META_AT
from tidecast.buffers.reading import optional_fields_bytes
from tidecast.buffers.slots import control_at, control_word, wake_armed
from tidecast.buffers.writer import (
    FULL,
    W_MASK,
    W_SEQ,
    W_USED,
    append,
    room,
    seal,
)
from tidecast.client.kernels import Port, bells_of, ring_of
from tidecast.layout import packet as wire
from tidecast.layout import ring as lay
from tidecast.native.atomics import store_release
from tidecast.native.jit import held_kernel
from tidecast.native.mapped import Bytes
from tidecast.native.memory import bytes_at, copy, load_u16, store_u8, store_u32

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
    base: int, n_bytes: int, rows: Port, sizes: Port, first: int, end: int, mixed: int,
    target: Bytes,
) -> int:  # fmt: skip
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
def put_block(
    port: Port, base: int, n_bytes: int, lengths: Port, leads: Port, flags: Port, receiver: int,
    done: Port,
) -> int:  # fmt: skip
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
        store_release(ring, control_at(seq, port[W_MASK]), control_word(seq, lay.GONE, 0))
        store_release(ring, lay.HEAD_AT, seq + 1)
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
