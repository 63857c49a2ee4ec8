"""The directory of a topic that an engine takes over: made beside the old one, then put there."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from tidecast.disk import make_directory, sync_directory, write_atomically
from tidecast.errors import Closed, StorageError
from tidecast.log.takeover import SUBSCRIPTIONS_NAME, Owners
from tidecast.queues.subscription_store import SavedCursor, SubscriptionStore

REBUILT_NAME = ".rebuilt"


class Replacing:
    """One attempt. `run` from one thread; `close` from any.

    ``queues``: the directory of the topics; ``owner``: epoch of the lease.
    """

    def __init__(self, topic: str, queues: Path, owner: int) -> None:
        self._topic, self._queues, self._owner = topic, queues, owner
        self._lock, self._closed = threading.Lock(), False

    @property
    def before(self) -> Path:
        """The directory that is there, if there is one."""
        return self._queues / self._topic

    def stopped(self) -> bool:
        """Nothing is put in its place any more."""
        return self._closed

    def check_open(self) -> None:
        """Raises Closed."""
        if self._closed:
            raise Closed(f"topic {self._topic}: it is not taken over")

    def close(self) -> None:
        """End it: nothing is put in its place when this returns. Idempotent."""
        with self._lock:
            self._closed = True

    def run(self, take: Callable[[Path], None]) -> None:
        """Call ``take`` with a directory to work in, which is gone afterwards."""
        work = self._queues / REBUILT_NAME / f"{self._topic}.{self._owner}"
        try:
            take(work)
        finally:
            shutil.rmtree(work, ignore_errors=True)

    def begin(self, work: Path) -> None:
        """Have an empty directory."""
        shutil.rmtree(work, ignore_errors=True)
        make_directory(work)

    def write_files(self, work: Path, files: Mapping[str, bytes], ends: list[int]) -> None:
        """Write the small files; cursors count no token behind the ends of the queues."""
        try:
            make_directory(work / SUBSCRIPTIONS_NAME)
            for name, raw in files.items():
                write_atomically(work / name, raw)
        except OSError as problem:
            raise StorageError(f"{work}: {problem.strerror}", problem.errno or 0) from None
        store = SubscriptionStore(work / SUBSCRIPTIONS_NAME, make=False)
        for saved in store.load()[0]:
            cursors = [clamped(one, self._topic, ends) for one in saved.cursors]
            if cursors != saved.cursors:
                store.save(msgspec.structs.replace(saved, cursors=cursors))

    def install(self, work: Path) -> None:
        """Replace the directory, whose log other engines have passed, by the new one."""
        owners = Owners(self._queues, self._topic)
        with self._lock:
            self.check_open()
            try:
                sync_directory(work)
                if owners.link.is_dir() and not owners.link.is_symlink():
                    shutil.rmtree(owners.link)
                owners.remove()
                work.rename(owners.link)
                sync_directory(self._queues)
            except OSError as problem:
                raise StorageError(f"{work}: {problem.strerror}", problem.errno or 0) from None


def clamped(cursor: SavedCursor, topic: str, ends: list[int]) -> SavedCursor:
    """A cursor that counts no token behind the end of its queue: other records will get those.

    A subscription that began at the end of the log may be ahead of the storage.
    """
    if cursor.topic != topic or cursor.queue >= len(ends):
        return cursor
    end = ends[cursor.queue]
    acked = [(first, min(behind, end)) for first, behind in cursor.acked if first < end]
    attempts = [(token, count) for token, count in cursor.attempts if token < end]
    return SavedCursor(topic, cursor.queue, min(cursor.position, end), acked, attempts)
