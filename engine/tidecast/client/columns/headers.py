"""Headers of many messages as MessagePack maps: from maps, columns of values, Arrow maps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from tidecast.client.columns import cells
from tidecast.client.columns.cells import Located, wrong
from tidecast.client.core.metadata import check_headers
from tidecast.client.kernels import cells as cell_kernels
from tidecast.client.kernels import header_maps as kernels
from tidecast.client.kernels.cells import NULL, SOUND, Cells
from tidecast.errors import ConfigError
from tidecast.layout.header_names import DELIVER_AT, RESERVED
from tidecast.layout.packet import HEADERS_BYTES_MAX
from tidecast.native.arrow import interface as arrow
from tidecast.native.arrow.interface import Column
from tidecast.native.memory import address

_FIELD = "headers"
COLUMNS_MAX = 1024
_DELIVER_AT = np.frombuffer(DELIVER_AT.encode(), dtype=np.uint8)
_PROBLEMS = {
    kernels.NOT_UTF8: "a text that is not UTF-8",
    kernels.RESERVED: f"a name that begins with {' or '.join(RESERVED)}: these are the engine's "
    "own: take another name",
    kernels.NO_NAME: "a name that is null",
    kernels.NO_MAP: "bytes that are no MessagePack map of text to text, bytes and whole numbers",
}
_ALLOWED = (
    "allowed are a sequence of maps, a map of names to values or columns, an Arrow map, struct or "
    "binary (MessagePack)"
)


def headers_of(values: Any, n: int, *, of_engine: bool) -> Located:
    """Cells of the maps of ``n`` messages. Raises ConfigError.

    ``of_engine``: names that the engine reserves are allowed.
    """
    if isinstance(values, Mapping):
        return _from_mapping(values, n, of_engine)
    if arrow.is_arrow(values):
        column = cells.arrow_column(values, _FIELD)
        found = from_arrow(column, of_engine=of_engine)
        return cells.check_length(found, _FIELD, n)
    if isinstance(values, (str, bytes, np.ndarray)):
        wrong(_FIELD, f"is {cells.kind_of(values)}: {_ALLOWED}")
    try:
        items = list(values)
    except TypeError:
        wrong(_FIELD, f"is {cells.kind_of(values)}: {_ALLOWED}")
    packed = [_packed(each, index, of_engine) for index, each in enumerate(items)]
    return cells.located(packed, _FIELD, n)


def _packed(headers: Any, index: int, of_engine: bool) -> bytes | None:
    if not headers:
        return None
    try:
        check_headers(headers, of_engine=of_engine)
    except ConfigError as problem:
        wrong(f"{_FIELD}[{index}]", str(problem).removeprefix(f"{_FIELD}: "))
    return msgspec.msgpack.encode(dict(headers))


def _from_mapping(values: Mapping[str, Any], n: int, of_engine: bool) -> Located:
    """A column, or a value for all messages, of each name."""
    if not values:
        return Located(np.full((2, n), NULL, dtype=np.int64), None)
    if all(isinstance(each, (str, bytes, int)) for each in values.values()):
        check_headers(values, of_engine=of_engine)
        return cells.constant(msgspec.msgpack.encode(dict(values)), n)
    columns = []
    for name, each in values.items():
        if not isinstance(name, str):
            wrong(_FIELD, f"{name!r}: allowed are names of type str")
        columns.append((name, *_value_column(each, f"{_FIELD}[{name!r}]", n)))
    return _packed_columns(columns, np.zeros((2, n), dtype=np.int64), of_engine)


def _value_column(values: Any, field: str, n: int) -> tuple[Located, int]:
    """(cells, kind) of a column of values."""
    if isinstance(values, int) and not isinstance(values, bool):
        values = np.full(n, values, dtype=np.int64)
    if arrow.is_arrow(values):
        column = cells.arrow_column(values, field)
        found, kind = _arrow_values(column, field)
    elif isinstance(values, np.ndarray) and values.ndim == 1 and values.dtype.kind in "iu":
        numbers = np.empty((2, len(values)), dtype=np.int64)
        if values.dtype.kind == "u" and (values > np.iinfo(np.int64).max).any():
            wrong(field, "a number beyond 64 bits with a sign")
        numbers[0], numbers[1] = values, 8
        found, kind = Located(numbers, None), kernels.NUMBER
    else:
        return _sequence_values(values, field, n)
    return cells.check_length(found, field, n), kind


def _sequence_values(values: Any, field: str, n: int) -> tuple[Located, int]:
    if isinstance(values, (str, bytes)):
        return cells.located(values, field, n), _kind_of([values])
    items = values.tolist() if isinstance(values, np.ndarray) else list(values)
    given = [each for each in items if each is not None]
    if given and all(isinstance(each, int) and not isinstance(each, bool) for each in given):
        if not all(-(1 << 63) <= each < 1 << 63 for each in given):
            wrong(field, "a number beyond 64 bits with a sign")
        numbers = np.empty((2, len(items)), dtype=np.int64)
        numbers[0] = [each or 0 for each in items]
        numbers[1] = [NULL if each is None else 8 for each in items]
        return cells.check_length(Located(numbers, None), field, n), kernels.NUMBER
    if len({isinstance(each, str) for each in given}) > 1:
        wrong(field, "text and bytes in one column: give one kind")
    return cells.located(items, field, n), _kind_of(given)


def _kind_of(given: list[Any]) -> int:
    return kernels.TEXT if given and isinstance(given[0], str) else kernels.BINARY


# --- Arrow ----------------------------------------------------------------------------------------


def from_arrow(column: Column, *, of_engine: bool) -> Located:
    """Cells of the maps that a column holds: an Arrow map, a struct, or MessagePack bytes."""
    try:
        if column.type.format == "+m":
            return _from_maps(column, of_engine)
        if column.type.format == "+s":
            return _from_structs(column, of_engine)
    except arrow.BadArrow as problem:
        wrong(_FIELD, f"the Arrow array {problem}")
    found = cells.arrow_cells(column, _FIELD)
    why = np.zeros(2, dtype=np.int64)
    _check(int(kernels.check_maps(int(of_engine), found, why)), why)
    return Located(found, column)


def _from_structs(column: Column, of_engine: bool) -> Located:
    """A field is a name; a null, or a row that is null, has no such header."""
    columns = [
        (name, *_arrow_values(each, f"{_FIELD}.{name}"))
        for name, each in column.fields(may_be_null=True)
    ]
    rows = [_rows_of(chunk) for chunk in column.chunks]
    return _packed_columns(columns, np.hstack([cells.NO_CELLS, *rows]), of_engine)


def _rows_of(chunk: arrow.Data) -> Cells:
    """Length 0 for each row, NULL for each null."""
    rows = np.empty((2, chunk.length), dtype=np.int64)
    cell_kernels.locate_fixed(0, 0, chunk.bits_at, chunk.offset, rows)
    return rows


def _arrow_values(column: Column, field: str) -> tuple[Located, int]:
    if cells.is_number(column.type):
        return Located(cells.arrow_numbers(column, field), column), kernels.NUMBER
    kind = column.type.dictionary or column.type
    text = kind.format in cells.TEXT_FORMATS
    return Located(cells.arrow_cells(column, field), column), (
        kernels.TEXT if text else kernels.BINARY
    )


def _from_maps(column: Column, of_engine: bool) -> Located:
    """Arrow maps: lists of entries, structs of a key and a value."""
    inner = column.type.children
    if len(inner) != 1 or len(inner[0].children) != 2:
        wrong(_FIELD, "the Arrow map has no keys and values")
    rows, names, values = [cells.NO_CELLS], [cells.NO_CELLS], [cells.NO_CELLS]
    ends, kind, base = [np.zeros(1, dtype=np.int64)], kernels.BINARY, 0
    for part in column.entries():
        keys, items = (each for _, each in part.column.fields())
        chunk, end = part.rows, np.empty(part.rows.length, dtype=np.int64)
        offsets_at = chunk.buffers[1] + 4 * chunk.offset
        bad = cell_kernels.locate_ends(offsets_at, part.low, len(part.column), base, end)
        if bad != SOUND:
            wrong(_FIELD, f"item {sum(map(len, ends)) - 1 + bad}: outside of its Arrow map")
        found, kind = _arrow_values(items, _FIELD)
        rows.append(_rows_of(chunk))
        ends.append(end)
        names.append(cells.arrow_cells(keys, _FIELD))
        values.append(found.cells)
        base += len(part.column)
    kinds = np.full(base, kind, dtype=np.uint8)
    return _packed_entries(
        np.hstack(rows),
        np.hstack(ends),
        np.hstack(names),
        np.hstack(values),
        kinds,
        of_engine,
        column,
    )


def _packed_columns(
    columns: list[tuple[str, Located, int]], rows: Cells, of_engine: bool
) -> Located:
    k, n = len(columns), rows.shape[1]
    if k > COLUMNS_MAX:
        wrong(_FIELD, f"{k} columns: at most {COLUMNS_MAX}")
    shape = (2, n, k)
    names, values = np.empty(shape, dtype=np.int64), np.empty(shape, dtype=np.int64)
    keep: list[Any] = []
    for j, (name, found, _) in enumerate(columns):
        fixed = cells.constant(name.encode(), 1)
        names[:, :, j], values[:, :, j] = fixed.cells, found.cells
        keep += [fixed, found]
    kinds = np.tile(np.array([kind for _, _, kind in columns], dtype=np.uint8), n)
    ends = np.arange(n + 1, dtype=np.int64) * k
    flat = names.reshape(2, n * k), values.reshape(2, n * k)
    return _packed_entries(rows, ends, *flat, kinds, of_engine, keep)


def _packed_entries(
    rows: Cells, ends: Cells, names: Cells, values: Cells, kinds: Any, of_engine: bool, keep: Any
) -> Located:
    """Encode the entries of all rows. ``keep`` lives until they are encoded."""
    why = np.zeros(2, dtype=np.int64)
    bad = kernels.measure_maps(ends, names, values, kinds, int(of_engine), rows, why)
    _check(int(bad), why)
    target = np.empty(int(why[1]), dtype=np.uint8)
    kernels.fill_maps(ends, names, values, kinds, target, address(target), rows)
    del keep
    return Located(rows, target)


def scheduled(headers: Located | None, due: Cells) -> Located:
    """The maps with a delivery time (ns since 1970) as first entry, where ``due`` has some."""
    n = len(due)
    maps = np.full((2, n), NULL, dtype=np.int64) if headers is None else headers.cells
    room = np.where(maps[1] > HEADERS_BYTES_MAX, 0, np.maximum(maps[1], 0)).sum()
    target = np.empty(int(room) + n * kernels.TIME_BYTES_MAX, dtype=np.uint8)
    rows = np.empty((2, n), dtype=np.int64)
    kernels.add_times(maps, due, _DELIVER_AT, target, address(target), rows)
    return Located(rows, (target, headers))


def _check(bad: int, why: Cells) -> None:
    if bad != SOUND:
        wrong(f"{_FIELD}[{bad}]", _PROBLEMS[int(why[0])])
