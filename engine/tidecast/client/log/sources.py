"""`Logs` of a data directory, and of a gateway."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from pathlib import Path

from tidecast.api.logs import Blocks, Logs, QueueRange, Report
from tidecast.client.remote.log import LogClient
from tidecast.client.remote.log_frames import Range
from tidecast.config.suggestions import near
from tidecast.errors import CorruptLog, NotFound, StorageError
from tidecast.log.batch import CAUSES
from tidecast.log.files import queue_directory
from tidecast.log.queue_files import QueueFiles, queues_of
from tidecast.log.reading.range_scan import BLOCK_BYTES, RangeScan, Selector, Wanted
from tidecast.log.reading.select import W_AT
from tidecast.queues.mapper import hash_of

BLOCKS_BYTES, BLOCK_BYTES_MIN = 64 << 20, 128 << 10
"""All blocks that are read side by side, and the least of one."""


class LocalLogs(Logs):
    """See `Logs`: the files of a data directory on this host."""

    def __init__(self, data_dir: Path, topic: str, report: Report) -> None:
        self._data_dir, self._topic, self._report = data_dir, topic, report
        self._files: dict[int, QueueFiles] = {}

    def bounds(self) -> list[tuple[int, int, int]]:
        """See `Logs`."""
        try:
            queues = [self._file(queue) for queue in queues_of(self._data_dir, self._topic)]
            return [(each.queue, each.earliest_token(), each.end_token()) for each in queues]
        except OSError as problem:
            raise self._unreadable(problem) from None

    def _file(self, queue: int) -> QueueFiles:
        if queue not in self._files:
            self._files[queue] = QueueFiles(self._data_dir, self._topic, queue)
        return self._files[queue]

    def at_time(self, queue: int, time_ns: int) -> int:
        """See `Logs`."""
        return self._file(queue).token_at_time(time_ns)

    def blocks(self, asked: QueueRange, side_by_side: int = 1) -> Blocks:
        """See `Logs`."""
        room = max(BLOCKS_BYTES // side_by_side, BLOCK_BYTES_MIN)
        scan = RangeScan(
            queue_directory(self._data_dir, self._topic, asked.queue),
            self._topic,
            asked.queue,
            _wanted(asked),
            fail_on_data_loss=False,
            report=self._report,
            block_bytes=min(room, BLOCK_BYTES),
        )
        try:
            for block, n in scan:
                yield block[: int(scan.selector.w[W_AT])], scan.selector.rows[:n]
        except OSError as problem:
            raise self._unreadable(problem) from None

    def _unreadable(self, problem: OSError) -> StorageError:
        return StorageError(
            f"{self._topic}: cannot read its queues in {self._data_dir}: {problem}",
            problem.errno or errno.EIO,
        )

    def close(self) -> None:
        """See `Logs`."""


class RemoteLogs(Logs):
    """See `Logs`: over a gateway. Each range that is being read has a connection."""

    def __init__(self, server: str, token: str | None, topic: str, report: Report) -> None:
        """``server``: ``tidecast://HOST:PORT``."""
        self._server, self._token = server, token or ""
        self._topic, self._report = topic, report
        self._client = LogClient(self._server, self._token)
        self._readers: list[LogClient] = []
        self._free: list[LogClient] = []

    def bounds(self) -> list[tuple[int, int, int]]:
        """See `Logs`."""
        return self._client.bounds(self._topic)

    def at_time(self, queue: int, time_ns: int) -> int:
        """See `Logs`."""
        return self._client.at_time(self._topic, queue, time_ns)

    def blocks(self, asked: QueueRange, side_by_side: int = 1) -> Blocks:
        """See `Logs`. Raises Conflict: too many readers at the gateway."""
        del side_by_side  # the gateway sends as much as the reader's credit allows
        if not self._free:
            self._free.append(LogClient(self._server, self._token))
            self._readers += self._free
        reader = self._free.pop()
        yield from self._blocks(reader, asked)
        self._free.append(reader)

    def _blocks(self, reader: LogClient, asked: QueueRange) -> Blocks:
        over_wire = Range(
            topic=self._topic,
            queue=asked.queue,
            start=asked.start,
            end=asked.end,
            time_min_ns=asked.time_min_ns,
            time_end_ns=asked.time_end_ns,
            keys=asked.keys,
            fail_on_data_loss=False,
        )
        selector = Selector(_wanted(asked), holes=True)
        for block in reader.read(over_wire, self._report):
            n = selector.select(block, block.size, -1)
            if n < 0 or selector.w[W_AT] != block.size:
                raise CorruptLog(
                    f"{self._topic}/{asked.queue}: the data of {self._server} arrived damaged: "
                    f"{CAUSES.get(n, 'its offsets are out of order')}"
                )
            yield block, selector.rows[:n]

    def close(self) -> None:
        """See `Logs`."""
        for client in (self._client, *self._readers):
            client.close()


def _wanted(asked: QueueRange) -> Wanted:
    return Wanted(
        token_min=asked.start,
        token_end=asked.end,
        time_min_ns=asked.time_min_ns,
        time_end_ns=asked.time_end_ns,
        keys=asked.keys,
        key_hashes=tuple(hash_of(key) for key in asked.keys or ()),
    )


def no_log(topic: str, modes: Mapping[str, str]) -> NotFound:
    """The error for a topic whose log this node does not have. ``modes``: by topic."""
    mode = modes.get(topic)
    if mode is None:
        return NotFound(f"no topic {topic}{near(topic, modes)}")
    if mode == "durable":
        return NotFound(
            f"another node keeps the queues of {topic}: connect to that node or to its gateway, or "
            "consume the topic with a subscription"
        )
    return NotFound(f"topic {topic} is live: only durable topics keep their messages")
