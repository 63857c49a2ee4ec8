"""Totals of a durable topic by Spark, as a batch and as a stream, beside the true ones.

python spark_totals.py [COUNT]

The stream stops in the middle and continues from its checkpoint. The ledger compares the totals of
Spark with the totals of the published messages.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import tidecast.sync
from tidecast.config.topology import default_data_dir
from tidecast_spark import session

TOPIC = "spark.orders"
SHOPS = 5


def publish(client: tidecast.sync.Connection, numbers: range) -> None:
    client.topics.ensure(TOPIC, mode="durable", queues=2)
    with client.publisher(TOPIC) as publisher:
        for n in numbers:
            publisher.publish(b"%d" % n, key=f"shop-{n % SHOPS}")
        publisher.wait_durable(timeout=60.0)


def true_totals(count: int) -> dict[str, int]:
    return {f"shop-{shop}": sum(range(shop, count, SHOPS)) for shop in range(SHOPS)}


def totals(records: Any) -> Any:
    """A frame with the columns ``shop`` and ``total``."""
    return (
        records.selectExpr("cast(key as string) as shop", "cast(cast(value as string) as bigint) n")
        .groupBy("shop")
        .sum("n")
        .withColumnRenamed("sum(n)", "total")
    )


def collected(frame: Any) -> dict[str, int]:
    return {row["shop"]: row["total"] for row in frame.collect()}


def stream_totals(
    spark: Any, options: dict[str, str], checkpoint: Path, name: str
) -> dict[str, int]:
    """The rows of a stream that reads all there is, and continues where the last one stopped."""
    records = spark.readStream.format("tidecast").options(**options).load()
    query = (
        totals(records)
        .writeStream.format("memory")
        .queryName(name)
        .outputMode("complete")
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return collected(spark.table(name))


def run(spark: Any, data_dir: str, count: int) -> dict[str, dict[str, int]]:
    """The ledger: true totals, those of a batch, and those of a stream that was stopped once."""
    options = {"dataDir": data_dir, "topic": TOPIC, "startingOffsets": "earliest"}
    with (
        tidecast.sync.connect(f"tidecast://{data_dir}") as client,
        tempfile.TemporaryDirectory() as directory,
    ):
        checkpoint = Path(directory) / "checkpoint"
        publish(client, range(count // 2))
        first = stream_totals(spark, options, checkpoint, "first")
        publish(client, range(count // 2, count))
        second = stream_totals(spark, options, checkpoint, "second")
        batch = collected(totals(spark.read.format("tidecast").options(**options).load()))
    return {
        "true_first_half": true_totals(count // 2),
        "stream_first_half": first,
        "true": true_totals(count),
        "stream": second,
        "batch": batch,
    }


def holds(ledger: dict[str, dict[str, int]]) -> bool:
    halves = ledger["stream_first_half"] == ledger["true_first_half"]
    return halves and ledger["stream"] == ledger["batch"] == ledger["true"]


if __name__ == "__main__":
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    found = run(session("totals"), str(default_data_dir()), count)
    print(json.dumps(found))
    sys.exit(not holds(found))
