"""Jobs that archive to an object store: `python -m tests.support.object_archive DATA URL SETTINGS`.

Prints a line of JSON: rows and files after a job that died behind its commit, and the next job.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tidecast.errors import Conflict
from tidecast_spark import session
from tidecast_spark.jobs import archive as job
from tidecast_spark.jobs.archive_log import ArchiveLog, Commit
from tidecast_spark.jobs.archive_store import HadoopStore


class Died(Exception):
    """The job was killed here."""


def main(data_dir: Path, url: str, settings: dict[str, str]) -> None:
    """See module."""
    spark = session("objects", master="local[2]", config=settings)
    first = job.archive(spark, data_dir, url, topic="orders", step_rows=200, compact=False)
    real = ArchiveLog.complete

    def dies(*_: Any) -> None:
        raise Died

    log = ArchiveLog(url, spark)
    snapshot = log.open()
    newer = Commit(snapshot.version + 1, snapshot.positions)
    ArchiveLog.complete = dies  # type: ignore[method-assign, assignment]
    try:
        log.commit(newer)
    except Died:
        ArchiveLog.complete = real  # type: ignore[method-assign]
    races = []
    for value in (newer, Commit(snapshot.version + 1, {"other": {"0": 1}})):
        store = HadoopStore(spark, url)
        try:
            # The name was free when the other job looked: the object store decides.
            store._write_if_new(f"_tidecast/{newer.version:012d}.json", bytearray(b"{}"))
        except FileExistsError:
            races.append("taken")
        try:
            ArchiveLog(url, spark).commit(value)
        except Conflict:
            races.append("conflict")
    job.SMALL_FILES_MIN = 2  # type: ignore[misc]
    last = job.archive(spark, data_dir, url, topic="orders")
    log = ArchiveLog(url, spark)
    rows = log.read(spark, log.open()).select("queue", "token").collect()
    found = {
        "rows": [first.rows, last.rows],
        "steps": first.steps,
        "races": races,
        "compacted": last.compacted_files,
        "tokens": sorted([row.queue, row.token] for row in rows),
        "plain": spark.read.parquet(url).count(),
        "files": sorted(log.store.files("")),
    }
    sys.stdout.write(json.dumps(found) + "\n")
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3]))
