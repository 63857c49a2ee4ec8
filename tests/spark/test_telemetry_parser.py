"""The kernels that read samples of telemetry, against a general JSON parser."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidecast_spark import telemetry_source
from tidecast_spark.telemetry import SAMPLE_FIELDS
from tidecast_spark.telemetry_source import Parser

PARSER = Parser()
_NAMES = st.sampled_from([*SAMPLE_FIELDS, "new", "", "la", "lags"])
_VALUES = (
    st.none()
    | st.integers(-(10**20), 10**20)
    | st.text(max_size=6)
    | st.text("abc.-_ 0", max_size=6)
    | st.sampled_from([True, 1.5, [1], {"a": 1}, 10**17, -1, 0])
)
_OBJECTS = st.dictionaries(_NAMES, _VALUES, max_size=8)
_LINES = st.one_of(
    st.builds(
        lambda found, spaced, ascii_: json.dumps(
            found, separators=(", ", ": ") if spaced else (",", ":"), ensure_ascii=ascii_
        ).encode(),
        _OBJECTS, st.booleans(), st.booleans(),
    ),
    st.binary(max_size=12),
    st.sampled_from(
        [b"{}", b"", b"{", b'{"lag":01}', b'{"lag":-}', b'{"lag":1}x', b'{"lag":1,}', b' { } ',
         b'{"lag":1,"lag":2}', b'{"lag":nul}', b'{"topic":"a\\u0062"}', b'{"lag":-0}', b'{"lag"}']
    ),
)  # fmt: skip


def _rows(lines: list[bytes]) -> list[dict[str, Any]]:
    tables = list(PARSER.parse(pa.array(lines, pa.binary())))
    for one in tables:
        one.validate(full=True)
    return [row for one in tables for row in one.to_pylist()]


def _one_by_one(line: bytes) -> dict[str, Any]:
    return dict.fromkeys(SAMPLE_FIELDS) | PARSER._row(line)


def _fits(row: dict[str, Any]) -> bool:
    return all(v is None or isinstance(v, str) or abs(v) < 1 << 63 for v in row.values())


@settings(max_examples=300, deadline=None)
@given(st.lists(_LINES, max_size=12))
def test_samples_are_what_a_general_parser_reads(lines: list[bytes]) -> None:
    expected = [_one_by_one(line) for line in lines]
    if all(_fits(row) for row in expected):
        assert _rows(lines) == expected


def test_one_odd_sample_leaves_the_others_to_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry_source, "ODD_ROWS", 3)
    lines = [b'{"lag":%d,"topic":"t%d"}' % (i, i) for i in range(20)]
    lines[7] = b'{"lag":7.5}'
    asked: list[int] = []
    real = PARSER._odd

    def odd(some: Any) -> Any:
        asked.append(len(some))
        return real(some)

    monkeypatch.setattr(PARSER, "_odd", odd)
    rows = _rows(lines)
    assert asked == [3]
    assert [row["lag"] for row in rows] == [None if i == 7 else i for i in range(20)]
    assert rows[8]["topic"] == "t8"
    assert _rows([]) == []
