"""`commit=partitions`: each task publishes its partition itself, once for each batch (ADR 0062).

    <stagingDir>/<query>/partitions/<partition>/<batch>.json      the claim of a batch: made once
    <stagingDir>/<query>/partitions/<partition>/<batch>.durable   all of it is in the log

The first attempt that has staged its rows links a claim: it names the file whose rows count, and
their sequences. Each attempt publishes the file that the claim names, in the producer session of
(query, partition). So whichever attempts die, the log gets the same rows with the same sequences,
and drops repeated ones. The sequences of a claim follow those of the claim before: a partition has
one producer for all batches.

An attempt that was given up may continue for long. It cannot make a claim again for a batch that is
over: the state of the query is written before claims are removed, and read behind each new claim.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from tidecast.disk import sync_directory
from tidecast.errors import Conflict
from tidecast_spark.staging import Manifest, Staged, StagingArea, write_durably

_FOLDER = "partitions"
ONCE = "once-"
"""Prefix of the names of writes that are not repeated."""
_KEPT_S = 86_400.0
"""For how long the state of such a write is kept: attempts that were given up end before."""


class BatchOver(Exception):
    """The batch was committed before: nothing of it is to be published."""


@dataclass
class Claim:
    """The file that counts for a partition of a batch, and its sequences by topic.

    ``next_seq``: behind this batch, of all topics that the partition ever had.
    """

    name: str
    rows: dict[str, int]
    digest: int
    first_seq: dict[str, int]
    next_seq: dict[str, int]

    def manifest(self, partition: int) -> Manifest:
        """The manifest for `publish_batch`."""
        return Manifest([self.name], self.rows, self.first_seq, partition)


class Claims:
    """The claims of one partition of a query."""

    def __init__(self, area: StagingArea, partition: int) -> None:
        self._area = area
        self.partition = partition
        self.directory = area.directory / _FOLDER / f"{partition:06d}"

    def _path(self, batch: int) -> Path:
        return self.directory / f"{batch:012d}.json"

    def _marker(self, batch: int) -> Path:
        return self.directory / f"{batch:012d}.durable"

    def has(self, batch: int) -> bool:
        """A claim of this batch is there."""
        return self._path(batch).exists()

    def durable(self, batch: int) -> bool:
        """All rows of this batch are in the log."""
        return self._marker(batch).exists() or self._area.state().batch >= batch

    def note_durable(self, batch: int) -> None:
        """See `durable`. Not synced: without it rows are sent again, and dropped."""
        with contextlib.suppress(FileNotFoundError):  # the batch is over
            self._marker(batch).touch()

    def _read(self, batch: int) -> Claim | None:
        try:
            return Claim(**json.loads(self._path(batch).read_text()))
        except FileNotFoundError:
            return None

    def _newest(self) -> tuple[int, Claim] | None:
        """The newest claim, of whatever batch. It is never removed; older ones may be meanwhile."""
        while found := _batches(self.directory):
            claim = self._read(found[-1])
            if claim is not None:
                return found[-1], claim
        return None

    def take(self, batch: int, staged: Staged, due: Callable[[str], int]) -> Claim:
        """The claim of a batch: the one there is, or a new one of this file.

        ``due``: next sequence of a topic, of which no claim is known. Raises BatchOver.
        """
        if self._area.state().batch >= batch:
            raise BatchOver
        claim = self._read(batch) or self._make(batch, staged, due)
        if self._area.state().batch >= batch:  # the claim that it should have met may be gone
            if claim.name == staged.name:
                self._path(batch).unlink(missing_ok=True)
            raise BatchOver
        return claim

    def _make(self, batch: int, staged: Staged, due: Callable[[str], int]) -> Claim:
        newest = self._newest()
        if newest is not None and newest[0] > batch:
            raise BatchOver
        if newest is not None and newest[0] == batch:
            return newest[1]
        known = {} if newest is None else newest[1].next_seq
        first_seq = {topic: known[topic] if topic in known else due(topic) for topic in staged.rows}
        next_seq = known | {topic: first_seq[topic] + n for topic, n in staged.rows.items()}
        made = Claim(staged.name, staged.rows, staged.digest, first_seq, next_seq)
        self.directory.mkdir(parents=True, exist_ok=True)
        draft = self.directory / f".{uuid.uuid4().hex}"
        write_durably(draft, asdict(made))
        try:
            os.link(draft, self._path(batch))  # fails if it is there: one attempt makes it
        except FileExistsError:
            return self._read(batch) or made  # gone: over, as `take` sees
        finally:
            draft.unlink()
        sync_directory(self.directory)
        return made

    def forget_before(self, batch: int) -> None:
        """Remove claims older than the newest claim. The query's state has this batch."""
        old = [each for each in _batches(self.directory) if each <= batch][:-1]
        for each in old:
            self._marker(each).unlink(missing_ok=True)
            self._path(each).unlink(missing_ok=True)


def _batches(directory: Path) -> list[int]:
    """The batches that a partition has claims of."""
    return sorted(int(path.stem) for path in directory.glob("[0-9]*.json"))


def partitions_of(area: StagingArea) -> list[Claims]:
    """All partitions that the query ever had."""
    folders = (area.directory / _FOLDER).glob("[0-9]*")
    return [Claims(area, int(path.name)) for path in sorted(folders)]


def claimed(area: StagingArea, batch: int) -> set[int]:
    """The partitions of a batch that were claimed."""
    return {each.partition for each in partitions_of(area) if each.has(batch)}


def check_cut(area: StagingArea, batch: int, partitions: set[int]) -> None:
    """Raise Conflict if an earlier attempt cut a batch into other partitions."""
    others = claimed(area, batch) - partitions
    if others:
        raise recut(
            area,
            batch,
            f"partitions {sorted(others)} were published before, and are "
            f"not among the {len(partitions)} of this attempt",
        )


def recut(area: StagingArea, batch: int, what: str) -> Conflict:
    """The error for a batch that Spark repeated with other rows in its partitions."""
    return Conflict(
        f"option commit: partitions: batch {batch} of query {area.directory.name}: {what}. Rows "
        "may be lost or stored twice. Repeat the batch with the same number of tasks "
        "(minPartitions, spark.sql.shuffle.partitions, spark.sql.adaptive.enabled=false), use "
        "otherRows=keep if only values differ, or commit=driver for a query whose batches differ"
    )


def finish(area: StagingArea, batch: int) -> None:
    """The batch is durable: note it, then forget its files and older claims."""
    area.done(batch, Manifest([], {}, {}))
    for each in partitions_of(area):
        each.forget_before(batch)


def sweep(staging: Path, now_s: float) -> None:
    """Remove writes that are over for a day, and cannot be repeated. Others keep their state."""
    for state in staging.glob(f"{ONCE}*/state.json"):
        with contextlib.suppress(FileNotFoundError):  # another driver sweeps, too
            if state.stat().st_mtime < now_s - _KEPT_S:
                shutil.rmtree(state.parent, ignore_errors=True)
