"""Kernels of columns: where the values of a column lie, and messages made of such columns.

*Cells* are ``int64[2, n]``: the address of each value and its length, -1 for a null. Arrow arrays,
NumPy rows and tuples of `bytes` become cells by the kernels here, which believe nothing that an
array says about itself; the kernel that publishes believes cells. The caller keeps the memory
alive.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from tidecast.buffers import writer
from tidecast.buffers.slots import wake_armed
from tidecast.client.kernels.batches import commit_packet, open_for, slot_of
from tidecast.client.kernels.ports import Port, bells_of, ring_of
from tidecast.layout import packet as wire
from tidecast.native.jit import held_kernel, hot, inlined, kernel
from tidecast.native.mapped import Bytes
from tidecast.native.memory import (
    bytes_at,
    copy,
    load_i64,
    load_u8,
    load_u16,
    load_u32,
    store_i64,
    store_u16,
)
from tidecast.native.objects import (
    ARRAY_DATA_AT,
    ARRAY_STRIDES_AT,
    DATA_AT,
    LENGTH_AT,
    TUPLE_ITEMS_AT,
    TYPE_AT,
    builtin,
    compile_builtin,
    new_int,
    put_word,
    word_at,
)

Cells = np.ndarray[Any, np.dtype[np.int64]]

NULL = -1
"""Length of a null."""
NO_TIME = -(1 << 63)
"""A message without a time-stamp."""
SOUND = -1
"""The result of kernels for sound rows of a column; else the number of the first bad row."""

IS_NULL, TOO_LARGE, KEY_TOO_LONG, HEADERS_TOO_LONG, META_TOO_LONG, BAD_TIME = 1, 2, 3, 4, 5, 6
"""Why `put_cells` refused a message; 0: it did not."""
_HEADER, _MESSAGE_HEADER = wire.PACKET_HEADER_BYTES, wire.MESSAGE_HEADER_BYTES


# --- from columns to cells ------------------------------------------------------------------------


@hot
def _signed32(data: Bytes, at: int) -> int:
    value = load_u32(data, at)
    return value - (1 << 32) if value >= 1 << 31 else value


@hot
def _valid(bits_at: int, i: int) -> bool:
    return bits_at == 0 or (load_u8(bytes_at(bits_at + (i >> 3), 1), 0) >> (i & 7)) & 1 != 0


@kernel
def locate_offsets(
    offsets_at: int, wide: int, values_at: int, bits_at: int, first: int, cells: Cells
) -> int:
    """Cells of values that offsets of 4 or 8 (``wide``) bytes part. SOUND, or the first bad row.

    Offsets may not fall or be negative; null rows included, so all lie before the last.
    """
    for i in range(cells.shape[1]):
        at = first + i
        if wide != 0:
            start = load_i64(bytes_at(offsets_at + 8 * at, 16), 0)
            end = load_i64(bytes_at(offsets_at + 8 * at, 16), 8)
        else:
            start = _signed32(bytes_at(offsets_at + 4 * at, 8), 0)
            end = _signed32(bytes_at(offsets_at + 4 * at, 8), 4)
        if start < 0 or end < start or (end > start and values_at == 0):
            return i
        cells[0, i] = values_at + start
        cells[1, i] = end - start if _valid(bits_at, at) else NULL
    return SOUND


@kernel
def locate_fixed(width: int, values_at: int, bits_at: int, first: int, cells: Cells) -> None:
    """Cells of values of ``width`` bytes each."""
    for i in range(cells.shape[1]):
        cells[0, i] = values_at + (first + i) * width
        cells[1, i] = width if _valid(bits_at, first + i) else NULL


@kernel
def locate_views(
    views_at: int, bits_at: int, first: int, buffers: Cells, sizes: Cells, cells: Cells
) -> int:
    """Cells of 16-byte views: inline up to 12 bytes, else in one of ``buffers``.

    ``buffers``, ``sizes``: int64[k], address and bytes of each. SOUND, or the first bad row.
    """
    for i in range(cells.shape[1]):
        at = views_at + 16 * (first + i)
        cells[0, i], cells[1, i] = at + 4, NULL
        if not _valid(bits_at, first + i):
            continue
        view = bytes_at(at, 16)
        n = _signed32(view, 0)
        if n < 0:
            return i
        if n > 12:
            which, start = _signed32(view, 8), _signed32(view, 12)
            if which < 0 or which >= buffers.size or start < 0 or start + n > sizes[which]:
                return i
            cells[0, i] = buffers[which] + start
        cells[1, i] = n
    return SOUND


@hot
def _int_at(at: int, width: int, signed: int) -> int:
    """A number of 1, 2, 4 or 8 bytes; one of 8 without a sign may come out below 0."""
    if width == 8:
        return load_i64(bytes_at(at, 8), 0)
    if width == 4:
        return _signed32(bytes_at(at, 4), 0) if signed != 0 else load_u32(bytes_at(at, 4), 0)
    value = load_u8(bytes_at(at, 1), 0) if width == 1 else load_u16(bytes_at(at, 2), 0)
    limit = 1 << (8 * width - 1)
    return value - 2 * limit if signed != 0 and value >= limit else value


@kernel
def locate_numbered(
    values_at: int,
    width: int,
    signed: int,
    bits_at: int,
    first: int,
    dictionary: Cells,
    cells: Cells,
) -> int:
    """Cells of a dictionary's entries by their numbers. SOUND, or the first bad row."""
    for i in range(cells.shape[1]):
        cells[0, i], cells[1, i] = 0, NULL
        if not _valid(bits_at, first + i):
            continue
        number = _int_at(values_at + (first + i) * width, width, signed)
        if number < 0 or number >= dictionary.shape[1]:
            return i
        cells[0, i], cells[1, i] = dictionary[0, number], dictionary[1, number]
    return SOUND


@kernel
def locate_numbers(
    values_at: int, width: int, signed: int, bits_at: int, first: int, cells: Cells
) -> int:
    """Numbers in the place of addresses, 8 as their length. SOUND, or a row beyond 64 bits."""
    for i in range(cells.shape[1]):
        cells[0, i], cells[1, i] = 0, NULL
        if _valid(bits_at, first + i):
            cells[0, i] = _int_at(values_at + (first + i) * width, width, signed)
            if width == 8 and signed == 0 and cells[0, i] < 0:
                return i
            cells[1, i] = 8
    return SOUND


@kernel
def locate_ends(offsets_at: int, low: int, entries: int, base: int, ends: Cells) -> int:
    """Where the entries of each row of an array of lists end. SOUND, or the first bad row.

    ``offsets_at``: offsets of 4 bytes, the first is ``low``; ``base``: entries of arrays before.
    """
    before = 0
    for i in range(ends.size):
        end = _signed32(bytes_at(offsets_at + 4 * (i + 1), 4), 0) - low
        if end < before or end > entries:
            return i
        ends[i] = base + end
        before = end
    return SOUND


@kernel
def scale_times(cells: Cells, unit_ns: int, times: Cells) -> None:
    """Numbers of ``unit_ns`` as ns; nulls as NO_TIME, numbers out of range as -1."""
    most = ((1 << 63) - 1) // unit_ns
    for i in range(times.size):
        times[i] = NO_TIME
        if cells[1, i] != NULL:
            times[i] = cells[0, i] * unit_ns if 0 <= cells[0, i] <= most else -1


@held_kernel
def _locate_objects(own: int, arguments: int, _n: int, _names: int) -> int:
    """(tuple, cells): where its `bytes` lie, None as null. How many, before the first other."""
    objects, cells = word_at(arguments, 0), word_at(arguments, 8)
    n = word_at(objects, LENGTH_AT)
    starts = word_at(cells, ARRAY_DATA_AT)
    lengths = starts + word_at(word_at(cells, ARRAY_STRIDES_AT), 0)
    kind, none = word_at(own, TUPLE_ITEMS_AT), word_at(own, TUPLE_ITEMS_AT + 8)
    for i in range(n):
        one = word_at(objects, TUPLE_ITEMS_AT + 8 * i)
        if word_at(one, TYPE_AT) == kind:
            put_word(starts, 8 * i, one + DATA_AT)
            put_word(lengths, 8 * i, word_at(one, LENGTH_AT))
        elif one == none:
            put_word(starts, 8 * i, 0)
            put_word(lengths, 8 * i, NULL)
        else:
            return new_int(i)
    return new_int(n)


@functools.cache
def locate_objects() -> Callable[[tuple[Any, ...], Cells], int]:
    """(tuple, cells of as many columns): how many of its items are `bytes` or None, up to another.

    The caller keeps the tuple.
    """
    return builtin(_locate_objects, (bytes, None), "locate_objects")


# --- into the ring --------------------------------------------------------------------------------


@inlined
def _refusal(
    port: Port, payload: Cells, keys: Cells, headers: Cells, times: Cells, i: int
) -> tuple[int, int, int]:
    """(why message ``i`` is refused, bytes of its optional fields, their flags)."""
    meta_n, flags, code = 0, 0, 0
    if times.size != 0 and times[i] != NO_TIME:
        meta_n += 8
        flags |= wire.TIMESTAMP
        if times[i] < 0:
            code = BAD_TIME
    if keys.shape[1] != 0 and keys[1, i] >= 0:
        meta_n += 2 + keys[1, i]
        flags |= wire.KEY
        if keys[1, i] > wire.KEY_BYTES_MAX:
            code = KEY_TOO_LONG
    if headers.shape[1] != 0 and headers[1, i] >= 0:
        meta_n += 2 + headers[1, i]
        flags |= wire.HEADERS
        if headers[1, i] > wire.HEADERS_BYTES_MAX:
            code = HEADERS_TOO_LONG
    size = payload[1, i]
    if code == 0:
        if size < 0:
            code = IS_NULL
        elif meta_n > port[writer.W_SLOT_BYTES] - _HEADER - _MESSAGE_HEADER - 8:
            code = META_TOO_LONG
        elif size + meta_n > port[writer.W_MESSAGE_BYTES_MAX]:
            code = TOO_LARGE
    return code, meta_n, flags


@inlined
def _put_field(target: Bytes, at: int, cells: Cells, i: int) -> int:
    n = cells[1, i]
    store_u16(target, at, n)
    copy(target, at + 2, bytes_at(cells[0, i], n), 0, n)
    return at + 2 + n


@hot
def _put_meta(
    target: Bytes, at: int, flags: int, keys: Cells, headers: Cells, times: Cells, i: int
) -> int:
    """Write the optional fields of message ``i``; where they end."""
    if flags & wire.TIMESTAMP:
        store_i64(target, at, times[i])
        at += 8
    if flags & wire.KEY:
        at = _put_field(target, at, keys, i)
    if flags & wire.HEADERS:
        at = _put_field(target, at, headers, i)
    return at


@held_kernel
def put_cells(
    port: Port,
    payload: Cells,
    keys: Cells,
    headers: Cells,
    times: Cells,
    flush: int,
    scratch: Bytes,
    codes: Bytes,
    done: Cells,
) -> int:
    """Append messages from number ``done[0]`` on; one atomic a packet.

    ``payload``: cells; ``keys``, ``headers`` (MessagePack maps): cells, or none for all; ``times``:
    int64[n] ns since 1970, or none. ``scratch``: room for the optional fields of one message. A
    message that cannot be published is left out, and ``codes`` gets the reason. Returns 0 when all
    are appended or refused, FULL when the ring is full (call again later). ``done[0]``: messages
    appended or refused.
    """
    ring, status, n, index = ring_of(port), 0, payload.shape[1], done[0]
    slot_bytes = port[writer.W_SLOT_BYTES]
    while index < n and status == 0:
        code, meta_n, flags = _refusal(port, payload, keys, headers, times, index)
        need = _MESSAGE_HEADER + meta_n + max(payload[1, index], 0)
        if code == 0 and need > slot_bytes - _HEADER:  # packets of its own
            _put_meta(scratch, 0, flags, keys, headers, times, index)
            source = bytes_at(payload[0, index], payload[1, index])
            put = writer.append_into(
                ring, bells_of(port), port, source, source.size, scratch, meta_n, flags, 0, 0
            )
            status = put if put == writer.FULL else 0
            code = TOO_LARGE if put == writer.TOO_LARGE else 0
            index += 0 if put < 0 else 1
            if code == 0:
                continue
        if code != 0:
            codes[index] = code
            index += 1
            continue
        used = open_for(ring, port, need)
        if used < 0:
            port[writer.W_FULL] += 1
            status = writer.FULL
            break
        slot, i, messages, size = slot_of(port), index, 0, 0
        while i < n:
            code, meta_n, flags = _refusal(port, payload, keys, headers, times, i)
            if code != 0:
                codes[i] = code
                i += 1
                continue
            length = payload[1, i]
            end = used + _MESSAGE_HEADER + meta_n + length
            if end > slot_bytes:
                break
            writer.put_header(ring, slot + used, meta_n + length, wire.WHOLE | flags)
            at = slot + used + _MESSAGE_HEADER
            at = _put_meta(ring, at, flags, keys, headers, times, i)
            copy(ring, at, bytes_at(payload[0, i], length), 0, length)
            used, size = end, size + length
            messages += 1
            i += 1
        if commit_packet(ring, port, used, i < n, flush):
            port[writer.W_MESSAGES] += messages
            port[writer.W_BYTES] += size
            index = i
    done[0] = index
    wake_armed(ring, bells_of(port))
    return status


def compile_builtins() -> None:
    """Compile, or load from the cache, the kernels of this module."""
    compile_builtin(_locate_objects)
