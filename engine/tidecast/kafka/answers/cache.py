"""Record batches that are kept in memory as clients get them, so that no Fetch makes them twice.

Two pools of blocks. *Tails* hold batches as producers sent them, with offset and epoch filled in,
as a broker stores them: a reader near the end of a queue costs no reading and no encoding. *Reads*
hold blocks made from a log: for several readers of one place, and for a reader whose next block was
made ahead. Each pool gives up the block that was used the longest ago; a block that was not used
for a while is freed.

A token of a `QueueLog` never gets another record, so a block stays true as long as its log is open.
"""

from __future__ import annotations

import mmap
import struct
import threading
import time
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from tidecast.kafka import record_kernels
from tidecast.log.queue_log import QueueLog

TAIL_BYTES, READ_BYTES = 256 << 10, (1 << 20) + (128 << 10)
"""Of a block of each pool; a longer batch gets a block of its own."""
TAIL_BATCH_BYTES_MAX = 1 << 20
"""A longer batch of a producer is not kept."""
TAIL_SHARE = 0.75
"""The part of the cache that the tails may have."""
TINY_RECORDS = 8
"""A tail of fewer records a batch is dropped when it is full: from the log they come in larger
batches, which cost their readers less."""
IDLE_S = 10.0
"""A block that is not used for so long is freed."""
OVER_BYTES = 512 << 10
"""So far behind the bytes that are asked for an answer may end: its last batch is whole."""
_OFFSET, _EPOCH = struct.Struct(">q"), struct.Struct(">i")
_EPOCH_AT = 12


class Block:
    """Whole record batches of a queue, tokens ``first`` to ``end``, in ``data[:used]``."""

    __slots__ = ("batches", "data", "end", "epoch", "first", "log", "pins", "used", "used_s")

    def __init__(
        self,
        log: QueueLog,
        epoch: int,
        first: int,
        data: np.ndarray,
        *,
        used: int = 0,
        end: int = -1,
        pins: int = 0,
    ) -> None:
        self.log, self.epoch, self.first = log, epoch, first
        self.end = first if end < 0 else end
        self.data, self.used, self.batches = data, used, 0
        self.pins = pins
        """Answers that are sent from it: its memory is not used again meanwhile."""
        self.used_s = 0.0


class Piece(NamedTuple):
    """Batches for an answer, the token behind them, and the block that they are a part of."""

    data: memoryview | bytes
    behind: int
    block: Block | None = None
    """None: they were copied."""


def new_slab(n: int) -> np.ndarray:
    """Memory that the system gets back as soon as no object refers to it."""
    made: np.ndarray = np.frombuffer(
        mmap.mmap(-1, n, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), dtype=np.uint8
    )
    return made


class _Pool:
    """Blocks by log and token, and by their last use."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max, self.bytes = bytes_max, 0
        self._of: dict[QueueLog, list[Block]] = {}
        self._by_use: OrderedDict[Block, None] = OrderedDict()

    def find(self, log: QueueLog, token: int) -> Block | None:
        rows = self._of.get(log, ())
        at = bisect_right(rows, token, key=_first) - 1
        if at < 0 or not rows[at].first <= token < rows[at].end:
            return None
        self._by_use.move_to_end(rows[at])
        return rows[at]

    def add(self, block: Block) -> None:
        rows = self._of.setdefault(block.log, [])
        at = bisect_right(rows, block.first, key=_first)
        if at and rows[at - 1].first == block.first:
            self.drop(rows[at - 1])
            rows, at = self._of.setdefault(block.log, []), at - 1
        rows.insert(at, block)
        self._by_use[block] = None
        self.bytes += block.data.size

    def drop(self, block: Block) -> None:
        rows = self._of[block.log]
        rows.remove(block)
        if not rows:
            del self._of[block.log]
        del self._by_use[block]
        self.bytes -= block.data.size

    def room(self, n: int) -> np.ndarray:
        """Memory for ``n`` bytes: that of a block that goes for it, or new memory."""
        found = None
        while self._by_use and self.bytes + n > self.bytes_max:
            oldest = next(iter(self._by_use))
            self.drop(oldest)
            if oldest.pins == 0 and oldest.data.size == n:
                found = oldest.data
        return new_slab(n) if found is None else found

    def oldest(self) -> Block | None:
        return next(iter(self._by_use), None)

    def blocks(self) -> list[Block]:
        return list(self._by_use)


def _first(block: Block) -> int:
    return block.first


def _follows(block: Block, epoch: int, token: int, n: int) -> bool:
    """May a batch of ``n`` bytes be added to a block?"""
    return block.end == token and block.epoch == epoch and block.used + n <= block.data.size


class BlockCache:
    """See module. All methods may be called in any thread."""

    def __init__(self, bytes_max: int, now_s: Callable[[], float] = time.monotonic) -> None:
        """``bytes_max`` 0: nothing is kept."""
        self.bytes_max, self._now_s = bytes_max, now_s
        self._tails = _Pool(int(bytes_max * TAIL_SHARE))
        self._reads = _Pool(bytes_max - self._tails.bytes_max)
        self._open: dict[QueueLog, Block] = {}
        """The tails that are still written to."""
        self._lock = threading.Lock()

    @property
    def bytes(self) -> int:
        """Bytes of all blocks."""
        return self._tails.bytes + self._reads.bytes

    # --- tails ------------------------------------------------------------------------------------

    def append(self, raw: memoryview, log: QueueLog, epoch: int, token: int, count: int) -> None:
        """Keep a verified record batch whose ``count`` records got the tokens from ``token`` on."""
        n = len(raw)
        if not self.bytes_max or n > min(TAIL_BATCH_BYTES_MAX, self._tails.bytes_max):
            return
        with self._lock:
            block = self._open.get(log)
            if block is None or not _follows(block, epoch, token, n):
                block = self._renew(log, epoch, token, max(n, TAIL_BYTES))
            to = block.used
            into = memoryview(block.data)  # type: ignore[arg-type]
            into[to : to + n] = raw
            _OFFSET.pack_into(into, to, token)
            _EPOCH.pack_into(into, to + _EPOCH_AT, epoch)
            block.batches += 1
            block.used, block.end, block.used_s = to + n, token + count, self._now_s()

    def _renew(self, log: QueueLog, epoch: int, token: int, n: int) -> Block:
        full = self._open.pop(log, None)
        if full is not None and full.end - full.first < TINY_RECORDS * full.batches:
            self._tails.drop(full)
        data = self._tails.room(n)
        self._forget_closed()
        block = self._open[log] = Block(log, epoch, token, data)
        self._tails.add(block)
        return block

    def _forget_closed(self) -> None:
        """Blocks that went to make room are not written to any more."""
        kept = set(self._tails.blocks())
        for log in [log for log, block in self._open.items() if block not in kept]:
            del self._open[log]

    # --- reads ------------------------------------------------------------------------------------

    def room(self, n: int) -> np.ndarray:
        """Memory for a block that is read, of ``n`` bytes."""
        if not self.bytes_max:
            return np.empty(n, dtype=np.uint8)
        with self._lock:
            return self._reads.room(n)

    def add(self, block: Block) -> None:
        """Keep a block that was read."""
        if not self.bytes_max:
            return
        with self._lock:
            block.used_s = self._now_s()
            self._reads.add(block)

    # --- both -------------------------------------------------------------------------------------

    def has(self, log: QueueLog, epoch: int, token: int) -> bool:
        """Is a token in a block?"""
        with self._lock:
            return self._find(log, epoch, token) is not None

    def take(
        self, log: QueueLog, epoch: int, token: int, limit: int, bytes_max: int, *, first: bool
    ) -> Piece | None:
        """Batches from the one with ``token`` on, as `cut` gives them; None: no block has it."""
        with self._lock:
            block = self._find(log, epoch, token)
            return None if block is None else self._cut(block, token, limit, bytes_max, first)

    def cut(self, block: Block, token: int, limit: int, bytes_max: int, *, first: bool) -> Piece:
        """Batches of a block from the one with ``token`` on, and below ``limit``.

        No batch begins beyond ``bytes_max``, and none ends far behind it, unless it is the
        ``first`` of a partition. The piece is empty when not even one fits. `release` its block.
        """
        with self._lock:
            return self._cut(block, token, limit, bytes_max, first)

    def release(self, block: Block) -> None:
        """An answer was sent."""
        with self._lock:
            block.pins -= 1

    def release_all(self, pieces: Iterable[Piece]) -> None:
        """Pieces that are not sent."""
        for piece in pieces:
            if piece.block is not None:
                self.release(piece.block)

    def trim(self) -> None:
        """Free the blocks that were not used for a while."""
        with self._lock:
            for pool in (self._tails, self._reads):
                while (block := pool.oldest()) is not None:
                    if self._now_s() - block.used_s < IDLE_S:
                        break
                    pool.drop(block)
            self._forget_closed()

    def _find(self, log: QueueLog, epoch: int, token: int) -> Block | None:
        for pool in (self._tails, self._reads):
            found = pool.find(log, token)
            if found is not None and found.epoch == epoch:
                return found
        return None

    def _cut(self, block: Block, token: int, limit: int, bytes_max: int, first: bool) -> Piece:
        start, end, behind = record_kernels.span_of_batches(
            block.data, block.used, token, limit, bytes_max, 1 << 40 if first else OVER_BYTES
        )
        block.used_s = self._now_s()
        data: Any = memoryview(block.data)[start:end]  # type: ignore[arg-type]
        if 2 * (end - start) < block.data.size:  # a small answer must not hold a large block
            return Piece(bytes(data), behind)
        block.pins += 1
        return Piece(data, behind, block)
