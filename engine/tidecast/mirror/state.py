"""A mirror's state in a file: its start, and the placing of records.

Positions are in the log of the topic, as marks. The log cannot have the rest, which is in the file:
the offset that a source began at, the counts of queues by which records were placed, and up to
where all records are durable, which distinguishes a topic that was recreated from a topic that
never had a record.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import TypeVar

import msgspec

from tidecast.disk import write_atomically
from tidecast.errors import ConfigError, Conflict
from tidecast.kafka.storing.notes import Mark
from tidecast.mirror.settings import NAME

T = TypeVar("T", bound=msgspec.Struct)


class Saved(msgspec.Struct, kw_only=True):
    """See module. ``starts``, ``durable``: by queue of the source."""

    source: str
    topic: str
    place: str
    """``queue`` or ``key``: how records were placed, with ``queues`` queues of the topic."""
    queues: int
    starts: dict[int, int]
    durable: dict[int, int]


class Stored(msgspec.Struct, kw_only=True):
    """Of a mirror to Kafka: its last writer (-1: none yet), and a mark of each queue."""

    topic: str
    target: str
    """The topic on Kafka."""
    producer: int
    epoch: int
    marks: list[Mark]


class StateFile:
    """The file of one mirror. Held by one process. A context manager."""

    def __init__(self, data_dir: Path, name: str, folder: str = "mirrors") -> None:
        """Raises ConfigError, Conflict."""
        if not NAME.fullmatch(name):
            raise ConfigError(
                f"name: {name!r}: allowed are 1 to 100 letters, digits and any of . _ -"
            )
        home = data_dir / folder
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.path, self.name = home / f"{name}.json", name
        self._lock = os.open(home / f".{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise Conflict(f"mirror {name}: it runs already on {data_dir}") from None

    def __enter__(self) -> StateFile:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._lock)

    def check(self, source: str, target: str, wanted: tuple[str, str]) -> None:
        """Raise ConfigError unless the saved ``source`` and ``target`` are those of this mirror."""
        if (source, target) != wanted:
            raise ConfigError(
                f"name: {self.name}: this mirror copies {source} to {target}: give the new one "
                "another name"
            )

    def load(self) -> Saved | None:
        """The saved state. Raises ConfigError when the file is damaged."""
        return self._load(Saved)

    def load_stored(self) -> Stored | None:
        """The saved state of a mirror to Kafka. Raises ConfigError when the file is damaged."""
        return self._load(Stored)

    def _load(self, form: type[T]) -> T | None:
        try:
            return msgspec.json.decode(self.path.read_bytes(), type=form)
        except FileNotFoundError:
            return None
        except msgspec.MsgspecError as problem:
            raise ConfigError(f"{self.path}: {problem}: delete it to begin again") from None

    def save(self, saved: Saved | Stored) -> None:
        """Replace the file, durably."""
        write_atomically(self.path, msgspec.json.encode(saved))
