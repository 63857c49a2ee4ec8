"""The sink without a JVM and without an engine: what is staged, and what is published when
drivers and tasks die. The log here drops duplicates by sequence, as the engine's does."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)
from tests.support.spark_logs import append, records

from tidecast.errors import ConfigError, EngineNotRunning, NotFound, StorageError
from tidecast.layout.header_names import DELIVER_AT
from tidecast_spark import outlet, sink
from tidecast_spark.source import TidecastDataSource
from tidecast_spark.staging import Manifest, StagingArea

TEXT = StructType([StructField("key", StringType()), StructField("value", StringType())])


class Crash(Exception):
    """The driver was killed here."""


class Log:
    """Rows in the topics; ``crash_after`` rows the driver dies, ``refuse`` errors come first."""

    def __init__(self) -> None:
        self.topics: dict[str, list[bytes]] = {}
        self.last_seq: dict[tuple[str, str], int] = {}
        self.sent = 0
        self.crash_after = -1
        self.refuse: list[Exception] = []

    def publish(self, options: Any, area: Any, batch: int, manifest: Any, topic: str) -> None:
        if self.refuse:
            raise self.refuse.pop()
        log = self.topics.setdefault(topic, [])
        producer, seq = (area.directory.name, topic), manifest.first_seq[topic]
        assert seq <= self.last_seq.get(producer, 0) + 1, "a producer's sequence has a gap"
        for table in outlet.rows_of(area, batch, manifest, topic):
            for value in table.column(2).to_pylist():
                if self.crash_after == 0:
                    raise Crash
                self.crash_after -= 1
                self.sent += 1
                if seq > self.last_seq.get(producer, 0):
                    log.append(value)
                    self.last_seq[producer] = seq
                seq += 1


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    one = Log()
    monkeypatch.setattr(outlet, "_publish_topic", one.publish)
    monkeypatch.setattr(outlet, "_pause", lambda _: None)
    return one


@pytest.fixture(autouse=True)
def no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """None runs here; `test_sink_engine` has one."""
    monkeypatch.setattr(outlet, "check_engine", lambda _: None)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    append(tmp_path, "out", 0, records(1))
    append(tmp_path, "more", 0, records(1))
    return tmp_path


def source(data_dir: Path, **options: object) -> TidecastDataSource:
    told = {"dataDir": str(data_dir), "topic": "out"} | options
    return TidecastDataSource({k: str(v) for k, v in told.items() if v is not None})


def task(monkeypatch: pytest.MonkeyPatch, batch: int, partition: int, attempt: int) -> None:
    properties = {"sql.streaming.queryId": "q-1", "streaming.sql.batchId": str(batch)}
    context = SimpleNamespace(
        partitionId=lambda: partition,
        taskAttemptId=lambda: attempt,
        getLocalProperty=properties.get,
    )
    monkeypatch.setattr(sink, "TaskContext", SimpleNamespace(get=lambda: context))


def table(*values: str, key: str = "k") -> pa.RecordBatch:
    return pa.record_batch({"key": [key] * len(values), "value": list(values)})


class Query:
    """A query with one checkpoint; each `run` of a batch is what Spark would call."""

    def __init__(self, data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.data_dir, self.monkeypatch, self.attempts = data_dir, monkeypatch, 0
        self.checkpoint = data_dir / "ck"

    def writer(self) -> Any:
        one = source(self.data_dir, checkpointLocation=self.checkpoint.as_uri())
        return one.streamWriter(TEXT, False)

    def write(self, batch: int, *parts: list[str]) -> list[Any]:
        messages = []
        for partition, values in enumerate(parts):
            self.attempts += 1
            task(self.monkeypatch, batch, partition, self.attempts)
            messages.append(self.writer().write(iter([table(*values)])))
        return messages

    def run(self, batch: int, *parts: list[str]) -> None:
        self.writer().commit(self.write(batch, *parts), batch)

    def area(self) -> StagingArea:
        return StagingArea(self.checkpoint / "tidecast-sink", "q-1")


@pytest.fixture
def query(data: Path, monkeypatch: pytest.MonkeyPatch) -> Query:
    return Query(data, monkeypatch)


def test_batches_follow_on_and_leave_nothing_behind(query: Query, log: Log) -> None:
    query.run(0, ["a", "b"], ["c"])
    query.run(1, ["d"], [])
    query.run(2, ["e"])
    assert log.topics["out"] == [b"a", b"b", b"c", b"d", b"e"]
    assert query.area().state().next_seq == {"out": 6}
    assert [one.name for one in query.area().directory.iterdir()] == ["state.json"]


def test_a_batch_that_spark_repeats_is_not_published_again(query: Query, log: Log) -> None:
    query.run(0, ["a"], ["b"])
    query.run(0, ["a", "b"])
    assert log.topics["out"] == [b"a", b"b"]
    assert log.sent == 2


@pytest.mark.parametrize("published", [0, 1, 3, 4])
def test_a_driver_killed_while_publishing_goes_on_with_the_first_manifest(
    query: Query, log: Log, published: int
) -> None:
    query.run(0, ["z"])
    log.crash_after = published
    with pytest.raises(Crash):
        query.run(1, ["a", "b"], ["c", "d", "e"])
    # The next driver cuts the batch otherwise, and its rows come in another order.
    log.crash_after = -1
    query.run(1, ["e", "c"], ["b"], ["d", "a"])
    query.run(2, ["f"])
    assert log.topics["out"] == [b"z", b"a", b"b", b"c", b"d", b"e", b"f"]


def test_tasks_that_were_given_up_leave_no_rows(query: Query, log: Log) -> None:
    lost = query.write(0, ["a", "b"])  # a speculative attempt, or one of a driver that died
    kept = query.write(0, ["a", "b"])
    query.writer().commit(kept, 0)
    query.writer().abort(lost, 0)
    assert log.topics["out"] == [b"a", b"b"]


def test_manifests_of_earlier_versions_are_read(tmp_path: Path) -> None:
    area = StagingArea(tmp_path, "q-1")
    area.batch_dir(7).mkdir(parents=True)
    before: dict[str, Any] = {
        "files": ["000000-0000000001.arrow"],
        "rows": {"out": 5},
        "first_seq": {"out": 3},
    }
    for lane, partition in (("", None), ("#3", 3)):
        path = area.batch_dir(7) / "manifest.json"
        path.write_text(json.dumps(before | {"lane": lane}))
        assert area.manifest(7) == Manifest(**before, partition=partition)


def test_earlier_versions_read_the_manifest_of_a_driver(tmp_path: Path) -> None:
    area = StagingArea(tmp_path, "q-1")
    area.commit(0, [])
    found = json.loads((area.batch_dir(0) / "manifest.json").read_text())
    assert sorted(found) == ["files", "first_seq", "rows"]


def test_an_abort_does_not_take_what_a_manifest_names(query: Query, log: Log) -> None:
    messages = query.write(0, ["a"], ["b"])
    log.crash_after = 1
    with pytest.raises(Crash):
        query.writer().commit(messages, 0)
    query.writer().abort([*messages, None], 0)
    log.crash_after = -1
    query.run(0, ["a", "b"])
    assert log.topics["out"] == [b"a", b"b"]


def test_an_engine_that_is_away_for_a_moment_is_tried_again(query: Query, log: Log) -> None:
    log.refuse = [EngineNotRunning("away"), StorageError("full")]
    query.run(0, ["a"])
    assert log.topics["out"] == [b"a"]
    log.refuse = [EngineNotRunning("away")] * outlet.TRIES_MAX
    with pytest.raises(EngineNotRunning):
        query.run(1, ["b"])
    query.run(1, ["b"])
    assert log.topics["out"] == [b"a", b"b"]


def test_rows_choose_their_topics(data: Path, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    schema = StructType([StructField("topic", StringType()), StructField("value", BinaryType())])
    writer: Any = source(data, writeId="w1").writer(schema, False)
    rows = pa.record_batch(
        {"topic": ["more", None, "out", "more"], "value": [b"1", b"2", b"3", b"4"]}
    )
    log.crash_after = 3
    with pytest.raises(Crash):
        writer.commit([writer.write(iter([rows]))])
    log.crash_after = -1
    writer.commit([writer.write(iter([rows]))])
    assert log.topics == {"more": [b"1", b"4"], "out": [b"2", b"3"]}


def test_a_batch_write_with_an_id_is_one_write(data: Path, log: Log) -> None:
    for _ in range(3):
        writer: Any = source(data, writeId="load-7").writer(TEXT, False)
        writer.commit([writer.write(iter([table("a", "b")]))])
    assert log.topics["out"] == [b"a", b"b"]
    for _ in range(2):
        writer = source(data).writer(TEXT, False)
        writer.commit([writer.write(iter([table("c")]))])
    assert log.topics["out"] == [b"a", b"b", b"c", b"c"]
    assert [one.name for one in (data / "spark").iterdir()] == ["load-7@out"]


def test_keys_headers_and_times_are_staged_as_the_log_wants_them(data: Path) -> None:
    rows = pa.record_batch(
        {
            "value": [b"v"],
            "key": ["k"],
            "queue": [3],
            "token": [9],
            "headers": pa.array([[("a", b"1"), ("b", b"")]], pa.map_(pa.string(), pa.binary())),
            "timestamp": pa.array([1_700_000_000_123_456], pa.timestamp("us", tz="UTC")),
        }
    )
    staged = sink.normalised(rows, "out").to_pylist()[0]
    assert (staged["topic"], staged["key"], staged["value"]) == ("out", b"k", b"v")
    assert msgspec.msgpack.decode(staged["headers"]) == {"a": b"1", "b": b""}
    assert staged["timestamp"].microsecond == 123_456


def test_delivery_times_are_the_first_header(data: Path) -> None:
    now_us = time.time_ns() // 1000
    many = {f"h{k}": b"x" for k in range(20)}
    maps = [[("a", b"1")], None, list(many.items()), [("b", b"2")]]
    times = [now_us + 5_000_000, now_us, 0, None]
    rows = pa.record_batch(
        {
            "value": [b"v"] * 4,
            "headers": pa.array(maps, pa.map_(pa.string(), pa.binary())),
            "deliver_at": pa.array(times, pa.timestamp("us", tz="UTC")),
        }
    )
    staged = [one["headers"] for one in sink.normalised(rows, "out").to_pylist()]
    found = [msgspec.msgpack.decode(raw) for raw in staged]
    assert [next(iter(one)) for one in found[:3]] == [DELIVER_AT] * 3
    assert [one.pop(DELIVER_AT, None) for one in found] == [
        None if due is None else due * 1000 for due in times
    ]
    assert found == [{"a": b"1"}, {}, many, {"b": b"2"}]
    for wrong, text in (
        (now_us + 400 * 86_400 * 10**6, "row 1.* days ahead: at most 365"),
        (-1, "row 1"),
    ):
        column = pa.array([None, wrong], pa.timestamp("us", tz="UTC"))
        bad = pa.record_batch({"value": [b"a", b"b"], "deliver_at": column})
        with pytest.raises(ConfigError, match=f"column deliver_at: {text}"):
            sink.normalised(bad, "out")


@pytest.mark.parametrize("packed", [False, True])
def test_headers_of_the_engine_are_refused_or_dropped(data: Path, packed: bool) -> None:
    maps = [[("a", b"1")], None, [("a", b"1"), ("dead-topic", b"x")], [("tidecast-for", b"x")]]
    headers: Any = pa.array(maps, pa.map_(pa.string(), pa.binary()))
    if packed:
        raw = [None if one is None else msgspec.msgpack.encode(dict(one)) for one in maps]
        headers = pa.array([b"", *raw], pa.binary()).slice(1)
    rows = pa.record_batch({"value": [b"v"] * 4, "headers": headers})
    with pytest.raises(ConfigError, match="column headers: row 2 has a name that begins with dead"):
        sink.normalised(rows, "out")
    kept = [one["headers"] for one in sink.normalised(rows, "out", drop_reserved=True).to_pylist()]
    packed_a = msgspec.msgpack.encode({"a": b"1"})
    assert kept == [packed_a, None, packed_a, None]


BAD: list[tuple[Any, dict[str, object], type[Exception], str]] = [
    (TEXT, {"topic": None}, ConfigError, "option topic: give a topic, or rows with a column"),
    (TEXT, {"topic": "nope"}, NotFound, "option topic: 'nope': no durable topic in"),
    (TEXT, {"topic": "out,more"}, ConfigError, "option topic: 'out,more': one topic"),
    (TEXT, {"dataDir": "/nowhere"}, ConfigError, "option dataDir"),
    (TEXT, {"dataDir": None, "servers": "db1"}, ConfigError, "option servers: 'db1': allowed"),
    (TEXT, {"servers": "tidecast://a:1"}, ConfigError, "give either servers or dataDir"),
    (TEXT, {"dataDir": None, "servers": "tidecast://a:1"}, ConfigError, "option stagingDir: need"),
    (TEXT, {"reservedHeaders": "keep"}, ConfigError, "option reservedHeaders: 'keep'"),
    (TEXT, {"writeId": "a/b"}, ConfigError, "option writeId: 'a/b'"),
    (TEXT, {"startingOffsets": "x"}, ConfigError, "the sink has no such option: dataDir, servers"),
    (StructType([StructField("key", StringType())]), {}, ConfigError, "column value is missing"),
    (StructType([StructField("value", LongType())]), {}, ConfigError, "column value bigint: cann"),
    (
        StructType([StructField("value", BinaryType()), StructField("n", IntegerType())]),
        {},
        ConfigError,
        "column n int: cannot be written: allowed are topic: string; key: binary",
    ),
    (
        StructType([StructField("headers", MapType(StringType(), ArrayType(LongType())))]),
        {},
        ConfigError,
        "column headers map",
    ),
]


@pytest.mark.parametrize(("schema", "options", "kind", "text"), BAD, ids=lambda x: str(x)[:30])
def test_bad_writes_are_refused_on_the_driver(
    data: Path, schema: Any, options: dict[str, Any], kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind, match=text):
        source(data, **options).writer(schema, False)


def test_more_bad_writes(data: Path) -> None:
    with pytest.raises(ConfigError, match="mode overwrite: topics are appended to"):
        source(data).writer(TEXT, True)
    with pytest.raises(ConfigError, match="option stagingDir: needed, since"):
        source(data, checkpointLocation="s3://bucket/ck").streamWriter(TEXT, False)
    with pytest.raises(ConfigError, match="option writeId: 'x': is for batch writes"):
        source(data, writeId="x").streamWriter(TEXT, False)
    (data / "file").write_text("")
    with pytest.raises(ConfigError, match=r"option stagingDir: .* cannot be written"):
        source(data, stagingDir=data / "file" / "x").writer(TEXT, False)
    with pytest.raises(ConfigError, match="column value: null in 1 rows"):
        sink.normalised(pa.record_batch({"value": pa.array([None], pa.binary())}), "out")
