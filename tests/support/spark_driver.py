"""A Spark driver of its own: `python -m tests.support.spark_driver DATA_DIR CHECKPOINT ROWS`.

Counts the messages of topic `in` by key and minute, in a stream, into topic `out`; `ROWS` a batch.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from tests.support.roles import say
from tidecast_spark import session

VALUE = "cast(cast(value as string) as bigint)"


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


def start(spark: Any, data_dir: Path, checkpoint: Path, rows: int) -> Any:
    """The query."""
    source = (
        spark.readStream.format("tidecast").option("dataDir", str(data_dir)).option("topic", "in")
        .option("startingOffsets", "earliest").option("maxRecordsPerTrigger", str(rows)).load()
    )  # fmt: skip
    return (
        messages(counted(source)).writeStream.format("tidecast").outputMode("append")
        .option("dataDir", str(data_dir)).option("topic", "out")
        .option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    )  # fmt: skip


if __name__ == "__main__":
    _spark = session(
        "e2e", master="local[2]",
        config={"spark.sql.shuffle.partitions": "2", "spark.sql.adaptive.enabled": "false"},
    )  # fmt: skip
    say("ready")
    start(_spark, Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])).awaitTermination()
    say("done")
    _spark.stop()
