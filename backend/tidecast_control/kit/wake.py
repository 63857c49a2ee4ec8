"""Wakes the loop of a background task from any thread."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable


def call_soon(loop: asyncio.AbstractEventLoop, call: Callable[[], object]) -> None:
    """Run a call in the loop's thread, unless the loop is closed. From any thread."""
    with contextlib.suppress(RuntimeError):  # the loop is closed: the service stops
        loop.call_soon_threadsafe(call)


class Wake:
    """A task waits here between its turns. `set` and `soon` are safe from any thread."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._event = asyncio.Event()

    def attach(self) -> None:
        """Belong to the running loop: before this, `set` and `soon` do nothing."""
        self._loop = asyncio.get_running_loop()

    def set(self) -> None:
        """End the wait of the task, or its next one."""
        self.soon(self._event.set)

    def soon(self, call: Callable[[], object]) -> None:
        """Run a call in the task's loop."""
        if self._loop is not None:
            call_soon(self._loop, call)

    def clear(self) -> None:
        """A turn begins: the next `wait` lasts until a later `set`."""
        self._event.clear()

    async def wait(self, timeout_s: float) -> None:
        """Wait until `set`, or for so long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._event.wait()
