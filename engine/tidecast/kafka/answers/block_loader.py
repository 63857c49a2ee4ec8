"""Blocks of record batches that are made from a log, in threads, once for all waiters."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from tidecast.kafka.answers.cache import READ_BYTES, Block, BlockCache, Piece
from tidecast.kafka.records import NoRoom, block_of_thread, encoder, room_of_thread
from tidecast.log.queue_log import LogReader, QueueLog

LOG_BYTES, BLOCK_BYTES = 1 << 20, 1 << 20
"""Bytes read from a log at once; bytes of record batches after which a block gets no more.

Clients ask for 1 MiB of a partition by default, so an answer takes whole blocks.
"""
KEPT_BYTES_MIN = 64 << 10
"""A shorter block is not kept: it is the end of a queue, and the next one is another."""
READERS_MAX = 64
"""Segments that are held open."""
AHEAD_MAX = 16
"""Blocks that are made ahead at a time."""
Key = tuple[QueueLog, int, int]


class _Load:
    """A block on its way. It is pinned while a request waits for it, or has it."""

    __slots__ = ("ended", "future", "pinned", "waiting")

    def __init__(self, future: asyncio.Future[Block]) -> None:
        self.future, self.waiting = future, 0
        self.ended, self.pinned = False, True


class BlockLoader:
    """See module. `start`, `load` and `ahead` in the loop's thread."""

    def __init__(
        self, cache: BlockCache, pool: ThreadPoolExecutor, count: Callable[[str, int], None]
    ) -> None:
        self._cache, self._pool, self._count = cache, pool, count
        self._loading: dict[Key, _Load] = {}
        self._ahead = 0
        self._readers: list[LogReader] = []
        """Unused readers; the last used are at the end."""
        self._lock = threading.Lock()

    async def load(
        self, log: QueueLog, epoch: int, token: int, limit: int, bytes_max: int, *, first: bool
    ) -> Piece:
        """Batches from the one with ``token`` on, cut as `BlockCache.cut` does, from the log.

        Raises errors of `LogReader.read_block`, and ValueError for bytes that are no batch.
        """
        found = self.start(log, epoch, token, limit)
        found.waiting += 1
        try:
            block = await asyncio.shield(found.future)
            return self._cache.cut(block, token, limit, bytes_max, first=first)
        finally:
            found.waiting -= 1
            self._unpin(found)

    def start(self, log: QueueLog, epoch: int, token: int, limit: int) -> _Load:
        """Begin to make the block with ``token``, of tokens below ``limit``."""
        key = (log, epoch, token)
        found = self._loading.get(key)
        if found is None:
            loop = asyncio.get_running_loop()
            future = loop.run_in_executor(self._pool, self._load, log, epoch, token, limit)
            found = self._loading[key] = _Load(future)
            future.add_done_callback(lambda _: self._end(key))
        return found

    def _end(self, key: Key) -> None:
        load = self._loading.pop(key)
        load.ended = True
        self._unpin(load)

    def _unpin(self, load: _Load) -> None:
        """Its memory may be used again, once it is made and all waiters have their piece."""
        if not (load.ended and load.pinned) or load.waiting:
            return
        load.pinned = False
        if not load.future.cancelled() and load.future.exception() is None:
            self._cache.release(load.future.result())

    def ahead(self, log: QueueLog, epoch: int, token: int, limit: int) -> None:
        """Make the block that a reader asks for next, while it looks at the one before."""
        if not self._cache.bytes_max or self._ahead >= AHEAD_MAX or token >= limit:
            return
        if (log, epoch, token) not in self._loading and not self._cache.has(log, epoch, token):
            self._ahead += 1
            self.start(log, epoch, token, limit).future.add_done_callback(self._end_ahead)

    def _end_ahead(self, _: asyncio.Future[Block]) -> None:
        self._ahead -= 1

    def stop(self) -> None:
        """Close the segments that are open; the threads have ended."""
        with self._lock:
            for reader in self._readers:
                reader.close()
            self._readers.clear()

    # --- in a thread ------------------------------------------------------------------------------

    def _load(self, log: QueueLog, epoch: int, token: int, limit: int) -> Block:
        reader = self._reader(log, token)
        try:
            block = self._read(reader, log, epoch, token, limit)
        finally:
            self._give(reader)
        self._count("blocks_read", 1)
        if block.data.size >= KEPT_BYTES_MIN:
            self._cache.add(block)
        return block

    def _read(self, reader: LogReader, log: QueueLog, epoch: int, token: int, limit: int) -> Block:
        source, n = read_batches(reader, token, LOG_BYTES)
        small = n < LOG_BYTES // 2
        room = room_of_thread(READ_BYTES) if small else self._cache.room(READ_BYTES)
        size, behind = 0, token
        while n:
            try:
                part = encoder().encode(
                    source, n, room[size:], limit=limit, bytes_max=BLOCK_BYTES - size, epoch=epoch
                )
            except NoRoom as problem:
                if size:
                    reader.give_back(n, behind)
                    break
                room = np.empty(problem.need, dtype=np.uint8)
                part = encoder().encode(source, n, room, limit=limit, bytes_max=1, epoch=epoch)
            if part.n_bytes:
                size, behind = size + part.n_bytes, part.behind
            if part.used < n:
                reader.give_back(n - part.used, behind)
                break
            missing = BLOCK_BYTES - size
            if small or behind >= limit or missing < BLOCK_BYTES >> 3:
                break
            source, n = read_batches(reader, behind, missing * part.used // part.n_bytes)
        data = room[:size].copy() if small else room
        return Block(log, epoch, token, data, used=size, end=behind, pins=1)

    def _reader(self, log: QueueLog, token: int) -> LogReader:
        """An unused reader, best the reader that has read up to ``token``."""
        with self._lock:
            fitting = [each for each in self._readers if each.log is log]
            found = next((each for each in fitting if each.next_token == token), None)
            if found is None and len(fitting) >= 2:
                found = fitting[0]
            if found is not None:
                self._readers.remove(found)
        return found or log.reader()

    def _give(self, reader: LogReader) -> None:
        with self._lock:
            self._readers.append(reader)
            gone = self._readers.pop(0) if len(self._readers) > READERS_MAX else None
        if gone is not None:
            gone.close()


def read_batches(reader: LogReader, token: int, room: int) -> tuple[np.ndarray, int]:
    """Whole batches from the one with ``token`` on, and their bytes; 0: none is there.

    They are in a buffer of this thread, until the next call. Raises as `LogReader.read_block`.
    """
    buffer = block_of_thread(LOG_BYTES)[: max(room, 64 << 10)]
    try:
        return buffer, reader.read_block(token, buffer)
    except ValueError:  # one batch is longer
        buffer = np.empty(reader.need, dtype=np.uint8)
        return buffer, reader.read_block(token, buffer)
