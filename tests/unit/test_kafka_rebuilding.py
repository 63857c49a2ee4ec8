"""A log that is made again from what a Kafka cluster has of it."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.fake_broker import FakeBroker

from tidecast.config.sources.kafka import kafka_source
from tidecast.errors import Closed, StorageError
from tidecast.kafka.brokers.cluster import Cluster
from tidecast.kafka.records import HEADER, BatchHead
from tidecast.kafka.storing.batches import BYTES_MIN, Encoder, Identity
from tidecast.kafka.storing.fencing import fence, whole_batches
from tidecast.kafka.storing.rebuilding import BatchReader, rebuild_queue
from tidecast.kafka.storing.writer import PartitionWriter
from tidecast.layout import segment as seg
from tidecast.log import batch
from tidecast.log.building import BatchBuilder, check, record_table, records
from tidecast.log.queue_log import QueueLog
from tidecast.log.rebuilding import Rebuilding
from tidecast.native.packing import unpack_from
from tidecast.protocol.dedup import ProducerTable
from tidecast.queues.mapper import hash_of

LOG = 0x7ED1CA57
WHO = Identity(7, 3)
Row = tuple[Any, ...]


def a_log(chance: random.Random, batches: int, first: int = 0) -> np.ndarray:
    """Batches of several producers: keys, maps of headers, records that an engine wrote."""
    builder, token, seqs = BatchBuilder(), first, dict.fromkeys((0, 1 << 62 | 5, 3 << 60), 1)
    for _ in range(batches):
        producer = chance.choice(list(seqs))
        base = seqs[producer]
        builder.begin(
            producer=producer,
            epoch=chance.randrange(1 << 32),
            owner=9,
            base_seq=base,
            acked_seq=chance.randrange(base),
        )
        for _ in range(chance.choice([1, 3, 40])):
            key = chance.choice([None, b"", b"k%d" % chance.randrange(9)])
            headers = chance.choice([None, {}, {"a": "text", "n": 7, "b": b"x", "none": None}])
            raw = headers if headers is None else msgspec.msgpack.encode(headers)
            at = builder._end
            builder.add(
                chance.randbytes(chance.choice([0, 5, 300])),
                key=key,
                headers=raw,
                time_ns=chance.choice([0, 1_900_000_000_123_456_789, -5]),
                seq=seqs[producer],
                key_hash=0 if key is None else hash_of(key),
            )
            if chance.random() < 0.1:
                (head,) = unpack_from("<I", builder.buffer, at)
                word = struct.pack("<I", head | seg.REC_ENGINE)
                builder.buffer[at : at + 4] = np.frombuffer(word, dtype=np.uint8)
            seqs[producer] += chance.choice([1, 1, 5])
            token += 1
        builder.seal(token - builder_count(builder), chance.randrange(1 << 60))
    return builder.buffer[: builder.used].copy()


def builder_count(builder: BatchBuilder) -> int:
    return builder._count


def rows_of(run: np.ndarray) -> list[Row]:
    """All that a run says of each record, but for the owner."""
    table, found, at = record_table(), list[Row](), 0
    while at < run.size:
        length = int(check(run, at, run.size))
        assert length > 0
        n = int(records(run, at, run.size, table, 0))
        about = tuple(
            unpack_from(form, run, at + place)[0]
            for form, place in (
                ("<q", seg.BATCH_PRODUCER_AT),
                ("<I", seg.BATCH_EPOCH_AT),
                ("<q", seg.BATCH_BASE_SEQ_AT),
                ("<q", seg.BATCH_ACKED_SEQ_AT),
                ("<q", seg.BATCH_APPEND_TIME_AT),
            )
        )
        for row in table[:n].tolist():
            lead = row[batch.O_PAYLOAD_AT] - max(row[batch.O_KEY_N], 0) - row[batch.O_HEADERS_N]
            (head,) = unpack_from("<I", run, lead - seg.RECORD_HEADER_BYTES)
            parts = tuple(
                None if row[place] < 0 else run[row[place] : row[place] + row[n_bytes]].tobytes()
                for place, n_bytes in (
                    (batch.O_PAYLOAD_AT, batch.O_PAYLOAD_N),
                    (batch.O_KEY_AT, batch.O_KEY_N),
                    (batch.O_HEADERS_AT, batch.O_HEADERS_N),
                )
            )
            scalars = tuple(row[batch.O_TIME :])
            found.append((*about, *parts, *scalars, bool(head & seg.REC_ENGINE)))
        at += length
    return found


def encoded(run: np.ndarray, first: int, bytes_max: int, identity: Identity = WHO) -> list[bytes]:
    encoder, made, token = Encoder(bytes_max, LOG), list[bytes](), first
    while (each := encoder.encode(run, token, identity)) is not None:
        made.append(bytes(each.data))
        assert each.token == token
        token, identity = each.behind, identity.behind(each.records)
    return made


def taken(raw: bytes, since: int = 0) -> tuple[int, int, np.ndarray]:
    reader = BatchReader()
    noted = reader.look(BatchHead(*HEADER.unpack_from(raw)), memoryview(raw))
    assert noted is not None
    return noted.log, noted.token, reader.take(noted, since, 11)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("bytes_max", [BYTES_MIN, 20_000, 900_000])
def test_a_log_comes_back_as_it_was(seed: int, bytes_max: int) -> None:
    chance = random.Random(seed)
    first = chance.choice([0, 5, 1 << 40])
    run = a_log(chance, 40, first)
    found: list[Row] = []
    for raw in encoded(run, first, bytes_max):
        log, token, back = taken(raw)
        assert (log, token) == (LOG, first + len(found))
        found += rows_of(back)
        assert unpack_from("<I", back, seg.BATCH_OWNER_AT) == (11,)
        records_sizes = [len(raw)] if len(rows_of(back)) > 1 else []
        assert all(size <= bytes_max for size in records_sizes)
    assert found == rows_of(run)


def test_a_part_of_a_batch_comes_back() -> None:
    run = a_log(random.Random(1), 20)
    rows = rows_of(run)
    [raw] = encoded(run, 0, 900_000)
    for since in (1, 7, len(rows) - 1):
        assert rows_of(taken(raw, since)[2]) == rows[since:]
    assert taken(raw, len(rows))[2].size == 0


def test_many_and_long_headers_end_a_batch() -> None:
    builder = BatchBuilder()
    builder.begin()
    headers = msgspec.msgpack.encode({f"h{i}": "v" * 100 for i in range(20)})
    for _ in range(100):
        builder.add(b"x", headers=headers)
    longest = msgspec.msgpack.encode({"h": "v" * 65_000})
    builder.add(b"y", headers=longest)
    builder.seal(0)
    run = builder.buffer[: builder.used].copy()
    made = encoded(run, 0, 900_000)
    assert 5 < len(made) < 12
    back = [row for raw in made for row in rows_of(taken(raw)[2])]
    assert back == rows_of(run)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_notes_that_are_damaged_are_refused_or_give_sound_batches(data: st.DataObject) -> None:
    """Whoever may write to the topic may write any notes: no length in them is trusted."""
    run = a_log(random.Random(data.draw(st.integers(0, 9))), 5)
    raw = bytearray(encoded(run, 0, 900_000)[0])
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(61, len(raw) - 1))
        raw[at] = data.draw(st.integers(0, 255))
    reader = BatchReader()
    head = BatchHead(*HEADER.unpack_from(raw))
    sound = head._replace(crc=crc_of(raw), records=data.draw(st.sampled_from([head.records, 9])))
    noted = reader.look(sound, memoryview(raw))
    if noted is None:
        return
    try:
        back = reader.take(noted, data.draw(st.integers(0, 50)), 1)
    except StorageError:
        return
    at = 0
    while at < back.size:
        at += int(check(back, at, back.size))


def test_notes_with_a_token_out_of_range_are_none() -> None:
    """Tokens of the records behind it would overflow."""
    [raw] = encoded(a_log(random.Random(1), 2), 0, 900_000)
    for token in (-1, 1 << 62, (1 << 63) - 1):
        wrong = raw.replace(struct.pack(">qq", LOG, 0), struct.pack(">qq", LOG, token))
        assert wrong != raw
        head = BatchHead(*HEADER.unpack_from(wrong))._replace(crc=crc_of(wrong))
        assert BatchReader().look(head, memoryview(wrong)) is None


def crc_of(raw: bytes | bytearray) -> int:
    from tidecast.kafka.record_kernels import checksum

    found: Any = np.frombuffer(raw, dtype=np.uint8)
    return int(checksum(found, 21, found.size - 21))


# --- from a broker --------------------------------------------------------------------------------


@pytest.fixture
def fake() -> Iterator[FakeBroker]:
    made = FakeBroker("t", 1)
    yield made
    made.close()


@pytest.fixture
def cluster(fake: FakeBroker) -> Iterator[Cluster]:
    made = Cluster(kafka_source({"servers": f"127.0.0.1:{fake.port}", "topic": "t"}))
    yield made
    made.close()


def write(cluster: Cluster, run: np.ndarray, first: int, *, log: int = LOG) -> None:
    """As the next owner does: behind a fence."""
    who = fence(cluster, "tidecast/t")
    writer = PartitionWriter(cluster, 0, who, batch_bytes=5_000, log=log)
    writer.write(run, first)
    writer.close()


def about(**changes: Any) -> Rebuilding:
    wanted = Rebuilding("orders", LOG, 1 << 16, 4, 1_000, lambda: False)
    return wanted._replace(**changes)


def log_rows(directory: Path, producers: ProducerTable | None = None) -> list[Row]:
    log = QueueLog.open(directory, topic="orders", queue=0, owner=4)
    reader, found, token = log.reader(), list[Row](), log.earliest_token
    while token < log.next_token:
        block = np.zeros(1 << 20, dtype=np.uint8)
        n = reader.read_block(token, block)
        found += rows_of(block[:n])
        token = reader.next_token
    base = log.segments[-1].base_token
    if producers is not None and base:
        from tidecast.log.files import checksum

        assert producers.load(0, log.snapshot(base), checksum)
    reader.close()
    log.close()
    return found


def test_a_queue_is_made_again_over_owners_and_other_programs(
    fake: FakeBroker, cluster: Cluster, tmp_path: Path
) -> None:
    run = a_log(random.Random(3), 300)
    rows = rows_of(run)
    half = len(rows) // 2
    encoder = PartitionWriter(cluster, 0, fence(cluster, "other"), log=LOG + 1)
    encoder.write(run, half - 5)  # of another log: nothing of it counts
    encoder.close()
    write(cluster, part(run, 0, half), 0)
    write(cluster, run, half - 20)  # repeats, as after an unclean election
    producers = ProducerTable(1)
    assert rebuild_queue(cluster, 0, tmp_path / "q", about(), producers) == len(rows)
    assert log_rows(tmp_path / "q", ProducerTable(1)) == rows
    assert len(list((tmp_path / "q").glob("*.log"))) > 1
    newest = {row[0]: row[11] for row in rows if row[0]}
    assert {each.id: int(each.marks[0]) for each in producers.known.values()} == newest


def part(run: np.ndarray, first: int, end: int) -> np.ndarray:
    """The whole batches of a run that hold these records."""
    at, token = 0, first
    while at < run.size and token < end:
        token += int(unpack_from("<I", run, at + seg.BATCH_COUNT_AT)[0])
        at += int(unpack_from("<I", run, at)[0])
    return run[:at]


def test_a_log_whose_oldest_records_are_deleted_begins_later(
    fake: FakeBroker, cluster: Cluster, tmp_path: Path
) -> None:
    run = a_log(random.Random(4), 200)
    write(cluster, run, 0)
    del fake.partitions[0].batches[:5]
    rows = rows_of(run)
    assert rebuild_queue(cluster, 0, tmp_path / "q", about(), ProducerTable(1)) == len(rows)
    found = log_rows(tmp_path / "q")
    assert 0 < len(found) < len(rows)
    assert found == rows[-len(found) :]


def test_records_that_are_missing_in_between_are_an_error(
    fake: FakeBroker, cluster: Cluster, tmp_path: Path
) -> None:
    write(cluster, a_log(random.Random(5), 200), 0)
    del fake.partitions[0].batches[4]
    with pytest.raises(StorageError, match=r"t/0: offset \d+: records \d+ to \d+ of the log"):
        rebuild_queue(cluster, 0, tmp_path / "q", about(), ProducerTable(1))
    with pytest.raises(Closed):
        rebuild_queue(cluster, 0, tmp_path / "r", about(stop=lambda: True), ProducerTable(1))


def test_a_partition_without_a_log_gives_an_empty_one(
    fake: FakeBroker, cluster: Cluster, tmp_path: Path
) -> None:
    assert rebuild_queue(cluster, 0, tmp_path / "q", about(), ProducerTable(1)) == 0
    assert log_rows(tmp_path / "q") == []
    assert whole_batches(None) == []
