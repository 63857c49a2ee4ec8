"""The small files of a topic that its next owner needs, as its storage has them.

They are in the topic's directory: positions of subscriptions, paused queues, epochs of producers,
the map of queues. They are copied when they change.
"""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path

from tidecast.errors import StorageError
from tidecast.log.files import MAP_NAME
from tidecast.log.grants import GRANTS_NAME
from tidecast.log.inspect import PAUSED_NAME
from tidecast.log.takeover import SUBSCRIPTIONS_NAME

_NAME = re.compile(r"paused\.json|map\.json|grants\.log|subscriptions/[^/.][^/]*\.sub")


def known_files(found: Mapping[str, bytes]) -> dict[str, bytes]:
    """Files with names that a topic's directory has."""
    return {name: raw for name, raw in found.items() if _NAME.fullmatch(name)}


def files_of(directory: Path) -> Iterator[tuple[str, os.stat_result]]:
    """The small files of a topic, with their status. Raises OSError."""
    for name in (PAUSED_NAME, MAP_NAME, GRANTS_NAME):
        path = directory / name
        if path.exists():
            yield name, path.stat()
    try:
        with os.scandir(directory / SUBSCRIPTIONS_NAME) as entries:
            found = [(f"{SUBSCRIPTIONS_NAME}/{one.name}", one.stat()) for one in entries]
    except FileNotFoundError:
        return
    yield from ((name, stat) for name, stat in found if _NAME.fullmatch(name))


class SmallFiles(ABC):
    """Copies changed files. For one thread. ``kept``: the files in the storage."""

    def __init__(self, kept: Mapping[str, bytes]) -> None:
        self._kept = dict(kept)
        self._seen: dict[str, tuple[int, int, int]] = {}

    @abstractmethod
    def _put_file(self, name: str, raw: bytes | None) -> None:
        """Have the storage keep a file; None: no more."""

    def copy_files(self, directory: Path) -> None:
        """Write the changed files of a topic's directory. Raises errors of the storage."""
        try:
            found = dict(files_of(directory))
            for name, stat in found.items():
                mark = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
                if self._seen.get(name) == mark:
                    continue
                raw = (directory / name).read_bytes()
                if self._kept.get(name) != raw:
                    self._put_file(name, raw)
                    self._kept[name] = raw
                self._seen[name] = mark
        except FileNotFoundError:
            return  # replaced or removed meanwhile: the next look finds it
        except OSError as problem:
            raise StorageError(f"{directory}: {problem.strerror}", problem.errno or 0) from None
        for name in self._kept.keys() - found.keys():
            self._put_file(name, None)
            del self._kept[name]
            self._seen.pop(name, None)
