"""The client's kernels: thin entries to `tidecast.buffers` that cost Python as little as possible.

Unboxing one array argument costs about 70 ns and a `bytes` object 20 ns, so a publisher passes
one ``int64`` array, its *port*: the writer's private state and behind it the raw addresses of ring
and doorbells. A reader does the same. The owner of a port keeps the mappings alive.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import types

from tidecast.buffers import reader
from tidecast.buffers.slots import arm_entry, ring_bell
from tidecast.buffers.writer import (
    W_MESSAGE_BYTES_MAX,
    WRITER_FIELDS,
    append_batch,
    append_into,
    close_ring,
    flush_open,
    writer_state,
)
from tidecast.layout import ring as ring_layout
from tidecast.layout.packet import MESSAGE_BYTES_MAX
from tidecast.native.atomics import (
    compare_and_swap,
    fence_seq_cst,
    load_acquire,
    load_acquire_i32,
    load_relaxed,
)
from tidecast.native.jit import held_kernel, hot, kernel
from tidecast.native.mapped import Bytes
from tidecast.native.memory import address, address_of, bytes_at, copy, load_i64
from tidecast.native.objects import BYTES_OBJECT, DATA_AT, LENGTH_AT, direct, object_address
from tidecast.native.system.syscalls import CLOCK_MONOTONIC, clock_ns, eventfd_write, futex_wait

Port = np.ndarray[Any, np.dtype[np.int64]]

P_RING, P_RING_BYTES, P_BELLS, P_BELLS_BYTES, P_BUSY = (WRITER_FIELDS + i for i in range(5))
PORT_FIELDS = WRITER_FIELDS + 5
"""A publisher's port. P_BUSY: not 0 while appending needs the publisher's lock: a compiled producer
runs without the interpreter lock, or the ring is gone. The kernels that append hold the interpreter
lock from their read of P_BUSY to the end, so that read is enough."""

Q_RING, Q_RING_BYTES, Q_ASSEMBLY, Q_ASSEMBLY_BYTES = (reader.READER_FIELDS + i for i in range(4))
Q_FLAGS, Q_NODE, Q_SESSION, Q_IN_PLACE = (reader.READER_FIELDS + 4 + i for i in range(4))
READ_PORT_FIELDS = reader.READER_FIELDS + 8
"""A reader's port. Q_FLAGS: all flags of the last batch or-ed. Node id and session. Q_IN_PLACE: not
0 when batches stay in the ring, and the columns of a plain one are enough."""

WAITS, STOPS = 1, 2
"""For `wake_loop`."""
BUSY = -10
NOTHING = -9
"""`extend`: no more may be added to this batch."""


@functools.cache
def append_fn() -> Callable[[int, bytes], int]:
    """`put_object` as Python calls it: (address of the port, payload)."""
    return direct(put_object, types.int64, BYTES_OBJECT)


def writer_port(ring: Bytes, bells: Bytes, message_bytes_max: int = MESSAGE_BYTES_MAX) -> Port:
    """A publisher's port. The caller keeps ``ring`` and ``bells`` alive."""
    port = np.zeros(PORT_FIELDS, dtype=np.int64)
    port[:WRITER_FIELDS] = writer_state(ring)
    port[W_MESSAGE_BYTES_MAX] = message_bytes_max
    port[P_RING], port[P_RING_BYTES] = address(ring), ring.size
    port[P_BELLS], port[P_BELLS_BYTES] = address(bells), bells.size
    return port


def reader_port(ring: Bytes, consumer: int, subscriber: int) -> Port:
    """A reader's port. The caller keeps ``ring`` alive."""
    port = np.zeros(READ_PORT_FIELDS, dtype=np.int64)
    port[: reader.READER_FIELDS] = reader.reader_state(ring, consumer, subscriber)
    port[Q_RING], port[Q_RING_BYTES] = address(ring), ring.size
    return port


@hot
def words_at(at: int) -> Port:
    """A port from its address."""
    return bytes_at(at, PORT_FIELDS * 8).view(np.int64)


@hot
def ring_of(port: Port) -> Bytes:
    """The ring behind a publisher's port."""
    return bytes_at(port[P_RING], port[P_RING_BYTES])


@hot
def bells_of(port: Port) -> Bytes:
    """The doorbells behind a publisher's port."""
    return bytes_at(port[P_BELLS], port[P_BELLS_BYTES])


@hot
def read_ring_of(port: Port) -> Bytes:
    """The ring behind a reader's port."""
    return bytes_at(port[Q_RING], port[Q_RING_BYTES])


@hot
def assembly_of(port: Port) -> Bytes:
    """The assembly buffer behind a reader's port."""
    return bytes_at(port[Q_ASSEMBLY], port[Q_ASSEMBLY_BYTES])


@held_kernel
def put_object(port_at: int, payload: Any) -> int:
    """Append one message that is nothing but a payload. Returns as `append` does, or BUSY.

    By `direct`, see `append_fn`: 0.15 us instead of 0.36 with a port and `bytes` to unpack.
    """
    port = words_at(port_at)
    if port[P_BUSY] != 0:
        return BUSY
    at = object_address(payload)
    n = load_i64(bytes_at(at, LENGTH_AT + 8), LENGTH_AT)
    source = bytes_at(at + DATA_AT, n)
    return append_into(ring_of(port), bells_of(port), port, source, n, source, 0, 0, 0, 0)


@held_kernel
def put(port: Port, payload: bytes, meta: bytes, flags: int, receiver: int, flush: int) -> int:
    """Append one message from two `bytes`. Returns as `append` does."""
    n, meta_n = len(payload), len(meta)
    source, optional = bytes_at(address_of(payload), n), bytes_at(address_of(meta), meta_n)
    return append_into(
        ring_of(port), bells_of(port), port, source, n, optional, meta_n, flags, receiver, flush
    )


@held_kernel
def put_array(port: Port, source: Bytes) -> int:
    """Append one message from a writable ``uint8[::1]``. Returns as `append` does, or BUSY."""
    if port[P_BUSY] != 0:
        return BUSY
    return append_into(ring_of(port), bells_of(port), port, source, source.size, source, 0, 0, 0, 0)


@held_kernel
def put_many(
    port: Port,
    at: int,
    n_bytes: int,
    lengths: Port,
    fixed: int,
    n: int,
    receiver: int,
    flush: int,
    done: Port,
) -> int:
    """Append ``n`` messages that lie end to end at raw address ``at``; see `append_batch`."""
    return append_batch(
        ring_of(port),
        bells_of(port),
        port,
        bytes_at(at, n_bytes),
        lengths,
        fixed,
        n,
        receiver,
        flush,
        done,
    )


@held_kernel
def seal_open(port: Port) -> None:
    """Seal the open packet if it holds messages: the sender sends it at once."""
    flush_open(ring_of(port), bells_of(port), port)


@held_kernel
def finish(port: Port) -> None:
    """Seal the open packet and mark the ring as closed."""
    close_ring(ring_of(port), bells_of(port), port)


@held_kernel
def ready(port: Port) -> bool:
    """Is there anything to take?"""
    return reader.has_more(read_ring_of(port), port)


@held_kernel
def arm_reader(port: Port, keep: int) -> bool:
    """`arm`; with ``keep`` the messages of the last poll stay held. True: do not sleep."""
    ring = read_ring_of(port)
    if keep:
        return reader.arm_keeping(ring, port)
    return reader.arm(ring, port)


@hot
def _read_port_at(at: int) -> Port:
    """A reader's port from its address."""
    return bytes_at(at, READ_PORT_FIELDS * 8).view(np.int64)


@held_kernel
def find_ready(ports: Port, start: int, looks: int) -> int:
    """Where the first ring is that has something, from ``start`` on, after the last the first.

    -1 when none of the ``looks`` rings has. ``ports``: addresses of readers' ports, or 0.
    """
    k = start
    for _ in range(looks):
        if k >= ports.size:
            k = 0
        if ports[k] != 0:
            port = _read_port_at(ports[k])
            if reader.has_more(read_ring_of(port), port):
                return k
        k += 1
    return -1


@held_kernel
def arm_ports(ports: Port, keep: int) -> bool:
    """`arm_reader` for many rings; the ring at ``keep`` (or -1) keeps its messages."""
    for k in range(ports.size):
        if ports[k] == 0:
            continue
        port = _read_port_at(ports[k])
        ring = read_ring_of(port)
        if k != keep:
            reader.release(ring, port)
        i = port[reader.R_CONSUMER]
        is_tail = i >= ring_layout.HEADER_CONSUMERS
        if is_tail or load_relaxed(ring, ring_layout.ARMED_AT) & (1 << i) == 0:
            arm_entry(ring, i, port[reader.R_ENTRY])
    fence_seq_cst()
    return find_ready(ports, 0, ports.size) >= 0


@held_kernel
def release(port: Port) -> None:
    """Release the messages of the last poll."""
    reader.release(read_ring_of(port), port)


@held_kernel
def is_drained(port: Port) -> bool:
    """Is the ring closed and all of it read?"""
    return reader.drained(read_ring_of(port), port)


@held_kernel
def is_held(port: Port) -> bool:
    """Was the last batch whole all the time since it was taken?"""
    return reader.still_held(read_ring_of(port), port)


@held_kernel
def newest(port: Port) -> int:
    """The packet behind the newest one in the ring."""
    ring = read_ring_of(port)
    if port[reader.R_KIND] == ring_layout.KIND_IMAGE:
        return load_acquire(ring, ring_layout.HIGHEST_AT)
    return load_acquire(ring, ring_layout.HEAD_AT)


@held_kernel
def note_torn(port: Port) -> None:
    """The last batch was torn: a gap, see `tidecast.buffers.reader.note_torn`."""
    reader.note_torn(read_ring_of(port), port)


@held_kernel
def gather(base: int, n_bytes: int, columns: Port, n: int, target: Bytes, offsets: Port) -> int:
    """Copy the payloads end to end into ``target``; ``offsets``: int64[n + 1]. The bytes copied."""
    source = bytes_at(base, n_bytes)
    at = 0
    offsets[0] = 0
    for i in range(n):
        size = columns[1, i] - columns[0, i]
        copy(target, at, source, columns[0, i], size)
        at += size
        offsets[i + 1] = at
    return at


@held_kernel
def arrow_views(base: int, n_bytes: int, columns: Port, n: int, views: Bytes) -> None:
    """Arrow's 16-byte string views: length, then 12 bytes inline or {prefix, buffer 0, offset}."""
    source = bytes_at(base, n_bytes)
    for i in range(n):
        size = columns[1, i] - columns[0, i]
        at = i * 16
        for j in range(16):
            views[at + j] = (size >> (8 * j)) & 0xFF if j < 4 else 0
        if size <= 12:
            copy(views, at + 4, source, columns[0, i], size)
        else:
            copy(views, at + 4, source, columns[0, i], 4)
            for j in range(4):
                views[at + 12 + j] = (columns[0, i] >> (8 * j)) & 0xFF


@held_kernel
def ring_line(bells: Bytes, line: int) -> None:
    """Ring one line of a doorbell file."""
    ring_bell(bells, line)


@kernel
def wait_line(bells: Bytes, line: int, seen: int, timeout_ns: int, scratch: Bytes) -> int:
    """Sleep until the line's word is not ``seen`` or the time is over; the word then."""
    at = line * ring_layout.DOORBELL_BYTES
    now = load_acquire_i32(bells, at)
    if now == seen:
        futex_wait(address_of(bells) + at, seen, timeout_ns, scratch)
        now = load_acquire_i32(bells, at)
    return now


@kernel
def wake_loop(
    bells: Bytes, line: int, seen: int, armed: Bytes, event_fd: int, timeout_ns: int, scratch: Bytes
) -> int:
    """For ``timeout_ns``, write to an eventfd when the line's word changes; the last word.

    ``armed``: a word that is `WAITS` while an event loop waits; at `STOPS` a change ends the call.
    It is cleared before the write, so that the write wakes each task that waited before. A word
    that is not ``seen`` at the start counts as a change.
    """
    at = line * ring_layout.DOORBELL_BYTES
    until = clock_ns(CLOCK_MONOTONIC, scratch) + timeout_ns
    left = timeout_ns
    while left > 0:
        now = load_acquire_i32(bells, at)
        if now == seen:
            futex_wait(address_of(bells) + at, seen, left, scratch)
        else:
            seen = now
            wants = load_acquire(armed, 0)
            if wants == STOPS:
                break
            if wants == WAITS and compare_and_swap(armed, 0, WAITS, 0):
                eventfd_write(event_fd, scratch)
        left = until - clock_ns(CLOCK_MONOTONIC, scratch)
    return seen


@held_kernel
def word_of(ring: Bytes, at: int) -> int:
    """One 64-bit word of a ring's header."""
    return load_i64(ring, at)
