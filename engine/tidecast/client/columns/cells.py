"""Columns as cells: where each value lies. Sequences, NumPy arrays, Arrow arrays and columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np

from tidecast.client.kernels import cells as kernels
from tidecast.client.kernels.cells import NO_TIME, NULL, SOUND, Cells
from tidecast.errors import ConfigError
from tidecast.native.arrow import interface as arrow
from tidecast.native.arrow.interface import BadArrow, Column, Data, Type
from tidecast.native.memory import address

_OFFSETS = {"z": 0, "u": 0, "Z": 1, "U": 1}
"""Formats of binary and text with offsets of 4 and of 8 bytes."""
_VIEWS = ("vz", "vu")
_NUMBERS = {
    "c": (1, 1),
    "C": (1, 0),
    "s": (2, 1),
    "S": (2, 0),
    "i": (4, 1),
    "I": (4, 0),
    "l": (8, 1),
    "L": (8, 0),
}
"""Formats of whole numbers: bytes, and whether they have a sign."""
_UNITS_NS = {"s": 1_000_000_000, "m": 1_000_000, "u": 1000, "n": 1}
TEXT_FORMATS = ("u", "U", "vu")
NO_CELLS: Cells = np.empty((2, 0), dtype=np.int64)
NO_TIMES: Cells = np.empty(0, dtype=np.int64)


class Located:
    """Cells, and the objects that keep their memory."""

    __slots__ = ("cells", "keep")

    def __init__(self, cells: Cells, keep: Any) -> None:
        self.cells, self.keep = cells, keep

    def __len__(self) -> int:
        return int(self.cells.shape[1])


def wrong(field: str, text: str) -> NoReturn:
    """Raise the error for an argument: names the field."""
    raise ConfigError(f"{field}: {text}", [f"{field}: {text}"])


def kind_of(value: Any) -> str:
    """A value's kind, for errors."""
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype} with {value.ndim} dimensions"
    if hasattr(value, "type") and type(value).__module__.startswith("pyarrow"):
        return f"an Arrow {value.type}"
    return type(value).__name__


# --- Arrow ----------------------------------------------------------------------------------------


def arrow_column(value: Any, field: str) -> Column:
    """The column that an object hands out. Raises ConfigError."""
    try:
        return arrow.read(value)
    except BadArrow as problem:
        wrong(field, f"the Arrow array {problem}")


def arrow_cells(column: Column, field: str) -> Cells:
    """Cells of binary or text. Raises ConfigError for another type, or an unsound array."""
    return _all_chunks(column, field, _binary_cells)


def arrow_numbers(column: Column, field: str) -> Cells:
    """Numbers in the place of addresses. Raises ConfigError."""
    return _all_chunks(column, field, _number_cells)


def _all_chunks(column: Column, field: str, fill: Any) -> Cells:
    found = np.empty((2, len(column)), dtype=np.int64)
    at = 0
    for chunk in column.chunks:
        alone = chunk.length == len(column)
        part = found if alone else np.empty((2, chunk.length), dtype=np.int64)
        try:
            bad = fill(column.type, chunk, part) if chunk.length else SOUND
        except BadArrow as problem:
            wrong(field, f"the Arrow array {problem}")
        if bad != SOUND:
            wrong(
                field,
                f"item {at + bad} of the Arrow array ({column.type.format}) is outside of its "
                "buffers, or is beyond 64 bits",
            )
        if not alone:
            found[:, at : at + chunk.length] = part
        at += chunk.length
    return found


def _buffer(data: Data, k: int) -> int:
    if k >= len(data.buffers):
        raise BadArrow(f"has {len(data.buffers)} buffers, too few for its type")
    return data.buffers[k]


def _needed(data: Data, k: int) -> int:
    at = _buffer(data, k)
    if not at:
        raise BadArrow(f"has {data.length} items and no buffer {k}")
    return at


def _binary_cells(kind: Type, data: Data, cells: Cells) -> int:
    """Fill the cells of one array. SOUND, or its first bad row."""
    form = kind.format
    if kind.dictionary is not None and data.dictionary is not None:
        return _numbered_cells(kind, data, cells)
    if form == "n":
        cells[0], cells[1] = 0, NULL
        return SOUND
    if form in _OFFSETS:
        offsets_at = _needed(data, 1)
        return int(
            kernels.locate_offsets(
                offsets_at, _OFFSETS[form], _buffer(data, 2), data.bits_at, data.offset, cells
            )
        )
    if form.startswith("w:") and form[2:].isdigit() and int(form[2:]) < 1 << 31:
        width = int(form[2:])
        values_at = _needed(data, 1) if width else 0
        kernels.locate_fixed(width, values_at, data.bits_at, data.offset, cells)
        return SOUND
    if form in _VIEWS:
        return _view_cells(data, cells)
    raise BadArrow(
        f"is of type {form!r} (Arrow's format string): allowed are binary, large_binary, string, "
        "large_string, their views, fixed_size_binary, and dictionaries of these; cast others"
    )


def _view_cells(data: Data, cells: Cells) -> int:
    """The last buffer has the sizes of those between it and the views."""
    n = len(data.buffers) - 3
    if n < 0:
        raise BadArrow(f"has {len(data.buffers)} buffers, too few for views")
    sizes = np.array(arrow.words_at(_needed(data, n + 2), n) if n else [], dtype=np.int64)
    buffers = np.array(data.buffers[2 : 2 + n], dtype=np.int64)
    if (sizes < 0).any() or ((buffers == 0) & (sizes > 0)).any():
        raise BadArrow("has a buffer of views without memory")
    return int(
        kernels.locate_views(_needed(data, 1), data.bits_at, data.offset, buffers, sizes, cells)
    )


def _numbered_cells(kind: Type, data: Data, cells: Cells) -> int:
    if kind.format not in _NUMBERS:
        raise BadArrow(f"has numbers of its dictionary of type {kind.format!r}")
    assert kind.dictionary is not None and data.dictionary is not None
    entries = np.empty((2, data.dictionary.length), dtype=np.int64)
    if data.dictionary.length and _binary_cells(kind.dictionary, data.dictionary, entries) >= 0:
        raise BadArrow("has a dictionary with values outside of its buffers")
    width, signed = _NUMBERS[kind.format]
    at = _needed(data, 1)
    return int(
        kernels.locate_numbered(at, width, signed, data.bits_at, data.offset, entries, cells)
    )


def _number_cells(kind: Type, data: Data, cells: Cells) -> int:
    if kind.format == "n":
        cells[0], cells[1] = 0, NULL
        return SOUND
    form = "l" if _unit_ns(kind) else kind.format
    if form not in _NUMBERS or kind.dictionary is not None:
        raise BadArrow(f"is of type {kind.format!r}: allowed are whole numbers")
    width, signed = _NUMBERS[form]
    at = _needed(data, 1)
    return int(kernels.locate_numbers(at, width, signed, data.bits_at, data.offset, cells))


def lies_end_to_end(column: Column) -> bool:
    """Do the values of each array follow each other, without nulls?"""
    plain = column.type.format in _OFFSETS and column.type.dictionary is None
    return plain and not any(chunk.has_nulls for chunk in column.chunks)


def is_number(kind: Type) -> bool:
    """Is it a column of whole numbers?"""
    return kind.format in _NUMBERS and kind.dictionary is None


def _unit_ns(kind: Type) -> int:
    """Nanoseconds of a time-stamp's unit; 0: it is no time-stamp."""
    return _UNITS_NS.get(kind.format[2:3], 0) if kind.format.startswith("ts") else 0


# --- binary ---------------------------------------------------------------------------------------


def located(values: Any, field: str, n: int | None) -> Located:
    """Cells of ``n`` (None: any number) bytes or texts. Raises ConfigError.

    A single ``bytes`` or ``str`` stands for all rows.
    """
    if isinstance(values, (bytes, bytearray, memoryview, str)):
        if n is None:
            wrong(field, f"{kind_of(values)} is one value: give a list or a column")
        return constant(_bytes_of(values, field, 0) or b"", n)
    if arrow.is_arrow(values):
        column = arrow_column(values, field)
        found = Located(arrow_cells(column, field), column)
    elif isinstance(values, np.ndarray):
        found = _array_cells(values, field)
    else:
        found = _object_cells(_items(values, field), field)
    return check_length(found, field, n)


def check_length(found: Located, field: str, n: int | None) -> Located:
    """Raise ConfigError unless there are ``n`` rows."""
    if n is not None and len(found) != n:
        wrong(field, f"{len(found)} items for {n} messages: give as many")
    return found


def constant(raw: bytes, n: int) -> Located:
    """The same bytes in all rows."""
    one = _object_cells((raw,), "")
    return Located(np.repeat(one.cells, n, axis=1), one.keep)


def _items(values: Any, field: str) -> tuple[Any, ...]:
    if not isinstance(values, Sequence):
        try:
            return tuple(values)
        except TypeError:
            wrong(
                field,
                f"is {kind_of(values)}: allowed are a sequence, a NumPy array, an Arrow array or "
                "column",
            )
    return tuple(values)


def _bytes_of(value: Any, field: str, index: int) -> bytes | None:
    if value is None or type(value) is bytes:
        return value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    if isinstance(value, np.ndarray) and value.dtype == np.uint8:
        return value.tobytes()
    wrong(f"{field}[{index}]", f"{kind_of(value)}: allowed are bytes, and text (sent as UTF-8)")


def _object_cells(items: tuple[Any, ...], field: str) -> Located:
    cells = np.empty((2, len(items)), dtype=np.int64)
    locate = kernels.locate_objects()
    if locate(items, cells) != len(items):
        items = tuple(_bytes_of(each, field, index) for index, each in enumerate(items))
        locate(items, cells)
    return Located(cells, items)


def _array_cells(array: np.ndarray[Any, Any], field: str) -> Located:
    if array.dtype.kind in "SUO" and array.ndim == 1:  # items of S end where their padding begins
        return _object_cells(tuple(array.tolist()), field)
    wide = array.ndim == 2 and array.dtype == np.uint8
    if not wide and not (array.ndim == 1 and array.dtype.kind == "V"):
        wrong(field, f"is {kind_of(array)}: allowed are uint8[n, bytes], and texts or bytes")
    rows = np.ascontiguousarray(array)
    cells = np.empty((2, len(rows)), dtype=np.int64)
    width = rows.shape[1] if wide else rows.dtype.itemsize
    kernels.locate_fixed(width, address(rows), 0, 0, cells)
    return Located(cells, rows)


# --- times ----------------------------------------------------------------------------------------


def arrow_times(column: Column, field: str) -> Cells:
    """Times of a column of time-stamps, or of whole numbers: ns since 1970."""
    return _scaled(arrow_numbers(column, field), _unit_ns(column.type) or 1)


def _scaled(cells: Cells, unit_ns: int) -> Cells:
    times = np.empty(cells.shape[1], dtype=np.int64)
    kernels.scale_times(cells, unit_ns, times)
    return times


def times_of(values: Any, field: str, n: int, now_ns: int) -> Cells:
    """Times (ns since 1970) of all messages, NO_TIME without one. Raises ConfigError.

    True: now; a number: the same for all.
    """
    if values is True:
        return np.full(n, now_ns, dtype=np.int64)
    if isinstance(values, int) and values is not False:
        values = [values] * n
    if arrow.is_arrow(values):
        times = arrow_times(arrow_column(values, field), field)
    elif isinstance(values, np.ndarray):
        times = _array_times(values, field)
    else:
        times = _object_times(_items(values, field), field)
    if len(times) != n:
        wrong(field, f"{len(times)} items for {n} messages: give as many")
    return times


def _array_times(array: np.ndarray[Any, Any], field: str) -> Cells:
    if array.ndim != 1 or array.dtype.kind not in "iuM":
        wrong(field, f"is {kind_of(array)}: allowed are whole numbers (ns since 1970), datetime64")
    if array.dtype.kind == "M":
        array = array.astype("datetime64[ns]")
        nulls = np.isnat(array)
        array = array.view(np.int64)
    else:
        nulls = np.zeros(len(array), dtype=bool)
        if array.dtype.kind == "u":
            array = np.minimum(array.astype(np.uint64), np.uint64(np.iinfo(np.int64).max))
    cells = np.empty((2, len(array)), dtype=np.int64)
    cells[0], cells[1] = array, np.where(nulls, NULL, 8)
    return _scaled(cells, 1)


def _object_times(items: tuple[Any, ...], field: str) -> Cells:
    found = []
    for index, each in enumerate(items):
        if each is None:
            found.append(NO_TIME)
        elif isinstance(each, (int, np.integer)) and not isinstance(each, bool):
            found.append(int(each) if 0 <= each < 1 << 63 else -1)
        else:
            wrong(f"{field}[{index}]", f"{each!r}: allowed are whole numbers: ns since 1970")
    return np.array(found, dtype=np.int64)
