"""The records in a durable topic's queues, read from the log: no subscription is made or moved.

It follows the log: first its records, then new records. `Connection.read` ends.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from operator import attrgetter

from tidecast.api.logs import Logs, QueueRange
from tidecast.api.start import Latest, Start, Time, Tokens
from tidecast.client.log.records import LogRecord, batch_of
from tidecast.config.moments import TIME_NS_MAX
from tidecast.errors import ConfigError, NotFound

_time = attrgetter("timestamp")


class LogReader:
    """Reads a topic from a start on, in rounds: first its records, then new records."""

    def __init__(self, logs: Logs, topic: str, start: Start) -> None:
        """Raises ConfigError, NotFound for a start that the queues have not."""
        self.topic, self._logs, self._start = topic, logs, start
        self._not_before_ns = start.time_ns if isinstance(start, Time) else 0
        bounds = logs.bounds()
        self._check_tokens({queue: end for queue, _, end in bounds})
        self._next = {queue: self._first(queue, first, end) for queue, first, end in bounds}

    def _check_tokens(self, ends: dict[int, int]) -> None:
        given = self._start.tokens if isinstance(self._start, Tokens) else {}
        for queue, token in given.items():
            if queue not in ends:
                raise NotFound(f"topic {self.topic} has queues {sorted(ends)}, no {queue}")
            if token > ends[queue]:
                raise ConfigError(
                    f"--from: queue {queue} of {self.topic} ends at {ends[queue]}: sequence "
                    f"{token} is not there yet"
                )

    def _first(self, queue: int, first: int, end: int) -> int:
        match self._start:
            case Time(time_ns):
                return self._logs.at_time(queue, time_ns)
            case Tokens(tokens):
                return max(tokens.get(queue, first), first)
            case Latest():
                return end
        return first

    def round(self, until_ns: int | None = None) -> Iterator[LogRecord]:
        """The records that are there now and were not read, merged by time.

        Each queue in the order of its tokens. ``until_ns``: only older records.
        """
        grown: list[QueueRange] = []
        for queue, first, end in self._logs.bounds():
            start = self._next.setdefault(queue, first)
            if end > start:
                grown.append(QueueRange(queue=queue, start=start, end=end))
                self._next[queue] = end
        parts = [self._records(each, len(grown)) for each in grown]
        merged = parts[0] if len(parts) == 1 else heapq.merge(*parts, key=_time)
        if not self._not_before_ns and until_ns is None:
            yield from merged
            return
        first_ns, end_ns = self._not_before_ns, TIME_NS_MAX if until_ns is None else until_ns
        for each in merged:
            if first_ns <= each.timestamp < end_ns:
                yield each

    def _records(self, asked: QueueRange, side_by_side: int) -> Iterator[LogRecord]:
        for block, rows in self._logs.blocks(asked, side_by_side):
            if len(rows):
                yield from batch_of(self.topic, asked.queue, block, rows, None)
