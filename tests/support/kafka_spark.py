"""Spark's Kafka source and sink: `python -m tests.support.kafka_spark ADDRESS FROM TO DIRECTORY`.

Copies topic FROM into TO: a stream that stops when all is read, started twice with one checkpoint.
Then it counts both in a batch, with headers, and writes its findings as one line of JSON.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from pyspark.sql import SparkSession

from tests.support.kafka_clients import spark_jars


def main(address: str, source: str, sink: str, directory: str) -> None:
    """See module."""
    spark: Any = (
        SparkSession.builder.master("local[2]")  # type: ignore[attr-defined]
        .config("spark.jars", ",".join(spark_jars()))
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )

    def read(reader: Any, topic: str) -> Any:
        return (
            reader.format("kafka")
            .option("kafka.bootstrap.servers", address)
            .option("subscribe", topic)
            .option("startingOffsets", "earliest")
            .option("includeHeaders", "true")
            .load()
        )

    def copy() -> list[int]:
        query = (
            read(spark.readStream, source)
            .select("key", "value", "headers", "partition")
            .writeStream.format("kafka")
            .option("kafka.bootstrap.servers", address)
            .option("topic", sink)
            .option("includeHeaders", "true")
            .option("checkpointLocation", directory)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return [int(each["numInputRows"]) for each in query.recentProgress]

    rows = [sum(copy()), sum(copy())]
    found = {
        topic: [
            [row.partition, row.offset, row.key, row.value, row.header]
            for row in read(spark.read, topic)
            .selectExpr(
                "partition",
                "offset",
                "cast(key as string) key",
                "cast(value as string) value",
                "cast(headers[0].value as string) header",
            )
            .collect()
        ]
        for topic in (source, sink)
    }
    spark.stop()
    sys.stdout.write(json.dumps({"rows": rows, "found": found}) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
