"""A durable topic for its storage: logs to read from, and the position of the storage.

The logs are the spool: a record is appended and synced as on every durable topic, then the storage
takes it from the log, and only then it is durable. Consumers read the logs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from tidecast.config.leases import SHARED
from tidecast.errors import Closed
from tidecast.log.queue_log import LogReader, QueueLog
from tidecast.node.durable.topic import DurableTopic

WAIT_S = 0.5


class Reports(Protocol):
    """Receives the reports of a spool, from threads of the storage."""

    def progressed(self, topic: DurableTopic, queue: int) -> None:
        """The storage has stored more records of a queue."""

    def counted(self, topic: DurableTopic, queue: int, counts: tuple[int, int, int]) -> None:
        """(records, bytes) more are stored, and so many more attempts have failed."""

    def waits(self, topic: DurableTopic, detail: str, *, final: bool) -> None:
        """The storage accepts no records."""

    def back(self, topic: DurableTopic) -> None:
        """The storage accepts records again."""

    def lost(self, topic: DurableTopic, detail: str) -> None:
        """Another engine has taken a leased topic over."""


class Spool:
    """See module. Any thread. ``node``: the name of this node.

    Calls that read the logs or their directory raise Closed once the logs are about to be closed.
    """

    def __init__(self, topic: DurableTopic, node: str, reports: Reports) -> None:
        self._topic, self._reports = topic, reports
        self.topic, self.node, self.owner = topic.config.name, node, topic.config.owner
        self.storage = topic.config.storage
        self.queues = len(topic.logs)
        self._changed = threading.Condition()
        self._closed = False

    @property
    def directory(self) -> Path:
        """The directory of the topic's logs: files of the storage there are deleted with them."""
        with self._changed:
            self._check_open()
            return self._topic.directory

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(f"topic {self.topic}: its logs are closed")

    def _log(self, queue: int) -> QueueLog:
        self._check_open()
        return self._topic.logs[queue]

    # --- reading ----------------------------------------------------------------------------------

    def reader(self, queue: int) -> LogReader:
        """A reader of synced records."""
        with self._changed:
            return self._log(queue).reader(synced=True)

    def earliest(self, queue: int) -> int:
        """The oldest token in the log."""
        with self._changed:
            return self._log(queue).earliest_token

    def synced(self, queue: int) -> int:
        """The storage may take all records below this token."""
        with self._changed:
            return self._log(queue).synced_token

    def wait(self, queue: int, token: int) -> int:
        """Wait a short time for a synced record at or behind ``token``. Returns the synced end."""
        with self._changed:
            if not self._closed and self._log(queue).synced_token <= token:
                self._changed.wait(WAIT_S)
            return token if self._closed else self._log(queue).synced_token

    def wake(self) -> None:
        """More records are synced, or the storage stops: `wait` returns."""
        with self._changed:
            self._changed.notify_all()

    # --- reports ----------------------------------------------------------------------------------

    def note_stored(self, queue: int, token: int) -> None:
        """The storage has all records below a token. It never decreases: acked stays acked."""
        with self._changed:
            if self._closed or token <= self._log(queue).stored_token:
                return
            self._log(queue).note_stored(token)
        self._reports.progressed(self._topic, queue)

    def count(self, queue: int, records: int, n_bytes: int, failures: int) -> None:
        """So many records and bytes more are stored, and so many more attempts have failed."""
        self._report(
            lambda: self._reports.counted(self._topic, queue, (records, n_bytes, failures))
        )

    def waits(self, detail: str, *, final: bool = False) -> None:
        """The storage accepts no records; report the reason. ``final``: it does not try again."""
        self._report(lambda: self._reports.waits(self._topic, detail, final=final))

    def back(self) -> None:
        """The storage accepts records again."""
        self._report(lambda: self._reports.back(self._topic))

    @property
    def leased(self) -> bool:
        """Whether engines take turns: another engine may own the topic next."""
        return self.owner == SHARED

    def lost(self, detail: str) -> None:
        """The storage shows that another engine has taken the topic over: give up the lease."""
        self._report(lambda: self._reports.lost(self._topic, detail))

    def _report(self, report: Callable[[], None]) -> None:
        if not self._closed:
            report()

    def close(self) -> None:
        """The logs are about to be closed: nothing is read or noted any more. Idempotent."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
