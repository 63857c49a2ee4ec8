"""Where a queue's batches come from: a log, or whatever an adapter reads."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from tidecast.errors import CorruptLog, NotFound
from tidecast.log.queue_log import LogReader, QueueLog
from tidecast.native.mapped import Bytes

Rows = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class Fetched:
    """The result of a source's read: bytes of whole batches; ``end``: token behind the newest.

    ``need_bytes`` > 0: nothing was read, the first batch alone needs a buffer that large.
    ``oldest`` > 0: the requested token is no longer kept; this is the oldest token, and the batches
    begin there. ``next_token`` > 0 without bytes: no record is before it.
    """

    used: int
    end: int
    need_bytes: int = 0
    oldest: int = 0
    next_token: int = 0


class Damage:
    """A file with a damaged batch: worth reading again only after the file has changed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._about = self._look()

    def _look(self) -> tuple[int, ...]:
        try:
            about = self._path.stat()
        except OSError:
            return ()
        return about.st_ino, about.st_size, about.st_mtime_ns

    def may_be_gone(self) -> bool:
        """The file has changed since, or was appended to."""
        return self._look() != self._about


class Source(Protocol):
    """Where a queue's batches come from."""

    holes: bool
    """Tokens may lack a record without loss. In a log each token without a record is a loss."""

    def read(self, token: int, buffer: Bytes) -> Fetched | None:
        """Read whole batches, from the batch with ``token`` on (or the next batch); None: later.

        After None, call `poll` until it returns the answer. Raises TidecastError.
        """

    def read_now(self, token: int, buffer: Bytes) -> Fetched | None:
        """`read` for one record, also while a `read` runs; it may wait. Raises TidecastError."""

    def here(self) -> Rows | None:
        """Words of a READER that the puller may read with by itself; None: it asks `read`."""

    def poll(self, now_ns: int) -> Fetched | None:
        """The answer to a `read` that returned None. Raises TidecastError."""

    def damage(self) -> Damage | None:
        """The file that the last read found damaged; None: read it again after a while."""

    def close(self) -> None:
        """Free all."""


class LogSource:
    """The log of a queue, read by its puller."""

    holes = False

    def __init__(self, log: QueueLog) -> None:
        self.log = log
        self.reader: LogReader = log.reader()
        self._damage: Damage | None = None

    def here(self) -> Rows | None:
        """See `Source`."""
        return self.reader.state.words

    def read(self, token: int, buffer: Bytes) -> Fetched:
        """See `Source`. A block starts behind records that retention has deleted."""
        end = self.log.durable_token if self.log.fsync == "batch" else self.log.next_token
        if token >= end:
            return Fetched(0, end)
        self._damage = None
        try:
            used = self._read_kept(token, buffer)
        except CorruptLog:
            self._damage = Damage(self.reader.damaged)
            raise
        except ValueError:
            return Fetched(0, end, self.reader.need)
        return Fetched(used, max(end, self.reader.next_token))

    def _read_kept(self, token: int, buffer: Bytes) -> int:
        try:
            return self.reader.read_block(token, buffer)
        except NotFound:
            return self.reader.read_block(self.log.earliest_token, buffer)

    def read_now(self, token: int, buffer: Bytes) -> Fetched | None:
        """See `Source`."""
        return self.read(token, buffer)

    def poll(self, now_ns: int) -> None:
        """A log answers at once."""
        del now_ns

    def damage(self) -> Damage | None:
        """See `Source`."""
        return self._damage

    def close(self) -> None:
        """Close the descriptor."""
        self.reader.close()
