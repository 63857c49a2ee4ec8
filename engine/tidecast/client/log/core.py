"""A read of a durable topic: which records it covers, and how they come. The shells wait."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from contextlib import closing
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from tidecast import codecs
from tidecast.api.logs import TIME_END_NS, TIME_MIN_NS, Logs, QueueRange
from tidecast.api.start import Earliest, Latest, Start, Time, Tokens, start_of
from tidecast.client.consumer.core import start_options
from tidecast.client.core.outgoing import check_text, reject
from tidecast.client.log.records import LogBatch, LogRecord, batch_of, empty_batch
from tidecast.client.log.sources import no_log
from tidecast.config.topology import is_pattern
from tidecast.errors import ConfigError, NotFound
from tidecast.events import RecordsGone
from tidecast.log.reading.range_scan import LOST

if TYPE_CHECKING:
    from tidecast.client.core.connection import ConnectionCore

BATCH_RECORDS, BATCH_RECORDS_MAX = 65_536, 1 << 20
KEYS_MAX = 64
KEY_BYTES_MAX = 65_535
_time = attrgetter("timestamp")


class ReadCore:
    """The ranges of a read. They are fixed when they are first asked for."""

    def __init__(
        self,
        connection: ConnectionCore,
        topic: str,
        *,
        start: Start | str,
        end: Start | str,
        queues: Iterable[int] | None,
        keys: Iterable[bytes | str] | None,
        codec: codecs.Codec | str | None,
    ) -> None:
        """Raises ConfigError."""
        check_text("topic", topic)
        if is_pattern(topic):
            raise reject("topic", topic, "are names of topics: a read is of one topic")
        self.topic = topic
        self._connection = connection
        self._start, self._end = _position("start", start), _position("end", end)
        self._queues = None if queues is None else frozenset(_queues(queues))
        self._keys = None if keys is None else tuple(_keys(keys))
        self._codec = connection.topic_codecs.of(topic, codec)
        self._ranges: tuple[QueueRange, ...] | None = None

    @property
    def ranges(self) -> dict[int, tuple[int, int]]:
        """By queue: the first offset, and the offset behind the last one, that are read.

        Retention may have deleted records at the beginning, and filters leave out records between.
        Empty until the read began (asyncio).
        """
        return {each.queue: (each.start, each.end) for each in self._ranges or ()}

    def plan(self) -> tuple[QueueRange, ...]:
        """Fix the ranges of the read; may take long.

        They cover messages that this client published before and that the engine has stored. Raises
        NotFound, ConfigError, AuthError, StorageError.
        """
        if self._ranges is None:
            with closing(self._open()) as logs:
                bounds = logs.bounds()
                if not bounds:
                    raise no_log(self.topic, self._modes())
                self._check_queues({queue: end for queue, _, end in bounds})
                self._ranges = tuple(
                    self._range(logs, queue, first, end)
                    for queue, first, end in bounds
                    if self._queues is None or queue in self._queues
                )
        return self._ranges

    def _open(self) -> Logs:
        self._connection.check()
        return self._connection.link.open_logs(self.topic, self._missing)

    def _missing(self, what: str, about: dict[str, Any]) -> None:
        """Retention deleted records of the range before they were read."""
        if what == LOST:
            self._connection.emit(
                RecordsGone(self.topic, about["queue"], about["token"], about["end"], "")
            )

    def _modes(self) -> dict[str, str]:
        """Of this topic, else of those there are, for a hint."""

        def ask(pattern: str) -> dict[str, str]:
            rows = self._connection.link.administer("topics", {"pattern": pattern})["rows"]
            return {row["name"]: row.get("mode", "live") for row in rows}

        return ask(self.topic) or ask(">")

    def _check_queues(self, ends: dict[int, int]) -> None:
        tokens = [each.tokens for each in (self._start, self._end) if isinstance(each, Tokens)]
        for queue in sorted({*(self._queues or ()), *chain.from_iterable(tokens)}):
            if queue not in ends:
                raise NotFound(f"topic {self.topic} has the queues {sorted(ends)}, not {queue}")
        for queue, offset in self._start.tokens.items() if isinstance(self._start, Tokens) else ():
            if offset > ends[queue]:
                raise ConfigError(
                    f"start: queue {queue} of {self.topic} ends at {ends[queue]}: allowed are "
                    f"offsets up to it, not {offset}"
                )

    def _range(self, logs: Logs, queue: int, first: int, end: int) -> QueueRange:
        start, time_min_ns = self._begin(logs, queue, first, end)
        stop, time_end_ns = self._stop(queue, first, end)
        return QueueRange(
            queue=queue,
            start=start,
            end=max(start, stop),
            time_min_ns=time_min_ns,
            time_end_ns=time_end_ns,
            keys=self._keys,
        )

    def _begin(self, logs: Logs, queue: int, first: int, end: int) -> tuple[int, int]:
        match self._start:
            case Time(time_ns):
                return logs.at_time(queue, time_ns), time_ns
            case Tokens(tokens):
                return max(tokens.get(queue, first), first), TIME_MIN_NS
            case Latest():
                return end, TIME_MIN_NS
        return first, TIME_MIN_NS

    def _stop(self, queue: int, first: int, end: int) -> tuple[int, int]:
        match self._end:
            case Time(time_ns):  # time-stamps of publishers need not grow: so look at all
                return end, time_ns
            case Tokens(tokens):
                return min(tokens.get(queue, end), end), TIME_END_NS
            case Earliest():
                return first, TIME_END_NS
        return end, TIME_END_NS

    # --- reading ----------------------------------------------------------------------------------

    def batches_of(self, logs: Logs, limit: int | None = None) -> Iterator[LogBatch]:
        """Batches of one queue after the other. Raises CorruptLog, ConnectionLost, AuthError."""
        return chain.from_iterable(self._queue(logs, each, limit) for each in self.plan())

    def records_of(self, logs: Logs) -> Iterator[LogRecord]:
        """The records of all queues, merged by time; each queue in its order."""
        ranges = self.plan()
        parts = [
            chain.from_iterable(self._queue(logs, each, side_by_side=len(ranges)))
            for each in ranges
        ]
        return parts[0] if len(parts) == 1 else heapq.merge(*parts, key=_time)

    def _queue(
        self, logs: Logs, asked: QueueRange, limit: int | None = None, side_by_side: int = 1
    ) -> Iterator[LogBatch]:
        if asked.start >= asked.end:
            return
        for block, rows in logs.blocks(asked, side_by_side):
            if not len(rows):  # filters left out all of them
                continue
            whole = batch_of(self.topic, asked.queue, block, rows, self._codec)
            n = len(whole)
            step = limit or n
            for at in range(0, n, step):
                yield whole if step >= n else whole.part(at, min(at + step, n))

    def open(self) -> Logs:
        """The logs to read from, with the ranges fixed; the caller closes it."""
        self.plan()
        return self._open()


def table_of(batches: Iterable[LogBatch], read: ReadCore, **options: Any) -> Any:
    """An Arrow table of batches; without any batch, a table without rows."""
    import pyarrow as pa

    found = [each.to_record_batch(**options) for each in batches]
    if not found:
        found = [empty_batch(read.topic).to_record_batch(**options)]
    return pa.Table.from_batches(found)


def last_of(batches: Iterable[LogBatch]) -> dict[bytes | None, LogRecord]:
    """The last record of each key; a queue that was added later comes later."""
    return {each.key: each for batch in batches for each in batch}


def check_records(max_messages: Any) -> int:
    """The limit of a batch. Raises ConfigError."""
    if not isinstance(max_messages, int) or not 1 <= max_messages <= BATCH_RECORDS_MAX:
        raise reject("max_messages", max_messages, f"are 1 to {BATCH_RECORDS_MAX}")
    return max_messages


def _position(field: str, given: Start | str) -> Start:
    found = start_of(given)
    if isinstance(found, str):
        raise reject(
            field,
            given,
            "are 'earliest', 'latest', Time(ns), Tokens({queue: offset}) and Start.parse(TEXT)",
        )
    start_options(found, field)
    return found


def _queues(given: Iterable[Any]) -> Iterator[int]:
    for each in given:
        if not isinstance(each, int) or isinstance(each, bool) or each < 0:
            raise reject("queues", each, "are whole numbers from 0 on")
        yield each


def _keys(given: Iterable[Any]) -> Iterator[bytes]:
    if isinstance(given, bytes | str):
        raise reject("keys", given, "is a list of keys, such as [b'7']")
    for n, each in enumerate(given):
        key = each.encode() if isinstance(each, str) else each
        if not isinstance(key, bytes) or len(key) > KEY_BYTES_MAX or n >= KEYS_MAX:
            raise reject("keys", each, f"are at most {KEYS_MAX} keys of bytes or text")
        yield key
