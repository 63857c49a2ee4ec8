"""The source under a real SparkSession: the format's name, schemas, streams, errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.spark_logs import append, damage, records, segments

COUNT = 4000


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data_dir = tmp_path_factory.mktemp("data")
    for queue in range(2):
        append(data_dir, "orders", queue, records(COUNT // 2, queue * COUNT // 2))
    return data_dir


def read(spark: Any, data_dir: Path, **options: str) -> Any:
    told = {"dataDir": str(data_dir), "topic": "orders"} | options
    return spark.read.format("tidecast").options(**told).load()


def test_a_batch_read_and_its_schema(spark: Any, data: Path) -> None:
    frame = read(spark, data, includeHeaders="true")
    assert frame.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,queue:int,token:bigint,timestamp:timestamp,"
        "headers:map<string,binary>>"
    )
    [row] = frame.selectExpr(
        "count(*) n",
        "count(distinct value) d",
        "max(token) t",
        "count(headers) h",
        "min(timestamp) = timestamp '2023-11-14 22:13:20' first",
    ).collect()
    assert row.asDict() == {"n": COUNT, "d": COUNT, "t": COUNT // 2 - 1, "h": 0, "first": True}


def test_filters_of_one_query_do_not_reach_the_next(spark: Any, data: Path) -> None:
    frame = read(spark, data)
    assert frame.where("token < 10 and key = binary('k3')").count() == 2
    assert frame.count() == COUNT, "Spark 4.3 keeps pushed filters in a DataFrame's source"
    assert frame.where("queue = 0").unionAll(frame.where("queue = 1")).count() == COUNT
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        pushed = read(spark, data, pushFilters="true")
        pushed = pushed.where("token < 10 and queue = 1 and key = binary('k3')")
        assert [bytes(r.value) for r in pushed.collect()] == [b"v2003"]
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def _drain(frame: Any, checkpoint: Path, out: Path) -> Any:
    query = (
        frame.selectExpr("cast(value as string) v", "queue", "token")
        .writeStream.format("parquet")
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start(str(out))
    )
    assert query.awaitTermination(60)
    return query


def test_a_stream_goes_on_from_its_checkpoint(spark: Any, tmp_path: Path) -> None:
    append(tmp_path, "orders", 0, records(1000))

    def run() -> Any:
        frame = (
            spark.readStream.format("tidecast")
            .option("dataDir", str(tmp_path))
            .option("topic", "orders")
            .option("startingOffsets", "earliest")
            .option("maxRecordsPerTrigger", "600")
            .load()
        )
        return _drain(frame, tmp_path / "ck", tmp_path / "out")

    sizes = [p["numInputRows"] for p in run().recentProgress if p["numInputRows"]]
    assert sizes == [600, 400]
    append(tmp_path, "orders", 0, records(50, 1000))
    append(tmp_path, "orders", 1, records(50, 2000))
    sizes = [p["numInputRows"] for p in run().recentProgress if p["numInputRows"]]
    assert sizes == [100]
    out = spark.read.parquet(str(tmp_path / "out"))
    found = sorted(int(r.v[1:]) for r in out.collect())
    assert found == [*range(1050), *range(2000, 2050)]


def test_errors_come_from_the_driver_and_say_what_is_allowed(
    spark: Any, data: Path, tmp_path: Path
) -> None:
    with pytest.raises(
        Exception, match=r"option topic: 'nope': no durable topic in .*known: orders"
    ):
        read(spark, data, topic="nope").count()
    with pytest.raises(Exception, match="option mode: 'x': allowed: failfast, skip"):
        read(spark, data, mode="x").count()
    append(tmp_path, "orders", 0, records(1000))
    first = segments(tmp_path, "orders")[0]
    damage(first, 1000)
    with pytest.raises(Exception, match=rf"orders/0: token 0: {first} at 64: its checksum is"):
        read(spark, tmp_path).count()
    assert read(spark, tmp_path, mode="skip").count() == 950


def test_a_session_of_ones_own_finds_the_source_by_name() -> None:
    import pyspark_tidecast
    from tidecast_spark.source import TidecastDataSource

    assert pyspark_tidecast.DefaultSource is TidecastDataSource
