"""`tidecast bench spark`: rows a second of source, sink and rollup; the time to the first row."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from tidecast.log.building import BatchBuilder
from tidecast.log.files import queue_directory
from tidecast.log.queue_log import QueueLog
from tidecast.queues.mapper import hash_of
from tidecast_spark.putting import reseal
from tidecast_spark.source import BatchReader, TidecastDataSource, read_settings
from tidecast_spark.telemetry import TELEMETRY_TOPIC

VALUE_BYTES = 100
PER_BATCH = 400
QUEUES = 2
MASTER = "local[2]"
START_NS = 1_700_000_000_000_000_000


class TupleReader(BatchReader):
    """The same read, handed to Spark row by row."""

    def read(self, partition: Any) -> Iterator[Any]:
        """Tuples."""
        for table in super().read(partition):
            yield from zip(*(column.to_pylist() for column in table.columns), strict=True)


class TupleSource(TidecastDataSource):
    """The source as it would be without Arrow, to compare with."""

    @classmethod
    def name(cls) -> str:
        """The name in ``format(...)``."""
        return "tidecast_tuples"

    def reader(self, schema: Any) -> Any:
        """A batch read by tuples."""
        from tidecast_spark.options import source_options

        options = source_options(dict(self.options.items()), streaming=False)
        read_settings(options, schema)
        return TupleReader(options, schema)


def fill(data_dir: Path, topic: str, queues: int, rows: int, values: list[bytes]) -> int:
    """Fill the queues of a topic with ``values`` again and again, about ``rows``; how many."""
    builder = BatchBuilder().begin()
    for i, value in enumerate(values):
        key = b"key-%04d" % i
        builder.add(value, key=key, key_hash=hash_of(key), time_ns=START_NS)
    builder.seal(0, START_NS)
    for queue in range(queues):
        log = QueueLog.open(
            queue_directory(data_dir, topic, queue), topic=topic, queue=queue, fsync="none"
        )
        for _ in range(rows // queues // len(values)):
            reseal(builder.buffer, builder.used, log.next_token, START_NS)
            log.append(builder.buffer, builder.used, START_NS)
        log.close()
    return rows // queues // len(values) * len(values) * queues


def telemetry(n: int) -> list[bytes]:
    """Samples of ``n`` queues."""
    some = np.random.default_rng(7).integers(0, 1000, (n, 6)).tolist()
    names = ("messages_in", "messages_out", "packets", "resent", "lag", "cache_bytes")
    return [
        json.dumps(
            {
                "time_us": START_NS // 1000 + i * 1_000_000, "node": "n1", "topic": f"t{i % 40}",
                "queue": i % 4, "interval_ms": 1000, "cache_max": 1 << 20,
                **dict(zip(names, values, strict=True)),
            }
        ).encode()
        for i, values in enumerate(some)
    ]  # fmt: skip


@contextmanager
def _engine(data_dir: Path) -> Iterator[None]:
    """An engine with the durable topic `out`."""
    topology = {
        "transports": [{"name": "ipc", "kind": "ipc"}],
        "topics": [{"name": "out", "mode": "durable", "queues": QUEUES, "history_bytes": 64 << 20}],
    }
    (data_dir / "topology.yaml").write_text(json.dumps(topology))
    command = [sys.executable, "-m", "tidecast.cli", "engine", "--data-dir", str(data_dir)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as engine:
        assert engine.stdout is not None
        engine.stdout.readline()
        try:
            yield
        finally:
            engine.terminate()
            engine.wait(30)


def _seconds(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def _read(spark: Any, data_dir: Path, kind: str = "tidecast", topic: str = "in") -> Any:
    return spark.read.format(kind).option("dataDir", str(data_dir)).option("topic", topic).load()


def _noop(frame: Any) -> Callable[[], object]:
    return lambda: frame.write.format("noop").mode("overwrite").save()


def _stream(spark: Any, data_dir: Path, rows: int) -> float:
    """Rows a second of a stream, without its first trigger."""
    frame = (
        spark.readStream.format("tidecast").option("dataDir", str(data_dir)).option("topic", "in")
        .option("startingOffsets", "earliest").option("maxRecordsPerTrigger", str(rows // 3))
        .load()
    )  # fmt: skip
    query = frame.writeStream.format("noop").trigger(availableNow=True).start()
    query.awaitTermination()
    done = [p for p in query.recentProgress if p["numInputRows"]][1:]
    return sum(p["numInputRows"] for p in done) / sum(
        p["durationMs"]["triggerExecution"] / 1000 for p in done
    )


def _sink(spark: Any, data_dir: Path) -> list[float]:
    """Seconds to write all rows, acked when they are durable: cold, and once more."""
    frame = _read(spark, data_dir).select("key", "value")

    def write() -> None:
        (
            frame.write.format("tidecast").mode("append")
            .option("dataDir", str(data_dir)).option("topic", "out").save()
        )  # fmt: skip

    with _engine(data_dir):
        return [_seconds(write) for _ in range(2)]


def _decode_rate(data_dir: Path, rows: int) -> float:
    """The floor: the same records decoded into Arrow by one process, without Spark."""

    def decode() -> None:
        one = TidecastDataSource({"dataDir": str(data_dir), "topic": "in"})
        reader: Any = one.reader(one.schema())
        found = sum(t.num_rows for part in reader.partitions() for t in reader.read(part))
        assert found == rows

    return rows / min(_seconds(decode) for _ in range(2))


def _first_row(data_dir: Path) -> tuple[Any, float, float]:
    """A session; seconds to its start, and to its first row, from nothing."""
    from tidecast_spark import session

    begun = time.perf_counter()
    spark = session("bench", master=MASTER, config={"spark.sql.shuffle.partitions": "2"})
    started = time.perf_counter() - begun
    _read(spark, data_dir).limit(1).collect()
    return spark, started, time.perf_counter() - begun


def run(
    rows: int, rollup_rows: int, kafka: Path | None, note: Callable[[str], None]
) -> dict[str, Any]:
    """All figures in the shape of the other benches. ``kafka``: jars to compare with."""
    from tidecast_spark.jobs.rollup import rollup

    metrics: dict[str, float] = {}
    peers: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="tc-") as directory:
        data_dir = Path(directory)
        note("writing topics")
        kept = fill(data_dir, "in", QUEUES, rows, [bytes(VALUE_BYTES)] * PER_BATCH)
        few = fill(data_dir, "few", QUEUES, rows // 6, [bytes(VALUE_BYTES)] * PER_BATCH)
        fill(data_dir, TELEMETRY_TOPIC, QUEUES, rollup_rows, telemetry(PER_BATCH))
        note("first row")
        spark, metrics["session_start_s"], metrics["first_row_s"] = _first_row(data_dir)
        try:
            spark.dataSource.register(TupleSource)
            note("source")
            arrow = _noop(_read(spark, data_dir))
            metrics["source_rows_per_s"] = kept / min(_seconds(arrow) for _ in range(3))
            note("source by tuples")
            tuples = _noop(_read(spark, data_dir, "tidecast_tuples", "few"))
            metrics["source_tuples_rows_per_s"] = few / _seconds(tuples)
            note("stream")
            metrics["stream_rows_per_s"] = _stream(spark, data_dir, rows)
            note("sink")
            cold_s, warm_s = _sink(spark, data_dir)
            metrics["sink_rows_per_s"] = kept / min(cold_s, warm_s)
            metrics["sink_cold_rows_per_s"] = kept / cold_s
            if rollup_rows:
                note("rollup")
                metrics["rollup_s"] = _seconds(lambda: rollup(spark, data_dir, data_dir / "out"))
                metrics["rollup_rows_per_s"] = rollup_rows / metrics["rollup_s"]
        finally:
            spark.stop()
        note("decoding without Spark")
        floor = {"decode_rows_per_s": _decode_rate(data_dir, kept)}
        if kafka is not None:
            from tidecast_spark.bench_kafka import in_its_own_process

            note("Kafka")
            peers["kafka"] = in_its_own_process(
                kafka, data_dir / "kafka", kept, PER_BATCH, VALUE_BYTES
            )
    source = metrics["source_rows_per_s"]
    return {
        "bench": "spark",
        "config": {
            "rows": kept, "value_bytes": VALUE_BYTES, "master": MASTER,
            "rows_per_trigger": rows // 3, "rollup_rows": rollup_rows,
        },
        "metrics": {
            name: round(n) if name.endswith("_per_s") else round(n, 2)
            for name, n in metrics.items()
        },
        "floor": {name: round(n) for name, n in floor.items()},
        "ratio": {
            "source_to_decode": round(source / floor["decode_rows_per_s"], 3),
            "source_to_tuples": round(source / metrics["source_tuples_rows_per_s"], 2),
            "stream_to_source": round(metrics["stream_rows_per_s"] / source, 3),
        },
        "peers": peers,
    }  # fmt: skip
