"""Kafka's message formats: the schemas against an independent implementation, and hostile bytes."""

from __future__ import annotations

import contextlib
import importlib
import io
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.serial import entity_reader, entity_writer

from tidecast.kafka.schemas import tables
from tidecast.kafka.schemas.api import Api
from tidecast.kafka.wire import (
    COPIED_BYTES_MAX,
    ITEMS_MAX,
    BadRequest,
    Field,
    Reader,
    Writer,
    parse,
    reader_of,
    writer_of,
)

VERSIONS = [
    (api, version) for api in tables.KNOWN.values() for version in range(api.first, api.last + 1)
]
_SCALARS: dict[str, st.SearchStrategy[Any]] = {
    "bool": st.booleans(),
    "string": st.text(max_size=5),
    "nstring": st.none() | st.text(max_size=5),
    "bytes": st.binary(max_size=9),
    "records": st.none() | st.binary(max_size=99),
    "int8": st.integers(-128, 127),
    "int16": st.integers(-(1 << 15), (1 << 15) - 1),
    "int32": st.integers(-(1 << 31), (1 << 31) - 1),
    "int64": st.integers(-(1 << 63), (1 << 63) - 1),
}


def snake(name: str) -> str:
    """The name of an API's module."""
    return "".join("_" + c.lower() if c.isupper() else c for c in name).strip("_")


def structs(fields: tuple[Field, ...], version: int) -> st.SearchStrategy[dict[str, Any]]:
    """Any values of a version's fields."""
    found = {}
    for field in fields:
        if field.in_version(version):
            one = (
                _SCALARS[field.kind]
                if isinstance(field.kind, str)
                else structs(field.kind, version)
            )
            many = st.lists(one, max_size=3)
            found[field.name] = (
                one if not field.array else st.none() | many if field.nullable else many
            )
    return st.fixed_dictionaries(found)


def written(write: Any, value: dict[str, Any]) -> bytes:
    writer = Writer()
    write(writer, value)
    return b"".join(writer.done())


def plain(value: Any) -> Any:
    """Views as bytes, so that values can be compared."""
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [plain(each) for each in value]
    return bytes(value) if isinstance(value, memoryview) else value


@pytest.mark.parametrize(("api", "version"), VERSIONS, ids=lambda x: getattr(x, "name", x))
@settings(max_examples=8)
@given(data=st.data())
def test_what_is_written_is_read_again(api: Api, version: int, data: st.DataObject) -> None:
    for fields in (api.request, api.answer):
        value = data.draw(structs(fields, version))
        flexible = api.is_flexible(version)
        raw = written(writer_of(fields, version, flexible=flexible), value)
        reader = Reader(raw)
        assert plain(reader_of(fields, version, flexible=flexible)(reader)) == value
        assert reader.at == len(raw)


def sample(fields: tuple[Field, ...], version: int) -> dict[str, Any]:
    """One value of each field: numbers that differ, arrays of one."""
    values: dict[str, Any] = {
        "bool": True,
        "string": "a",
        "nstring": "b",
        "bytes": b"c",
        "records": b"dd",
        "int8": 1,
        "int16": 3,
        "int32": 1 << 20,
        "int64": 1 << 40,
    }
    found = {}
    for field in fields:
        if field.in_version(version):
            one = values[field.kind] if isinstance(field.kind, str) else sample(field.kind, version)
            found[field.name] = [one] if field.array else one
    return found


@pytest.mark.parametrize(("api", "version"), VERSIONS, ids=lambda x: getattr(x, "name", x))
@pytest.mark.parametrize("side", ["request", "response"])
def test_an_independent_implementation_agrees_byte_for_byte(
    api: Api, version: int, side: str
) -> None:
    module = importlib.import_module(f"kio.schema.{snake(api.name)}.v{version}.{side}")
    kind = getattr(module, f"{api.name}{side.capitalize()}")
    fields = api.request if side == "request" else api.answer
    flexible = api.is_flexible(version)
    raw = written(writer_of(fields, version, flexible=flexible), sample(fields, version))

    value, size = entity_reader(kind)(raw, 0)

    assert size == len(raw)
    out = io.BytesIO()
    entity_writer(kind)(out, value)
    assert out.getvalue() == raw


@pytest.mark.parametrize(("api", "version"), VERSIONS, ids=lambda x: getattr(x, "name", x))
@settings(max_examples=25)
@given(raw=st.binary(max_size=200))
def test_any_bytes_are_a_request_or_refused(api: Api, version: int, raw: bytes) -> None:
    reader = Reader(raw)
    with contextlib.suppress(BadRequest):
        tables.request_reader(api.key, version)(reader)
    assert reader.at <= len(raw)


@pytest.mark.parametrize(("api", "version"), VERSIONS, ids=lambda x: getattr(x, "name", x))
def test_every_truncation_is_refused(api: Api, version: int) -> None:
    flexible = api.is_flexible(version)
    raw = written(writer_of(api.request, version, flexible=flexible), sample(api.request, version))
    read = tables.request_reader(api.key, version)
    for n in range(len(raw)):
        with pytest.raises(BadRequest):
            read(Reader(raw[:n]))


def test_an_array_is_as_long_as_its_bytes_at_most() -> None:
    read = reader_of(parse("names: []int8"), 0, flexible=False)
    with pytest.raises(BadRequest):
        read(Reader(b"\x7f\xff\xff\xff" + bytes(9)))
    many = ITEMS_MAX + 1
    with pytest.raises(BadRequest):
        read(Reader(many.to_bytes(4, "big") + bytes(many)))


def test_tagged_fields_that_are_not_known_are_skipped() -> None:
    read = reader_of(parse("a: int8"), 0, flexible=True)
    assert read(Reader(b"\x07\x02\x05\x03abc\x09\x00")) == {"a": 7}
    with pytest.raises(BadRequest):
        read(Reader(b"\x07\x01\x05\x7fabc"))


def test_a_name_that_no_version_has_is_refused_and_of_another_version_is_left_out() -> None:
    fields = parse("a: int8\nb: int8 2+\nrows: [\nc: int8\nd: int8 0-1\n]")
    for version in range(3):
        write = writer_of(fields, version, flexible=False)
        with pytest.raises(AssertionError, match=r"'lost'.*allowed a, b, rows"):
            write(Writer(), {"a": 1, "lost": 2})
        with pytest.raises(AssertionError, match=r"'e'.*allowed c, d"):
            write(Writer(), {"rows": [{"c": 1}, {"e": 2}]})
    value = {"a": 1, "b": 2, "rows": [{"c": 3, "d": 4}]}
    assert written(writer_of(fields, 0, flexible=False), value).hex() == "01000000010304"
    assert written(writer_of(fields, 2, flexible=False), value).hex() == "01020000000103"


def test_a_request_has_the_bytes_that_kafka_gives_it() -> None:
    raw = written(
        tables.request_writer(tables.FETCH, 4),
        {
            "replica_id": -1,
            "max_wait_ms": 500,
            "min_bytes": 1,
            "max_bytes": 1024,
            "isolation_level": 0,
            "topics": [
                {
                    "topic": "t",
                    "partitions": [{"partition": 2, "fetch_offset": 7, "partition_max_bytes": 99}],
                }
            ],
        },
    )
    assert raw.hex(" ") == (
        "ff ff ff ff 00 00 01 f4 00 00 00 01 00 00 04 00 00 00 00 00 01 00 01 74 00 00 00 01 "
        "00 00 00 02 00 00 00 00 00 00 00 07 00 00 00 63"
    )


def test_an_answer_of_very_many_partitions_is_few_pieces() -> None:
    """Each had pieces of its own: 24 clients that did not read them took 800 MB."""
    many = 60_000
    row: dict[str, Any] = {
        "partition_index": 7,
        "error_code": 0,
        "high_watermark": 9,
        "last_stable_offset": 9,
        "log_start_offset": 0,
        "preferred_read_replica": -1,
    }
    rows = [row | {"records": b"r" * (i % 3)} for i in range(many)]
    rows[many // 2]["records"] = [b"small", bytes(COPIED_BYTES_MAX + 1)]
    answer = {"responses": [{"topic": "wide", "partitions": rows}]}
    writer = Writer()
    tables.answer_writer(tables.FETCH, 4)(writer, answer)
    pieces = writer.done()
    assert [len(piece) > COPIED_BYTES_MAX for piece in pieces] == [True] * 3
    request = tables.APIS[tables.FETCH]
    reader = Reader(b"".join(bytes(piece) for piece in pieces))
    read = reader_of(request.answer, 4, flexible=False)(reader)
    found = [bytes(each["records"]) for each in read["responses"][0]["partitions"]]
    rows[many // 2]["records"] = b"small" + bytes(COPIED_BYTES_MAX + 1)
    assert found == [each["records"] for each in rows]
