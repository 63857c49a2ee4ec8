"""Notes of a topic's writer on disk, beside the logs of its queues, for the writer that follows."""

from __future__ import annotations

from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from tidecast.disk import write_atomically
from tidecast.errors import StorageError
from tidecast.log.files import open_json, seal_json

T = TypeVar("T", bound=msgspec.Struct)


class NotesFile(Generic[T]):
    """The file ``name`` of a topic's directory, whose notes are a ``form``.

    ``holder``: the place of stored records, with its verb, for errors: "the streams have".
    """

    def __init__(self, name: str, form: type[T], holder: str) -> None:
        self.name, self._form, self._holder = name, form, holder

    def load(self, directory: Path) -> T | None:
        """The notes of the writer before; None: there was none. Raises StorageError."""
        path = directory / self.name
        try:
            return msgspec.json.decode(open_json(path.read_bytes()), type=self._form)
        except FileNotFoundError:
            return None
        except OSError as problem:
            raise StorageError(f"{path}: {problem.strerror}", problem.errno or 0) from None
        except (ValueError, msgspec.DecodeError) as problem:
            raise StorageError(f"{path}: {problem}. {self.remedy}") from None

    @property
    def remedy(self) -> str:
        """The remedy for notes that cannot be used."""
        return (
            f"Move {self.name} away to write the log from its oldest record on: records that "
            f"{self._holder} already are then there twice"
        )

    def save(self, directory: Path, notes: T) -> None:
        """Keep them, on the device. Raises StorageError; then the notes before are kept."""
        path = directory / self.name
        try:
            write_atomically(path, seal_json(msgspec.json.encode(notes)))
        except OSError as problem:
            raise StorageError(f"{path}: {problem.strerror}", problem.errno or 0) from None
