"""Arrow arrays by the PyCapsule interface: from any library, and without an import of it.

An object with ``__arrow_c_array__`` or ``__arrow_c_stream__`` (pyarrow, pandas, Polars, nanoarrow,
DuckDB) returns the structures of Arrow's C data interface. They hold addresses and counts, which
are checked here and in `kernels.cells` as far as possible. The sizes of buffers are not part of the
interface: pyarrow, which knows them, checks its arrays itself.
https://arrow.apache.org/docs/format/CDataInterface/PyCapsuleInterface.html
"""

from __future__ import annotations

import ctypes
import weakref
from typing import Any, Protocol

import msgspec

CHUNKS_MAX, CHILDREN_MAX, DEPTH_MAX = 1 << 20, 4096, 8
"""Limits: arrays of a stream, children of an array, levels of children."""
_BUFFERS_MAX = 1 << 20


class _Schema(ctypes.Structure):
    _fields_ = (
        ("format", ctypes.c_char_p),
        ("name", ctypes.c_char_p),
        ("metadata", ctypes.c_void_p),
        ("flags", ctypes.c_int64),
        ("n_children", ctypes.c_int64),
        ("children", ctypes.c_void_p),
        ("dictionary", ctypes.c_void_p),
        ("release", ctypes.c_void_p),
        ("private_data", ctypes.c_void_p),
    )


class _Array(ctypes.Structure):
    _fields_ = (
        ("length", ctypes.c_int64),
        ("null_count", ctypes.c_int64),
        ("offset", ctypes.c_int64),
        ("n_buffers", ctypes.c_int64),
        ("n_children", ctypes.c_int64),
        ("buffers", ctypes.c_void_p),
        ("children", ctypes.c_void_p),
        ("dictionary", ctypes.c_void_p),
        ("release", ctypes.c_void_p),
        ("private_data", ctypes.c_void_p),
    )


class _Stream(ctypes.Structure):
    _fields_ = (
        ("get_schema", ctypes.c_void_p),
        ("get_next", ctypes.c_void_p),
        ("get_last_error", ctypes.c_void_p),
        ("release", ctypes.c_void_p),
        ("private_data", ctypes.c_void_p),
    )


_RELEASE = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_NEXT = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
_ERROR = ctypes.CFUNCTYPE(ctypes.c_char_p, ctypes.c_void_p)
_POINTER = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
_pointer_of = _POINTER(("PyCapsule_GetPointer", ctypes.pythonapi))


class ArrowArray(Protocol):
    """Hands out one Arrow array, or record batch."""

    def __arrow_c_array__(self, requested_schema: Any = None) -> tuple[Any, Any]: ...


class ArrowStream(Protocol):
    """Hands out a stream of Arrow arrays: a chunked column, a table, a data frame."""

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any: ...


class BadArrow(ValueError):
    """An array is not sound; the text has the reason."""


class Type(msgspec.Struct, frozen=True):
    """The type of a column: ``format`` as in the C data interface."""

    format: str
    name: str
    children: tuple[Type, ...]
    dictionary: Type | None


class Data(msgspec.Struct, frozen=True):
    """An array: addresses of its buffers, 0 for an absent buffer."""

    length: int
    offset: int
    has_nulls: bool
    buffers: tuple[int, ...]
    children: tuple[Data, ...]
    dictionary: Data | None

    @property
    def bits_at(self) -> int:
        """Address of the validity bits; 0: all are valid. Raises BadArrow."""
        if not self.has_nulls:
            return 0
        if not self.buffers or not self.buffers[0]:
            raise BadArrow("has nulls and no validity bitmap")
        return self.buffers[0]


class Column(msgspec.Struct, frozen=True):
    """A column: its type, its arrays, and the object that keeps their memory alive."""

    type: Type
    chunks: tuple[Data, ...]
    keep: Any

    def __len__(self) -> int:
        return sum(chunk.length for chunk in self.chunks)

    @property
    def is_frame(self) -> bool:
        """Whether it has columns itself: a record batch, a table, a data frame."""
        return self.type.format == "+s"

    def fields(self, *, may_be_null: bool = False) -> list[tuple[str, Column]]:
        """Columns of a struct or frame, by name.

        Raises BadArrow where a whole row is null, unless it ``may_be_null``.
        """
        if not may_be_null and any(chunk.has_nulls for chunk in self.chunks):
            raise BadArrow("has rows that are null as a whole")
        found = []
        for k, kind in enumerate(self.type.children):
            chunks = tuple(
                _slice(chunk.children[k], chunk.offset, chunk.length) for chunk in self.chunks
            )
            found.append((kind.name, Column(kind, chunks, self.keep)))
        return found

    def entries(self) -> list[Entries]:
        """Of a column of maps or lists: the entries of each array. Raises BadArrow."""
        kind = self.type.children[0]
        found = []
        for chunk in self.chunks:
            if not chunk.length:
                continue
            if len(chunk.buffers) < 2 or not chunk.buffers[1]:
                raise BadArrow("has no offsets")
            at = chunk.buffers[1] + 4 * chunk.offset
            low = ctypes.c_int32.from_address(at).value
            high = ctypes.c_int32.from_address(at + 4 * chunk.length).value
            if not 0 <= low <= high:
                raise BadArrow(f"has entries from {low} to {high}")
            child = _slice(chunk.children[0], low, high - low)
            found.append(Entries(chunk, low, Column(kind, (child,), self.keep)))
        return found


class Entries(msgspec.Struct, frozen=True):
    """The entries of an array of maps; its rows count them from ``low`` on."""

    rows: Data
    low: int
    column: Column


def _slice(data: Data, start: int, length: int) -> Data:
    if data.length < start + length:
        raise BadArrow(f"has a child of {data.length} rows, not {start + length}")
    return msgspec.structs.replace(data, length=length, offset=data.offset + start)


def is_arrow(value: Any) -> bool:
    """Does it hand out Arrow arrays?"""
    kind = type(value)
    return hasattr(kind, "__arrow_c_array__") or hasattr(kind, "__arrow_c_stream__")


def read(value: Any) -> Column:
    """A column of an object that hands out Arrow arrays. Raises BadArrow."""
    if type(value).__module__.startswith("pyarrow"):
        try:
            value.validate()
        except ValueError as problem:
            raise BadArrow(f"is not sound: {problem}") from None
    if hasattr(type(value), "__arrow_c_array__"):
        capsules = value.__arrow_c_array__()
        schema = _content(capsules[0], b"arrow_schema", _Schema)
        array = _content(capsules[1], b"arrow_array", _Array)
        kind = _type(schema)
        return Column(kind, (_data(array, kind),), (value, capsules))
    capsule = value.__arrow_c_stream__()
    return _drained(_content(capsule, b"arrow_array_stream", _Stream), capsule)


def _content(capsule: Any, name: bytes, kind: type[Any]) -> Any:
    return kind.from_address(_pointer_of(capsule, name))


def words_at(at: int, n: int) -> list[int]:
    """``n`` words of 64 bits from an address that a producer gave."""
    return list((ctypes.c_int64 * n).from_address(at)) if n else []


def _owned(structure: Any) -> Any:
    """A structure that is released with its last reference."""
    weakref.finalize(structure, _release, bytes(structure), type(structure))
    return structure


def _release(content: bytes, kind: type[Any]) -> None:
    """Release a structure by its content: the interface allows to move it."""
    moved = kind.from_buffer_copy(content)
    _RELEASE(moved.release)(ctypes.addressof(moved))


def _drained(stream: Any, capsule: Any) -> Column:
    if not stream.get_schema or not stream.get_next:
        raise BadArrow("is a stream that was read already")
    at = ctypes.addressof(stream)

    def ask(function: int, structure: Any) -> Any:
        if _NEXT(function)(at, ctypes.addressof(structure)) != 0:
            text = _ERROR(stream.get_last_error)(at) if stream.get_last_error else None
            reason = (text or b"no reason given").decode("utf-8", "replace")
            raise BadArrow(f"cannot be read: {reason}")
        return _owned(structure) if structure.release else structure

    schema = ask(stream.get_schema, _Schema())
    kind = _type(schema)
    chunks: list[Data] = []
    kept: list[Any] = [capsule, schema]
    for _ in range(CHUNKS_MAX):
        array = ask(stream.get_next, _Array())
        if not array.release:
            return Column(kind, tuple(chunks), kept)
        kept.append(array)
        chunks.append(_data(array, kind))
    raise BadArrow(f"has more than {CHUNKS_MAX} arrays")


def _type(schema: Any, depth: int = 0) -> Type:
    if depth > DEPTH_MAX or not 0 <= schema.n_children <= CHILDREN_MAX:
        raise BadArrow(f"has more than {CHILDREN_MAX} children or {DEPTH_MAX} levels")
    if not schema.format or (schema.n_children and not schema.children):
        raise BadArrow("has no type")
    children = tuple(
        _type(_part(_Schema, at), depth + 1) for at in words_at(schema.children, schema.n_children)
    )
    entries = schema.dictionary
    dictionary = _type(_Schema.from_address(entries), depth + 1) if entries else None
    name = (schema.name or b"").decode("utf-8", "replace")
    return Type(schema.format.decode("ascii", "replace"), name, children, dictionary)


def _part(kind: type[Any], at: int) -> Any:
    if not at:
        raise BadArrow("has a child that is missing")
    return kind.from_address(at)


_LIMIT = 1 << 48


def _data(array: Any, kind: Type) -> Data:
    """Counts are checked; the addresses are the producer's word."""
    length, offset = array.length, array.offset
    if not (0 <= length <= _LIMIT and 0 <= offset <= _LIMIT):
        raise BadArrow(f"has length {length} and offset {offset}: allowed are 0 to {_LIMIT}")
    if not 0 <= array.n_buffers <= _BUFFERS_MAX or (array.n_buffers and not array.buffers):
        raise BadArrow(f"has {array.n_buffers} buffers")
    if array.n_children != len(kind.children) or (array.n_children and not array.children):
        raise BadArrow(f"has {array.n_children} children, its type {len(kind.children)}")
    if bool(array.dictionary) != (kind.dictionary is not None):
        raise BadArrow("has a dictionary where its type has none, or none where it has one")
    buffers = tuple(words_at(array.buffers, array.n_buffers))
    counted = array.null_count > 0
    unknown = array.null_count < 0 and bool(buffers) and buffers[0] != 0
    children = words_at(array.children, array.n_children)
    entries = None
    if kind.dictionary is not None:
        entries = _data(_part(_Array, array.dictionary), kind.dictionary)
    return Data(
        length,
        offset,
        kind.format != "n" and (counted or unknown),
        buffers,
        tuple(_data(_part(_Array, at), of) for at, of in zip(children, kind.children, strict=True)),
        entries,
    )
