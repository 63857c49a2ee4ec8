"""Notes of a topic's writer on disk, beside the logs of its queues."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import msgspec

from tidecast.disk import write_atomically
from tidecast.errors import StorageError
from tidecast.log.files import open_json, seal_json

FILE_NAME = "jetstream.json"


class Mark(NamedTuple):
    """All before ``token`` is stored; the stream's last sequence was then ``sequence``."""

    token: int
    sequence: int


class Notes(msgspec.Struct, frozen=True, kw_only=True):
    """The last writer of a topic's streams.

    ``name``: of the streams, before the numbers; ``log``: id of the log; ``writer``: of the run;
    ``created``: when each stream was made.
    """

    name: str
    log: int
    writer: int
    created: list[str]
    queues: list[Mark]


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
        "streams have already are then there twice"
    )


def save_notes(directory: Path, notes: Notes) -> None:
    """Keep them, on the device. Raises StorageError; then the ones before are there."""
    path = directory / FILE_NAME
    try:
        write_atomically(path, seal_json(msgspec.json.encode(notes)))
    except OSError as problem:
        raise StorageError(f"{path}: {problem.strerror}", problem.errno or 0) from None
