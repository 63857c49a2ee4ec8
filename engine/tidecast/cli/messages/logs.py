"""What the queues of a durable topic keep, read from the log: no subscription is made or moved.

On this host from the files of the data directory, elsewhere over a gateway (right `read_payloads`).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any, Protocol

import msgspec

from tidecast.api.start import Latest, Start, Time, Tokens
from tidecast.client.consumer.message import Token
from tidecast.client.remote.log import LogClient
from tidecast.client.remote.log_frames import Range
from tidecast.config.moments import TIME_NS_MAX
from tidecast.config.near import near
from tidecast.errors import ConfigError, CorruptLog, NotFound
from tidecast.log.batch import CAUSES
from tidecast.log.files import queue_directory
from tidecast.log.queue_files import QueueFiles, queues_of
from tidecast.log.range_scan import RangeScan, Selector, Wanted
from tidecast.log.select import W_AT
from tidecast.queues.records import parts_at

Report = Callable[[str, dict[str, Any]], None]
Rows = Iterator[tuple[Any, list[list[int]]]]
"""Blocks of bytes, and (offset, token) of each record in them."""


class LogMessage(msgspec.Struct, frozen=True, gc=False, eq=False):
    """A record as it lies in its queue; the fields are those of `DurableMessage`."""

    data: bytes
    token: Token
    key: bytes | None
    headers: dict[str, Any]
    timestamp: int

    @property
    def topic(self) -> str:
        """Name of the topic."""
        return self.token.topic


class Logs(Protocol):
    """The queues of one topic."""

    def bounds(self) -> list[tuple[int, int, int]]:
        """(queue, first token, end) of each queue."""

    def at_time(self, queue: int, time_ns: int) -> int:
        """First token of the first batch with a record not older than this; else the end."""

    def rows(self, queue: int, start: int, end: int) -> Rows:
        """The records with tokens [start, end). Raises CorruptLog, GapError."""

    def close(self) -> None:
        """Free all. Idempotent."""


class LocalLogs:
    """See `Logs`: the files of a data directory."""

    def __init__(self, data_dir: Path, topic: str, report: Report) -> None:
        self._data_dir, self._topic, self._report = data_dir, topic, report
        self._files: dict[int, QueueFiles] = {}

    def bounds(self) -> list[tuple[int, int, int]]:
        """See `Logs`."""
        queues = [self._file(queue) for queue in queues_of(self._data_dir, self._topic)]
        return [(one.queue, one.earliest_token(), one.end_token()) for one in queues]

    def _file(self, queue: int) -> QueueFiles:
        if queue not in self._files:
            self._files[queue] = QueueFiles(self._data_dir, self._topic, queue)
        return self._files[queue]

    def at_time(self, queue: int, time_ns: int) -> int:
        """See `Logs`."""
        return self._file(queue).token_at_time(time_ns)

    def rows(self, queue: int, start: int, end: int) -> Rows:
        """See `Logs`."""
        scan = RangeScan(
            queue_directory(self._data_dir, self._topic, queue), self._topic, queue,
            Wanted(token_min=start, token_end=end), fail_on_data_loss=False, report=self._report,
        )  # fmt: skip
        for block, n in scan:
            yield block, scan.selector.rows[:n].tolist()

    def close(self) -> None:
        """See `Logs`."""


class RemoteLogs:
    """See `Logs`: over a gateway. A connection a queue, for they are read side by side."""

    def __init__(self, server: str, token: str | None, topic: str, report: Report) -> None:
        self._given, self._topic, self._report = (server, token or ""), topic, report
        self._client = LogClient(*self._given)
        self._readers: dict[int, LogClient] = {}

    def bounds(self) -> list[tuple[int, int, int]]:
        """See `Logs`."""
        return self._client.bounds(self._topic)

    def at_time(self, queue: int, time_ns: int) -> int:
        """See `Logs`."""
        return self._client.at_time(self._topic, queue, time_ns)

    def rows(self, queue: int, start: int, end: int) -> Rows:
        """See `Logs`."""
        reader = self._readers.setdefault(queue, LogClient(*self._given))
        asked = Range(
            topic=self._topic, queue=queue, start=start, end=end, fail_on_data_loss=False
        )  # fmt: skip
        selector = Selector(Wanted(token_min=start, token_end=end), holes=True)
        for block in reader.read(asked, self._report):
            n = selector.select(block, block.size, -1)
            if n < 0 or selector.w[W_AT] != block.size:
                raise CorruptLog(
                    f"{self._topic}/{queue}: what {self._given[0]} sent arrived damaged: "
                    f"{CAUSES.get(n, 'its tokens are out of order')}"
                )
            yield block, selector.rows[:n].tolist()

    def close(self) -> None:
        """See `Logs`."""
        for client in (self._client, *self._readers.values()):
            client.close()


_time = attrgetter("timestamp")


class LogReader:
    """Reads a topic from a start on, in rounds: what is there now, then what was appended since."""

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

    def round(self, until_ns: int | None = None) -> Iterator[LogMessage]:
        """The records that are there now and were not read, merged by time.

        Each queue in the order of its tokens. ``until_ns``: only those that are older.
        """
        parts: list[Iterator[LogMessage]] = []
        for queue, first, end in self._logs.bounds():
            start = self._next.setdefault(queue, first)
            if end > start:
                parts.append(self._records(queue, start, end))
                self._next[queue] = end
        merged = parts[0] if len(parts) == 1 else heapq.merge(*parts, key=_time)
        if not self._not_before_ns and until_ns is None:
            yield from merged
            return
        first_ns, end_ns = self._not_before_ns, TIME_NS_MAX if until_ns is None else until_ns
        for each in merged:
            if first_ns <= each.timestamp < end_ns:
                yield each

    def _records(self, queue: int, start: int, end: int) -> Iterator[LogMessage]:
        topic = self.topic
        for block, rows in self._logs.rows(queue, start, end):
            raw = block.tobytes()
            for at, token in rows:
                key, time_ns, headers, payload = parts_at(raw, at)
                yield LogMessage(payload, Token(topic, queue, token), key, headers, time_ns)


def no_log(topic: str, modes: Mapping[str, str]) -> NotFound:
    """The error for a topic whose log cannot be read here. ``modes``: by topic."""
    mode = modes.get(topic)
    if mode is None:
        said = f"no topic {topic}{near(topic, modes)}: `tidecast topic list` shows those there are"
    elif mode == "durable":
        said = (
            f"the queues of {topic} are kept by another node: read them there (--server), or with "
            "--subscription NAME"
        )
    else:
        said = f"topic {topic} is live, so nothing is kept: allowed are earliest and latest"
    return NotFound(f"--from: {said}")
