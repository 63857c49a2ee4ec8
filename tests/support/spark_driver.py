"""A Spark driver of its own: `python -m tests.support.spark_driver DATA_DIR CHECKPOINT ROWS [AT]`.

Counts the messages of topic `in` by key and minute, in a stream, into topic `out`; `ROWS` a batch.
``AT``: `POINT:BATCH`, where it is killed with all its processes, as the kernel would do it.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.roles import say
from tidecast_spark import session
from tidecast_spark.sink import StreamWriter
from tidecast_spark.source import TidecastDataSource

VALUE = "cast(cast(value as string) as bigint)"
POINTS = ("staged", "manifest", "half", "published")


def counted(frame: Any) -> Any:
    """Count and sum by key and minute; out when a message a minute younger was seen."""
    from pyspark.sql import functions as f

    return (
        frame.selectExpr("key", f"{VALUE} n", "timestamp")
        .withWatermark("timestamp", "1 minute")
        .groupBy("key", f.window("timestamp", "1 minute").alias("w"))
        .agg(f.count("*").alias("rows"), f.sum("n").alias("total"))
        .selectExpr("key", "w.start minute", "rows", "total")
    )


def messages(frame: Any) -> Any:
    """As rows of the sink: the key is the group, the value the figures."""
    return frame.selectExpr(
        "concat(key, binary('@'), binary(cast(unix_seconds(minute) as string))) key",
        "concat_ws(',', rows, total) value",
    )


def start(spark: Any, data_dir: Path, checkpoint: Path, rows: int, sink: str = "tidecast") -> Any:
    """The query."""
    source = (
        spark.readStream.format("tidecast")
        .option("dataDir", str(data_dir))
        .option("topic", "in")
        .option("startingOffsets", "earliest")
        .option("maxRecordsPerTrigger", str(rows))
        .load()
    )
    return (
        messages(counted(source))
        .writeStream.format(sink)
        .outputMode("append")
        .option("dataDir", str(data_dir))
        .option("topic", "out")
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )


def killed_source(point: str, batch: int, group: int) -> type[TidecastDataSource]:
    """The sink with a writer that kills the driver's process group, then itself, at one point."""

    def kill() -> None:
        os.killpg(group, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)

    class KilledWriter(StreamWriter):
        def write(self, iterator: Iterator[Any]) -> Any:
            message: Any = super().write(iterator)
            if (point, batch) == ("staged", message.staged.batch):
                kill()
            return message

        def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803
            from tidecast_spark import outlet, staging

            if batchId == batch:
                if point == "manifest":
                    outlet.RowWriter.write = lambda *_: kill()  # type: ignore[method-assign]
                if point == "half":
                    staging.StagingArea.done = lambda *_: kill()  # type: ignore[method-assign]
            super().commit(messages, batchId)
            if (point, batch) == ("published", batchId):
                kill()

    class KilledSource(TidecastDataSource):
        @classmethod
        def name(cls) -> str:
            return "tidecast_killed"

        def streamWriter(self, schema: Any, overwrite: bool) -> Any:  # noqa: N802
            made: Any = super().streamWriter(schema, overwrite)
            made.__class__ = KilledWriter
            return made

    return KilledSource


def main(data_dir: Path, checkpoint: Path, rows: int, at: str = "") -> None:
    """See module."""
    spark = session(
        "e2e",
        master="local[2]",
        config={"spark.sql.shuffle.partitions": "2", "spark.sql.adaptive.enabled": "false"},
    )
    sink = "tidecast"
    if at:
        point, _, batch = at.partition(":")
        assert point in POINTS
        spark.dataSource.register(killed_source(point, int(batch), os.getpgid(0)))
        sink = "tidecast_killed"
    say("ready")
    start(spark, data_dir, checkpoint, rows, sink).awaitTermination()
    say("done")
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])
