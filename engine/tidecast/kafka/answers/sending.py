"""Sends an answer from where its pieces are: many in a system call, and none of them copied.

A transport of asyncio copies bytes that the socket does not take at once. This has a descriptor of
its own for the same socket, so that it can wait until there is room again.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterable

PIECES_MAX, BYTES_MAX = 256, 1 << 20
"""In one system call; then other connections have their turn."""


class Sending:
    """See module. Nothing is written to the transport meanwhile. `close` it with its connection."""

    def __init__(self, sock: socket.socket) -> None:
        """``sock``: a duplicate of the connection's, which does not block."""
        self._sock = sock
        self._waiter: asyncio.Future[None] | None = None
        self.stuck_since_s = 0.0
        """Since when the socket has taken nothing; 0: it takes all bytes at once."""

    async def send(self, pieces: Iterable[bytes | bytearray | memoryview]) -> None:
        """Hand all of it to the socket. Raises ConnectionError."""
        left = [memoryview(piece) for piece in pieces if len(piece)]
        left.reverse()
        while left:
            some: list[memoryview] = []
            n = 0
            while left and len(some) < PIECES_MAX and n < BYTES_MAX:
                some.append(left.pop())
                n += len(some[-1])
            sent = self._try(some)
            left += reversed(_behind(some, sent))
            if sent:
                self.stuck_since_s = 0.0
            if sent < n:
                self.stuck_since_s = self.stuck_since_s or time.monotonic()
                await self._room()
            elif left:
                await asyncio.sleep(0)

    def _try(self, pieces: list[memoryview]) -> int:
        if self._sock.fileno() < 0:
            raise ConnectionAbortedError("the connection is closed")
        try:
            return self._sock.sendmsg(pieces)
        except (BlockingIOError, InterruptedError):
            return 0

    async def _room(self) -> None:
        """Wait until the socket takes more."""
        loop, fd = asyncio.get_running_loop(), self._sock.fileno()
        self._waiter = waiter = loop.create_future()
        loop.add_writer(fd, _set, waiter)
        try:
            await waiter
        finally:
            self._waiter = None
            if self._sock.fileno() >= 0:
                loop.remove_writer(fd)

    def close(self) -> None:
        """End it; a call that waits for room gets ConnectionAbortedError. Idempotent."""
        waiter, self._waiter = self._waiter, None
        if waiter is not None:
            asyncio.get_running_loop().remove_writer(self._sock.fileno())
            if not waiter.done():
                waiter.set_exception(ConnectionAbortedError("the connection is closed"))
        self._sock.close()


def _set(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def _behind(pieces: list[memoryview], sent: int) -> list[memoryview]:
    """The rest of pieces of which ``sent`` bytes are gone."""
    for i, piece in enumerate(pieces):
        if sent < len(piece):
            return [piece[sent:], *pieces[i + 1 :]]
        sent -= len(piece)
    return []
