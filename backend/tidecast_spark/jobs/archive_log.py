"""An archive and its log: which Parquet files count, how far each queue is archived.

    <archive>/_tidecast/000000000042.json     commit 42: files added and removed, positions behind
    <archive>/_staging/<id>/...               files of a job before its commit
    <archive>/topic=orders/date=2026-11-21/000000000042-00003.parquet

A commit is one file, made once: files and positions change together or not at all. Afterwards its
files are moved from the staging directory to their places, and removed files are deleted; if the
job dies in between, the next job does it. So plain Parquet readers see committed rows only; right
after a compaction was killed they may miss or repeat rows that `ArchiveLog.files` gives exactly.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tidecast.errors import ConfigError, Conflict, StorageError
from tidecast_spark.jobs.archive_store import store_of
from tidecast_spark.options import Positions

_DIGITS = 12
STAGED_S = 86_400.0
"""How long the files of a job that was killed stay."""
COMMITS, _STAGING = "_tidecast", "_staging"
_COMMIT = re.compile(rf"{COMMITS}/\d{{{_DIGITS}}}\.json")


@dataclass
class Commit:
    """One step of an archive. ``added``: final name -> staged name, relative to the archive."""

    version: int
    positions: Positions
    added: dict[str, str] = field(default_factory=dict)
    removed: list[str] = field(default_factory=list)
    rows: int = 0
    bytes: int = 0


@dataclass
class Snapshot:
    """The contents of an archive after a commit."""

    version: int = -1
    positions: Positions = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    """Final name -> staged name, of every file that counts."""
    rows: int = 0


class ArchiveLog:
    """The log of one archive: in a directory, or at a URL, for which it needs a session."""

    def __init__(self, place: Path | str, spark: Any = None) -> None:
        self.store = store_of(place, spark)
        self.directory = self.store.root

    def open(self) -> Snapshot:
        """The newest state; completes the last commit of a killed job."""
        snapshot = Snapshot()
        found = [name for name in self.store.files(COMMITS) if _COMMIT.fullmatch(name)]
        last = None
        for name in found:
            last = Commit(**json.loads(self.store.read(name)))
            snapshot.files |= last.added
            for old in last.removed:
                snapshot.files.pop(old, None)
            snapshot.positions = last.positions
            snapshot.version, snapshot.rows = last.version, snapshot.rows + last.rows
        if last is not None:
            self.complete(last)
        return snapshot

    @contextmanager
    def staging(self) -> Iterator[str]:
        """A new folder to write a commit's files to; it is removed when that fails."""
        name = f"{_STAGING}/{uuid.uuid4().hex}"
        try:
            yield name
        except BaseException:
            self.store.remove(name)
            raise

    def staged_files(self, staging: str, version: int) -> tuple[dict[str, str], int]:
        """Final name -> staged name of the Parquet files a job wrote, and their bytes in all."""
        added, total = {}, 0
        found = {k: n for k, n in self.store.files(staging).items() if k.endswith(".parquet")}
        for n, (name, size) in enumerate(found.items()):
            inside = Path(name).relative_to(staging).parent
            added[str(inside / f"{version:0{_DIGITS}d}-{n:05d}.parquet")] = name
            total += size
            self.store.settle(name)
        return added, total

    def commit(self, commit: Commit) -> None:
        """Make a step durable and visible.

        Raises Conflict when another job was quicker; StorageError: a staged file is gone.
        """
        gone = [staged for staged in commit.added.values() if not self.store.has(staged)]
        if gone:
            raise StorageError(
                f"archive {self.directory}: {gone[0]}: the job wrote this file and it is gone: "
                "run the job again"
            )
        try:
            self.store.create(f"{COMMITS}/{commit.version:0{_DIGITS}d}.json", vars(commit))
        except FileExistsError:
            raise Conflict(
                f"archive {self.directory}: another job has made version {commit.version}: "
                "run this one again"
            ) from None
        self.complete(commit)

    def complete(self, commit: Commit) -> None:
        """Move the files of a commit to their places, delete removed files. Repeatable.

        Raises StorageError: a file is missing.
        """
        for final, staged in commit.added.items():
            self.store.move(staged, final)
        for name in commit.removed:
            self.store.remove(name)
        for folder in {"/".join(staged.split("/")[:2]) for staged in commit.added.values()}:
            self.store.remove(folder)

    def paths(self, snapshot: Snapshot) -> list[str]:
        """Where the files that count lie now."""
        return [self.store.place(final) for final in snapshot.files]

    def read(self, spark: Any, snapshot: Snapshot) -> Any:
        """The rows of a snapshot as a DataFrame."""
        paths = self.paths(snapshot)
        if not paths:
            raise ConfigError(f"archive {self.directory}: holds no rows yet")
        return spark.read.option("basePath", str(self.directory)).parquet(*paths)

    def sweep(self, now_s: float) -> None:
        """Remove staging folders of jobs that were killed: nothing was written there for a day.

        Other jobs may work on this archive: they need theirs. ``now_s``: seconds since 1970.
        """
        for folder in self.store.untouched(_STAGING, now_s - STAGED_S):
            self.store.remove(folder)
