"""The connections of a client of another system: its close ends each call that waits."""

from __future__ import annotations

import threading
import weakref

from tidecast.connections.tcp import Connection
from tidecast.errors import Closed


class ConnectionRegistry:
    """Connections, also while they are being opened. From any thread."""

    def __init__(self, where: str) -> None:
        """``where``: the client, for errors."""
        self._where = where
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._made: weakref.WeakSet[Connection] = weakref.WeakSet()

    def add(self, connection: Connection) -> None:
        """Register a connection before it connects. Raises Closed."""
        with self._lock:
            self._check_open()
            self._made.add(connection)

    def pause(self, seconds: float) -> None:
        """Wait between two attempts. Raises Closed when the registry is closed meanwhile."""
        self._closing.wait(seconds)
        self._check_open()

    def _check_open(self) -> None:
        if self._closing.is_set():
            raise Closed(f"{self._where}: used after close")

    def close(self) -> None:
        """Wake all connections, and refuse new ones: nothing is sent once it returns."""
        with self._lock:
            self._closing.set()
            made = list(self._made)
        for connection in made:
            connection.wake()
