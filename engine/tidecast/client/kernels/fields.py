"""Kernels that make Arrow's buffers of the fields of received messages."""

from __future__ import annotations

from typing import Any

import numpy as np

from tidecast.buffers.header_names import (
    TIME_ENTRY_BYTES,
    delivery_time,
    first_entry,
    packed_bytes,
    put_head,
)
from tidecast.buffers.member_ring import ROW_RECORD_AT
from tidecast.buffers.reader import OUT_FLAGS, OUT_META_AT
from tidecast.client.kernels.cells import NO_TIME, NULL, Cells
from tidecast.client.kernels.header_maps import lead_of, map_problem
from tidecast.layout import packet as wire
from tidecast.layout import segment
from tidecast.native.jit import hot, inlined, kernel
from tidecast.native.mapped import Bytes
from tidecast.native.memory import bytes_at, copy, load_i64, load_u8, load_u16, load_u32, store_u8

Ends32 = np.ndarray[Any, np.dtype[np.int32]]

DIGITS_MAX = 20
"""Characters of a 64-bit number with its sign: room that `measure_entries` needs."""


# --- where the fields of messages lie -------------------------------------------------------------


@hot
def _put_cell(cells: Cells, i: int, at: int, n: int) -> None:
    cells[0, i], cells[1, i] = at, n


@kernel
def locate_fields(
    base: int, n_bytes: int, rows: Cells, keys: Cells, headers: Cells, times: Cells
) -> None:
    """Cells of the optional fields of the messages of a poll; its kernel has checked them."""
    data = bytes_at(base, n_bytes)
    for i in range(rows.shape[0]):
        at, flags = rows[i, OUT_META_AT], rows[i, OUT_FLAGS]
        _put_cell(keys, i, 0, NULL)
        _put_cell(headers, i, 0, NULL)
        times[i] = NO_TIME
        if flags & wire.TIMESTAMP:
            times[i] = load_i64(data, at)
            at += 8
        if flags & wire.TO:
            at += 4
        if flags & wire.KEY:
            n = load_u16(data, at)
            _put_cell(keys, i, base + at + 2, n)
            at += 2 + n
        if flags & wire.HEADERS:
            _put_cell(headers, i, base + at + 2, load_u16(data, at))


@kernel
def locate_record_fields(
    base: int, n_bytes: int, rows: Cells, keys: Cells, headers: Cells, times: Cells
) -> None:
    """Cells of the fields of records of a durable batch; ``rows`` as `member_ring.take` fills."""
    data = bytes_at(base, n_bytes)
    for i in range(rows.shape[0]):
        at = rows[i, ROW_RECORD_AT]
        key_n = load_u16(data, at + segment.REC_KEY_LENGTH_AT)
        headers_n = load_u16(data, at + segment.REC_HEADERS_LENGTH_AT)
        has_key = load_u32(data, at + segment.REC_LENGTH_AT) & segment.REC_KEY
        times[i] = load_i64(data, at + segment.REC_TIME_AT)
        at += base + segment.RECORD_HEADER_BYTES
        _put_cell(keys, i, at, key_n if has_key else NULL)
        _put_cell(headers, i, at + key_n, headers_n or NULL)


@kernel
def locate_times(headers: Cells, due: Cells) -> int:
    """Delivery times of messages whose headers begin with one; bytes of the headers of these."""
    total = 0
    for i in range(due.size):
        n = headers[1, i]
        due[i] = NO_TIME
        if n == NULL:
            continue
        time_ns = delivery_time(bytes_at(headers[0, i], n), 0, n)
        if time_ns > 0:
            due[i] = time_ns
            total += n
    return total


@kernel
def cut_times(headers: Cells, due: Cells, target: Bytes, target_at: int) -> None:
    """Let headers be copies without their delivery time, in ``target``, which is at ``target_at``.

    ``due``: as `locate_times` has found them.
    """
    at = 0
    for i in range(due.size):
        if due[i] == NO_TIME:
            continue
        n = headers[1, i]
        source = bytes_at(headers[0, i], n)
        skip = first_entry(source, 0)
        count = load_u8(source, 0) & 15
        if skip == 3:
            count = load_u8(source, 1) * 256 + load_u8(source, 2)
        count = max(count - 1, 0)  # a foreign client may have written a wrong count of headers
        if count == 0:
            _put_cell(headers, i, 0, NULL)
            continue
        begin = at
        at = put_head(target, at, count)
        left = n - skip - TIME_ENTRY_BYTES
        copy(target, at, source, skip + TIME_ENTRY_BYTES, left)
        at += left
        _put_cell(headers, i, target_at + begin, at - begin)


# --- into buffers ---------------------------------------------------------------------------------


@hot
def _mark(bits: Bytes, i: int) -> None:
    store_u8(bits, i >> 3, load_u8(bits, i >> 3) | 1 << (i & 7))


@kernel
def measure_cells(cells: Cells, offsets: Cells, bits: Bytes) -> int:
    """Offsets (int64[n + 1]) and validity bits of a column; how many are null."""
    at = nulls = 0
    offsets[0] = 0
    for i in range(cells.shape[1]):
        if cells[1, i] == NULL:
            nulls += 1
        else:
            at += cells[1, i]
            _mark(bits, i)
        offsets[i + 1] = at
    return nulls


@kernel
def copy_cells(cells: Cells, offsets: Cells, target: Bytes) -> None:
    """The values, one behind the other."""
    for i in range(cells.shape[1]):
        n = max(cells[1, i], 0)
        copy(target, offsets[i], bytes_at(cells[0, i], n), 0, n)


@kernel
def mark_times(times: Cells, bits: Bytes) -> int:
    """Validity bits of time-stamps; how many are null."""
    nulls = 0
    for i in range(times.size):
        if times[i] == NO_TIME:
            times[i] = 0
            nulls += 1
        else:
            _mark(bits, i)
    return nulls


@inlined
def _entries_at(data: Bytes) -> tuple[int, int]:
    """(entries of a sound map, where the first begins)."""
    tag = load_u8(data, 0)
    if tag == 0xDE:
        return load_u8(data, 1) * 256 + load_u8(data, 2), 3
    return tag & 15, 1


@hot
def _is_number(tag: int) -> bool:
    return tag < 0x80 or tag >= 0xE0 or 0xCC <= tag <= 0xD3


@inlined
def _number_at(data: Bytes, at: int, n: int) -> int:
    """A packed whole number of ``n`` bytes."""
    tag = load_u8(data, at)
    if n == 1:
        return tag - 256 if tag >= 0xE0 else tag
    value = 0
    for i in range(1, n):
        value = value << 8 | load_u8(data, at + i)
    width = 8 * (n - 1)
    if width < 64 and tag >= 0xD0 and value >= 1 << (width - 1):
        value -= 1 << width
    return value


@hot
def _tenth(value: int) -> int:
    """A tenth, towards zero."""
    floor = value // 10
    return floor + 1 if value < 0 and floor * 10 != value else floor


@inlined
def _put_decimal(target: Bytes, at: int, value: int) -> int:
    """The number as text; where it ends."""
    if value < 0:
        store_u8(target, at, 0x2D)
        at += 1
    digits, rest = 1, _tenth(value)
    while rest != 0:
        rest = _tenth(rest)
        digits += 1
    rest = value
    for i in range(digits):
        tenth = _tenth(rest)
        store_u8(target, at + digits - 1 - i, 0x30 + abs(rest - 10 * tenth))
        rest = tenth
    return at + digits


@inlined
def _value_bytes(data: Bytes, at: int, n: int, scratch: Bytes) -> int:
    tag = load_u8(data, at)
    if _is_number(tag):
        return _put_decimal(scratch, 0, _number_at(data, at, n))
    return n - lead_of(tag)


@kernel
def measure_entries(cells: Cells, ends: Ends32, bits: Bytes, scratch: Bytes, sums: Cells) -> int:
    """Entries of each row of MessagePack maps as Arrow maps have them; how many rows are null.

    ``sums``: int64[3], entries, bytes of names, bytes of values. A row that is no sound map (of a
    foreign client) is one entry without a name, its bytes the value.
    """
    sums[:] = 0
    nulls = 0
    ends[0] = 0
    for i in range(cells.shape[1]):
        size = cells[1, i]
        if size == NULL:
            nulls += 1
        else:
            _mark(bits, i)
            data = bytes_at(cells[0, i], size)
            if map_problem(data) != 0:
                sums[0] += 1
                sums[2] += size
            else:
                count, at = _entries_at(data)
                for _ in range(count):
                    n = packed_bytes(data, at, size)
                    sums[1] += n - lead_of(load_u8(data, at))
                    at += n
                    n = packed_bytes(data, at, size)
                    sums[2] += _value_bytes(data, at, n, scratch)
                    at += n
                sums[0] += count
        ends[i + 1] = sums[0]
    return nulls


@kernel
def fill_entries(
    cells: Cells, name_ends: Ends32, names: Bytes, value_ends: Ends32, values: Bytes
) -> None:
    """Names and values of all entries, as measured."""
    k = name_at = value_at = 0
    name_ends[0] = value_ends[0] = 0
    for i in range(cells.shape[1]):
        size = cells[1, i]
        if size == NULL:
            continue
        data = bytes_at(cells[0, i], size)
        if map_problem(data) != 0:
            copy(values, value_at, data, 0, size)
            value_at += size
            k += 1
            name_ends[k], value_ends[k] = name_at, value_at
            continue
        count, at = _entries_at(data)
        for _ in range(count):
            n = packed_bytes(data, at, size)
            lead = lead_of(load_u8(data, at))
            copy(names, name_at, data, at + lead, n - lead)
            name_at += n - lead
            at += n
            n = packed_bytes(data, at, size)
            tag = load_u8(data, at)
            if _is_number(tag):
                value_at = _put_decimal(values, value_at, _number_at(data, at, n))
            else:
                lead = lead_of(tag)
                copy(values, value_at, data, at + lead, n - lead)
                value_at += n - lead
            at += n
            k += 1
            name_ends[k], value_ends[k] = name_at, value_at
