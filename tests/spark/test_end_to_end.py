"""Topic to topic through Spark, with a stateful aggregation; the driver is killed on the way."""

from __future__ import annotations

import signal
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StructField, StructType, TimestampType
from tests.support import spark_driver
from tests.support.lab import Lab, Platform, open_lab, topology
from tests.support.process import Process
from tests.support.spark_logs import STEP_NS, TIME_NS

from tidecast.client.links.socket_session import EngineControl
from tidecast_spark.jobs.archive import archive
from tidecast_spark.jobs.replay import replay
from tidecast_spark.source import TidecastDataSource

SCHEMA = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("timestamp", TimestampType()),
        StructField("headers", BinaryType()),
    ]
)
KEYS = 100
DRIVER_S = 150.0


@pytest.fixture
def lab() -> Iterator[Lab]:
    with open_lab() as made:
        yield made


def engine(lab: Lab) -> Platform:
    settings = {"mode": "durable", "queues": 2, "fsync_interval_ms": 5}
    topics = [{"name": "in"} | settings, {"name": "out"} | settings]
    return lab.platform(topology({"name": "ipc", "kind": "ipc"}, topics=topics))


def publish(platform: Platform, count: int, headers: bytes | None = None) -> None:
    """Numbers from 0 on, one a millisecond, with keys; through the sink, as it is the quickest."""
    told = {"dataDir": str(platform.directory), "topic": "in", "writeId": "all"}
    writer: Any = TidecastDataSource(told).writer(SCHEMA, False)
    tables = []
    for first in range(0, count, 50_000):
        numbers = range(first, min(count, first + 50_000))
        times = [(TIME_NS + i * STEP_NS) // 1000 for i in numbers]
        tables.append(
            pa.record_batch(
                {
                    "key": [b"k%d" % (i % KEYS) for i in numbers],
                    "value": [b"%d" % i for i in numbers],
                    "timestamp": pa.array(times, pa.timestamp("us", tz="UTC")),
                    "headers": pa.array([headers] * len(times), pa.binary()),
                }
            )
        )
    late = pa.array([TIME_NS // 1000 + 86_400_000_000], pa.timestamp("us", tz="UTC"))
    nothing = pa.nulls(1, pa.binary())
    end = {"key": [b"the end"], "value": [b"0"], "timestamp": late, "headers": nothing}
    tables.append(pa.record_batch(end))  # moves the watermark behind all the others
    writer.commit([writer.write(iter(tables))])


def expected(count: int) -> dict[bytes, tuple[int, int]]:
    """The same in plain Python."""
    found: dict[bytes, list[int]] = defaultdict(lambda: [0, 0])
    for i in range(count):
        minute = (TIME_NS + i * STEP_NS) // 60_000_000_000 * 60
        one = found[b"k%d@%d" % (i % KEYS, minute)]
        one[0] += 1
        one[1] += i
    return {key: (rows, total) for key, (rows, total) in found.items()}


def check_output(platform: Platform, count: int) -> None:
    """Each group is there once, as the batch computation has it."""
    one = TidecastDataSource({"dataDir": str(platform.directory), "topic": "out"})
    reader: Any = one.reader(one.schema())
    seen: list[tuple[bytes, tuple[int, int]]] = []
    for part in reader.partitions():
        for table in reader.read(part):
            for row in table.to_pylist():
                rows, total = row["value"].split(b",")
                seen.append((row["key"], (int(rows), int(total))))
    assert sorted(seen) == sorted(expected(count).items())


def test_a_stream_with_state_from_topic_to_topic(spark: Any, lab: Lab, tmp_path: Path) -> None:
    platform = engine(lab)
    publish(platform, 20_000)
    query = spark_driver.start(spark, platform.directory, tmp_path / "ck", 12_000)
    assert query.awaitTermination(100)
    assert len([p for p in query.recentProgress if p["numInputRows"]]) == 2
    check_output(platform, 20_000)


def by_key(platform: Platform, topic: str) -> dict[bytes, list[tuple[bytes, Any, bytes]]]:
    """Values, times and raw headers of each key, in order."""
    told = {"dataDir": str(platform.directory), "topic": topic, "includeHeaders": "raw"}
    one = TidecastDataSource(told)
    reader: Any = one.reader(one.schema())
    found = defaultdict(list)
    for part in reader.partitions():
        for table in reader.read(part):
            for row in table.to_pylist():
                found[row["key"]].append((row["value"], row["timestamp"], row["headers"]))
    return found


def wipe(platform: Platform, topic: str) -> None:
    """The topic is deleted with all it has on disk, and recreated."""
    with EngineControl(platform.directory) as control:
        [config] = [one for one in control.topics() if one.name == topic]
        control.delete_topic(topic)
        assert not list(platform.directory.glob(f"**/{topic}/**/*.log"))
        control.create_topic(config)


def test_archive_wipe_and_replay_give_the_same_bytes_in_the_order_of_the_keys(
    spark: Any, lab: Lab, tmp_path: Path
) -> None:
    platform = engine(lab)
    publish(platform, 5000, msgspec.msgpack.encode({"trace": b"\x00\xff", "n": "1"}))
    before = by_key(platform, "in")
    assert len(before) == KEYS + 1
    out = tmp_path / "archive"
    assert archive(spark, platform.directory, out, topic="in", hold="archive").rows == 5001
    [held] = platform.json("subscription", "list")
    assert (held["pattern"], held["name"], held["lag"]) == ("in", "archive", 0)
    wipe(platform, "in")
    assert by_key(platform, "in") == {}
    told: dict[str, Any] = {"source_topic": "in", "topic": "in", "until": "2023-11-15"}
    dry = replay(spark, out, platform.directory, dry_run=True, **told)
    assert (dry.rows, dry.keys) == (5000, KEYS)
    assert by_key(platform, "in") == {}
    done = replay(spark, out, platform.directory, write_id="again", **told)
    replay(spark, out, platform.directory, write_id="again", **told)
    assert done.rows == 5000
    del before[b"the end"]
    assert by_key(platform, "in") == before


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_driver_killed_at_four_points_leaves_the_batch_result_exactly(
    lab: Lab, tmp_path: Path
) -> None:
    """Before a manifest, behind it, when all is published, and when that is noted, too."""
    count, a_batch = 1_000_000, 100_000
    platform = engine(lab)
    publish(platform, count)
    checkpoint = tmp_path / "ck"

    def driver(*at: str) -> Process:
        command = [sys.executable, "-m", "tests.support.spark_driver", str(platform.directory)]
        made = lab._process([*command, str(checkpoint), str(a_batch), *at], start_new_session=True)
        assert made.line() == "ready"
        return made

    for at in ("staged:2", "manifest:4", "half:5", "published:7"):
        assert driver(at).code(DRIVER_S) == -signal.SIGKILL, at
    last = driver()
    assert last.line() == "done"
    assert last.code(DRIVER_S) == 0
    check_output(platform, count)
