"""Files of the sink between a task and the engine: staged data, manifests, the state of a query.

    <stagingDir>/<query>/state.json               last batch that is durable, next sequence by topic
    <stagingDir>/<query>/<batch>/manifest.json    the files of the batch: written once, by commit
    <stagingDir>/<query>/<batch>/<partition>-<attempt>.arrow

A task writes its rows into a file of its own. The driver's commit names the files that count in a
manifest, and only then publishes them. So whatever is killed, a batch is published from the same
files in the same order: a retried or speculative task, or one that cuts the batch otherwise or
meets its rows in another order, leaves files that no manifest names. The producer's sequence
continues from batch to batch, so that a batch published in part resumes where the log ends.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from tidecast.disk import sync_directory

STAGED_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.binary()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
    ]
)


_DIGEST_MASK = (1 << 63) - 1


@dataclass(frozen=True)
class Staged:
    """One file of one attempt of a task."""

    query: str
    batch: int
    partition: int
    name: str
    rows: dict[str, int]
    """Rows by topic."""
    digest: int = 0
    """Of all rows, in whatever order; 0: none was asked for."""
    published: bool = False
    """The task has published its partition; see `tidecast_spark.claims`."""


@dataclass
class Manifest:
    """The files of a batch, and each topic's sequence of its first row.

    ``partition``: that its task publishes, in a producer session of its own; None: the driver
    publishes all.
    """

    files: list[str]
    rows: dict[str, int]
    first_seq: dict[str, int]
    partition: int | None = None


@dataclass
class QueryState:
    """How far a query is: the last batch that is durable, and the next sequence of each topic."""

    batch: int = -1
    next_seq: dict[str, int] = field(default_factory=dict)


def manifest_fields(manifest: Manifest) -> dict[str, Any]:
    """The fields of its file. Earlier versions read those of a driver's manifest, too."""
    return {name: value for name, value in vars(manifest).items() if value is not None}


def read_manifest(fields: Mapping[str, Any]) -> Manifest:
    """A manifest of the fields of its file. Older versions wrote ``lane``: `#3`, or empty."""
    found = dict(fields)
    lane = found.pop("lane", "")
    if lane:
        found["partition"] = int(lane.removeprefix("#"))
    return Manifest(**found)


def write_durably(path: Path, value: Any) -> None:
    """Write JSON whole or not at all, and wait for the device."""
    fresh = path.with_name(f"{path.name}.{os.getpid()}.new")
    with fresh.open("w") as file:
        json.dump(value, file)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    sync_directory(path.parent)


class StagingArea:
    """The directory of one query."""

    def __init__(self, root: Path, query: str) -> None:
        self.directory = root / query

    def batch_dir(self, batch: int) -> Path:
        """Where the files of a batch lie."""
        return self.directory / f"{batch:012d}"

    def stage(
        self,
        batch: int,
        partition: int,
        attempt: int,
        tables: Iterator[pa.RecordBatch],
        digest_of: Callable[[pa.RecordBatch], int] | None = None,
    ) -> Staged:
        """Write the rows of a task's attempt, in `STAGED_SCHEMA`, and wait for the device."""
        directory = self.batch_dir(batch)
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / f"{partition:06d}-{attempt:010d}.arrow"
        rows: dict[str, int] = {}
        digest = 0
        with path.open("wb") as file:
            with pa.ipc.new_stream(file, STAGED_SCHEMA) as writer:
                for table in tables:
                    for one in table.column(0).value_counts().to_pylist():
                        rows[one["values"]] = rows.get(one["values"], 0) + one["counts"]
                    writer.write_batch(table)
                    if digest_of is not None:
                        digest = (digest + digest_of(table)) & _DIGEST_MASK
            file.flush()
            os.fsync(file.fileno())
        return Staged(self.directory.name, batch, partition, path.name, rows, digest)

    def read(self, batch: int, name: str) -> Iterator[pa.RecordBatch]:
        """The rows of a staged file."""
        with pa.memory_map(str(self.batch_dir(batch) / name)) as file:
            yield from pa.ipc.open_stream(file)

    def state(self) -> QueryState:
        """The state that the last publishing left."""
        try:
            found = json.loads((self.directory / "state.json").read_text())
        except FileNotFoundError:
            return QueryState()
        return QueryState(found["batch"], found["next_seq"])

    def manifest(self, batch: int) -> Manifest | None:
        """The manifest of a batch, if it was committed."""
        try:
            found = json.loads((self.batch_dir(batch) / "manifest.json").read_text())
        except FileNotFoundError:
            return None
        return read_manifest(found)

    def commit(
        self, batch: int, staged: Sequence[Staged], due: Callable[[str], int] = lambda _: 1
    ) -> Manifest:
        """The manifest of a batch: the one there is, or a new one of these files.

        ``due``: next sequence of a topic, for a later batch of a query whose state is gone.
        """
        found = self.manifest(batch)
        if found is not None:
            return found
        state = self.state()
        is_lost = batch > 0 and state.batch < 0
        rows: dict[str, int] = {}
        for one in staged:
            for topic, n in one.rows.items():
                rows[topic] = rows.get(topic, 0) + n
        made = Manifest(
            files=[one.name for one in sorted(staged, key=lambda one: one.partition)],
            rows=rows,
            first_seq={
                topic: due(topic) if is_lost else state.next_seq.get(topic, 1) for topic in rows
            },
        )
        self.batch_dir(batch).mkdir(parents=True, exist_ok=True)
        write_durably(self.batch_dir(batch) / "manifest.json", manifest_fields(made))
        return made

    def done(self, batch: int, manifest: Manifest) -> None:
        """Note that a batch is durable in its topics, then forget its files."""
        state = self.state()
        for topic, n in manifest.rows.items():
            state.next_seq[topic] = manifest.first_seq[topic] + n
        state.batch = batch
        write_durably(self.directory / "state.json", vars(state))
        self.forget(batch)

    def remove(self) -> None:
        """Remove all there is of the query: a write that is over and has no name to come again."""
        shutil.rmtree(self.directory, ignore_errors=True)

    def forget(self, batch: int) -> None:
        """Remove the files of a batch."""
        shutil.rmtree(self.batch_dir(batch), ignore_errors=True)

    def drop(self, staged: Sequence[Staged | None]) -> None:
        """Remove the files of an attempt that was given up, unless a manifest names them."""
        for one in staged:
            if one is None:
                continue
            manifest = self.manifest(one.batch)
            if manifest is None or one.name not in manifest.files:
                (self.batch_dir(one.batch) / one.name).unlink(missing_ok=True)
