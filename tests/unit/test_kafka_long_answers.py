"""Answers of brokers that are longer than any that is read: a batch of them is a typed hole."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.support.fake_broker import FakeBroker
from tests.support.kafka import batch, batch_of, record

from tidecast.config.sources.kafka import KafkaSource
from tidecast.connections.tcp import Address
from tidecast.errors import CorruptLog, StorageError
from tidecast.kafka.brokers import connection
from tidecast.kafka.brokers.adapter import KafkaAdapter
from tidecast.kafka.brokers.fetched import Fetched
from tidecast.kafka.schemas import tables
from tidecast.kafka.wire import BadRequest, CutReader, Reader, Writer
from tidecast.queues.adapter import LeftOut, unpack

LONGEST = 20_000


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeBroker]:
    monkeypatch.setattr(connection, "ANSWER_BYTES_MAX", LONGEST)
    made = FakeBroker("t", 1)
    yield made
    made.close()


def read_all(fake: FakeBroker) -> tuple[list[int], list[LeftOut], Any]:
    """Offsets of all records, what is left out, and the receiver's counts."""
    adapter = KafkaAdapter(KafkaSource(servers=f"127.0.0.1:{fake.port}", topic="t"))
    receiver, buffer = adapter.receiver(0), np.zeros(1 << 17, dtype=np.uint8)
    found, left_out, token = list[int](), list[LeftOut](), 0
    while token < fake.partitions[0].end:
        got = receiver.receive(token, buffer, 10.0)
        assert not got.need
        found += [offset for offset, _ in unpack(buffer[: got.bytes]) if offset >= token]
        if got.left_out is not None:
            assert got.bytes == 0
            left_out.append(got.left_out)
        token = got.next_token
    counts = adapter.counted()
    adapter.close()
    return found, left_out, counts


@pytest.mark.parametrize("before", [0, 3])
@pytest.mark.parametrize("behind", [0, 4])
def test_a_batch_that_no_answer_holds_is_a_hole_that_is_named(
    fake: FakeBroker, before: int, behind: int
) -> None:
    here = fake.partitions[0]
    for _ in range(before):
        here.batches.append((here.end, batch_of(b"small", b"other", offset=here.end)))
        here.end += 2
    first = here.end
    large = batch(b"".join(record(i, b"k", bytes(30_000)) for i in range(3)), 3, offset=first)
    here.batches.append((first, large))
    here.end += 3
    for _ in range(behind):
        here.batches.append((here.end, batch_of(b"small", offset=here.end)))
        here.end += 1
    found, left_out, counts = read_all(fake)
    assert found == [*range(first), *range(first + 3, here.end)]
    (about,) = left_out
    assert about[:4] == (first, first + 3, 3, len(large))
    assert about.reason.startswith(f"a batch of {len(large)} bytes: at most 19")
    assert counts.errors == 0


def test_a_broker_that_sends_more_than_it_is_asked_for_is_read_in_parts(fake: FakeBroker) -> None:
    here = fake.partitions[0]
    for _ in range(40):
        here.batches.append((here.end, batch_of(bytes(3000), offset=here.end)))
        here.end += 1
    found, left_out, counts = read_all(fake)
    assert (found, left_out, counts.errors) == (list(range(40)), [], 0)


def test_other_answers_have_the_limit_as_before(
    fake: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = KafkaSource(servers=f"127.0.0.1:{fake.port}", topic="t")
    link = connection.Link(Address("127.0.0.1", fake.port), source, None)
    monkeypatch.setattr(connection, "ANSWER_BYTES_MAX", 20)
    with pytest.raises(StorageError, match=r"an answer of \d+ bytes: allowed 4 to 20"):
        link.ask(tables.METADATA, {"topics": [{"name": "t"}]}, 10.0)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ((0, ">q", 90), "a last offset of 92: the end is 50"),
        ((23, ">i", 60), "a last offset of 67: the end is 50"),
        ((23, ">i", -1), "a last offset of 6"),
        ((16, ">b", 1), "record format 1"),
        ((8, ">i", -12), "a length of -12"),
    ],
)
def test_a_header_that_lies_about_its_batch_is_refused(
    change: tuple[int, str, int], says: str
) -> None:
    """The checksum cannot be verified: what is passed has to be below the end."""
    raw = bytearray(batch(record(0, None, bytes(5000)), 3, offset=7))
    at, form, value = change
    struct.pack_into(form, raw, at, value)
    with pytest.raises(CorruptLog, match=says):
        Fetched("t/0", 7, memoryview(raw)[:1000], (), 50, is_cut=True)


def test_any_begin_of_an_answer_is_read_or_refused() -> None:
    records = batch_of(bytes(500), offset=3)
    row = {"partition_index": 0, "records": records, "aborted_transactions": []}
    answer = {"responses": [{"topic": "t", "partitions": [row]}]}
    for version in range(4, 12):
        writer = Writer()
        tables.answer_writer(tables.FETCH, version)(writer, answer)
        whole = b"".join(writer.done())
        for n in range(len(whole)):
            reader: Reader = CutReader(bytearray(whole[:n]), len(whole))
            try:
                found = tables.answer_reader(tables.FETCH, version)(reader)
            except BadRequest:
                assert n < len(whole) - len(records)
                continue
            got = bytes(found["responses"][0]["partitions"][0]["records"])
            assert got == records[: n - (len(whole) - len(records))]
