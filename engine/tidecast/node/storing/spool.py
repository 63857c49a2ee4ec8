"""A durable topic as its storage sees it: logs to read from, and how far the storage has come.

The logs are the spool: a record is appended and synced as on every durable topic, then the storage
takes it from the log, and only then is it durable. Consumers read the logs.
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
    """Where a spool reports to, from threads of the storage."""

    def progressed(self, topic: DurableTopic, queue: int) -> None:
        """The storage has more of a queue."""

    def counted(self, topic: DurableTopic, queue: int, counts: tuple[int, int, int]) -> None:
        """(records, bytes) more are stored, so many more attempts failed."""

    def waits(self, topic: DurableTopic, detail: str, *, final: bool) -> None:
        """The storage takes nothing."""

    def back(self, topic: DurableTopic) -> None:
        """It takes records again."""

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
        """Of the topic's logs: files of the storage there are deleted with them."""
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
        """Reads synced records."""
        with self._changed:
            return self._log(queue).reader(synced=True)

    def earliest(self, queue: int) -> int:
        """The oldest token in the log."""
        with self._changed:
            return self._log(queue).earliest_token

    def synced(self, queue: int) -> int:
        """The storage may take all below."""
        with self._changed:
            return self._log(queue).synced_token

    def wait(self, queue: int, token: int) -> int:
        """Wait until more than all below ``token`` is synced, but not for long; the end then."""
        with self._changed:
            if not self._closed and self._log(queue).synced_token <= token:
                self._changed.wait(WAIT_S)
            return token if self._closed else self._log(queue).synced_token

    def wake(self) -> None:
        """More is synced, or the storage stops: `wait` returns."""
        with self._changed:
            self._changed.notify_all()

    # --- reports ----------------------------------------------------------------------------------

    def note_stored(self, queue: int, token: int) -> None:
        """The storage has all below. Never less than before: acked records stay acked."""
        with self._changed:
            if self._closed or token <= self._log(queue).stored_token:
                return
            self._log(queue).note_stored(token)
        self._reports.progressed(self._topic, queue)

    def count(self, queue: int, records: int, n_bytes: int, failures: int) -> None:
        """So many records and bytes more are stored, so many more attempts failed."""
        self._report(
            lambda: self._reports.counted(self._topic, queue, (records, n_bytes, failures))
        )

    def waits(self, detail: str, *, final: bool = False) -> None:
        """The storage takes nothing, and why. ``final``: it does not try again."""
        self._report(lambda: self._reports.waits(self._topic, detail, final=final))

    def back(self) -> None:
        """It takes records again."""
        self._report(lambda: self._reports.back(self._topic))

    @property
    def leased(self) -> bool:
        """Engines take turns: another one may have the topic next."""
        return self.owner == SHARED

    def lost(self, detail: str) -> None:
        """Another engine has taken the topic over, by the storage: the lease is given up."""
        self._report(lambda: self._reports.lost(self._topic, detail))

    def _report(self, report: Callable[[], None]) -> None:
        if not self._closed:
            report()

    def close(self) -> None:
        """The logs are about to be closed: nothing is read or noted any more. Idempotent."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
