"""Kernels of headers: columns of names and values as MessagePack maps, and such maps looked at.

An *entry* is a name, a value and the value's kind. A row's entries lie beside each other; those
whose value is null are left out.
"""

from __future__ import annotations

from tidecast.buffers.header_names import (
    BAD,
    has_reserved,
    is_reserved_at,
    packed_bytes,
    put_head,
)
from tidecast.client.kernels.cells import NO_TIME, NULL, SOUND, Cells
from tidecast.layout.packet import HEADERS_BYTES_MAX
from tidecast.native.jit import hot, inlined, kernel
from tidecast.native.mapped import Bytes
from tidecast.native.memory import bytes_at, copy, load_u8, store_u8

TEXT, BINARY, NUMBER = 0, 1, 2
"""Kinds of values. A number lies in its cell, in the place of the address."""
NOT_UTF8, RESERVED, NO_NAME, NO_MAP = 1, 2, 3, 4
"""The defects of a row's headers."""
_ENTRIES_MAX = 65_535
TIME_BYTES_MAX = 64
"""Room for the entry that `add_times` adds, and for the longer beginning of its map."""


@inlined
def _is_utf8(data: Bytes) -> bool:
    """Is it text? Neither overlong forms nor surrogates are: table 3-7 of Unicode 15."""
    at = 0
    while at < data.size:
        lead = load_u8(data, at)
        at += 1
        if lead < 0x80:
            continue
        more, low, high = 0, 0x80, 0xBF
        if lead >= 0xC2 and lead <= 0xDF:
            more = 1
        elif lead >= 0xE0 and lead <= 0xEF:
            more = 2
            if lead == 0xE0:
                low = 0xA0
            elif lead == 0xED:
                high = 0x9F
        elif lead >= 0xF0 and lead <= 0xF4:
            more = 3
            if lead == 0xF0:
                low = 0x90
            elif lead == 0xF4:
                high = 0x8F
        if more == 0 or at + more > data.size:
            return False
        for i in range(more):
            byte = load_u8(data, at + i)
            if byte < low or byte > high:
                return False
            low, high = 0x80, 0xBF
        at += more
    return True


@hot
def _lead_bytes(n: int, short_max: int) -> int:
    """Bytes in front of a text or bytes of ``n``."""
    if n <= short_max:
        return 1
    return 2 if n <= 0xFF else 3


@hot
def _value_bytes(cell: int, n: int, kind: int) -> int:
    if kind == NUMBER:
        return 1 if -32 <= cell <= 127 else 9
    return n + _lead_bytes(n, 31 if kind == TEXT else -1)


@inlined
def _entry_problem(names: Cells, values: Cells, kind: int, i: int, may_reserve: int) -> int:
    if names[1, i] < 0:
        return NO_NAME
    name = bytes_at(names[0, i], names[1, i])
    if not _is_utf8(name):
        return NOT_UTF8
    if may_reserve == 0 and is_reserved_at(name, 0, name.size):
        return RESERVED
    if kind == TEXT and not _is_utf8(bytes_at(values[0, i], values[1, i])):
        return NOT_UTF8
    return 0


@kernel
def measure_maps(
    ends: Cells,
    names: Cells,
    values: Cells,
    kinds: Bytes,
    may_reserve: int,
    cells: Cells,
    found: Cells,
) -> int:
    """Bytes of the map of each row in ``cells[1]``. SOUND, or the first bad row; why in found[0].

    ``ends``: int64[n + 1], the entries of row i are [ends[i], ends[i + 1]); ``names``, ``values``:
    cells of entries. A row without entries gets NULL; a row that is NULL stays so. A map that is
    too long is refused when it is published, and needs no room: ``found[1]`` is the room for the
    others.
    """
    found[0] = found[1] = 0
    for row in range(cells.shape[1]):
        if cells[1, row] == NULL:
            continue
        n, count = 0, 0
        for i in range(ends[row], ends[row + 1]):
            if values[1, i] == NULL:
                continue
            found[0] = _entry_problem(names, values, kinds[i], i, may_reserve)
            if found[0] != 0:
                return row
            n += names[1, i] + _lead_bytes(names[1, i], 31)
            n += _value_bytes(values[0, i], values[1, i], kinds[i])
            count += 1
        n += 1 if count <= 15 else 3
        if count > _ENTRIES_MAX:
            n += HEADERS_BYTES_MAX
        cells[1, row] = n if count > 0 else NULL
        if count > 0 and n <= HEADERS_BYTES_MAX:
            found[1] += n
    return SOUND


@inlined
def _put_bytes(target: Bytes, at: int, source_at: int, n: int, kind: int) -> int:
    if kind == TEXT and n <= 31:
        store_u8(target, at, 0xA0 | n)
        at += 1
    elif n <= 0xFF:
        store_u8(target, at, 0xD9 if kind == TEXT else 0xC4)
        store_u8(target, at + 1, n)
        at += 2
    else:
        store_u8(target, at, 0xDA if kind == TEXT else 0xC5)
        store_u8(target, at + 1, n >> 8)
        store_u8(target, at + 2, n & 0xFF)
        at += 3
    copy(target, at, bytes_at(source_at, n), 0, n)
    return at + n


@inlined
def _put_number(target: Bytes, at: int, value: int) -> int:
    if -32 <= value <= 127:
        store_u8(target, at, value & 0xFF)
        return at + 1
    return _put_word(target, at, 0xD3, value)


@inlined
def _put_word(target: Bytes, at: int, tag: int, value: int) -> int:
    store_u8(target, at, tag)
    for k in range(8):
        store_u8(target, at + 1 + k, (value >> (56 - 8 * k)) & 0xFF)
    return at + 9


@kernel
def fill_maps(
    ends: Cells,
    names: Cells,
    values: Cells,
    kinds: Bytes,
    target: Bytes,
    target_at: int,
    cells: Cells,
) -> int:
    """Write the measured maps into ``target``, at address ``target_at``. The bytes written."""
    at = 0
    for row in range(cells.shape[1]):
        if cells[1, row] == NULL or cells[1, row] > HEADERS_BYTES_MAX:
            continue
        count = 0
        for i in range(ends[row], ends[row + 1]):
            count += 1 if values[1, i] != NULL else 0
        cells[0, row] = target_at + at
        at = put_head(target, at, count)
        for i in range(ends[row], ends[row + 1]):
            if values[1, i] == NULL:
                continue
            at = _put_bytes(target, at, names[0, i], names[1, i], TEXT)
            if kinds[i] == NUMBER:
                at = _put_number(target, at, values[0, i])
            else:
                at = _put_bytes(target, at, values[0, i], values[1, i], kinds[i])
    return at


@kernel
def add_times(
    maps: Cells, times: Cells, name: Bytes, target: Bytes, target_at: int, cells: Cells
) -> int:
    """Write the maps with ``name`` and a time as first entry into ``target``, at ``target_at``.

    ``maps``: sound, NULL for none; a map that is too long stays as it is, to be refused when it is
    published, and so does a row without a time (NO_TIME). Returns the bytes written.
    """
    at = 0
    for row in range(cells.shape[1]):
        n = maps[1, row]
        if times[row] == NO_TIME or n > HEADERS_BYTES_MAX:
            cells[0, row], cells[1, row] = maps[0, row], n
            continue
        source = bytes_at(maps[0, row], max(0, n))
        count, lead = 0, 0
        if n > 0:
            count, lead = load_u8(source, 0) & 15, 1
            if load_u8(source, 0) == 0xDE:
                count, lead = load_u8(source, 1) * 256 + load_u8(source, 2), 3
        count += 1
        begin = at
        at = put_head(target, at, count)
        store_u8(target, at, 0xA0 | name.size)
        copy(target, at + 1, name, 0, name.size)
        at += 1 + name.size
        at = _put_word(target, at, 0xCF, times[row])
        if n > lead:
            copy(target, at, source, lead, n - lead)
            at += n - lead
        cells[0, row], cells[1, row] = target_at + begin, at - begin
    return at


@hot
def _is_text_tag(tag: int) -> bool:
    return 0xA0 <= tag < 0xC0 or tag in (0xD9, 0xDA)


@hot
def _is_value_tag(tag: int) -> bool:
    """Text, bytes or a whole number."""
    number = tag < 0x80 or tag >= 0xE0 or 0xCC <= tag <= 0xD3
    return number or _is_text_tag(tag) or tag in (0xC4, 0xC5)


@hot
def lead_of(tag: int) -> int:
    """Bytes in front of a packed text or bytes."""
    if 0xA0 <= tag < 0xC0:
        return 1
    return 2 if tag in (0xD9, 0xC4) else 3


@inlined
def map_problem(data: Bytes) -> int:
    """0 for a sound map of text to text, bytes and whole numbers that fills ``data``."""
    if data.size == 0:
        return NO_MAP
    tag, at = load_u8(data, 0), 1
    count = tag & 15
    if tag == 0xDE and data.size >= 3:
        count, at = load_u8(data, 1) * 256 + load_u8(data, 2), 3
    elif tag & 0xF0 != 0x80:
        return NO_MAP
    for i in range(2 * count):
        n = packed_bytes(data, at, data.size)
        if n >= BAD or n > data.size - at:
            return NO_MAP
        tag = load_u8(data, at)
        is_text = _is_text_tag(tag)
        if not is_text and (i & 1 == 0 or not _is_value_tag(tag)):
            return NO_MAP
        if is_text:
            lead = lead_of(tag)
            if not _is_utf8(data[at + lead : at + n]):
                return NOT_UTF8
        at += n
    return 0 if at == data.size else NO_MAP


@kernel
def check_maps(may_reserve: int, cells: Cells, found: Cells) -> int:
    """Are all rows maps as they are published? SOUND, or the first bad row; why in found[0]."""
    for row in range(cells.shape[1]):
        n = cells[1, row]
        if n == NULL or n > HEADERS_BYTES_MAX:
            continue
        data = bytes_at(cells[0, row], n)
        found[0] = map_problem(data)
        if found[0] == 0 and may_reserve == 0 and has_reserved(data, 0, n):
            found[0] = RESERVED
        if found[0] != 0:
            return row
    return SOUND
