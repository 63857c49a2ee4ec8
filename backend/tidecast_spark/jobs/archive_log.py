"""An archive directory and its log: which Parquet files count, how far each queue is archived.

    <archive>/_tidecast/000000000042.json     commit 42: files added and removed, positions behind
    <archive>/_staging/<id>/...               what a job writes before its commit
    <archive>/topic=orders/date=2026-11-21/000000000042-00003.parquet

A commit is one file, made once: files and positions change together or not at all. Afterwards its
files are moved from the staging directory to their places, and those it removes are deleted; if the
job dies in between, the next one does it. So plain Parquet readers see committed rows only; right
after a compaction was killed they may miss or repeat rows that `ArchiveLog.files` gives exactly.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tidecast.disk import sync_directory
from tidecast.errors import ConfigError, Conflict
from tidecast_spark.options import Positions
from tidecast_spark.staging import write_durably

_DIGITS = 12


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
    """The log of one archive directory, on a disk that the driver and the tasks share."""

    def __init__(self, directory: Path) -> None:
        if "://" in str(directory) or ":/" in str(directory):
            raise ConfigError(f"archive: {directory}: must be a directory (a mounted disk)")
        self.directory = directory.absolute()
        self.commits = self.directory / "_tidecast"

    def open(self) -> Snapshot:
        """The newest state; finishes what a killed job left of the last commit."""
        snapshot = Snapshot()
        found = sorted(self.commits.glob("[0-9]" * _DIGITS + ".json"))
        last = None
        for path in found:
            last = Commit(**json.loads(path.read_text()))
            snapshot.files |= last.added
            for name in last.removed:
                snapshot.files.pop(name, None)
            snapshot.positions = last.positions
            snapshot.version, snapshot.rows = last.version, snapshot.rows + last.rows
        if last is not None:
            self.complete(last)
        return snapshot

    def staging(self, name: str) -> Path:
        """A directory for a job to write to. What an earlier job left there is removed."""
        directory = self.directory / "_staging" / name
        shutil.rmtree(directory, ignore_errors=True)
        directory.parent.mkdir(parents=True, exist_ok=True)
        return directory

    def staged_files(self, staging: Path, version: int) -> tuple[dict[str, str], int]:
        """Final name -> staged name of the Parquet files a job wrote, and their bytes in all."""
        added, size = {}, 0
        for n, path in enumerate(sorted(staging.rglob("*.parquet"))):
            inside = path.relative_to(staging).parent
            final = inside / f"{version:0{_DIGITS}d}-{n:05d}.parquet"
            added[str(final)] = str(path.relative_to(self.directory))
            size += path.stat().st_size
            _sync(path)
        return added, size

    def commit(self, commit: Commit) -> None:
        """Make a step durable and visible. Raises Conflict when another job was quicker."""
        self.commits.mkdir(parents=True, exist_ok=True)
        path = self.commits / f"{commit.version:0{_DIGITS}d}.json"
        draft = self.commits / f".{os.getpid()}-{commit.version}.json"
        write_durably(draft, vars(commit))
        try:
            os.link(draft, path)  # fails if it is there: only one job makes a version
        except FileExistsError:
            raise Conflict(
                f"archive {self.directory}: another job has made version {commit.version}: "
                "run this one again"
            ) from None
        finally:
            draft.unlink()
        sync_directory(self.commits)
        self.complete(commit)

    def complete(self, commit: Commit) -> None:
        """Move the files of a commit to their places and delete what it removed. Repeatable."""
        for final, staged in commit.added.items():
            source, target = self.directory / staged, self.directory / final
            if source.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                source.replace(target)
        for name in commit.removed:
            (self.directory / name).unlink(missing_ok=True)

    def paths(self, snapshot: Snapshot) -> list[str]:
        """Where the files that count lie now."""
        return [str(self.directory / final) for final in snapshot.files]

    def read(self, spark: Any, snapshot: Snapshot) -> Any:
        """The rows of a snapshot as a DataFrame."""
        paths = self.paths(snapshot)
        if not paths:
            raise ConfigError(f"archive {self.directory}: holds no rows yet")
        return spark.read.option("basePath", str(self.directory)).parquet(*paths)

    def sweep(self) -> None:
        """Remove staging directories; nothing is committed from them any more."""
        shutil.rmtree(self.directory / "_staging", ignore_errors=True)


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
