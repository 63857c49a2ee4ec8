"""The sink against a real engine: what it publishes, read back by the source."""

from __future__ import annotations

import shutil
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from pyspark.sql.types import (
    BinaryType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)
from tests.support.gateways import Served
from tests.support.lab import Platform, open_lab, topology

from tidecast.errors import AuthError, ConfigError, EngineNotRunning, PayloadTooLarge
from tidecast_spark import outlet, sink
from tidecast_spark.source import TidecastDataSource
from tidecast_spark.staging import StagingArea

SCHEMA = StructType(
    [
        StructField("key", StringType()),
        StructField("value", BinaryType()),
        StructField("headers", MapType(StringType(), StringType())),
        StructField("timestamp", TimestampType()),
    ]
)
TIME_US = 1_700_000_000_000_000


@pytest.fixture(scope="module")
def platform() -> Iterator[Platform]:
    topics = [
        {"name": "out", "mode": "durable", "queues": 3, "fsync_interval_ms": 5},
        {
            "name": "small",
            "mode": "durable",
            "history_bytes": 16_384,
            "large_history_bytes": 16_384,
        },
        {"name": "lost", "mode": "durable", "fsync_interval_ms": 5},
        {"name": "live"},
    ]
    with open_lab() as lab:
        yield lab.platform(topology({"name": "ipc", "kind": "ipc"}, topics=topics))


def source(platform: Platform, topic: str, **options: str) -> TidecastDataSource:
    return TidecastDataSource({"dataDir": str(platform.directory), "topic": topic} | options)


def written(platform: Platform, topic: str) -> list[dict[str, Any]]:
    one = source(platform, topic, includeHeaders="raw")
    reader: Any = one.reader(one.schema())
    return [row for part in reader.partitions() for b in reader.read(part) for row in b.to_pylist()]


def rows(first: int, n: int, size: int = 20) -> pa.RecordBatch:
    numbers = range(first, first + n)
    return pa.record_batch(
        {
            "key": [None if i % 7 == 0 else f"k{i % 50}" for i in numbers],
            "value": [b"%09d" % i + bytes(size) for i in numbers],
            "headers": pa.array(
                [None if i % 5 else {"n": str(i)} for i in numbers],
                pa.map_(pa.string(), pa.string()),
            ),
            "timestamp": pa.array([TIME_US + i for i in numbers], pa.timestamp("us", tz="UTC")),
        }
    )


def write(platform: Platform, topic: str, write_id: str, *tables: pa.RecordBatch) -> None:
    writer: Any = source(platform, topic, writeId=write_id).writer(SCHEMA, False)
    writer.commit([writer.write(iter(tables))])


def test_what_is_written_is_read_back_and_a_driver_that_died_leaves_no_duplicate(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 20_000
    tables = [rows(0, count // 2), rows(count // 2, count // 2)]
    published = 0

    def dies(self: Any, table: Any) -> None:
        nonlocal published
        published += 1
        if published > 1:
            raise KeyboardInterrupt
        real(self, table)

    real = outlet.RowWriter.write
    with monkeypatch.context() as patch:  # in the middle of publishing
        patch.setattr(outlet.RowWriter, "write", dies)
        with pytest.raises(KeyboardInterrupt):
            write(platform, "out", "w", *tables)
    with monkeypatch.context() as patch:  # when all was durable, and nobody knew
        patch.setattr(StagingArea, "done", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            write(platform, "out", "w", *tables)
    write(platform, "out", "w", *tables)
    found = written(platform, "out")
    assert len(found) == count
    assert {r["value"][:9] for r in found} == {b"%09d" % i for i in range(count)}
    by_key = defaultdict(list)
    for row in found:
        by_key[row["key"]].append((row["queue"], int(row["value"][:9])))
    assert len(by_key) == 51
    for key, seen in by_key.items():
        assert key is None or len({queue for queue, _ in seen}) == 1
        assert key is None or [i for _, i in seen] == sorted(i for _, i in seen)
    one = next(r for r in found if r["value"][:9] == b"%09d" % 15)
    assert msgspec.msgpack.decode(one["headers"]) == {"n": "15"}
    assert (one["key"], one["timestamp"].microsecond) == (b"k15", 15)


def test_a_query_whose_staging_directory_was_lost_continues_behind_its_rows(
    platform: Platform, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It began at sequence 1 again, and the log dropped its rows as repeated ones."""

    def run(batch: int, table: pa.RecordBatch) -> None:
        properties = {"sql.streaming.queryId": "lost", "streaming.sql.batchId": str(batch)}
        context = SimpleNamespace(
            partitionId=lambda: 0, taskAttemptId=lambda: 0, getLocalProperty=properties.get
        )
        monkeypatch.setattr(sink, "TaskContext", SimpleNamespace(get=lambda: context))
        writer: Any = source(platform, "lost", stagingDir=str(tmp_path)).streamWriter(SCHEMA, False)
        writer.commit([writer.write(iter([table]))], batch)

    run(0, rows(0, 300))
    run(1, rows(300, 300))
    shutil.rmtree(tmp_path / "lost")
    run(2, rows(600, 400))
    run(3, rows(1000, 10))
    values = sorted(int(row["value"][:9]) for row in written(platform, "lost"))
    assert values == list(range(1010))


def test_rows_with_a_delivery_time_are_delivered_then(platform: Platform) -> None:
    due_us = time.time_ns() // 1000 + 3_000_000
    schema = StructType([*SCHEMA.fields, StructField("deliver_at", TimestampType())])
    times = pa.array([due_us, None] * 10, pa.timestamp("us", tz="UTC"))
    table = rows(0, 20).append_column("deliver_at", times)
    with platform.connect() as client, client.consumer("out", "later", start="latest") as consumer:
        writer: Any = source(platform, "out", writeId="later").writer(schema, False)
        writer.commit([writer.write(iter([table]))])
        seen: dict[int, int | None] = {}
        while len(seen) < 20:
            message = consumer.next(timeout=30.0)
            assert message.deliver_at is None or message.deliver_at <= time.time_ns()
            seen[int(bytes(message.data)[:9])] = message.deliver_at
            message.ack()
    assert seen == {i: None if i % 2 else due_us * 1000 for i in range(20)}


def test_a_ring_smaller_than_the_batch_is_waited_for(platform: Platform) -> None:
    write(platform, "small", "w", rows(0, 3000, 50))
    assert [int(r["value"][:9]) for r in written(platform, "small")] == list(range(3000))
    with pytest.raises(PayloadTooLarge, match="a value of 100009 bytes is too large"):
        write(platform, "small", "x", rows(0, 1, 100_000))


def test_a_live_topic_is_refused(platform: Platform) -> None:
    (platform.directory / "queues" / "live").mkdir()
    with pytest.raises(ConfigError, match="'live': is a live topic"):
        write(platform, "live", "w", rows(0, 1))


def test_a_rate_is_held(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0

    def pause(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr(outlet, "_pause", pause)
    monkeypatch.setattr(outlet, "_now_s", lambda: now)
    writer: Any = source(platform, "out", writeId="slow", rate="1000").writer(SCHEMA, False)
    writer.commit([writer.write(iter([rows(0, 5000)]))])
    assert now == pytest.approx(5.0, abs=0.06)


def test_what_the_engine_refuses_is_said_before_any_task(
    platform: Platform, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "queues" / "out").mkdir(parents=True)
    alone = TidecastDataSource({"dataDir": str(tmp_path), "topic": "out"})
    with pytest.raises(EngineNotRunning, match=f"option dataDir: {tmp_path}: no engine runs there"):
        alone.writer(SCHEMA, False)
    (platform.directory / "queues" / "gone").mkdir()
    with pytest.raises(ConfigError, match="option topic: 'gone': the engine has none"):
        source(platform, "gone").writer(SCHEMA, False)

    def refuse(*_: object) -> None:
        raise AuthError("wrong token")

    monkeypatch.setattr("tidecast.client.links.socket_session.EngineControl", refuse)
    with pytest.raises(AuthError, match="option token: wrong token"):
        source(platform, "out").writer(SCHEMA, False)


def test_through_a_gateway_a_repeated_write_has_effect_once(tmp_path: Path) -> None:
    with open_lab() as lab:
        served = Served(lab, [{"name": "far", "mode": "durable", "queues": 2}, {"name": "live"}])
        told = {
            "servers": f"tidecast://127.0.0.1:{served.port}",
            "token": served.token,
            "stagingDir": str(tmp_path),
            "topic": "far",
            "writeId": "w",
        }
        for _ in range(2):
            writer: Any = TidecastDataSource(told).writer(SCHEMA, False)
            writer.commit([writer.write(iter([rows(0, 3000)]))])
            shutil.rmtree(tmp_path / "w@far")  # the staging area is lost: the log still knows
        found = written(served.platform, "far")
        assert sorted(int(r["value"][:9]) for r in found) == list(range(3000))
        live: Any = TidecastDataSource(told | {"topic": "live"}).writer(SCHEMA, False)
        with pytest.raises(ConfigError, match="topic live is live: "):
            live.commit([live.write(iter([rows(0, 1)]))])
        with pytest.raises(AuthError, match="option token: "):
            TidecastDataSource(told | {"token": "wrong"}).writer(SCHEMA, False)
        served.platform.stop()
        with pytest.raises(EngineNotRunning, match=r"option servers: .* no gateway answers"):
            TidecastDataSource(told).writer(SCHEMA, False)


def test_an_engine_that_went_away_is_tried_again_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "queues" / "out").mkdir(parents=True)
    pauses: list[float] = []
    monkeypatch.setattr(outlet, "_pause", pauses.append)
    monkeypatch.setattr(outlet, "check_engine", lambda _: None)
    told = {"dataDir": str(tmp_path), "topic": "out"}
    writer: Any = TidecastDataSource(told).writer(SCHEMA, False)
    with pytest.raises(Exception, match=str(tmp_path)):
        writer.commit([writer.write(iter([rows(0, 1)]))])
    assert pauses == [0.5, 1, 2, 4, 8]
