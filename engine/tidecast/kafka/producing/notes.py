"""Notes of a Kafka topic's writer on disk, so that the next one continues where it ended.

The file lies beside the logs of the topic's queues. The writer before is known by its producer id
and epoch; a mark of each queue says from which place on its batches are counted.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import msgspec

from tidecast.disk import write_atomically
from tidecast.errors import StorageError
from tidecast.log.files import open_json, seal_json

FILE_NAME = "kafka.json"


class Mark(NamedTuple):
    """The record at ``token`` of the log gets ``sequence``, and an offset from ``offset`` on."""

    token: int
    sequence: int
    offset: int


class Notes(msgspec.Struct, frozen=True, kw_only=True):
    """The last writer of a topic of the cluster, and a mark of each queue."""

    topic: str
    producer: int
    epoch: int
    queues: list[Mark]
    log: int = 0
    """Id of the log; 0: of versions that gave it none."""


def load_notes(directory: Path) -> Notes | None:
    """The notes of the writer before; None: there was none. Raises StorageError."""
    path = directory / FILE_NAME
    try:
        return msgspec.json.decode(open_json(path.read_bytes()), type=Notes)
    except FileNotFoundError:
        return None
    except OSError as problem:
        raise StorageError(f"{path}: {problem.strerror}", problem.errno or 0) from None
    except (ValueError, msgspec.DecodeError) as problem:
        raise StorageError(f"{path}: {problem}. {remedy(path)}") from None


def remedy(path: Path) -> str:
    """The remedy for notes that cannot be used."""
    return (
        f"Move {path.name} away to write the log from its oldest record on: records that the "
        "cluster has already are then there twice"
    )


def save_notes(directory: Path, notes: Notes) -> None:
    """Keep them, on the device. Raises StorageError; then the ones before are there."""
    path = directory / FILE_NAME
    try:
        write_atomically(path, seal_json(msgspec.json.encode(notes)))
    except OSError as problem:
        raise StorageError(f"{path}: {problem.strerror}", problem.errno or 0) from None
