"""Leases of one directory of queues in a store that serves many.

A service keeps leases of all engines that it manages, and not all engines share their queues: two
topics of one name in two directories are different topics. So a directory has an id, in a file
there, and the names of its leases begin with that id.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

import msgspec

from tidecast.disk import make_directory, sync_directory, write_atomically
from tidecast.errors import StorageError
from tidecast.queues.leases.store import (
    Batch,
    LeaseStore,
    Listing,
    ListLeases,
    Reply,
    Request,
    Single,
)

ID_NAME = "directory.id"
EVERYWHERE = "storage/"
"""Stands for the id of the directory where queues lie in none, but in a storage."""
_ID_BYTES = 8


def directory_id(directory: Path) -> str:
    """The id of a directory of queues; given to it by the first that asks. Raises StorageError."""
    path = directory / ID_NAME
    try:
        with contextlib.suppress(FileNotFoundError):
            return path.read_text().strip()
        make_directory(directory)
        mine = directory / f".{ID_NAME}.{os.urandom(_ID_BYTES).hex()}"
        write_atomically(mine, os.urandom(_ID_BYTES).hex().encode())
        with contextlib.suppress(FileExistsError):  # another engine was first
            path.hardlink_to(mine)
        mine.unlink()
        sync_directory(directory)
        return path.read_text().strip()
    except OSError as problem:
        raise StorageError(f"{path}: {problem.strerror}", problem.errno or 0) from None


def _nowhere(queue: str) -> bool:
    del queue
    return False


class ScopedLeases:
    """A `LeaseStore` for the queues of one directory, in ``store``."""

    def __init__(
        self,
        store: LeaseStore,
        directory: Path,
        is_everywhere: Callable[[str], bool] = _nowhere,
    ) -> None:
        """``is_everywhere``: of queues that engines with other directories take, too."""
        self._store, self._directory, self._is_everywhere = store, directory, is_everywhere
        self._head = ""

    @property
    def batch_max(self) -> int:
        """As the store's."""
        return self._store.batch_max

    def handle(self, request: Request, now_ns: int) -> Reply:
        """Answer one request. Raises the store's errors; StorageError: no id can be made."""
        if not self._head:
            self._head = f"{directory_id(self._directory)}/"
        head = self._head
        if isinstance(request, Batch):
            inside = [self._inside(each) for each in request.requests]
            request = msgspec.structs.replace(request, requests=inside)
        elif not isinstance(request, ListLeases):
            request = self._inside(request)
        reply = self._store.handle(request, now_ns)
        if isinstance(reply, Listing):
            heads = (head, EVERYWHERE)
            return Listing(
                {q.partition("/")[2]: o for q, o in reply.owners.items() if q.startswith(heads)}
            )
        return reply

    def _inside(self, request: Single) -> Single:
        head = EVERYWHERE if self._is_everywhere(request.queue) else self._head
        return msgspec.structs.replace(request, queue=head + request.queue)
