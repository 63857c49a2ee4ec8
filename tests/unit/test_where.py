"""Filters as text: a kernel finds what Python finds; what is wrong is said; nothing crashes."""

from __future__ import annotations

import operator
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidecast.errors import ConfigError
from tidecast.layout import segment as seg
from tidecast.log.building import BatchBuilder
from tidecast.queues.filters.where import TESTS_MAX, TEXT_CHARS_MAX, where_of
from tidecast.queues.filters.where_kernels import keeps_record


@dataclass(frozen=True)
class Record:
    """One record, as its publisher wrote it."""

    key: bytes | None = None
    value: bytes = b""
    headers: dict[str, Any] = field(default_factory=dict)
    time_ns: int = 0


def keeps(text: str, record: Record, raw_headers: bytes | None = None) -> bool:
    """The verdict of the kernel."""
    program = np.frombuffer(where_of(text).program, dtype=np.uint8)
    packed = msgspec.msgpack.encode(record.headers) if record.headers else b""
    builder = BatchBuilder().begin()
    builder.add(
        record.value,
        key=record.key,
        key_hash=1,
        headers=raw_headers or packed or None,
        time_ns=record.time_ns,
    )
    builder.seal(0)
    return bool(keeps_record(program, builder.buffer, seg.BATCH_HEADER_BYTES))


TRADE = Record(
    b"eu.de",
    struct.pack("<HihqfdB", 7, -5, -2, 1 << 40, 1.5, -2.25, 255),
    {"kind": "trade", "n": 5, "raw": b"\x00\xff", "low": -70_000},
    1_000,
)


@pytest.mark.parametrize(
    "text",
    [
        'key == "eu.de"',
        'key != "us"',
        'key.startswith("eu.")',
        'key.endswith(".de")',
        '"u.d" in key',
        'key > "eu.d" and key < "eu.e"',
        '"eu" <= key <= "ev"',
        "key is not None",
        'headers["kind"] == "trade"',
        'headers.get("kind") in ("quote", "trade")',
        '"kind" in headers',
        '"none" not in headers',
        'headers["none"] is None',
        'headers["none"] != "a"',
        'headers["n"] > 4',
        'headers["n"] != "5"',
        "headers['low'] < -1",
        'headers["raw"] == b"\\x00\\xff"',
        "size == 29",
        "len(value) >= 29",
        "timestamp == 1_000",
        "value.u16(0) == 7",
        "value.i32(2) == -5",
        "value.i16(6) == -2",
        f"value.i64(8) == {1 << 40}",
        "value.f32(16) == 1.5",
        "value.f64(20) < -2",
        "value.u8(28) == 255",
        "value.i8(28) == -1",
        "not value.u8(29) == 0",
        "not size < 5",
        "4 < headers['n'] < 6",
        'key == "x" or size > 1 and not timestamp < 1000',
        'not (key == "x" or (size < 1 or timestamp < 1000))',
        'value.startswith(b"\\x07\\x00")',
    ],
)
def test_what_holds_for_a_record(text: str) -> None:
    assert keeps(text, TRADE)
    assert not keeps(f"not ({text})", TRADE)


@pytest.mark.parametrize(
    "text",
    [
        'key == "x"',
        'headers["none"] == "a"',
        'headers["none"] < "a"',
        'headers["none"] > 1',
        'headers["kind"] > 1',
        "value.u32(26) >= 0",
        "value.f64(22) == 0.0",
        'key.startswith("eu.de.")',
        '"trades" in headers["kind"]',
        "headers['n'] == 6",
    ],
)
def test_what_does_not(text: str) -> None:
    assert not keeps(text, TRADE)


def test_a_record_without_a_key() -> None:
    bare = Record(value=b"x")
    assert keeps("key is None", bare)
    assert keeps('key != "a"', bare)
    assert not keeps('key < "a"', bare)
    assert not keeps('"kind" in headers', bare)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("size >", "'size >': invalid syntax at its end"),
        ("size > > 3", "at character 8"),
        ("price > 3", "'price' at character 1: unknown: known are key, value"),
        ("size", "no comparison"),
        ("True", "no comparison"),
        ("key == 5", "text or bytes"),
        ("key == other", "compare with a text"),
        ("size == 'a'", "whole number"),
        ("size > 1.5", "whole number"),
        (f"size > {1 << 63}", "at most 64 bits"),
        ("value.f64(0) == 'a'", "compares with a number"),
        ("headers['a'] > 1.5", "text, bytes and whole numbers"),
        ("value.u24(0) == 1", "value has u8"),
        ("value.u8(-1) == 1", "from 0 on"),
        ("value.u8(size) == 1", "from 0 on"),
        ("key > None", "== and != alone"),
        ("size in ()", "nothing to choose from"),
        ("__import__('os').system('true') == 0", "unknown"),
        ("(lambda: 0)() == 0", "unknown"),
        ("size.startswith('a')", "no such text"),
        ("size > 1" + " or size > 1" * TESTS_MAX, f"over {TESTS_MAX} comparisons"),
        ("size > 1 " + " " * TEXT_CHARS_MAX + "#", "characters: at most"),
        ("(" * 500 + "size > 1" + ")" * 500, "where:"),
        ("not " * 250 + "size > 1" + " ", ""),
        ("size > 1\0", "where:"),
        ("size > '\ud800'", "where:"),
    ],
)
def test_what_is_wrong_is_said(text: str, said: str) -> None:
    if not said:
        assert where_of(text).program
        return
    with pytest.raises(ConfigError) as problem:
        where_of(text)
    assert str(problem.value).startswith("where: ")
    assert said in str(problem.value)


def test_the_stream_that_a_text_asks_for() -> None:
    assert where_of('key == "a"').key == "a"
    assert where_of('size > 5 and "a" == key').key == "a"
    assert where_of('key == "a" or size > 5').key == ""
    assert where_of('not key == "a"').key == ""
    assert where_of(prefix="eu.", headers={"a": "b"}).key == ""


# --- against Python -------------------------------------------------------------------------------
Check = Callable[[Record], bool]
ORDERS: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
SHORT = st.text(alphabet="abc", max_size=3)
SMALL = st.integers(-3, 300)


def _leaf(name: str, found: Callable[[Record], Any], constants: st.SearchStrategy[Any]) -> Any:
    def made(sign: str, constant: Any) -> tuple[str, Check]:
        wanted = constant.encode() if isinstance(constant, str) else constant

        def holds(record: Record) -> bool:
            there = found(record)
            if there is None or type(there) is not type(wanted):
                return sign == "!="
            return there != wanted if sign == "!=" else ORDERS[sign](there, wanted)

        return f"{name} {sign} {constant!r}", holds

    return st.builds(made, st.sampled_from([*ORDERS, "!="]), constants)


def _header(record: Record) -> Any:
    there = record.headers.get("h")
    return there.encode() if isinstance(there, str) else there


def _u16(record: Record) -> Any:
    return int.from_bytes(record.value[1:3], "little") if len(record.value) >= 3 else None


LEAVES = st.one_of(
    _leaf("key", lambda r: r.key, SHORT),
    _leaf("value", lambda r: r.value, SHORT),
    _leaf("size", lambda r: len(r.value), SMALL),
    _leaf("timestamp", lambda r: r.time_ns, SMALL),
    _leaf("headers['h']", _header, st.one_of(SHORT, SMALL)),
    _leaf("value.u16(1)", _u16, st.integers(0, 70_000)),
)
TREES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds(lambda a: (f"not ({a[0]})", lambda r: not a[1](r)), inner),
        st.builds(
            lambda a, b: (f"({a[0]}) and ({b[0]})", lambda r: a[1](r) and b[1](r)), inner, inner
        ),
        st.builds(
            lambda a, b: (f"({a[0]}) or ({b[0]})", lambda r: a[1](r) or b[1](r)), inner, inner
        ),
    ),
    max_leaves=8,
)
RECORDS = st.builds(
    Record,
    st.none() | SHORT.map(str.encode),
    st.binary(max_size=6),
    st.fixed_dictionaries(
        {}, optional={"a": SHORT, "h": st.one_of(SHORT, SMALL, st.binary(max_size=3))}
    ),
    SMALL,
)


@given(TREES, st.lists(RECORDS, min_size=1, max_size=6))
def test_a_kernel_finds_what_python_finds(tree: tuple[str, Check], records: list[Record]) -> None:
    text, holds = tree
    for record in records:
        assert keeps(text, record) == holds(record), (text, record)


@given(st.binary(min_size=1, max_size=40))
def test_headers_of_hostile_publishers_stay_in_bounds(raw: bytes) -> None:
    """The checked build raises IndexError for what lies outside."""
    for text in ('headers["h"] == "a"', 'headers["h"] > 5', '"h" in headers'):
        keeps(text, Record(value=b"v"), raw)
        keeps(text, Record(), b"\x81\xa1h" + raw)


@given(st.text(max_size=80))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        found = where_of(text)
    except ConfigError:
        return
    assert bool(found.program) == bool(text.strip())
