"""Leases in a file, for engines of one host that share a directory of queues.

One file, replaced as a whole under a lock; the store's clock is the host's, suspended time
included. After a reboot that clock begins again: then all leases have ended, and only their epochs
are kept.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from tidecast.disk import write_atomically
from tidecast.errors import CorruptLog, StorageError
from tidecast.queues.leases.store import BATCH_MAX, LeaseTable, Reply, Request

NAME, LOCK_NAME = "leases.json", "leases.lock"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def host_clock_ns() -> int:
    """Time since the host started, ns; it does not stand still while the host sleeps."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def boot_id() -> str:
    """Which start of the host this is."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""


class _Saved(msgspec.Struct, frozen=True):
    boot: str
    leases: dict[str, tuple[str, int, int]]
    """Queue: owner, epoch, end."""


class LeaseFile:
    """A `LeaseStore` in ``directory``."""

    batch_max = BATCH_MAX

    def __init__(
        self, directory: Path, clock_ns: Callable[[], int] = host_clock_ns, boot: str | None = None
    ) -> None:
        self.directory, self._clock_ns = directory, clock_ns
        self._boot = boot_id() if boot is None else boot

    def handle(self, request: Request, now_ns: int = 0) -> Reply:  # noqa: ARG002 - a clock of its own
        """Answer one request. Raises StorageError, CorruptLog."""
        try:
            self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock = os.open(self.directory / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as problem:
            raise StorageError(
                f"{self.directory}: {problem.strerror}", problem.errno or 0
            ) from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            table = self._load()
            before = msgspec.json.encode(self._image(table))
            reply = table.handle(request, self._clock_ns())
            after = msgspec.json.encode(self._image(table))
            if after != before:
                write_atomically(self.directory / NAME, after)
            return reply
        except OSError as problem:
            raise StorageError(
                f"{self.directory}: {problem.strerror}", problem.errno or 0
            ) from None
        finally:
            os.close(lock)

    def _refused(self, problem: OSError) -> StorageError:
        return StorageError(f"{self.directory}: {problem.strerror}", problem.errno or 0)

    def _load(self) -> LeaseTable:
        path, table = self.directory / NAME, LeaseTable()
        try:
            saved = msgspec.json.decode(path.read_bytes(), type=_Saved)
        except FileNotFoundError:
            return table
        except msgspec.DecodeError as problem:
            raise CorruptLog(
                f"{path}: {problem}: stop all engines that share it, then remove it"
            ) from None
        for queue, (owner, epoch, ends_ns) in saved.leases.items():
            table.put(queue, owner, epoch, ends_ns if saved.boot == self._boot else 0)
        return table

    def _image(self, table: LeaseTable) -> _Saved:
        return _Saved(self._boot, {q: (e.owner, e.epoch, e.ends_ns) for q, e in table.items()})
