"""Kernels of batches: lists and arrays into a ring, messages out of it as columns and as rows.

Most messages are only a payload, and the messages of a topic often have one size.
`tidecast.buffers` appends and lists any message; plain messages take a shorter way here: a list is
read in place, the rows of an array share one header, and a batch is walked over once. Other
messages are left to `tidecast.buffers`. `tidecast bench python` measures it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from tidecast.buffers import reader, writer
from tidecast.buffers.reading import for_another_node, lapped
from tidecast.buffers.slots import control_at, holds, wake_armed
from tidecast.client.kernels.ports import (
    NOTHING,
    P_BUSY,
    Q_FLAGS,
    Q_IN_PLACE,
    Port,
    assembly_of,
    bells_of,
    read_ring_of,
    ring_of,
    words_at,
)
from tidecast.layout import packet as wire
from tidecast.layout import ring as ring_layout
from tidecast.native.atomics import load_acquire, load_relaxed, pause
from tidecast.native.jit import held_kernel, hot, inlined, kernel
from tidecast.native.mapped import Bytes
from tidecast.native.memory import bytes_at, copy, load_u32
from tidecast.native.objects import (
    ARRAY_DATA_AT,
    DATA_AT,
    LENGTH_AT,
    LIST_ITEMS_AT,
    TUPLE_ITEMS_AT,
    TYPE_AT,
    builtin,
    compile_builtin,
    int_of,
    new_int,
    word_at,
)

_HEADER, _MESSAGE_HEADER, _WHOLE = wire.PACKET_HEADER_BYTES, wire.MESSAGE_HEADER_BYTES, wire.WHOLE
_BYTES, _LIST = TUPLE_ITEMS_AT, TUPLE_ITEMS_AT + 8
"""State of `_put_list`: the types `bytes` and `list`."""
DONE, FULL, OTHER = 0, 1, 2
"""Why `put_list` and `put_rows` stopped. OTHER: the port is busy, or the next message is not plain
or needs packets of its own."""
CODES = 4
"""They return ``CODES * (index of the next message) + code``."""
_PAUSES = 8


# --- into the ring --------------------------------------------------------------------------------


@hot
def open_for(ring: Bytes, port: Port, need: int) -> int:
    """Bytes used of a packet for all receivers with room for ``need`` more; below 0: full."""
    used = port[writer.W_USED]
    if used != 0 and (used + need > port[writer.W_SLOT_BYTES] or port[writer.W_RECEIVER] != 0):
        writer.seal(ring, port)
        used = 0
    if used == 0:
        if not writer.room(ring, port, 1):
            return writer.FULL
        writer.open_packet(ring, port, 0)
        used = _HEADER
    return used


@hot
def commit_packet(ring: Bytes, port: Port, used: int, more: bool, flush: int) -> bool:
    """Make the open packet's ``used`` bytes visible. False: the sender sealed it without them."""
    port[writer.W_USED] = used
    if more or (flush != 0 and port[writer.W_HAS_NETWORK] != 0):
        return writer.seal(ring, port)
    return writer.commit(ring, port)


@hot
def slot_of(port: Port) -> int:
    """Where the open packet lies."""
    return (
        port[writer.W_SLOTS_AT]
        + (port[writer.W_SEQ] & port[writer.W_MASK]) * port[writer.W_SLOT_BYTES]
    )


@hot
def _ended(ring: Bytes, port: Port, index: int, code: int) -> int:
    """Wake readers; the result of a kernel that puts."""
    if code == FULL:
        port[writer.W_FULL] += 1
    wake_armed(ring, bells_of(port))
    return new_int(CODES * index + code)


@hot
def _port_of(arguments: int) -> Port:
    """The port whose array is the first argument."""
    return words_at(word_at(word_at(arguments, 0), ARRAY_DATA_AT))


@held_kernel
def _put_list(own: int, arguments: int, _n: int, _names: int) -> int:
    """(port, list or tuple, index of the first, flush): append its `bytes` from there on."""
    port, objects = _port_of(arguments), word_at(arguments, 8)
    index, flush = int_of(word_at(arguments, 16)), int_of(word_at(arguments, 24))
    if port[P_BUSY] != 0:
        return new_int(CODES * index + OTHER)  # there may be no ring
    ring, kind, n = ring_of(port), word_at(own, _BYTES), word_at(objects, LENGTH_AT)
    if word_at(objects, TYPE_AT) == word_at(own, _LIST):
        items = word_at(objects, LIST_ITEMS_AT)
    else:
        items = objects + TUPLE_ITEMS_AT
    alike = True
    for i in range(index, n):
        alike = alike and word_at(word_at(items, 8 * i), TYPE_AT) == kind
    code = DONE if alike else OTHER
    slot_bytes = port[writer.W_SLOT_BYTES]
    while index < n and code == DONE:
        need = _MESSAGE_HEADER + word_at(word_at(items, 8 * index), LENGTH_AT)
        if need > slot_bytes - _HEADER:
            code = OTHER
            break
        used = open_for(ring, port, need)
        if used < 0:
            code = FULL
            break
        slot = slot_of(port)
        i, size = index, 0
        while i < n:
            one = word_at(items, 8 * i)
            length = word_at(one, LENGTH_AT)
            end = used + _MESSAGE_HEADER + length
            if end > slot_bytes:
                break
            writer.put_header(ring, slot + used, length, _WHOLE)
            copy(ring, slot + used + _MESSAGE_HEADER, bytes_at(one + DATA_AT, length), 0, length)
            used = end
            size += length
            i += 1
        if commit_packet(ring, port, used, i < n, flush):
            port[writer.W_MESSAGES] += i - index
            port[writer.W_BYTES] += size
            index = i
    return _ended(ring, port, index, code)


@held_kernel
def _put_rows(_own: int, arguments: int, _n: int, _names: int) -> int:
    """(port, contiguous array, bytes a row, index of the first, rows, flush): append them."""
    port, start = _port_of(arguments), word_at(word_at(arguments, 8), ARRAY_DATA_AT)
    length, index = int_of(word_at(arguments, 16)), int_of(word_at(arguments, 24))
    n, flush = int_of(word_at(arguments, 32)), int_of(word_at(arguments, 40))
    if port[P_BUSY] != 0:
        return new_int(CODES * index + OTHER)
    ring, rows = ring_of(port), bytes_at(start, n * length)
    need, slot_bytes = _MESSAGE_HEADER + length, port[writer.W_SLOT_BYTES]
    code = DONE if need <= slot_bytes - _HEADER else OTHER
    while index < n and code == DONE:
        used = open_for(ring, port, need)
        if used < 0:
            code = FULL
            break
        fit = min(n - index, (slot_bytes - used) // need)
        at, source = slot_of(port) + used, index * length
        for _ in range(fit):
            writer.put_header(ring, at, length, _WHOLE)
            copy(ring, at + _MESSAGE_HEADER, rows, source, length)
            at += need
            source += length
        if commit_packet(ring, port, used + fit * need, index + fit < n, flush):
            port[writer.W_MESSAGES] += fit
            port[writer.W_BYTES] += fit * length
            index += fit
    return _ended(ring, port, index, code)


@functools.cache
def list_append_fn() -> Callable[[Port, list[bytes] | tuple[bytes, ...], int, int], int]:
    """(port, messages, index of the first, flush): see CODES.

    Nothing is appended before all are seen to be `bytes`.
    """
    return builtin(_put_list, (bytes, list), "put_list")


@functools.cache
def rows_append_fn() -> Callable[[Port, np.ndarray[Any, Any], int, int, int, int], int]:
    """(port, contiguous array, bytes a row, index of the first, rows, flush): see CODES."""
    return builtin(_put_rows, (), "put_rows")


# --- out of the ring ------------------------------------------------------------------------------


@hot
def _walk_plain(ring: Bytes, port: Port, columns: Port, n: int, limit: int) -> tuple[int, bool]:
    """Starts and ends of the plain messages that come next in ``columns``.

    Returns the count then, and whether something that is not plain comes next.
    """
    seq, inside = port[reader.R_SEQ], port[reader.R_AT]
    mask, slots_at, slot_bytes = (
        port[reader.R_MASK],
        port[reader.R_SLOTS_AT],
        port[reader.R_SLOT_BYTES],
    )
    size, before, plain = 0, n, True
    while n < limit:
        word = load_acquire(ring, control_at(seq, mask))
        state, length = (
            (word >> ring_layout.STATE_SHIFT) & 0xFF,
            word & ring_layout.CONTROL_LENGTH_MASK,
        )
        if not holds(word, seq) or state == ring_layout.EMPTY:
            break
        plain = state != ring_layout.GONE and length <= slot_bytes
        if not plain:
            break
        slot = slots_at + (seq & mask) * slot_bytes
        plain = not for_another_node(ring, port, slot)
        if not plain:
            break
        at, end = slot + inside, slot + length
        while at + _MESSAGE_HEADER <= end and n < limit:
            head = load_u32(ring, at)
            behind = at + _MESSAGE_HEADER + (head & 0xFFFFFF)
            plain = head >> 24 == _WHOLE and behind <= end
            if not plain:
                break
            columns[0, n] = at + _MESSAGE_HEADER
            columns[1, n] = behind
            size += behind - at - _MESSAGE_HEADER
            n += 1
            at = behind
        inside = at - slot
        plain = plain and (at == end or n == limit)
        if not plain or at < end or state != ring_layout.SEALED:
            break
        seq += 1
        inside = _HEADER
    port[reader.R_SEQ], port[reader.R_AT] = seq, inside
    port[reader.R_MESSAGES] += n - before
    port[reader.R_BYTES] += size
    return n, not plain


@inlined
def _rows_for(out: Port, columns: Port, first: int, n: int) -> None:
    """Poll's output for the plain messages ``first`` to ``n``."""
    for i in range(first, n):
        out[i, reader.OUT_AT] = out[i, reader.OUT_META_AT] = columns[0, i]
        out[i, reader.OUT_LENGTH] = columns[1, i] - columns[0, i]
        out[i, reader.OUT_FLAGS] = _WHOLE


@inlined
def _lost_before(ring: Bytes, port: Port) -> bool:
    """Whether a newer packet has replaced a packet that the reader holds."""
    first = load_relaxed(ring, port[reader.R_ENTRY] + ring_layout.CONSUMER_POSITION_AT)
    return lapped(ring, port, first)


@inlined
def _more(ring: Bytes, port: Port, out: Port, columns: Port, n: int, limit: int) -> int:
    """Add the next messages to ``n`` messages. The new count, or a result of `poll` below zero."""
    assembling = 0 < port[reader.R_FILLED] < port[reader.R_TOTAL]
    simple = port[Q_IN_PLACE] != 0 and port[reader.R_SEEN] == 0 and not assembling
    if simple and port[Q_FLAGS] & ~_WHOLE == 0:
        seq, at = port[reader.R_SEQ], port[reader.R_AT]
        messages, size = port[reader.R_MESSAGES], port[reader.R_BYTES]
        known = n
        n, other = _walk_plain(ring, port, columns, n, limit)
        if n > 0 and _lost_before(ring, port):
            # The messages read may be torn: read none, so that `poll` reports the gap.
            port[reader.R_SEQ], port[reader.R_AT] = seq, at
            port[reader.R_MESSAGES], port[reader.R_BYTES] = messages, size
            n = known
        elif n == limit or (n > 0 and not other):
            return n
        _rows_for(out, columns, 0, n)
    first = n
    n = reader.extend_into(ring, port, assembly_of(port), out, n, limit)
    for i in range(first, n):
        columns[0, i] = out[i, reader.OUT_AT]
        columns[1, i] = out[i, reader.OUT_AT] + out[i, reader.OUT_LENGTH]
        port[Q_FLAGS] |= out[i, reader.OUT_FLAGS]
    return n


@held_kernel
def take(port: Port, out: Port, columns: Port, limit: int) -> int:
    """`poll`, and the payloads' starts and ends in ``columns`` (int64[2, limit]).

    ``out`` is not written when all are plain (Q_FLAGS says so) and Q_IN_PLACE is set.
    """
    ring = read_ring_of(port)
    reader.release(ring, port)
    port[Q_FLAGS] = 0
    return _more(ring, port, out, columns, 0, limit)


@held_kernel
def extend(port: Port, out: Port, columns: Port, n: int, limit: int) -> int:
    """Add to the ``n`` messages of the last `take` without releasing any. The new count."""
    ring = read_ring_of(port)
    for _ in range(2):  # messages that came after the first read are found by the second
        more = _more(ring, port, out, columns, n, limit)
        if more != n or not reader.has_more(ring, port):
            return more
    return NOTHING  # a fragmented message or a gap is next: it comes alone


@kernel
def await_packets(port: Port, wanted: int, have: int, spins: int) -> None:
    """Spin until a batch of ``have`` messages can have ``wanted``, at packets as full as its own.

    Looks at the control word of the packet where they would end, which the writer touches last: a
    reader on the heels of a writer costs both a transfer of cache lines for every packet.
    """
    ring = read_ring_of(port)
    held = port[reader.R_SEQ] - load_relaxed(
        ring, port[reader.R_ENTRY] + ring_layout.CONSUMER_POSITION_AT
    )
    ahead = min(max(1, (wanted - have) * held // max(have, 1)), port[reader.R_SLOTS] >> 2)
    seq = port[reader.R_SEQ] + ahead
    at = control_at(seq, port[reader.R_MASK])
    for _ in range(spins):
        if holds(load_acquire(ring, at), seq):
            return
        for _ in range(_PAUSES):
            pause()


@held_kernel
def copy_rows(base: int, n_bytes: int, columns: Port, n: int, size: int, target: Bytes) -> bool:
    """Copy ``n`` payloads of ``size`` bytes end to end into ``target``. False: one has another."""
    source = bytes_at(base, n_bytes)
    to, alike = 0, True
    for i in range(n):
        alike = alike and columns[1, i] - columns[0, i] == size
        if not alike:
            break
        copy(target, to, source, columns[0, i], size)
        to += size
    return alike


def compile_builtins() -> None:
    """Compile, or load from the cache, the kernels of this module."""
    for each in (_put_list, _put_rows):
        compile_builtin(each)
