"""The log of a durable topic as a client reads it: the queues that a node keeps, by offset."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import msgspec
import numpy as np

TIME_MIN_NS, TIME_END_NS = -(1 << 62), (1 << 63) - 1
Report = Callable[[str, dict[str, Any]], None]
"""Called with a missing range: see `tidecast.log.reading.range_scan`."""
Blocks = Iterator[tuple["np.ndarray[Any, Any]", "np.ndarray[Any, Any]"]]
"""Bytes of whole batches, and int64[n, 2]: where in them each record begins, and its offset."""


class QueueRange(msgspec.Struct, frozen=True, kw_only=True):
    """Records of one queue: offsets [start, end), times [min, end), and keys (None: any)."""

    queue: int
    start: int
    end: int
    time_min_ns: int = TIME_MIN_NS
    time_end_ns: int = TIME_END_NS
    keys: tuple[bytes, ...] | None = None


class Logs(Protocol):
    """The queues of one topic. Not for two threads at once."""

    def bounds(self) -> list[tuple[int, int, int]]:
        """(queue, first offset, end) of each queue; empty when the node does not keep the topic."""

    def at_time(self, queue: int, time_ns: int) -> int:
        """First offset of the first batch with a record not older than this; else the end."""

    def blocks(self, asked: QueueRange, side_by_side: int = 1) -> Blocks:
        """The records of a range, in order. A block is valid until the next one.

        ``side_by_side``: ranges that are read at the same time; they share some memory. Raises
        CorruptLog, StorageError, and over a gateway AuthError, Conflict and ConnectionLost.
        """

    def close(self) -> None:
        """Free all. Idempotent."""
