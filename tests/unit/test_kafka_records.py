"""Record batches v2: to the log and back, against a client's own code, and hostile bytes."""

from __future__ import annotations

import contextlib
import gzip
import struct
from typing import Any

import cramjam
import msgspec
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from kafka.record import MemoryRecords
from tests.support.kafka import Header, Record, batch, batch_of, record, varint

from tidecast.kafka import record_kernels
from tidecast.kafka.codes import Code, Refused
from tidecast.kafka.records import Decoder, Encoder, NoRoom
from tidecast.layout import segment as seg
from tidecast.log import batch as log_batch
from tidecast.log.building import BatchBuilder, record_table, records
from tidecast.queues.mapper import hash_of

WALL_NS = 1_800_000_000_000_000_000
TIME_MS = 1_700_000_000_000
ROWS = record_table()

names = st.text(max_size=4) | st.sampled_from(["a", "kafka-null", "kafka-headers", "x" * 300])
headers = st.lists(st.tuples(names, st.none() | st.binary(max_size=300)), max_size=5)
many = st.lists(
    st.tuples(st.none() | st.binary(max_size=9), st.none() | st.binary(max_size=300), headers),
    min_size=1,
    max_size=9,
)


def joined(given: list[Record]) -> bytes:
    return b"".join(record(i, *each) for i, each in enumerate(given))


def taken(raw: bytes) -> Any:
    return Decoder().take(memoryview(raw), WALL_NS)


def back(found: Any, **options: Any) -> bytes:
    """The batches of the log as record batches."""
    given = {"limit": 1 << 40, "bytes_max": 1 << 30, "epoch": 0} | options
    out = np.empty(1 << 25, dtype=np.uint8)
    part = Encoder().encode(found.buffer, found.n_bytes, out, **given)
    return out[: part.n_bytes].tobytes()


def in_log(found: Any) -> list[tuple[bytes | None, bytes, Any, int, int]]:
    """(key, payload, headers, time, hash) of each record of the log."""
    at, listed = 0, []
    raw = found.buffer.tobytes()
    while at < found.n_bytes:
        n = records(found.buffer, at, found.n_bytes, ROWS, 0)
        assert n > 0, log_batch.CAUSES[n]
        for row in ROWS[:n].tolist():
            (payload_at, payload_n, key_at, key_n, map_at, map_n, time_ns, hashed, _, _) = row
            key = raw[key_at : key_at + key_n] if key_at >= 0 else None
            held = msgspec.msgpack.decode(raw[map_at : map_at + map_n]) if map_at >= 0 else None
            listed.append((key, raw[payload_at : payload_at + payload_n], held, time_ns, hashed))
        at += int(found.buffer[at : at + 4].view("<u4")[0])
    return listed


@given(many)
@example([(b"", b"", [("a", b""), ("a", None)])])
@example([(None, None, [("kafka-null", b"x")])])
@example([(b"k", b"v", [(f"h{i}", b"x" * i) for i in range(33)])])
@example([(b"k", b"v", [("n" * 300, b"y" * 70)] + [(f"h{i}", b"") for i in range(20)])])
def test_what_is_produced_is_fetched_as_it_was(given: list[Record]) -> None:
    raw = batch(joined(given), len(given))
    again = back(taken(raw))
    assert again[61:] == raw[61:]
    (only,) = list(MemoryRecords(again))
    assert only.validate_crc()
    found = list(only)
    assert [(r.key, r.value, list(r.headers)) for r in found] == given
    assert {r.timestamp for r in found} == {TIME_MS}


def test_a_record_of_the_log_is_one_of_any_publisher() -> None:
    given: list[Record] = [
        (b"k", b"payload", [("n", b"1"), ("who", b"\xff" * 40)]),
        (None, None, []),
        (b"", b"", [("a", b"1"), ("a", b"2")]),
        (None, b"x", [("é", b"y")]),
    ]
    first, null, repeated, named = in_log(taken(batch(joined(given), len(given))))
    assert first == (
        b"k",
        b"payload",
        {"n": b"1", "who": b"\xff" * 40},
        TIME_MS * 10**6,
        hash_of(b"k"),
    )
    assert null[:3] == (None, b"", {"kafka-null": True})
    assert repeated[:2] == (b"", b"")
    assert repeated[2] == {"kafka-headers": b"\x04\x02a\x021\x02a\x022"}
    assert named[2] == {"é": b"y"}


def test_a_publishers_headers_are_bytes_for_kafka() -> None:
    found = taken(batch_of(b"v"))
    raw = msgspec.msgpack.encode({"s": "text", "b": b"\0", "n": 5, "big": -70_000, "none": None})
    builder = BatchBuilder().begin()
    builder.add(b"v", time_ns=10**18, headers=raw)
    builder.seal(7, 0)
    found = type(found)(builder.buffer, builder.used, 1, -1, -1, -1)
    (only,) = [r for each in MemoryRecords(back(found)) for r in each]
    assert only.offset == 7
    assert list(only.headers) == [
        ("s", b"text"),
        ("b", b"\0"),
        ("n", b"\x05"),
        ("big", b"\xd2\xff\xfe\xee\x90"),
        ("none", None),
    ]


def test_headers_that_no_publisher_can_have_made_are_left_out() -> None:
    bad = (b"\x81", b"\x81\xa1a", b"\x81\xa9a", b"\xc1", b"", b"\x81\xa1a\x93\1\2\3", b"\x80\0")
    for raw in bad:
        builder = BatchBuilder().begin()
        builder.add(b"v", time_ns=10**18, headers=raw)
        builder.seal(0, 0)
        found = taken(batch_of(b"v"))
        found = type(found)(builder.buffer, builder.used, 1, -1, -1, -1)
        (only,) = [r for each in MemoryRecords(back(found)) for r in each]
        assert (only.value, list(only.headers)) == (b"v", [])


def test_a_large_batch_is_several_of_the_log() -> None:
    n = seg.BATCH_RECORDS_MAX + 10
    small = taken(batch(b"".join(record(i, None, b"") for i in range(n)), n))
    assert len(in_log(small)) == n
    first = int(small.buffer[:4].view("<u4")[0])
    assert (
        record_kernels.LOG_BATCH_BYTES - 24
        <= first
        <= record_kernels.LOG_BATCH_BYTES
        < small.n_bytes
    )
    long = taken(batch_of(*[bytes(60_000)] * 9))
    assert [len(each[1]) for each in in_log(long)] == [60_000] * 9
    assert int(long.buffer[:4].view("<u4")[0]) <= record_kernels.LOG_BATCH_BYTES
    huge = taken(batch_of(bytes(3 << 20)))
    assert [len(each[1]) for each in in_log(huge)] == [3 << 20]


def test_a_batch_without_time_has_that_of_its_arrival() -> None:
    assert in_log(taken(batch_of(b"v", time_ms=-1)))[0][3] == WALL_NS


def _xerial(raw: bytes) -> bytes:
    chunks = [
        bytes(cramjam.snappy.compress_raw(raw[at : at + 50])) for at in range(0, len(raw), 50)
    ]
    framed = b"".join(struct.pack(">i", len(each)) + each for each in chunks)
    return b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1) + framed


CODECS = {
    "gzip": (1, gzip.compress),
    "snappy raw": (2, lambda raw: bytes(cramjam.snappy.compress_raw(raw))),
    "snappy framed": (2, _xerial),
    "lz4": (3, lambda raw: bytes(cramjam.lz4.compress(raw))),
    "zstd": (4, lambda raw: bytes(cramjam.zstd.compress(raw))),
}


@pytest.mark.parametrize("name", CODECS)
def test_compressed_batches(name: str) -> None:
    codec, compress = CODECS[name]
    given: list[Record] = [(b"k%d" % i, b"value %d" % i, []) for i in range(100)]
    found = taken(batch(compress(joined(given)), 100, attributes=codec))
    assert [each[1] for each in in_log(found)] == [value for _, value, _ in given]


@pytest.mark.parametrize("name", CODECS)
def test_a_batch_that_grows_beyond_its_room_is_refused(name: str) -> None:
    codec, compress = CODECS[name]
    raw = batch(compress(record(0, None, bytes(400_000))), 1, attributes=codec)
    with pytest.raises(Refused) as refused:
        Decoder().take(memoryview(raw), WALL_NS, 100_000)
    assert refused.value.code == Code.CORRUPT_MESSAGE


@pytest.mark.parametrize("codec", range(1, 5))
@given(raw=st.binary(min_size=1, max_size=60))
def test_bytes_that_are_not_compressed_are_refused(codec: int, raw: bytes) -> None:
    with pytest.raises(Refused):
        taken(batch(raw, 1, attributes=codec))


def test_a_codec_whose_library_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr("tidecast.kafka.compression.importlib.import_module", missing)
    with pytest.raises(Refused, match=r"zstd.*tidecast\[kafka\]") as refused:
        taken(batch(b"x", 1, attributes=4))
    assert refused.value.code == Code.UNSUPPORTED_COMPRESSION_TYPE


REFUSED = {
    "cut off": (batch_of(b"v")[:60], Code.CORRUPT_MESSAGE),
    "checksum": (batch_of(b"v", crc=1), Code.CORRUPT_MESSAGE),
    "magic 1": (batch_of(b"v", magic=1), Code.UNSUPPORTED_FOR_MESSAGE_FORMAT),
    "two batches": (batch_of(b"v") * 2, Code.INVALID_RECORD),
    "codec 5": (batch_of(b"v", attributes=5), Code.UNSUPPORTED_COMPRESSION_TYPE),
    "transaction": (batch_of(b"v", attributes=0x10), Code.INVALID_REQUEST),
    "no records": (batch(b"", 0), Code.INVALID_RECORD),
    "too few": (batch(record(0, None, b"v"), 2), Code.INVALID_RECORD),
    "too many": (batch(record(0, None, b"v") * 2, 1), Code.INVALID_RECORD),
    "a hole": (batch(record(0, None, b"") + record(2, None, b""), 2), Code.INVALID_RECORD),
    "a long key": (batch(record(0, bytes(65_536), b""), 1), Code.MESSAGE_TOO_LARGE),
    "long headers": (
        batch(record(0, b"", b"", [("a", bytes(40_000)), ("b", bytes(40_000))]), 1),
        Code.MESSAGE_TOO_LARGE,
    ),
    "a varint without end": (batch(varint(20) + b"\xff" * 20, 1), Code.INVALID_RECORD),
    "a negative key": (batch(b"\x10\0\0\0\x05\0\0\0\0", 1), Code.INVALID_RECORD),
    "a name that is no text": (
        batch(record(0, b"", b"", [("ab", b"")]).replace(b"ab", b"\xc3("), 1),
        Code.INVALID_RECORD,
    ),
    "time": (batch_of(b"v", time_ms=1 << 60), Code.INVALID_RECORD),
    "far time": (batch(b"\x1e\0" + varint(1 << 60)[:9] + b"\0\1\1\0" * 2, 1), Code.INVALID_RECORD),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_batch_is_refused_by_code(name: str) -> None:
    raw, code = REFUSED[name]
    with pytest.raises(Refused) as refused:
        taken(raw)
    assert refused.value.code == code


@given(st.binary(max_size=120), st.integers(1, 4))
def test_any_bytes_as_records_are_taken_or_refused(raw: bytes, count: int) -> None:
    try:
        found = taken(batch(raw, count))
    except Refused:
        return
    assert len(in_log(found)) == count


@given(many, st.data())
def test_changed_bytes_do_no_harm(given: list[Record], data: st.DataObject) -> None:
    raw = bytearray(joined(given))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = taken(batch(bytes(raw), len(given)))
    except Refused:
        return
    assert len(in_log(found)) == len(given)
    assert len(list(next(iter(MemoryRecords(back(found)))))) == len(given)


def test_encoding_stops_at_the_limit_and_after_the_first_batch() -> None:
    found = taken(batch_of(*[bytes(60_000)] * 9))
    first = int(found.buffer[16:20].view("<u4")[0])
    count = 0
    for at in _starts(found):  # tokens as the log gives them
        found.buffer[at + 8 : at + 16].view("<i8")[0] = count
        count += int(found.buffer[at + 16 : at + 20].view("<u4")[0])
    assert len(list(MemoryRecords(back(found)))) == 3
    (only,) = list(MemoryRecords(back(found, bytes_max=1)))
    assert len(list(only)) == first
    (only,) = list(MemoryRecords(back(found, limit=first)))
    assert len(list(only)) == first
    out = np.zeros(64, dtype=np.uint8)
    nothing = Encoder().encode(found.buffer, found.n_bytes, out, limit=0, bytes_max=9, epoch=0)
    assert nothing == (0, 0, -1)


def test_encoding_stops_where_the_room_ends() -> None:
    found = taken(batch_of(*[bytes(60_000)] * 9))
    starts = _starts(found)
    options: dict[str, Any] = {"limit": 1 << 40, "bytes_max": 1 << 30, "epoch": 0}
    with pytest.raises(NoRoom) as problem:
        Encoder().encode(found.buffer, found.n_bytes, np.zeros(100, dtype=np.uint8), **options)
    out = np.full(problem.value.need + 64, 7, dtype=np.uint8)
    room = out[: problem.value.need]
    part = Encoder().encode(found.buffer, found.n_bytes, room, **options)
    assert part.used == starts[part.used // starts[1]]
    assert part.used < found.n_bytes
    assert list(MemoryRecords(room[: part.n_bytes].tobytes()))
    assert set(out[problem.value.need :].tolist()) == {7}


def _starts(found: Any) -> list[int]:
    at, starts = 0, []
    while at < found.n_bytes:
        starts.append(at)
        at += int(found.buffer[at : at + 4].view("<u4")[0])
    return starts


def _short_batches(given: list[list[Record]]) -> np.ndarray:
    """Short batches of the log that follow each other, as a block of it."""
    parts: list[np.ndarray] = []
    token = 0
    for each in given:
        found = taken(batch(joined(each), len(each)))
        found.buffer[8:16].view("<i8")[0] = token
        token += len(each)
        parts.append(found.buffer[: found.n_bytes])
    return np.concatenate(parts)


def _encoded(block: np.ndarray, room: int = 1 << 16) -> tuple[Any, bytes]:
    """The part of a block that fits, and its bytes; nothing is written behind the room."""
    out = np.full(room + 64, 7, dtype=np.uint8)
    options: dict[str, Any] = {"limit": 1 << 40, "bytes_max": 1 << 30, "epoch": 0}
    part = Encoder().encode(block, block.size, out[:room], **options)
    assert set(out[room:].tolist()) == {7}
    return part, out[: part.n_bytes].tobytes()


MIXED: list[list[Record]] = [
    [(b"k", b"one", []), (None, b"two", [("h", b"x"), ("h", None)])],
    [(b"", None, []), (None, b"", []), (b"k" * 200, b"v" * 70_000, [("name", b"v" * 300)])],
    [(None, b"last", [])],
]


def test_short_batches_share_a_record_batch() -> None:
    part, raw = _encoded(_short_batches(MIXED[:1] + MIXED[2:]))
    (only,) = list(MemoryRecords(raw))
    rows = [(each.key, each.value, each.headers) for each in only]
    assert rows == [(k, v, list(h)) for each in (MIXED[0], MIXED[2]) for k, v, h in each]
    assert part.behind == 3
    long = _short_batches(MIXED)  # more than 64 KiB are not joined
    _, raw = _encoded(long, 1 << 18)
    assert [len(list(each)) for each in MemoryRecords(raw)] == [2, 3, 1]


def test_a_joined_batch_for_which_there_is_no_room_is_left() -> None:
    block = _short_batches([MIXED[0], [(None, bytes(9000), [])], MIXED[2]])
    part, raw = _encoded(block, 4096)
    (only,) = list(MemoryRecords(raw))
    assert (len(list(only)), part.behind) == (2, 2)


@given(
    st.lists(many, min_size=1, max_size=4),
    st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), max_size=4),
    st.integers(61, 4000),
)
def test_a_damaged_log_does_no_harm(
    given: list[list[Record]], changes: list[tuple[float, int]], room: int
) -> None:
    block = _short_batches(given)
    for share, value in changes:
        block[int(share * block.size)] = value
    with contextlib.suppress(NoRoom, ValueError):
        part, raw = _encoded(block, room)
        assert 0 <= part.used <= block.size
        assert len(raw) <= room


def test_a_batch_has_the_bytes_that_it_always_had() -> None:
    given: list[Header] = [("h", b"x")]
    again = back(taken(batch(record(0, b"k", b"v", given), 1)))
    assert again.hex(" ") == (
        "00 00 00 00 00 00 00 00 00 00 00 3e 00 00 00 00 02 5e 93 53 8d 00 00 00 00 00 00 "
        "00 00 01 8b cf e5 68 00 00 00 01 8b cf e5 68 00 ff ff ff ff ff ff ff ff ff ff "
        "ff ff ff ff 00 00 00 01 18 00 00 00 02 6b 02 76 02 02 68 02 78"
    )
