"""`commit=partitions` without a JVM: tasks that are retried, doubled, given up, or come too late.

The log of the first tests drops duplicates by producer and sequence; the last ones have an engine.
"""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructField, StructType
from tests.support.lab import Platform, open_lab, topology
from tests.support.spark_logs import append, records

from tidecast.errors import ConfigError, Conflict, EngineNotRunning, Fenced
from tidecast_spark import outlet, sink
from tidecast_spark.claims import ONCE, BatchOver, Claims, partitions_of, sweep
from tidecast_spark.source import TidecastDataSource
from tidecast_spark.staging import StagingArea

TEXT = StructType([StructField("key", StringType()), StructField("value", StringType())])
QUERY = "q-1"


class Crash(BaseException):
    """The task was killed here."""


class Log:
    """Rows by topic. ``crash_after`` rows the task dies; ``before``: called with each session."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, bytes]] = []
        self.last_seq: dict[str, int] = defaultdict(int)
        self.sent, self.crash_after = 0, -1
        self.before: list[Any] = []

    def publish(self, options: Any, area: Any, batch: int, manifest: Any, topic: str) -> None:
        producer = f"{outlet._producer(area, manifest.partition)}@{topic}"
        seq = manifest.first_seq[topic]
        if self.before:
            self.before.pop()()
        assert seq <= self.last_seq[producer] + 1, "a producer's sequence has a gap"
        for table in outlet.rows_of(area, batch, manifest, topic):
            for value in table.column(2).to_pylist():
                if self.crash_after == 0:
                    raise Crash
                self.crash_after -= 1
                self.sent += 1
                if seq > self.last_seq[producer]:
                    self.rows.append((topic, value))
                    self.last_seq[producer] = seq
                seq += 1

    def next_seq(self, options: Any, area: Any, partition: int | None, topic: str) -> int:
        return self.last_seq[f"{outlet._producer(area, partition)}@{topic}"] + 1

    def values(self, topic: str = "out") -> list[bytes]:
        return [value for name, value in self.rows if name == topic]


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    made = Log()
    monkeypatch.setattr(outlet, "_publish_topic", made.publish)
    monkeypatch.setattr(sink, "next_seq", made.next_seq)
    monkeypatch.setattr(outlet, "_pause", lambda _: None)
    monkeypatch.setattr(outlet, "_RETRY_S", 0.0)
    monkeypatch.setattr(outlet, "_STALL_S", 0.0)
    monkeypatch.setattr(outlet, "check_engine", lambda _: None)
    return made


def table(*values: str, key: str = "k") -> pa.RecordBatch:
    return pa.record_batch({"key": [key] * len(values), "value": list(values)})


class Query:
    """A query with one checkpoint, whose tasks run when a test says so."""

    def __init__(self, data_dir: Path, monkeypatch: pytest.MonkeyPatch, **options: str) -> None:
        self.monkeypatch, self.attempts = monkeypatch, 0
        self.given = {
            "dataDir": str(data_dir),
            "topic": "out",
            "commit": "partitions",
            "checkpointLocation": (data_dir / "ck").as_uri(),
        } | options
        self.area = StagingArea(data_dir / "ck" / "tidecast-sink", QUERY)

    def writer(self) -> Any:
        return TidecastDataSource(self.given).streamWriter(TEXT, False)

    def task(self, batch: int, partition: int, *values: str) -> Any:
        """An attempt of a task, from its rows to its message."""
        self.attempts += 1
        attempt = self.attempts
        properties = {"sql.streaming.queryId": QUERY, "streaming.sql.batchId": str(batch)}
        context = SimpleNamespace(
            partitionId=lambda: partition,
            taskAttemptId=lambda: attempt,
            getLocalProperty=properties.get,
        )
        self.monkeypatch.setattr(sink, "TaskContext", SimpleNamespace(get=lambda: context))
        return self.writer().write(iter([table(*values)]))

    def run(self, batch: int, *parts: list[str]) -> None:
        messages = [self.task(batch, n, *values) for n, values in enumerate(parts)]
        self.writer().commit(messages, batch)


@pytest.fixture
def query(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Query:
    append(tmp_path, "out", 0, records(1))
    append(tmp_path, "more", 0, records(1))
    return Query(tmp_path, monkeypatch)


def test_batches_follow_on_and_their_files_do_not_pile_up(query: Query, log: Log) -> None:
    query.run(0, ["a", "b"], ["c"], [])
    query.run(1, ["d"], ["e", "f"], ["g"])
    query.run(2, ["h"])
    assert log.values() == [b"a", b"b", b"c", b"d", b"e", b"f", b"g", b"h"]
    assert log.last_seq == {"spark-q-1#0@out": 4, "spark-q-1#1@out": 3, "spark-q-1#2@out": 1}
    left = sorted(str(p.relative_to(query.area.directory)) for p in query.area.directory.rglob("*"))
    names = {0: 2, 1: 1, 2: 1}
    claims = [
        f"partitions/{part:06d}{tail}"
        for part, batch in names.items()
        for tail in ("", f"/{batch:012d}.durable", f"/{batch:012d}.json")
    ]
    assert left == ["partitions", *claims, "state.json"]


def test_rows_are_there_before_the_commit_and_a_repeated_batch_adds_none(
    query: Query, log: Log
) -> None:
    query.task(0, 0, "a", "b")
    query.task(0, 1, "c")
    assert log.values() == [b"a", b"b", b"c"]  # then the driver is killed
    query.run(0, ["a", "b"], ["c"])
    query.run(0, ["a", "b"], ["c"])  # Spark did not come to note the commit
    query.run(1, ["d"])
    assert log.values() == [b"a", b"b", b"c", b"d"]
    assert log.sent == 4


@pytest.mark.parametrize("published", [0, 1, 3])
def test_a_retry_completes_the_rows_of_the_first_attempt(
    query: Query, log: Log, published: int
) -> None:
    query.run(0, ["z"])
    log.crash_after = published
    with pytest.raises(Crash):
        query.task(1, 0, "a", "b", "c", "d")
    log.crash_after = -1
    query.run(1, ["d", "b", "a", "c"])  # behind a shuffle rows come in another order
    query.run(2, ["e"])
    assert log.values() == [b"z", b"a", b"b", b"c", b"d", b"e"]


def test_a_task_that_dies_while_it_stages_leaves_no_rows(query: Query, log: Log) -> None:
    def half() -> Iterator[pa.RecordBatch]:
        yield table("a")
        raise Crash

    writer = query.writer()
    query.task(0, 1, "c")
    with pytest.raises(Crash):
        writer._publish(query.area, 0, 0, 99, (sink.normalised(one, "out") for one in half()))
    assert log.values() == [b"c"]
    query.run(0, ["a", "b"], ["c"])
    assert sorted(log.values()) == [b"a", b"b", b"c"]


def test_a_second_attempt_beside_the_first_publishes_the_rows_of_the_first(
    query: Query, log: Log
) -> None:
    speculative: list[Any] = []
    log.before = [lambda: speculative.append(query.task(0, 0, "b", "a"))]
    first = query.task(0, 0, "a", "b")
    assert log.values() == [b"a", b"b"]
    query.writer().commit([speculative[0]], 0)
    query.run(1, ["c"])
    assert log.values() == [b"a", b"b", b"c"]
    assert first.staged.published


def test_an_attempt_that_is_fenced_lets_the_other_one_finish(query: Query, log: Log) -> None:
    def other() -> None:
        query.task(0, 0, "b", "a")
        raise Fenced("a newer session")

    log.before = [other]
    message = query.task(0, 0, "a", "b")
    assert (log.values(), log.sent) == ([b"a", b"b"], 2)
    query.writer().commit([message], 0)


def test_an_attempt_that_is_fenced_by_one_that_died_goes_on(query: Query, log: Log) -> None:
    def dies() -> None:
        log.crash_after = 1
        with pytest.raises(Crash):
            query.task(0, 0, "b", "c", "a")
        log.crash_after = -1
        raise Fenced("a newer session")

    log.before = [dies]
    query.writer().commit([query.task(0, 0, "a", "b", "c")], 0)
    assert log.values() == [b"a", b"b", b"c"]


def test_an_engine_that_is_away_for_a_moment_is_tried_again(query: Query, log: Log) -> None:
    def away() -> None:
        raise EngineNotRunning("away")

    log.before = [away, away]
    query.run(0, ["a"])
    log.before = [away] * outlet.TRIES_MAX
    with pytest.raises(EngineNotRunning):
        query.run(1, ["b"])
    query.run(1, ["b"])
    assert log.values() == [b"a", b"b"]


def test_an_attempt_that_comes_after_the_commit_publishes_nothing(query: Query, log: Log) -> None:
    area = query.area
    late = area.stage(0, 0, 99, iter([sink.normalised(table("x"), "out")]), outlet.digest_of)
    query.run(0, ["a"])
    query.run(1, ["b"])
    assert not area.batch_dir(0).exists()
    query.task(0, 0, "a")
    assert not area.batch_dir(0).exists()
    with pytest.raises(BatchOver):
        Claims(area, 0).take(0, late, lambda _: 1)
    query.run(2, ["c"])
    assert (log.values(), log.sent) == ([b"a", b"b", b"c"], 3)


def test_an_attempt_that_reads_the_state_before_the_commit_takes_its_claim_back(
    query: Query, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has looked, then it is paused for two batches, whose claims are gone when it goes on."""
    area = query.area
    late = area.stage(0, 0, 99, iter([sink.normalised(table("x"), "out")]), outlet.digest_of)
    real = Claims._make
    paused: list[int] = []

    def pausing(claims: Claims, batch: int, staged: Any, due: Any) -> Any:
        if not paused:
            paused.append(batch)
            query.run(0, ["a"])
            query.run(1, ["b"])
            monkeypatch.setattr(Claims, "_newest", lambda _: None)
        return real(claims, batch, staged, due)

    with monkeypatch.context() as patch:
        patch.setattr(Claims, "_make", pausing)
        with pytest.raises(BatchOver):
            Claims(area, 0).take(0, late, lambda _: 1)
    monkeypatch.undo()
    assert [p.name for p in Claims(area, 0).directory.glob("*.json")] == ["000000000001.json"]


def test_a_batch_that_is_cut_otherwise_stops_the_query(query: Query, log: Log) -> None:
    query.task(0, 0, "a", "b")
    query.task(0, 2, "c")
    with pytest.raises(Conflict, match=r"batch 0 of query q-1: partition 0 had 2 rows .*\(3\)"):
        query.run(0, ["a", "b", "c"])
    with pytest.raises(Conflict, match=r"partitions \[2\] were published before, .* the 2 of this"):
        query.run(0, ["a", "b"], [])
    query.run(0, ["b", "a"], [], ["c"])
    assert log.values() == [b"a", b"b", b"c"]


def test_other_values_of_a_repeated_task_are_refused_or_left_out(
    query: Query, log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query.task(0, 0, "random 1")
    with pytest.raises(Conflict, match=r"has other rows now.*otherRows=keep if only values differ"):
        query.run(0, ["random 2"])
    keeping = Query(tmp_path, monkeypatch, otherRows="keep")
    keeping.attempts = 10
    keeping.run(0, ["random 3"])
    assert log.values() == [b"random 1"]


def test_who_began_a_batch_ends_it(query: Query, log: Log) -> None:
    """The option changes between two runs of a query, in the midst of a batch."""
    by_driver = Query(query.area.directory.parents[2], query.monkeypatch, commit="driver")
    by_driver.attempts = 100
    query.task(0, 0, "a")
    by_driver.run(0, ["a"], ["b"])  # the tasks go on by partitions
    log.crash_after = 1
    messages = [by_driver.task(1, n, value) for n, value in enumerate("cd")]
    with pytest.raises(Crash):
        by_driver.writer().commit(messages, 1)
    log.crash_after = -1
    query.run(1, ["c"], ["d"])  # a manifest is there: the driver goes on
    query.run(2, ["e"])
    assert log.values() == [b"a", b"b", b"c", b"d", b"e"]
    assert log.last_seq == {"spark-q-1#0@out": 2, "spark-q-1#1@out": 1, "spark-q-1@out": 2}


def test_a_lost_staging_area_loses_no_rows_of_later_batches(query: Query, log: Log) -> None:
    query.run(0, ["a", "b"])
    for path in sorted(query.area.directory.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    query.run(1, ["c"])
    assert log.values() == [b"a", b"b", b"c"]


def test_batch_writes_leave_a_state_that_is_swept_after_a_day(
    query: Query, log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = {"dataDir": str(tmp_path), "topic": "out", "commit": "partitions"}
    for _ in range(2):
        writer: Any = TidecastDataSource(told).writer(TEXT, False)
        writer.commit([writer.write(iter([table("a")]))])
    for _ in range(2):
        writer = TidecastDataSource(told | {"writeId": "w"}).writer(TEXT, False)
        writer.commit([writer.write(iter([table("b")]))])
    assert log.values() == [b"a", b"a", b"b"]
    states = list((tmp_path / "spark").glob(f"{ONCE}*/state.json"))
    assert len(states) == 2
    sweep(tmp_path / "spark", states[0].stat().st_mtime + 80_000)
    assert all(one.exists() for one in states)
    sweep(tmp_path / "spark", states[0].stat().st_mtime + 90_000)
    assert [one.name for one in (tmp_path / "spark").iterdir()] == ["w@out"]


def test_a_digest_does_not_know_the_order_of_rows_and_knows_everything_else() -> None:
    rows: list[dict[str, Any]] = [
        {"key": b"k%d" % (i % 3), "value": bytes([i]) * (i % 20), "h": i} for i in range(200)
    ]
    rng = random.Random(5)

    def digest(some: list[dict[str, Any]]) -> int:
        made = pa.record_batch(
            {
                "topic": ["out"] * len(some),
                "key": pa.array([one["key"] for one in some], pa.binary()),
                "value": pa.array([one["value"] for one in some], pa.binary()),
                "headers": pa.array([b"\x81\xa1a\x01"] * len(some), pa.binary()),
                "timestamp": pa.array([one["h"] for one in some], pa.timestamp("us", tz="UTC")),
            }
        )
        return outlet.digest_of(made)

    whole = digest(rows)
    for _ in range(20):
        rng.shuffle(rows)
        assert digest(rows) == whole
        at = rng.randrange(len(rows))
        changes = ({"key": None}, {"key": b""}, {"value": rows[at]["value"] + b"\0"}, {"h": None})
        assert len({digest([*rows[:at], rows[at] | c, *rows[at + 1 :]]) for c in changes}) == 4
        assert whole not in {digest([*rows[:at], rows[at] | c, *rows[at + 1 :]]) for c in changes}
    assert np.int64(whole) == whole


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"commit": "tasks"}, "option commit: 'tasks': allowed: driver, partitions"),
        ({"otherRows": "keep", "commit": "driver"}, "option otherRows: it is for commit=part"),
        ({"otherRows": "drop"}, "option otherRows: 'drop': allowed: refuse, keep"),
        ({"rate": "100"}, "option rate: it is for commit=driver"),
    ],
)
def test_wrong_options_are_refused(
    query: Query, options: dict[str, str], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outlet, "check_engine", lambda _: None)
    query.given |= options
    with pytest.raises(ConfigError, match=text):
        query.writer()


# --- with an engine -------------------------------------------------------------------------------

PARTITIONS, KEYS = 6, 40


@pytest.fixture(scope="module")
def platform() -> Iterator[Platform]:
    settings = {"mode": "durable", "queues": 4, "fsync_interval_ms": 5}
    topics = [{"name": "out"} | settings, {"name": "more"} | settings]
    with open_lab() as lab:
        yield lab.platform(topology({"name": "ipc", "kind": "ipc"}, topics=topics))


def part(partition: int, batch: int, n: int) -> pa.RecordBatch:
    """Keys of this partition alone, counted up from batch to batch; every third row to `more`."""
    numbers = range(batch * n, (batch + 1) * n)
    topics = ["more" if i % 3 == 0 else "out" for i in numbers]
    keys = [f"{partition}-{i % KEYS}" for i in numbers]
    return pa.record_batch({"topic": topics, "key": keys, "value": [f"{i:09}" for i in numbers]})


def read(platform: Platform, topic: str) -> dict[bytes, list[int]]:
    """Numbers of each key, in the order of its queue."""
    one: Any = TidecastDataSource({"dataDir": str(platform.directory), "topic": topic})
    reader = one.reader(one.schema())
    found: dict[bytes, list[int]] = defaultdict(list)
    for each in reader.partitions():
        for batch in reader.read(each):
            for row in batch.to_pylist():
                found[row["key"]].append(int(row["value"]))
    return found


def test_tasks_in_parallel_whose_attempts_die_store_each_row_once_and_in_order(
    platform: Platform, tmp_path: Path
) -> None:
    schema = StructType([StructField("topic", StringType()), *TEXT.fields])
    n, batches, rng = 6000, 4, random.Random(11)
    options = {"dataDir": str(platform.directory), "commit": "partitions", "topic": "out"}
    made: Any = TidecastDataSource(options | {"stagingDir": str(tmp_path)}).writer(schema, False)
    area = StagingArea(tmp_path, "q")

    def attempt(batch: int, partition: int, number: int, dies: bool) -> Any:
        table = part(partition, batch, n)
        order = list(range(n))
        if number:  # in another order, each key's too: the first attempt counts
            rng.shuffle(order)
        rows = (sink.normalised(one, "out") for one in (table.take(order),))
        if not dies:
            return sink.Message(made._publish(area, batch, partition, number, rows))

        class Dies(outlet.RowWriter):
            def write(self, table: Any) -> None:
                super().write(table.slice(0, rng.randrange(table.num_rows)))
                raise Crash

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(outlet, "RowWriter", Dies)
            with pytest.raises(Crash):
                made._publish(area, batch, partition, number, rows)
        return None

    for batch in range(batches):
        for partition in range(0, PARTITIONS, 2):
            attempt(batch, partition, 0, dies=True)
        messages: list[Any] = [None] * PARTITIONS

        def run(partition: int, batch: int = batch, into: list[Any] = messages) -> None:
            into[partition] = attempt(batch, partition, 1 - partition % 2, dies=False)

        threads = [threading.Thread(target=run, args=(p,)) for p in range(PARTITIONS)]
        for one in threads:
            one.start()
        for one in threads:
            one.join(60)
        assert all(messages)
        made._commit(messages, batch)
        made._commit(messages, batch)
    found = {topic: read(platform, topic) for topic in ("out", "more")}
    for partition in range(PARTITIONS):
        for key in range(KEYS):
            for topic, rest in (("more", True), ("out", False)):
                wanted = [i for i in range(n * batches) if i % KEYS == key and (i % 3 == 0) is rest]
                assert found[topic][f"{partition}-{key}".encode()] == wanted
    assert len(partitions_of(area)) == PARTITIONS


def test_a_task_whose_batch_is_not_the_first_asks_the_log(
    platform: Platform, tmp_path: Path
) -> None:
    options = {"dataDir": str(platform.directory), "commit": "partitions", "topic": "out"}
    made: Any = TidecastDataSource(options | {"stagingDir": str(tmp_path)}).writer(TEXT, False)
    before = sum(map(len, read(platform, "out").values()))
    for batch, directory in ((0, "a"), (3, "a"), (4, "b"), (5, "b")):
        area = StagingArea(tmp_path / directory, "asks")
        rows = iter([sink.normalised(table(str(batch)), "out")])
        made._publish(area, batch, 0, 1, rows)
    assert outlet.next_seq(made._options, area, 0, "out") == 5
    assert sum(map(len, read(platform, "out").values())) == before + 4
