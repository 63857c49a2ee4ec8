"""`Records` of the blocking client."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

from tidecast.client.columns.received import HeaderForm
from tidecast.client.core.public import Public
from tidecast.client.log.core import BATCH_RECORDS, ReadCore, check_records, last_of, table_of
from tidecast.client.log.records import LogBatch, LogRecord


class Records(Public, ReadCore):
    """Records of a durable topic that are there now: iterate, as often as you like.

    Made by `Connection.read`. No subscription is made, and nothing is acked.
    """

    PUBLIC = "batches last_by_key ranges to_table topic"

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.plan()

    def __iter__(self) -> Iterator[LogRecord]:
        """The records of all queues, merged by their time-stamps; each queue in its order.

        Raises CorruptLog, StorageError, ConnectionLost, AuthError.
        """
        with closing(self.open()) as logs:
            yield from self.records_of(logs)

    def batches(self, max_messages: int = BATCH_RECORDS) -> Iterator[LogBatch]:
        """Batches of up to ``max_messages`` records, one queue after the other.

        Raises ConfigError, and as iteration does.
        """
        return self._batches(check_records(max_messages))

    def _batches(self, limit: int) -> Iterator[LogBatch]:
        with closing(self.open()) as logs:
            yield from self.batches_of(logs, limit)

    def to_table(self, *, headers: HeaderForm = "map") -> Any:
        """All records as an Arrow table, with the columns of `LogBatch.to_record_batch`."""
        return table_of(self.batches(), self, headers=headers)

    def last_by_key(self) -> dict[bytes | None, LogRecord]:
        """The last record of each key among the records of the read. Reads all of them."""
        return last_of(self.batches())
