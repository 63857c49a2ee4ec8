"""Replay: rows of an archive back into a topic, in the order of their keys, at a chosen rate."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidecast.errors import ConfigError
from tidecast_spark.jobs.archive_log import ArchiveLog
from tidecast_spark.jobs.progress import progress_bar, watched
from tidecast_spark.options import parse_time_ns, sink_options, source_options
from tidecast_spark.planning import Planner


@dataclass(frozen=True)
class ReplayReport:
    """The figures of a replay, or of its dry run."""

    rows: int
    bytes: int
    keys: int
    first: str
    last: str
    write_id: str
    dry_run: bool


def replay(
    spark: Any,
    archive: Path | str,
    data_dir: Path,
    *,
    source_topic: str,
    topic: str,
    since: str = "",
    until: str = "",
    where: str = "",
    rate: int = 0,
    write_id: str = "",
    dry_run: bool = False,
    token: str = "",
) -> ReplayReport:
    """Publish archived rows of ``source_topic`` to ``topic``. Raises TidecastError.

    ``rate``: rows a second at most, 0 as fast as it goes. A replay that died resumes when it is run
    again with its ``write_id``; without one, each run publishes again.
    """
    given = {"dataDir": str(data_dir), "topic": topic}
    if not dry_run:
        sink_options(given)  # an error before Spark starts to work
    log = ArchiveLog(archive, spark)
    held = log.open()
    if held.positions and source_topic not in held.positions:
        raise ConfigError(
            f"from: {source_topic!r}: is not in the archive {log.directory}; it holds: "
            f"{', '.join(sorted(held.positions))}"
        )
    frame = log.read(spark, held).where(f"topic = '{source_topic}'")
    frame = _window(frame, since, until)
    if where:
        frame = frame.where(where)
    found = frame.selectExpr(
        "count(*) n",
        "coalesce(sum(length(value)), 0) size",
        "count(distinct key) keys",
        "cast(min(timestamp) as string) first",
        "cast(max(timestamp) as string) last",
    ).collect()[0]
    write_id = write_id or f"replay-{uuid.uuid4().hex[:12]}"
    report = ReplayReport(
        found.n, found.size, found.keys, found.first or "", found.last or "", write_id, dry_run
    )
    if dry_run or not found.n:
        return report
    # A key that moved to another queue moved to one of a higher index: so this is its order.
    ordered = frame.repartition("key").sortWithinPartitions("queue", "token")
    queues = Planner(source_options({"dataDir": str(data_dir), "topic": topic}, streaming=False))
    before = end_of(queues)
    with (
        progress_bar(f"replay into {topic}", found.n) as bar,
        watched(bar, lambda: end_of(queues) - before),
    ):
        (
            ordered.select("key", "value", "headers", "timestamp")
            .write.format("tidecast")
            .mode("append")
            .options(**given)
            .option("writeId", write_id)
            .option("rate", str(rate))
            .option("token", token)
            .option("reservedHeaders", "drop")
            .save()
        )
    return report


def end_of(queues: Planner) -> int:
    """The sum of the ends of all queues: it grows by the number of published records."""
    return sum(token for topic in queues.ends().values() for token in topic.values())


def _window(frame: Any, since: str, until: str) -> Any:
    for name, text, how in (("since", since, ">="), ("until", until, "<")):
        if not text:
            continue
        time_ns = parse_time_ns(text)
        if time_ns is None:
            raise ConfigError(f"{name}: {text!r}: allowed: a time as 2026-01-31T12:00:00Z")
        frame = frame.where(f"timestamp {how} timestamp_micros({time_ns // 1000})")
    return frame
