"""Filters as text: ``key.startswith("eu.") and headers["kind"] != "test" and size < 1000``.

A text is parsed (as Python parses it), checked, and compiled into a list of tests that a kernel
walks. Each test has two successors, for when it holds and for when it does not; both are later in
the walk, so each walk ends. Any client may send such a text, so no part of it is executed as code.

A program is bytes: ``FIELDS`` words a test, then the constants.
"""

from __future__ import annotations

import ast
import struct
from collections.abc import Mapping
from typing import Any, NamedTuple, NoReturn

import msgspec

from tidecast.errors import ConfigError

TEXT_CHARS_MAX, TESTS_MAX = 1024, 64
KEEP, DROP = -1, -2
"""Where a walk ends."""

KEY, VALUE, HEADER, SIZE, TIME, INTEGER, FLOAT = range(7)
"""The field that a test reads. INTEGER and FLOAT: of the payload, little endian."""
EQUAL, LESS, LESS_EQUAL, MORE, MORE_EQUAL, STARTS, ENDS, HOLDS, IS_THERE = range(9)
ABSENT, NUMBER, BYTES, REAL = range(4)
"""The type of its value, for the comparison."""

FIELDS = 10
(T_FIELD, T_TEST, T_KIND, T_NUMBER, T_AT, T_BYTES, T_THEN, T_ELSE, T_NAME_AT, T_NAME_BYTES) = range(
    FIELDS
)
"""A test: field, comparison; constant: kind, number, bytes; next tests; the header's packed name,
or where in the payload and how many bytes (negative: signed)."""


_ORDERS = {ast.Eq: EQUAL, ast.Lt: LESS, ast.LtE: LESS_EQUAL, ast.Gt: MORE, ast.GtE: MORE_EQUAL}
_TURNED = {EQUAL: EQUAL, LESS: MORE, LESS_EQUAL: MORE_EQUAL, MORE: LESS, MORE_EQUAL: LESS_EQUAL}
_NAMES = {"key": KEY, "value": VALUE, "size": SIZE, "timestamp": TIME}
_WIDTHS = {"u8": 1, "u16": 2, "u32": 4, "i8": -1, "i16": -2, "i32": -4, "i64": -8}
_REALS = {"f32": 4, "f64": 8}
_BYTES_TESTS = {"startswith": STARTS, "endswith": ENDS}
_KNOWN = 'known are key, value, size, timestamp, headers["..."], value.u16(0) and the like'
_I64 = 1 << 63
Constant = bytes | int | float | None


class _Field(NamedTuple):
    """The field of one side of a comparison."""

    field: int
    name_at: int = 0
    name_bytes: int = 0


class _Maker:
    """The tests of a program, the last test first: a test's successors exist before the test."""

    def __init__(self) -> None:
        self.tests: list[list[int]] = []
        self.constants = bytearray()

    def keep(self, raw: bytes) -> int:
        """Offset of constant bytes among all constants."""
        at = self.constants.find(raw)
        if at < 0:
            at = len(self.constants)
            self.constants += raw
        return at

    def header(self, name: str) -> _Field:
        """A header, by its packed name."""
        packed = msgspec.msgpack.encode(name)
        return _Field(HEADER, self.keep(packed), len(packed))

    def test(self, field: _Field, test: int, constant: Constant, then: int, other: int) -> int:
        """Add a test. Returns its number."""
        if len(self.tests) == TESTS_MAX:
            raise ConfigError(f"where: over {TESTS_MAX} comparisons")
        kind, number, at, n = NUMBER, 0, 0, 0
        if isinstance(constant, bytes):
            kind, at, n = BYTES, self.keep(constant), len(constant)
        elif isinstance(constant, float):
            kind, number = REAL, *struct.unpack("<q", struct.pack("<d", constant))
        elif constant is not None:
            number = constant
        self.tests.append(
            [field.field, test, kind, number, at, n, then, other, field.name_at, field.name_bytes]
        )
        return len(self.tests) - 1

    def program(self) -> bytes:
        """The whole, first test first."""
        n = len(self.tests)
        base = n * FIELDS * 8
        for test in self.tests:
            test[T_AT] += base
            test[T_NAME_AT] += base if test[T_FIELD] == HEADER else 0
            for column in (T_THEN, T_ELSE):
                test[column] = n - 1 - test[column] if test[column] >= 0 else test[column]
        words = [word for test in reversed(self.tests) for word in test]
        return struct.pack(f"<{len(words)}q", *words) + bytes(self.constants)


def _wrong(node: ast.AST, problem: str) -> NoReturn:
    at = getattr(node, "col_offset", 0) + 1
    raise ConfigError(f"where: {ast.unparse(node)!r} at character {at}: {problem}")


def _constant(node: ast.expr) -> Constant:
    """The value of a literal. Raises ConfigError for any other expression."""
    sign = 1
    while isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        sign, node = -sign, node.operand
    found = node.value if isinstance(node, ast.Constant) else ...
    if isinstance(found, (str, bytes)) and sign == 1:
        return found.encode() if isinstance(found, str) else found
    if found is None and sign == 1:
        return None
    if isinstance(found, bool) or not isinstance(found, (int, float)):
        _wrong(node, "compare with a text, bytes, a number or None")
    if isinstance(found, int) and not -_I64 <= sign * found < _I64:
        _wrong(node, "a number of at most 64 bits")
    return sign * found


def _is_literal(node: ast.expr) -> bool:
    while isinstance(node, ast.UnaryOp):
        node = node.operand
    return isinstance(node, ast.Constant)


class _Reader:
    """Makes tests of a parsed text."""

    def __init__(self, make: _Maker) -> None:
        self.make = make

    def build(self, node: ast.expr, then: int, other: int) -> int:
        """Add the tests of ``node``, with these successors. Returns the first test's number."""
        if isinstance(node, ast.BoolOp):
            for part in reversed(node.values):
                if isinstance(node.op, ast.And):
                    then = self.build(part, then, other)
                else:
                    other = self.build(part, then, other)
            return then if isinstance(node.op, ast.And) else other
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return self.build(node.operand, other, then)
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            for k in range(len(node.ops) - 1, -1, -1):
                then = self._compare(node, sides[k], node.ops[k], sides[k + 1], then, other)
            return then
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            test = _BYTES_TESTS.get(node.func.attr)
            if test is not None and len(node.args) == 1 and not node.keywords:
                field, constant = self._field(node.func.value), _constant(node.args[0])
                return self._test(node, field, test, constant, then, other)
        _wrong(node, "no comparison: compare it with something")

    def _compare(
        self, whole: ast.expr, left: ast.expr, op: ast.cmpop, right: ast.expr, then: int, other: int
    ) -> int:
        if isinstance(op, (ast.NotEq, ast.NotIn, ast.IsNot)):
            then, other = other, then
        if isinstance(op, (ast.In, ast.NotIn)):
            return self._inside(whole, left, right, then, other)
        test = _ORDERS.get(type(op), EQUAL)
        if _is_literal(left):
            left, right, test = right, left, _TURNED[test]
        return self._test(whole, self._field(left), test, _constant(right), then, other)

    def _inside(
        self, whole: ast.expr, left: ast.expr, right: ast.expr, then: int, other: int
    ) -> int:
        if isinstance(right, (ast.Tuple, ast.List, ast.Set)):
            if not right.elts:
                _wrong(whole, "nothing to choose from")
            field = self._field(left)
            for one in reversed(right.elts):
                other = self._test(whole, field, EQUAL, _constant(one), then, other)
            return other
        constant = _constant(left)
        if isinstance(right, ast.Name) and right.id == "headers":
            if not isinstance(constant, bytes):
                _wrong(left, "a header's name is a text")
            return self.make.test(self.make.header(constant.decode()), IS_THERE, None, then, other)
        return self._test(whole, self._field(right), HOLDS, constant, then, other)

    def _test(
        self, whole: ast.expr, field: _Field, test: int, constant: Constant, then: int, other: int
    ) -> int:
        if constant is None:
            if test != EQUAL:
                _wrong(whole, "with None, == and != alone")
            return self.make.test(field, IS_THERE, None, other, then)
        if test in (STARTS, ENDS, HOLDS) and field.field not in (KEY, VALUE, HEADER):
            _wrong(whole, "a number has no such text")
        whole_number = isinstance(constant, int)
        if field.field == FLOAT and whole_number:
            constant = float(constant)
        if field.field in (KEY, VALUE) and not isinstance(constant, bytes):
            _wrong(whole, "key and value compare with a text or bytes")
        if field.field in (SIZE, TIME, INTEGER) and not whole_number:
            _wrong(whole, "compares with a whole number")
        if field.field == FLOAT and isinstance(constant, bytes):
            _wrong(whole, "compares with a number")
        if field.field == HEADER and isinstance(constant, float):
            _wrong(whole, "headers hold text, bytes and whole numbers")
        if test in (STARTS, ENDS, HOLDS) and not isinstance(constant, bytes):
            _wrong(whole, "looks for a text or bytes")
        return self.make.test(field, test, constant, then, other)

    def _field(self, node: ast.expr) -> _Field:
        if isinstance(node, ast.Name) and node.id in _NAMES:
            return _Field(_NAMES[node.id])
        if isinstance(node, ast.Subscript) and _named(node.value, "headers"):
            name = node.slice.value if isinstance(node.slice, ast.Constant) else None
            if isinstance(name, str):
                return self.make.header(name)
        if isinstance(node, ast.Call) and not node.keywords and len(node.args) == 1:
            given = node.args[0].value if isinstance(node.args[0], ast.Constant) else None
            if _named(node.func, "len") and isinstance(node.args[0], ast.Name):
                if node.args[0].id == "value":
                    return _Field(SIZE)
            if isinstance(node.func, ast.Attribute):
                if _named(node.func.value, "headers") and node.func.attr == "get":
                    if isinstance(given, str):
                        return self.make.header(given)
                if _named(node.func.value, "value"):
                    return self._load(node, node.func.attr, given)
        _wrong(node, f"unknown: {_KNOWN}")

    def _load(self, node: ast.expr, name: str, at: Any) -> _Field:
        if isinstance(at, bool) or not isinstance(at, int) or not 0 <= at < 1 << 28:
            _wrong(node, "where in the value: a number from 0 on")
        if name in _WIDTHS:
            return _Field(INTEGER, at, _WIDTHS[name])
        if name in _REALS:
            return _Field(FLOAT, at, _REALS[name])
        _wrong(node, f"value has {', '.join([*_WIDTHS, *_REALS])}")


def _named(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def parsed(where: str) -> ast.expr:
    """The text, parsed. Raises ConfigError."""
    if len(where) > TEXT_CHARS_MAX:
        raise ConfigError(f"where: {len(where)} characters: at most {TEXT_CHARS_MAX}")
    try:
        return ast.parse(where.strip(), mode="eval").body
    except SyntaxError as problem:
        place = f"at character {problem.offset}" if problem.offset else "at its end"
        raise ConfigError(f"where: {where!r}: {problem.msg} {place}") from None
    except (ValueError, RecursionError, MemoryError) as problem:
        raise ConfigError(f"where: cannot be read: {problem}") from None


class Where(NamedTuple):
    """A filter: its tests, if any, and the key that it requires of all records, else ""."""

    program: bytes
    key: str


def where_of(text: str = "", prefix: str = "", headers: Mapping[str, str] | None = None) -> Where:
    """A filter by a text, the beginning of keys, and headers, all of which must hold.

    Raises ConfigError, with the problem and its place in the text.
    """
    make = _Maker()
    first, key = KEEP, ""
    if text.strip():
        body = parsed(text)
        key = _stream(body)
        try:
            first = _Reader(make).build(body, first, DROP)
        except RecursionError:
            raise ConfigError("where: too deeply nested") from None
    for name, value in reversed(list((headers or {}).items())):
        first = make.test(make.header(name), EQUAL, value.encode(), first, DROP)
    if prefix:
        make.test(_Field(KEY), STARTS, prefix.encode(), first, DROP)
    return Where(make.program(), key)


def _stream(body: ast.expr) -> str:
    """The key that the text requires of all records; "": none."""
    parts = [body]
    if isinstance(body, ast.BoolOp) and isinstance(body.op, ast.And):
        parts = body.values
    for part in parts:
        if isinstance(part, ast.Compare) and len(part.ops) == 1 and isinstance(part.ops[0], ast.Eq):
            sides = (part.left, part.comparators[0])
            for one, other in (sides, sides[::-1]):
                if _named(one, "key") and isinstance(other, ast.Constant):
                    if isinstance(other.value, str):
                        return other.value
    return ""
