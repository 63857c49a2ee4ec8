"""`tidecast bench spark`: rows a second of source, sink and rollup; the time to the first row."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tidecast.bench.measure import machine
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
PARTS = ("source", "tuples", "stream", "gateway", "sink", "rollup", "decode")
"""Parts that can be measured alone; a session and its first row are measured always."""


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
                "time_us": START_NS // 1000 + i * 1_000_000,
                "node": "n1",
                "topic": f"t{i % 40}",
                "queue": i % 4,
                "interval_ms": 1000,
                "cache_max": 1 << 20,
                **dict(zip(names, values, strict=True)),
            }
        ).encode()
        for i, values in enumerate(some)
    ]


@contextmanager
def _engine(data_dir: Path) -> Iterator[str]:
    """An engine with the durable topic `out`; the address of its gateway."""
    topology = {
        "transports": [{"name": "ipc", "kind": "ipc"}],
        "topics": [{"name": "out", "mode": "durable", "queues": QUEUES, "history_bytes": 64 << 20}],
    }
    (data_dir / "topology.yaml").write_text(json.dumps(topology))
    command = [sys.executable, "-m", "tidecast.cli", "engine", "--data-dir", str(data_dir)]
    command += ["--gateway", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as engine:
        assert engine.stdout is not None
        engine.stdout.readline()
        try:
            yield json.loads((data_dir / "engine.json").read_text())["gateway"]
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
        spark.readStream.format("tidecast")
        .option("dataDir", str(data_dir))
        .option("topic", "in")
        .option("startingOffsets", "earliest")
        .option("maxRecordsPerTrigger", str(rows // 3))
        .load()
    )
    query = frame.writeStream.format("noop").trigger(availableNow=True).start()
    query.awaitTermination()
    done = [p for p in query.recentProgress if p["numInputRows"]][1:]
    return sum(p["numInputRows"] for p in done) / sum(
        p["durationMs"]["triggerExecution"] / 1000 for p in done
    )


def _sink(spark: Any, data_dir: Path) -> dict[str, list[float]]:
    """Seconds to write all rows, acked when they are durable: by `commit`, in turns, cold first."""
    frame = _read(spark, data_dir).select("key", "value")
    taken: dict[str, list[float]] = {"driver": [], "partitions": []}

    def write(commit: str) -> None:
        (
            frame.write.format("tidecast")
            .mode("append")
            .option("dataDir", str(data_dir))
            .option("topic", "out")
            .option("commit", commit)
            .save()
        )

    with _engine(data_dir):
        for _ in range(2):
            for commit, seconds in taken.items():
                seconds.append(_seconds(partial(write, commit)))
    return taken


def _decode_rate(data_dir: Path, rows: int) -> float:
    """The floor: the same records decoded into Arrow by one process, without Spark."""

    def decode() -> None:
        one = TidecastDataSource({"dataDir": str(data_dir), "topic": "in"})
        reader: Any = one.reader(one.schema())
        found = sum(t.num_rows for part in reader.partitions() for t in reader.read(part))
        assert found == rows

    return rows / min(_seconds(decode) for _ in range(2))


class Bench:
    """The parts of the bench; each adds to ``metrics``. ``few``: rows of the topic for tuples."""

    def __init__(self, data_dir: Path, rows: int, rollup_rows: int) -> None:
        self.data_dir, self.rows, self.rollup_rows = data_dir, rows, rollup_rows
        self.machine = machine()
        self.metrics: dict[str, float] = {}
        self.floor: dict[str, float] = {}
        self.kept = self.few = 0
        self.spark: Any = None

    def fill(self, only: Collection[str]) -> None:
        """Write the topics that the parts need."""
        value = [bytes(VALUE_BYTES)] * PER_BATCH
        self.kept = fill(self.data_dir, "in", QUEUES, self.rows, value)
        self.few = fill(self.data_dir, "few", QUEUES, self.rows // 6, value)
        if "rollup" in only and self.rollup_rows:
            samples = telemetry(PER_BATCH)
            fill(self.data_dir, TELEMETRY_TOPIC, QUEUES, self.rollup_rows, samples)

    def first_row(self) -> None:
        """A session; seconds to its start, and to its first row, from nothing."""
        from tidecast_spark import session

        begun = time.perf_counter()
        self.spark = session("bench", master=MASTER, config={"spark.sql.shuffle.partitions": "2"})
        self.metrics["session_start_s"] = time.perf_counter() - begun
        _read(self.spark, self.data_dir).limit(1).collect()
        self.metrics["first_row_s"] = time.perf_counter() - begun

    def source(self) -> None:
        """Rows a second of a batch."""
        arrow = _noop(_read(self.spark, self.data_dir))
        self.metrics["source_rows_per_s"] = self.kept / min(_seconds(arrow) for _ in range(3))

    def tuples(self) -> None:
        """The same by tuples."""
        self.spark.dataSource.register(TupleSource)
        tuples = _noop(_read(self.spark, self.data_dir, "tidecast_tuples", "few"))
        self.metrics["source_tuples_rows_per_s"] = self.few / _seconds(tuples)

    def stream(self) -> None:
        """The same as a stream."""
        self.metrics["stream_rows_per_s"] = _stream(self.spark, self.data_dir, self.rows)

    def gateway(self) -> None:
        """The same as a batch over a gateway."""
        with _engine(self.data_dir) as url:
            token = (self.data_dir / "gateway.token").read_text().strip()
            far = {"servers": url, "token": token, "topic": "in"}
            read = _noop(self.spark.read.format("tidecast").options(**far).load())
            self.metrics["gateway_rows_per_s"] = self.kept / min(_seconds(read) for _ in range(2))

    def sink(self) -> None:
        """Rows a second that are durable, published by the driver and by tasks."""
        taken = _sink(self.spark, self.data_dir)
        self.metrics["sink_rows_per_s"] = self.kept / min(taken["driver"])
        self.metrics["sink_cold_rows_per_s"] = self.kept / taken["driver"][0]
        self.metrics["sink_partitions_rows_per_s"] = self.kept / min(taken["partitions"])

    def rollup(self) -> None:
        """Seconds to roll up the telemetry."""
        from tidecast_spark.jobs.rollup import rollup

        if self.rollup_rows:
            took_s = _seconds(lambda: rollup(self.spark, self.data_dir, self.data_dir / "out"))
            self.metrics["rollup_s"] = took_s
            self.metrics["rollup_rows_per_s"] = self.rollup_rows / took_s

    def decode(self) -> None:
        """The floor."""
        self.floor["decode_rows_per_s"] = _decode_rate(self.data_dir, self.kept)

    def ratios(self) -> dict[str, float]:
        """Ratios of measured figures."""
        all_ = self.metrics | self.floor
        pairs = {
            "source_to_decode": ("source_rows_per_s", "decode_rows_per_s"),
            "source_to_tuples": ("source_rows_per_s", "source_tuples_rows_per_s"),
            "stream_to_source": ("stream_rows_per_s", "source_rows_per_s"),
            "partitions_to_driver": ("sink_partitions_rows_per_s", "sink_rows_per_s"),
            "gateway_to_source": ("gateway_rows_per_s", "source_rows_per_s"),
        }
        return {
            name: round(all_[a] / all_[b], 3)
            for name, (a, b) in pairs.items()
            if a in all_ and b in all_
        }


def run(
    rows: int,
    rollup_rows: int,
    kafka: Path | None,
    only: Collection[str],
    note: Callable[[str], None],
) -> dict[str, Any]:
    """The figures in the shape of the other benches. ``kafka``: jars to compare with.

    ``only``: some of `PARTS`; empty: all.
    """
    only = only or PARTS
    peers: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="tc-") as directory:
        bench = Bench(Path(directory), rows, rollup_rows)
        note("writing topics")
        bench.fill(only)
        note("first row")
        bench.first_row()
        try:
            for part in PARTS:
                if part in only and part != "decode":
                    note(part)
                    getattr(bench, part)()
        finally:
            bench.spark.stop()
        if "decode" in only:
            note("decoding without Spark")
            bench.decode()
        if kafka is not None:
            from tidecast_spark.bench_kafka import in_its_own_process

            note("Kafka")
            found = in_its_own_process(
                kafka, Path(directory) / "kafka", bench.kept, PER_BATCH, VALUE_BYTES
            )
            peers["kafka"] = [found]
    return {
        "bench": "spark",
        "config": bench.machine
        | {
            "rows": bench.kept,
            "value_bytes": VALUE_BYTES,
            "master": MASTER,
            "rows_per_trigger": rows // 3,
            "rollup_rows": rollup_rows,
        },
        "metrics": {
            name: round(n) if name.endswith("_per_s") else round(n, 2)
            for name, n in bench.metrics.items()
        },
        "floor": {name: round(n) for name, n in bench.floor.items()},
        "ratio": bench.ratios(),
        "peers": peers,
    }
