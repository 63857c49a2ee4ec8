"""Refusals by key: a row of counters for each key, shared by gateway, socket and Kafka endpoint."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from tidecast.buffers.counters import CountersFile
from tidecast.errors import SharedMemoryError
from tidecast.layout.counters import COLUMNS, ROW_KEY, KeyCounter

KEYS_COUNTED_MAX = 256
OTHERS = "(others)"


class KeyCounts:
    """See module. Thread-safe.

    The first KEYS_COUNTED_MAX keys that are refused something have rows of their own, all others
    together have the row ``(others)``. Rows stay until the engine ends.
    """

    def __init__(self, counters: Callable[[], CountersFile]) -> None:
        self._counters, self._lock = counters, threading.Lock()
        self._rows: dict[str, np.ndarray[Any, np.dtype[np.int64]]] = {}

    def count(self, key: str, counter: KeyCounter) -> None:
        """A request of a client with this key was refused."""
        with self._lock:
            if key not in self._rows and len(self._rows) >= KEYS_COUNTED_MAX:
                key = OTHERS
            row = self._rows.get(key)
            if row is None:
                row = self._rows[key] = self._made(key)
            row[counter] += 1

    def _made(self, key: str) -> np.ndarray[Any, np.dtype[np.int64]]:
        counters = self._counters()
        try:
            return counters.values[counters.allocate(ROW_KEY, key)]
        except SharedMemoryError:  # all rows are taken: the sums of the servers have it
            return np.zeros(COLUMNS, dtype=np.int64)
