"""`Records` of the asyncio client: threads read, the loop never waits for a disk."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import islice
from typing import Any, TypeVar

from tidecast.api.logs import Logs
from tidecast.client.columns.received import HeaderForm
from tidecast.client.core.public import Public
from tidecast.client.log.core import BATCH_RECORDS, ReadCore, check_records, last_of, table_of
from tidecast.client.log.records import LogBatch, LogRecord

T = TypeVar("T")
CHUNK_RECORDS = 1000
"""Records that a thread takes at a time."""


class Records(Public, ReadCore):
    """`tidecast.sync.Records` with ``async for``. The ranges are fixed when the first is read.

    Made by `Connection.read`. No subscription is made, and nothing is acked.
    """

    PUBLIC = "batches last_by_key ranges to_table topic"

    def __aiter__(self) -> AsyncIterator[LogRecord]:
        """The records of all queues, merged by their time-stamps; each queue in its order.

        Raises NotFound, CorruptLog, StorageError, ConnectionLost, AuthError, ConfigError.
        """
        return self._walk(self.records_of, CHUNK_RECORDS)

    def batches(self, max_messages: int = BATCH_RECORDS) -> AsyncIterator[LogBatch]:
        """Batches of up to ``max_messages`` records, one queue after the other.

        Raises ConfigError, and as iteration does.
        """
        limit = check_records(max_messages)
        return self._walk(lambda logs: self.batches_of(logs, limit), 1)

    async def to_table(self, *, headers: HeaderForm = "map") -> Any:
        """All records as an Arrow table, with the columns of `LogBatch.to_record_batch`."""
        found = [each async for each in self.batches()]
        return await asyncio.to_thread(table_of, found, self, headers=headers)

    async def last_by_key(self) -> dict[bytes | None, LogRecord]:
        """The last record of each key among the records of the read. Reads all of them."""
        found: dict[bytes | None, LogRecord] = {}
        async for batch in self.batches():
            found |= last_of((batch,))
        return found

    async def _walk(self, begin: Callable[[Logs], Iterator[T]], n: int) -> AsyncIterator[T]:
        """The items of ``begin``, ``n`` at a time. A thread that still reads is never disturbed."""
        source = _Source(self, begin)
        try:
            while chunk := await source.take(n):
                for each in chunk:
                    yield each
        finally:
            source.close()


class _Source:
    """Logs that one thread at a time reads, and closes behind the last one."""

    def __init__(self, read: ReadCore, begin: Callable[[Logs], Iterator[Any]]) -> None:
        self._read, self._begin = read, begin
        self._logs: Logs | None = None
        self._items: Iterator[Any] = iter(())
        self._reading: asyncio.Future[list[Any]] | None = None

    async def take(self, n: int) -> list[Any]:
        """Up to ``n`` items; none: it is over. Cancelled, it leaves the thread to end."""
        self._reading = asyncio.get_running_loop().run_in_executor(None, self._take, n)
        return await asyncio.shield(self._reading)

    def _take(self, n: int) -> list[Any]:
        if self._logs is None:
            self._logs = self._read.open()
            self._items = self._begin(self._logs)
        return list(islice(self._items, n))

    def close(self) -> None:
        """Close the logs in a thread, behind its reads. The caller does not wait for it."""
        loop, reading = asyncio.get_running_loop(), self._reading

        def end(future: asyncio.Future[Any] | None = None) -> None:
            if future is not None and not future.cancelled():
                future.exception()  # it was raised, or its reader was cancelled
            if self._logs is not None:
                loop.run_in_executor(None, self._logs.close)

        if reading is None or reading.done():
            end(reading)
        else:
            reading.add_done_callback(end)
