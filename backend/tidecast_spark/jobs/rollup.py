"""Rollup: telemetry to aggregates by minute and hour, by topic, queue, subscription and node.

A stream with a watermark keeps the minutes that may still change; each trigger writes the changed
minutes. Minutes go to Parquet as they are (the newest batch counts), hours are merged from minutes:
the lag of each minute is kept as a KLL sketch, large enough to be exact up to `SKETCH_K` samples.
Both go to Postgres by upsert, in one transaction with the row ``(query, batch)`` in
``rollup_applied``: a batch that Spark repeats changes nothing.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidecast_spark.jobs import rollup_store
from tidecast_spark.jobs.progress import progress_bar
from tidecast_spark.options import Positions, Where, source_options
from tidecast_spark.planning import Planner
from tidecast_spark.telemetry import COUNTS, DIMENSIONS, GAUGES, TELEMETRY_TOPIC, TIME
from tidecast_spark.telemetry_source import TelemetrySource

SKETCH_K = 4096
WATERMARK = "10 minutes"
TRIGGER_ROWS = 5_000_000
NUMBER_MAX = 10**15
_NUMBERS = ", ".join((*COUNTS, *GAUGES))
SOUND = " and ".join(
    [
        "at is not null and topic is not null and node is not null",
        "(queue is null or queue between 0 and 65535)",
        "instr(concat(node, topic, coalesce(subscription, '')), char(0)) = 0",
        f"coalesce(least({_NUMBERS}), 0) >= 0 and coalesce(greatest({_NUMBERS}), 0) < {NUMBER_MAX}",
    ]
)
"""Samples that count: one that is not must not stop the job, here or in Postgres."""
SUMS = tuple(COUNTS)
DUE = "if(subscription is null, messages_in, messages_due)"
QUANTILES = {"lag_p50": 0.5, "lag_p95": 0.95, "lag_p99": 0.99}


@dataclass(frozen=True)
class RollupReport:
    """The figures of a rollup run. ``late``: samples left out, older than the watermark."""

    batches: int
    rows: int
    """Samples read."""
    late: int
    malformed: int

    @property
    def errors(self) -> int:
        """Samples that are in no rollup."""
        return self.late + self.malformed


def minutes(frame: Any) -> Any:
    """Aggregates by minute of `samples`; sums, extremes and the sketch of the lag."""
    from pyspark.sql import functions as f

    window = f.window("at", "1 minute")
    grouped = frame.groupBy(window.alias("w"), *DIMENSIONS)
    found = grouped.agg(
        f.count("*").alias("samples"),
        *(f.expr(f"coalesce(sum({name}), 0)").alias(name) for name in SUMS),
        f.expr("max(lag)").alias("lag_max"),
        f.expr("max(lag_ms)").alias("lag_ms_max"),
        f.expr("max_by(lag, if(lag is null, null, at))").alias("lag_last"),
        f.expr(f"kll_sketch_agg_bigint(lag, {SKETCH_K})").alias("lag_sketch"),
        f.expr("coalesce(sum(cache_bytes), 0)").alias("cache_bytes_sum"),
        f.expr("coalesce(sum(cache_max), 0)").alias("cache_max_sum"),
        f.expr("max(cache_bytes / cache_max)").alias("cache_fill_max"),
    )
    return found.selectExpr("w.start minute", "*").drop("w")


def hours(frame: Any) -> Any:
    """Aggregates by hour of rows by minute."""
    from pyspark.sql import functions as f

    grouped = frame.groupBy(f.expr("date_trunc('HOUR', minute)").alias("hour"), *DIMENSIONS)
    return grouped.agg(
        f.sum("samples").alias("samples"),
        *(f.sum(name).alias(name) for name in SUMS),
        f.max("lag_max").alias("lag_max"),
        f.max("lag_ms_max").alias("lag_ms_max"),
        f.expr("max_by(lag_last, if(lag_last is null, null, minute))").alias("lag_last"),
        f.expr(f"kll_merge_agg_bigint(lag_sketch, {SKETCH_K})").alias("lag_sketch"),
        f.sum("cache_bytes_sum").alias("cache_bytes_sum"),
        f.sum("cache_max_sum").alias("cache_max_sum"),
        f.max("cache_fill_max").alias("cache_fill_max"),
    )


def derived(frame: Any) -> Any:
    """Add values derived from the sums: percentiles, ratios, rates, time to drain.

    Rates are over the time that the samples cover, so a minute that has just begun is right too.
    """
    quantiles = [
        f"if(kll_sketch_get_n_bigint(lag_sketch) = 0, null, "
        f"kll_sketch_get_quantile_bigint(lag_sketch, {q}D)) {name}"
        for name, q in QUANTILES.items()
    ]
    return frame.selectExpr(
        "*",
        *quantiles,
        "try_divide(resent, packets) retransmit_ratio",
        "try_divide(cache_bytes_sum, cache_max_sum) cache_fill",
        "try_divide(messages_in * 1000D, interval_ms) in_per_s",
        "try_divide(messages_out * 1000D, interval_ms) out_per_s",
        f"if(lag_last = 0, 0D, if(messages_out > {DUE}, "
        f"lag_last * (interval_ms / 1000D) / (messages_out - {DUE}), null)) drain_s",
    )


def rollup(
    spark: Any,
    data_dir: Path,
    out: Path,
    *,
    topic: str = TELEMETRY_TOPIC,
    postgres: str = "",
    watermark: str = WATERMARK,
    trigger_rows: int = TRIGGER_ROWS,
    again: bool = False,
) -> RollupReport:
    """Roll up new samples since the last run. Raises TidecastError.

    ``postgres``: a URL; empty: Parquet only. ``again``: from the beginning, as `backfill` does.
    """
    from pyspark.sql import functions as f

    checkpoint = out / "_checkpoint"
    if again:
        shutil.rmtree(out, ignore_errors=True)
    store = rollup_store.RollupStore(out, postgres)
    store.prepare()
    spark.dataSource.register(TelemetrySource)
    source = (
        spark.readStream.format("tidecast_telemetry")
        .option("dataDir", str(data_dir))
        .option("topic", topic)
        .option("startingOffsets", "earliest")
        .option("maxRecordsPerTrigger", str(trigger_rows))
        .load()
    )
    parsed = source.selectExpr("*", f"timestamp_micros({TIME}) at").selectExpr(
        "*", f"{SOUND} sound"
    )
    watched = parsed.observe("telemetry", f.expr("count(*) n"), f.expr("count_if(sound) ok"))
    frame = minutes(watched.where("sound").withWatermark("at", watermark))
    with progress_bar("rollup", _waiting(data_dir, topic, checkpoint)) as bar:
        rows_done = 0

        def write(rows: Any, batch: int) -> None:
            nonlocal rows_done
            store.write(rows, batch, query.id)
            rows_done += trigger_rows
            bar.say(f"rollup: batch {batch}")
            bar.reach(rows_done)

        stream = frame.writeStream.outputMode("update").foreachBatch(write)
        query = (
            stream.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
        )
        query.awaitTermination()
    return _report(query)


def _waiting(data_dir: Path, topic: str, checkpoint: Path) -> int:
    """Samples that no run has read yet, by the newest offsets in the checkpoint."""
    options = {"dataDir": str(data_dir), "topic": topic}
    planner = Planner(source_options(options, streaming=False))
    found = [p for p in (checkpoint / "offsets").glob("[0-9]*") if p.name.isdecimal()]
    start: Positions = {}
    if found:
        newest = max(found, key=lambda path: int(path.name))
        start = json.loads(newest.read_text().splitlines()[-1])
    earliest = planner.at("startingOffsets", Where("earliest"))
    return sum(
        token - max(earliest[topic][queue], start.get(topic, {}).get(queue, 0))
        for topic, queues in planner.ends().items()
        for queue, token in queues.items()
    )


def _report(query: Any) -> RollupReport:
    read = late = malformed = 0
    batches = set()
    for one in query.recentProgress:
        if one["numInputRows"]:
            batches.add(one["batchId"])
        read += one["numInputRows"]
        late += sum(s["numRowsDroppedByWatermark"] for s in one["stateOperators"])
        if one["numInputRows"] and "telemetry" in one["observedMetrics"]:
            seen = one["observedMetrics"]["telemetry"]
            malformed += seen["n"] - seen["ok"]
    return RollupReport(len(batches), read, late, malformed)
