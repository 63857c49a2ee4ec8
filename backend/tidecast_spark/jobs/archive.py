"""Archive: topics to Parquet by topic and day, step by step, exactly once; then compaction."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidecast.errors import ConfigError, StorageError
from tidecast_spark.jobs.archive_hold import Hold, holding
from tidecast_spark.jobs.archive_log import ArchiveLog, Commit, Snapshot
from tidecast_spark.jobs.archive_store import is_url
from tidecast_spark.jobs.progress import progress_bar
from tidecast_spark.options import Positions, source_options
from tidecast_spark.planning import Planner, check_forward, merge_max

STEP_ROWS = 20_000_000
SMALL_FILE_BYTES = 32 << 20
SMALL_FILES_MIN = 4
BAD = "_tidecast/bad"
ORDER = ("topic", "date", "queue", "token")


@dataclass(frozen=True)
class ArchiveReport:
    """The figures of an archive run."""

    steps: int
    rows: int
    bytes: int
    files: int
    compacted_files: int
    positions: Positions
    corrupt_batches: int = 0
    rows_lost: int = 0
    """Of corrupt batches that were left out."""

    @property
    def errors(self) -> int:
        """Rows that are not in the archive and never will be."""
        return self.rows_lost


def _source(data_dir: Path, topic: str, pattern: str) -> dict[str, str]:
    which = {"topicPattern": pattern} if pattern else {"topic": topic}
    return {"dataDir": str(data_dir), **which, "includeHeaders": "raw"}


def _count(start: Positions, end: Positions) -> int:
    return sum(
        token - start.get(topic, {}).get(queue, 0)
        for topic, queues in end.items()
        for queue, token in queues.items()
    )


def archive(
    spark: Any,
    data_dir: Path,
    out: Path | str,
    *,
    topic: str = "",
    pattern: str = "",
    compression: str = "zstd",
    step_rows: int = STEP_ROWS,
    compact: bool = True,
    allow_loss: bool = False,
    skip_corrupt: bool = False,
    hold: str = "",
    token: str = "",
) -> ArchiveReport:
    """Append new records of the topics since the last run to ``out``. Raises TidecastError.

    Killed at any point, the next run continues from the last commit: rows are there once. ``hold``:
    name of the subscriptions that keep retention from records that are not archived.
    ``skip_corrupt``: leave corrupt batches out; a file for each is in ``out``/_tidecast/bad.
    """
    with holding(data_dir, hold, token) as held:
        return _archive(
            spark,
            data_dir,
            out,
            held,
            topic,
            pattern,
            compression,
            step_rows,
            compact=compact,
            allow_loss=allow_loss,
            skip_corrupt=skip_corrupt,
        )


def _archive(
    spark: Any,
    data_dir: Path,
    out: Path | str,
    held: Hold | None,
    topic: str,
    pattern: str,
    compression: str,
    step_rows: int,
    *,
    compact: bool,
    allow_loss: bool,
    skip_corrupt: bool,
) -> ArchiveReport:
    if skip_corrupt and is_url(out):
        raise ConfigError(
            f"archive: {out}: --skip-corrupt needs an archive in a directory, for its reports on "
            "corrupt batches"
        )
    log = ArchiveLog(out, spark)
    snapshot = log.open()
    log.sweep(time.time())
    given = _source(data_dir, topic, pattern) | {"failOnDataLoss": str(not allow_loss).lower()}
    before = set(log.store.files(BAD))
    if skip_corrupt:
        given |= {"mode": "skip", "badRecordsPath": log.store.place(BAD)}
    options = source_options(given, streaming=False)
    planner = Planner(options)
    earliest = planner.at("startingOffsets", options.starting)
    start = {t: earliest[t] | snapshot.positions.get(t, {}) for t in earliest}
    if allow_loss:
        start = merge_max(start, earliest)
    if held is not None:
        held.move(start)
    target = planner.ends()
    if not allow_loss:
        check_forward(start, target)
    steps = rows = size = 0
    with progress_bar("archive", _count(start, target)) as bar:
        while _count(start, target):
            end = planner.limited(start, target, step_rows)
            commit = _step(spark, log, snapshot, given, start, end, compression)
            bar.advance(commit.rows)
            steps, rows, size = steps + 1, rows + commit.rows, size + commit.bytes
            snapshot, start = log.open(), end
            if held is not None:
                held.move(end)
        compacted = compact_files(spark, log, snapshot, compression) if compact else 0
    snapshot = log.open()
    fresh = sorted(set(log.store.files(BAD)) - before)
    reports = [json.loads(log.store.read(name)) for name in fresh if name.endswith(".json")]
    return ArchiveReport(
        steps,
        rows,
        size,
        len(snapshot.files),
        compacted,
        snapshot.positions,
        len(reports),
        sum(one["tokens_lost"] for one in reports),
    )


def _step(
    spark: Any,
    log: ArchiveLog,
    snapshot: Snapshot,
    given: Mapping[str, str],
    start: Positions,
    end: Positions,
    compression: str,
) -> Commit:
    """Archive the rows between two positions in one commit."""
    version = snapshot.version + 1
    frame = (
        spark.read.format("tidecast")
        .options(**given)
        .option("startingOffsets", json.dumps(start))
        .option("endingOffsets", json.dumps(end))
        .load()
        .selectExpr("*", "to_date(timestamp) date")
    )
    with log.staging() as staging:
        _write(frame, log.store.place(staging), compression)
        added, size = log.staged_files(staging, version)
        rows = _rows_in(spark, log, added)
    commit = Commit(version, {**snapshot.positions, **end}, added, [], rows, size)
    log.commit(commit)
    return commit


def _write(frame: Any, staging: str, compression: str) -> None:
    # Sorted, so that the files keep each queue's order; Spark's own sort by folder does not.
    (
        frame.sortWithinPartitions(*ORDER)
        .write.partitionBy("topic", "date")
        .option("compression", compression)
        .parquet(staging)
    )


def _rows_in(spark: Any, log: ArchiveLog, added: Mapping[str, str]) -> int:
    """Rows of files, by their footers."""
    import pyarrow.parquet as pq

    places = [log.store.place(staged) for staged in added.values()]
    if isinstance(log.directory, Path):
        return sum(pq.read_metadata(place).num_rows for place in places)
    return int(spark.read.parquet(*places).count()) if places else 0


def compact_files(spark: Any, log: ArchiveLog, snapshot: Snapshot, compression: str) -> int:
    """Make one file of the small ones of each folder; how many were replaced."""
    folders: dict[str, list[str]] = {}
    sizes = log.store.files("")
    gone = sorted(snapshot.files.keys() - sizes.keys())
    if gone:
        raise StorageError(
            f"archive {log.directory}: {len(gone)} files of its log are missing, such as "
            f"{gone[0]}: bring them back"
        )
    for name in snapshot.files:
        if sizes[name] < SMALL_FILE_BYTES:
            folders.setdefault(str(Path(name).parent), []).append(name)
    small = [n for names in folders.values() if len(names) >= SMALL_FILES_MIN for n in names]
    if not small:
        return 0
    version = snapshot.version + 1
    frame = spark.read.option("basePath", str(log.directory)).parquet(
        *(log.store.place(name) for name in small)
    )
    with log.staging() as staging:
        _write(frame.repartition("topic", "date"), log.store.place(staging), compression)
        added, size = log.staged_files(staging, version)
    log.commit(Commit(version, snapshot.positions, added, small, 0, size))
    return len(small)
