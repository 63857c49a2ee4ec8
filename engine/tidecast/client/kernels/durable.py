"""Kernels of durable publishers: waiting for acks, and moving unacked messages to a new ring."""

from __future__ import annotations

from tidecast.buffers.reading import optional_fields_bytes
from tidecast.buffers.slots import control_at, holds
from tidecast.buffers.writer import FULL, append
from tidecast.client.kernels.ports import Port, bells_of, ring_of
from tidecast.layout import packet as wire
from tidecast.layout import ring as ring_layout
from tidecast.native.atomics import fence_seq_cst, load_acquire, store_release
from tidecast.native.jit import held_kernel, inlined
from tidecast.native.mapped import Bytes
from tidecast.native.memory import address_of, bytes_at, copy, load_i64, load_u16, load_u32

V_SEQ, V_AT, V_COUNT, V_MOVED, V_SLOTS, V_SLOT_BYTES, V_SLOTS_AT, V_NEED, V_BAD = range(9)
MOVE_FIELDS = 9
"""Next to move: packet, offset in it, messages before it; messages moved; the old ring's
geometry; bytes of assembly buffer wanted; messages that could not be read."""
MOVED, NEED = 0, -20
_HEADER = wire.PACKET_HEADER_BYTES


@held_kernel
def durable_count(ring: Bytes) -> int:
    """Messages of a ring that are durable."""
    return load_acquire(ring, ring_layout.DURABLE_AT)


@held_kernel
def ack_state(ring: Bytes) -> int:
    """0, errno of a disk that refuses, or ACK_* of a session that is over."""
    return load_acquire(ring, ring_layout.ACK_STATE_AT)


@held_kernel
def arm_ack(ring: Bytes) -> int:
    """Ask to be woken when more is durable; how much is now."""
    store_release(ring, ring_layout.ACK_ARMED_AT, 1)
    fence_seq_cst()
    return load_acquire(ring, ring_layout.DURABLE_AT)


@held_kernel
def begin_move(ring: Bytes, state: Port) -> int:
    """Where a ring is durable, from the record that a crash cannot tear; messages before that.

    The next engine may have taken the ring over and moves the record on meanwhile.
    """
    version = load_acquire(ring, ring_layout.ACK_VERSION_AT)
    while True:
        record = ring_layout.ACK_RECORDS_AT + (version & 1) * ring_layout.ACK_RECORD_BYTES
        state[V_SEQ], state[V_AT] = load_i64(ring, record), load_i64(ring, record + 8)
        state[V_COUNT] = load_i64(ring, record + 16)
        fence_seq_cst()
        known, version = version, load_acquire(ring, ring_layout.ACK_VERSION_AT)
        if version == known:
            return state[V_COUNT]


@inlined
def _gather(ring: Bytes, state: Port, assembly: Bytes) -> tuple[int, int]:
    """Put a message of several packets together; (packets, payload bytes) or (0, bytes needed)."""
    total, done, n = 0, 0, 0
    while n < state[V_SLOTS]:
        seq = state[V_SEQ] + n
        slot = state[V_SLOTS_AT] + (seq & (state[V_SLOTS] - 1)) * state[V_SLOT_BYTES]
        head = load_u32(ring, slot + _HEADER)
        size, flags = head & 0xFFFFFF, head >> 24
        body = slot + _HEADER + 4
        if n == 0:
            total = load_i64(ring, body)
            lead = optional_fields_bytes(ring, body + 8, body + size, flags)
            if total <= 0 or total > wire.MESSAGE_BYTES_MAX or lead < 0:
                return -1, 0
            if assembly.size < total:
                return 0, total
            body, size = body + 8 + lead, size - 8 - lead
        if size < 0 or done + size > total:
            return -1, 0
        copy(assembly, done, ring, body, size)
        done += size
        n += 1
        if flags & wire.END:
            return n, total
    return -1, 0


@inlined
def _append_again(
    ring: Bytes,
    port: Port,
    at: int,
    lead: int,
    payload: Bytes,
    payload_at: int,
    n: int,
    flags: int,
    receiver: int,
) -> int:
    """Append a message of the old ring to the new one. As `append`."""
    meta = bytes_at(address_of(ring) + at, lead)
    body = bytes_at(address_of(payload) + payload_at, n)
    bits = flags & ~(wire.BEGIN | wire.END)
    return append(ring_of(port), bells_of(port), port, body, n, meta, lead, bits, receiver, 0)


@inlined
def _move_chain(
    ring: Bytes, state: Port, port: Port, assembly: Bytes, at: int, flags: int, receiver: int
) -> int:
    packets, total = _gather(ring, state, assembly)
    if packets == 0:
        state[V_NEED] = total
        return NEED
    if packets > 0:
        size = load_u32(ring, at) & 0xFFFFFF
        lead = optional_fields_bytes(ring, at + 12, at + 4 + size, flags)
        done = _append_again(ring, port, at + 12, lead, assembly, 0, total, flags, receiver)
        if done == FULL:
            return FULL
        state[V_MOVED] += 1
    else:
        state[V_BAD] += 1
        packets = 1
    state[V_SEQ], state[V_AT] = state[V_SEQ] + packets, _HEADER
    return MOVED


@held_kernel
def move_messages(ring: Bytes, state: Port, port: Port, assembly: Bytes) -> int:
    """Append the messages of an old ring that are not yet moved to the ring of ``port``.

    MOVED: all are. FULL: call again later. NEED: call again with an assembly buffer of V_NEED
    bytes.
    """
    while True:
        word = load_acquire(ring, control_at(state[V_SEQ], state[V_SLOTS] - 1))
        kind = (word >> ring_layout.STATE_SHIFT) & 0xFF
        if not holds(word, state[V_SEQ]) or kind == ring_layout.EMPTY:
            return MOVED
        slot = state[V_SLOTS_AT] + (state[V_SEQ] & (state[V_SLOTS] - 1)) * state[V_SLOT_BYTES]
        end = slot + (word & ring_layout.CONTROL_LENGTH_MASK)
        receiver = load_u16(ring, slot + wire.RECEIVER_AT)
        at = slot + state[V_AT]
        packet = state[V_SEQ]
        while at + 4 <= end:
            head = load_u32(ring, at)
            size, flags = head & 0xFFFFFF, head >> 24
            if at + 4 + size > end:
                break
            if flags & wire.WHOLE != wire.WHOLE:
                status = _move_chain(ring, state, port, assembly, at, flags, receiver)
                if status != MOVED:
                    return status
                break
            lead = optional_fields_bytes(ring, at + 4, at + 4 + size, flags)
            if lead >= 0:
                done = _append_again(
                    ring, port, at + 4, lead, ring, at + 4 + lead, size - lead, flags, receiver
                )
                if done == FULL:
                    return FULL
                state[V_MOVED] += 1
            else:
                state[V_BAD] += 1
            at += 4 + size
            state[V_AT] = at - slot
        if state[V_SEQ] != packet:
            continue
        if kind != ring_layout.SEALED:
            return MOVED
        state[V_SEQ], state[V_AT] = state[V_SEQ] + 1, _HEADER
