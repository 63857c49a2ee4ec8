"""Reading durable queues over the gateway: ranges of the log, as whole encoded batches.

For jobs that keep their own positions (Spark). It reads the segment files, beside the engine, as a
reader on this host does; nothing of the engine waits for it. A key needs `read_payloads`.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed

from tidecast.access import Access
from tidecast.api.frames.common import Frame, Goodbye
from tidecast.api.operations import Needed, Operation, Operations, nothing, reply_to
from tidecast.client.remote import frames, log_frames
from tidecast.client.remote.frames import BadFrame
from tidecast.config.topology import TOPIC_NAME
from tidecast.errors import NotFound, StorageError
from tidecast.log.files import queue_directory
from tidecast.log.queue_files import QueueFiles, queues_of, topics_of
from tidecast.log.reading.range_scan import RangeScan, Wanted
from tidecast.log.reading.select import W_AT, keep_listed
from tidecast.queues.mapper import hash_of

READERS_MAX = 256
RIGHT = "read_payloads"
BLOCK_BYTES = 1 << 20
END_S = 1.0


class LogReader:
    """One connection. All methods run in the gateway's loop; files are read in its threads."""

    def __init__(
        self,
        socket: ServerConnection,
        data_dir: Path,
        access: Access,
        digest: str,
        *,
        denied: Callable[[str, str], None],
        sent: Callable[[int], None],
    ) -> None:
        """``denied(right, topic)``, ``sent(n_bytes)``: count and report."""
        self.access, self.digest = access, digest
        self._socket, self._data_dir = socket, data_dir
        self._denied, self._sent = denied, sent
        self._files: dict[tuple[str, int], QueueFiles] = {}
        self._credit, self._credited = 0, asyncio.Event()
        self._reading: asyncio.Task[None] | None = None

    async def serve(self) -> None:
        """Answer until the reader goes. Raises BadFrame."""
        await self._send(log_frames.Ready())
        try:
            async for data in self._socket:
                frame = log_frames.from_reader(data)
                operation = OPERATIONS.of(frame)
                if operation.answered:
                    await self._answer(operation, frame)
                else:
                    operation.handler(self, frame)
        finally:
            if self._reading is not None:
                self._reading.cancel()

    async def end(self, reason: str) -> None:
        """Tell the reader why, and close."""
        with contextlib.suppress(ConnectionClosed, TimeoutError):
            async with asyncio.timeout(END_S):
                await self._send(Goodbye(reason=reason))
                await self._socket.close()
        self._socket.transport.abort()  # it does not read

    async def _send(self, frame: Frame, body: Any = None) -> None:
        await self._socket.send(frames.encode(frame, body))

    # --- questions --------------------------------------------------------------------------------

    @staticmethod
    def _known(topic: str) -> None:
        if not TOPIC_NAME.fullmatch(topic):
            raise NotFound(f"topic {topic!r}: no such topic")

    def _need(self, right: str, topic: str) -> None:
        self._known(topic)
        if not self.access.may(right, topic):
            self._denied(right, topic)
            self.access.need(right, topic)

    async def _answer(self, operation: Operation, frame: Any) -> None:
        await self._reply(frame, lambda: asyncio.to_thread(operation.handler, self, frame))

    async def _reply(self, frame: Any, work: Callable[[], Awaitable[Any]]) -> None:
        """Check the rights of a question, do its work, and send its answer."""

        async def perform() -> Any:
            OPERATIONS.of(frame).allow(self, frame, self._need)
            try:
                return await work()
            except OSError as problem:
                text = f"cannot read the log: {problem}"
                raise StorageError(text, problem.errno or errno.EIO) from problem

        passed = (ConnectionClosed,)
        kind = log_frames.Answer
        await self._send(await reply_to(frame.id, perform(), "gateway", reply=kind, passed=passed))

    def add_credit(self, frame: log_frames.LogCredit) -> None:
        """The reader has room for more."""
        self._credit = min(self._credit + frame.n_bytes, log_frames.CREDIT_BYTES_MAX)
        self._credited.set()

    def topics(self, _: log_frames.Topics) -> list[str]:
        """Durable topics here that the key may read."""
        return [t for t in topics_of(self._data_dir) if self.access.may(RIGHT, t)]

    def bounds(self, frame: log_frames.Bounds) -> list[tuple[int, int, int]]:
        """(queue, earliest, end) of each queue. Raises NotFound."""
        queues = queues_of(self._data_dir, frame.topic)
        if not queues:
            raise NotFound(f"topic {frame.topic!r}: no durable topic at this gateway")
        files = [self._queue(frame.topic, queue) for queue in queues]
        return [(one.queue, one.earliest_token(), one.end_token()) for one in files]

    def at_time(self, frame: log_frames.AtTime) -> int:
        """The first token of a time. Raises NotFound."""
        return self._queue(frame.topic, frame.queue).token_at_time(frame.time_ns)

    def cuts(self, frame: log_frames.Cuts) -> list[int]:
        """Where a range is best divided. Raises NotFound."""
        queue = self._queue(frame.topic, frame.queue)
        return queue.cuts(frame.start, frame.end, frame.parts, frame.part_bytes_min)

    def _queue(self, topic: str, queue: int) -> QueueFiles:
        key = (topic, queue)
        if key not in self._files:
            if queue not in queues_of(self._data_dir, topic):
                raise NotFound(f"{topic}/{queue}: no such queue at this gateway")
            self._files[key] = QueueFiles(self._data_dir, topic, queue)
        return self._files[key]

    # --- reading ----------------------------------------------------------------------------------

    def begin(self, frame: log_frames.Read) -> None:
        """Begin to send a range. Raises BadFrame while another is under way."""
        if self._reading is not None and not self._reading.done():
            raise BadFrame("a second read while one is under way: open another connection")
        self._credit = frame.credit
        self._reading = asyncio.create_task(self._read(frame))

    async def _read(self, frame: log_frames.Read) -> None:
        with contextlib.suppress(ConnectionClosed):
            await self._reply(frame, lambda: self._send_range(frame.range))

    async def _send_range(self, asked: log_frames.Range) -> int:
        missing: deque[log_frames.Missing] = deque()
        scan = RangeScan(
            queue_directory(self._data_dir, asked.topic, asked.queue),
            asked.topic,
            asked.queue,
            _wanted(asked),
            skip_corrupt=asked.skip_corrupt,
            block_bytes=BLOCK_BYTES,
            fail_on_data_loss=asked.fail_on_data_loss,
            report=lambda what, about: missing.append(log_frames.Missing(what=what, about=about)),
        )
        blocks = iter(scan)
        while True:
            body = await asyncio.to_thread(_next_body, scan, blocks)
            while missing:
                await self._send(missing.popleft())
            if body is None:
                return scan.token
            await self._send_pieces(body, scan.token)

    async def _send_pieces(self, body: np.ndarray, token: int) -> None:
        at = 0
        while True:
            end = min(at + log_frames.PIECE_BYTES_MAX, body.size)
            while self._credit <= 0:
                self._credited.clear()
                await self._credited.wait()
            self._credit -= end - at
            self._sent(end - at)
            await self._send(log_frames.Piece(next=token, more=end < body.size), body[at:end])
            at = end
            if at == body.size:
                return


def _reads(frame: Any) -> Needed:
    return [(RIGHT, frame.topic)]


def _no_question(_: LogReader, frame: Any) -> None:
    raise BadFrame(f"{type(frame).__name__} is no question")


OPERATIONS = Operations(
    {
        log_frames.Topics: Operation(LogReader.topics, nothing),
        log_frames.Bounds: Operation(LogReader.bounds, _reads),
        log_frames.AtTime: Operation(LogReader.at_time, _reads),
        log_frames.Cuts: Operation(LogReader.cuts, _reads),
        log_frames.Read: Operation(
            LogReader.begin, lambda frame: _reads(frame.range), answered=False
        ),
        log_frames.LogCredit: Operation(LogReader.add_credit, nothing, answered=False),
    },
    _no_question,
)


def _wanted(asked: log_frames.Range) -> Wanted:
    return Wanted(
        token_min=asked.start,
        token_end=asked.end,
        time_min_ns=asked.time_min_ns,
        time_end_ns=asked.time_end_ns,
        keys=asked.keys,
        key_null=asked.key_null,
        key_hashes=tuple(hash_of(key) for key in asked.keys or ()),
    )


def _next_body(scan: RangeScan, blocks: Iterator[tuple[np.ndarray, int]]) -> np.ndarray | None:
    """The wanted batches of the next block; None: there is no more."""
    found = next(blocks, None)
    if found is None:
        return None
    block, n = found
    end = int(scan.selector.w[W_AT])
    out = np.empty(end, dtype=np.uint8)
    return out[: keep_listed(block, 0, end, scan.selector.rows, n, out)]
