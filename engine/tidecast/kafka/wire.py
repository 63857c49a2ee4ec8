"""Kafka's message formats: schemas as text, compiled by version into readers and writers.

A schema is a list of ``name: type`` lines, with the versions that have the field when not all do::

    acks: int16
    topics: [
      name: string
      partitions: [
        index: int32
        leader_epoch: int32 7+
      ]
    ]

Types: ``bool``, ``int8`` to ``int64``, ``string``, ``nstring`` (may be null), ``bytes``,
``records`` (bytes that may be null, never copied; written from a list of pieces, too), ``[]type``,
``[`` fields ``]`` and ``n[`` fields ``]`` (an array that may be null). From the version on that a
table calls flexible, lengths are compact and each structure ends with tagged fields: unknown fields
are skipped.

No input is trusted: every length is checked against the rest of the frame, and the number of items
of a request against `ITEMS_MAX`, before an object is created from it.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

COPIED_BYTES_MAX = 4096
"""A piece costs 300 bytes beside its own: of thousands of small ones, an answer of 2 MB took 40."""
ITEMS_MAX = 65_536
"""Elements of arrays in one request, all together."""
STRING_BYTES_MAX = 32_767

Struct = dict[str, Any]


class BadRequest(Exception):
    """Bytes that are no request of the version that they name."""


class Reader:
    """Reads a frame from its beginning on. ``left`` counts down the items that may still come."""

    __slots__ = ("at", "data", "end", "left")

    def __init__(self, data: bytes | bytearray, at: int = 0, end: int | None = None) -> None:
        self.data, self.at = data, at
        self.end = len(data) if end is None else end
        self.left = ITEMS_MAX

    def take(self, n: int) -> int:
        """Where the next ``n`` bytes begin. Raises BadRequest when there are not so many."""
        at = self.at
        if n < 0 or n > self.end - at:
            raise BadRequest(f"{n} bytes at {at}: the frame has {self.end}")
        self.at = at + n
        return at

    def unpack(self, form: struct.Struct) -> int:
        """The next number."""
        found: int = form.unpack_from(self.data, self.take(form.size))[0]
        return found

    def uvarint(self) -> int:
        """The next unsigned number of variable length, at most 32 bits."""
        value = shift = 0
        while True:
            byte = self.data[self.take(1)]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
            if shift > 28:
                raise BadRequest(f"a varint of more than 5 bytes at {self.at}")
        if value > 0xFFFFFFFF:
            raise BadRequest(f"a varint of more than 32 bits at {self.at}")
        return value

    def string(self, n: int) -> str:
        """The next string, of ``n`` bytes."""
        if n > STRING_BYTES_MAX:
            raise BadRequest(f"a string of {n} bytes: allowed {STRING_BYTES_MAX}")
        at = self.take(n)
        try:
            return str(self.data[at : at + n], "utf-8")
        except UnicodeDecodeError as problem:
            raise BadRequest(f"a string at {at} is not UTF-8") from problem

    def items(self, n: int) -> range:
        """As many turns as an array of ``n`` items takes; each has a byte at least."""
        if n < 0 or n > self.end - self.at or n > self.left:
            raise BadRequest(f"an array of {n} items at {self.at}")
        self.left -= n
        return range(n)

    def skip_tags(self) -> None:
        """Step over tagged fields."""
        for _ in self.items(self.uvarint()):
            self.uvarint()
            self.take(self.uvarint())


class CutReader(Reader):
    """Reads the begin of a frame of ``size`` bytes, which ends in its last value, ``records``."""

    def __init__(self, data: bytes | bytearray, size: int) -> None:
        super().__init__(data, 0, size)

    def _check(self, n: int) -> None:
        if n > len(self.data) - self.at:
            raise BadRequest(f"{n} bytes at {self.at}: {len(self.data)} of {self.end} were read")

    def unpack(self, form: struct.Struct) -> int:
        """See `Reader.unpack`."""
        self._check(form.size)
        return super().unpack(form)

    def uvarint(self) -> int:
        """See `Reader.uvarint`."""
        self._check(5)
        return super().uvarint()

    def string(self, n: int) -> str:
        """See `Reader.string`."""
        self._check(n)
        return super().string(n)

    def skip_tags(self) -> None:
        """Those behind the records were not read."""
        if self.at < len(self.data):
            super().skip_tags()


class Writer:
    """Gathers an answer in pieces; large ones are handed on as they are."""

    __slots__ = ("_tail", "pieces")

    def __init__(self) -> None:
        self.pieces: list[bytes | bytearray | memoryview] = []
        self._tail = bytearray()

    @property
    def tail(self) -> bytearray:
        """Where small values go."""
        return self._tail

    def records(self, piece: bytes | memoryview) -> None:
        """Add record batches: short ones are copied, longer ones are a piece of their own."""
        if len(piece) <= COPIED_BYTES_MAX:
            self._tail += piece
            return
        self.pieces += [self._tail, piece]
        self._tail = bytearray()

    def uvarint(self, value: int) -> None:
        """Add an unsigned number of variable length."""
        while value >= 0x80:
            self._tail.append(value & 0x7F | 0x80)
            value >>= 7
        self._tail.append(value)

    def done(self) -> list[bytes | bytearray | memoryview]:
        """All pieces, in order."""
        return [*self.pieces, self._tail]


# --- schemas --------------------------------------------------------------------------------------

Read = Callable[[Reader], Any]
Write = Callable[[Writer, Any], None]


@dataclass(frozen=True)
class Field:
    """A field of a schema: ``kind`` is a type's name, or the fields of an array's items."""

    name: str
    kind: str | tuple[Field, ...]
    array: bool = False
    nullable: bool = False
    since: int = 0
    until: int = 1 << 15

    def in_version(self, version: int) -> bool:
        """The version has it."""
        return self.since <= version <= self.until


_LINE = re.compile(r"(\w+): (n?\[)?(\]?)(\w+)?(?: (\d+)(\+|-(\d+))?)?")


def parse(text: str) -> tuple[Field, ...]:
    """The fields that a text describes; see module."""
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    fields, at = _parse(lines, 0)
    assert at == len(lines), lines[at]
    return fields


def _parse(lines: Sequence[str], at: int) -> tuple[tuple[Field, ...], int]:
    fields: list[Field] = []
    while at < len(lines) and not lines[at].startswith("]"):
        found = _LINE.fullmatch(lines[at])
        assert found is not None, lines[at]
        name, opened, closed, kind, since, open_end, until = found.groups()
        versions = {
            "since": int(since or 0),
            "until": int(until or since) if since and open_end != "+" else 1 << 15,
        }
        nullable = bool(opened) and opened.startswith("n")
        at += 1
        if opened and not closed:
            inner, at = _parse(lines, at)
            fields.append(Field(name, inner, True, nullable, **versions))
            at += 1  # the closing bracket
        else:
            assert kind is not None, lines[at - 1]
            fields.append(Field(name, kind, bool(opened), nullable, **versions))
    return tuple(fields), at


# --- reading and writing values -------------------------------------------------------------------

_FORMS = {
    "int8": struct.Struct(">b"),
    "int16": struct.Struct(">h"),
    "int32": struct.Struct(">i"),
    "int64": struct.Struct(">q"),
    "bool": struct.Struct(">?"),
}
_I16, _I32 = _FORMS["int16"], _FORMS["int32"]
_DEFAULTS: dict[str, Any] = {
    "bool": False,
    "string": "",
    "nstring": None,
    "bytes": b"",
    "records": None,
}
_NULLABLE = ("nstring", "records")


def _number_reader(form: struct.Struct) -> Read:
    return lambda reader: reader.unpack(form)


def _number_writer(form: struct.Struct) -> Write:
    def write(writer: Writer, value: Any) -> None:
        writer.tail.extend(form.pack(value))

    return write


def _length_reader(form: struct.Struct, *, flexible: bool) -> Callable[[Reader], int]:
    """Reads a length; -1 is null."""
    if flexible:
        return lambda reader: reader.uvarint() - 1
    return lambda reader: reader.unpack(form)


def _length_writer(form: struct.Struct, *, flexible: bool) -> Callable[[Writer, int], None]:
    if flexible:
        return lambda writer, n: writer.uvarint(n + 1)
    return lambda writer, n: writer.tail.extend(form.pack(n))


def _scalar_reader(kind: str, *, flexible: bool) -> Read:
    if kind in _FORMS:
        return _number_reader(_FORMS[kind])
    text = kind.endswith("string")
    length = _length_reader(_I16 if text else _I32, flexible=flexible)
    nullable = kind in _NULLABLE

    def read(reader: Reader) -> Any:
        n = length(reader)
        if n == -1 and nullable:
            return None
        if text:
            return reader.string(n)
        at = reader.take(n)
        return memoryview(reader.data)[at : at + n]

    return read


def _scalar_writer(kind: str, *, flexible: bool) -> Write:
    if kind in _FORMS:
        return _number_writer(_FORMS[kind])
    text = kind.endswith("string")
    length = _length_writer(_I16 if text else _I32, flexible=flexible)

    def write(writer: Writer, value: Any) -> None:
        if value is None:
            length(writer, -1)
            return
        if isinstance(value, list):  # records in pieces
            length(writer, sum(len(piece) for piece in value))
            for piece in value:
                writer.records(piece)
            return
        raw = value.encode() if text else value
        length(writer, len(raw))
        if kind == "records":
            writer.records(raw)
        else:
            writer.tail.extend(raw)

    return write


def reader_of(fields: Sequence[Field], version: int, *, flexible: bool) -> Read:
    """Reads a structure of a version as a dict; fields that it lacks are not in it."""
    steps = [
        (each.name, _field_reader(each, version, flexible=flexible))
        for each in fields
        if each.in_version(version)
    ]

    def read(reader: Reader) -> Struct:
        found = {name: step(reader) for name, step in steps}
        if flexible:
            reader.skip_tags()
        return found

    return read


def _field_reader(field: Field, version: int, *, flexible: bool) -> Read:
    if isinstance(field.kind, str):
        one = _scalar_reader(field.kind, flexible=flexible)
    else:
        one = reader_of(field.kind, version, flexible=flexible)
    if not field.array:
        return one
    length = _length_reader(_I32, flexible=flexible)

    def read(reader: Reader) -> Any:
        n = length(reader)
        if n == -1 and field.nullable:
            return None
        return [one(reader) for _ in reader.items(n)]

    return read


def writer_of(fields: Sequence[Field], version: int, *, flexible: bool) -> Write:
    """Writes a dict as a structure of a version; fields that it lacks are empty, zero or null.

    A field of another version is left out. A name that no version has is an AssertionError.
    """
    steps = [
        (each.name, _default(each), _field_writer(each, version, flexible=flexible))
        for each in fields
        if each.in_version(version)
    ]
    names = dict.fromkeys(each.name for each in fields)

    def write(writer: Writer, value: Struct) -> None:
        assert value.keys() <= names.keys(), (
            f"{sorted(value.keys() - names.keys())}: no version has it: allowed {', '.join(names)}"
        )
        for name, default, step in steps:
            step(writer, value.get(name, default))
        if flexible:
            writer.tail.append(0)

    return write


def _default(field: Field) -> Any:
    if field.array:
        return None if field.nullable else ()
    assert isinstance(field.kind, str)
    return _DEFAULTS.get(field.kind, 0)


def _field_writer(field: Field, version: int, *, flexible: bool) -> Write:
    if isinstance(field.kind, str):
        one = _scalar_writer(field.kind, flexible=flexible)
    else:
        one = writer_of(field.kind, version, flexible=flexible)
    if not field.array:
        return one
    length = _length_writer(_I32, flexible=flexible)

    def write(writer: Writer, value: Any) -> None:
        if value is None:
            length(writer, -1)
            return
        length(writer, len(value))
        for each in value:
            one(writer, each)

    return write
