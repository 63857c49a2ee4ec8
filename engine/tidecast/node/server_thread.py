"""A server with an event loop and a thread of its own: the gateway and the Kafka endpoint."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from tidecast.errors import ConfigError


class ServerThread:
    """Runs ``main`` in a thread. ``main`` listens, then awaits `serve`, then closes its server."""

    def __init__(self, main: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        self._main = main
        self.loop: asyncio.AbstractEventLoop | None = None
        """The loop, while ``main`` runs."""
        self._stopping: asyncio.Event | None = None
        self._ready = threading.Event()
        self._problem: Exception | None = None
        self._calls: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._called = False
        """The loop was woken and has not looked at the calls since."""
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self, place: str, mend: str, *, timeout_s: float) -> None:
        """Start, and wait until ``main`` serves.

        Raises ConfigError, which names ``place`` and ``mend``, when it cannot listen or takes too
        long, and any other error of ``main``.
        """
        self._thread.start()
        if not self._ready.wait(timeout_s):
            raise ConfigError(f"{place}: it did not start in time")
        problem = self._problem
        if isinstance(problem, OSError):
            raise ConfigError(f"{place}: {problem.strerror or problem}: {mend}") from problem
        if problem is not None:
            raise problem

    def stop(self, *, timeout_s: float) -> None:
        """End `serve`, and wait for the end of ``main``. Idempotent."""
        if self._stopping is not None:
            self.call(self._stopping.set)
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def call(self, callback: Callable[..., object], *arguments: Any) -> None:
        """Call back in the loop, from any thread; do nothing before its start and after its end.

        Calls that follow each other closely wake the loop once.
        """
        loop = self.loop
        if loop is None:
            return
        self._calls.append((callback, arguments))
        if not self._called:
            self._called = True
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._call_all, loop)

    def _call_all(self, loop: asyncio.AbstractEventLoop) -> None:
        self._called = False  # first: a later call wakes the loop again
        while self._calls:
            callback, arguments = self._calls.popleft()
            loop.call_soon(callback, *arguments)

    async def serve(self) -> None:
        """Report that ``main`` listens; return when `stop` is called."""
        assert self._stopping is not None
        self._ready.set()
        await self._stopping.wait()

    def _run(self) -> None:
        async def run() -> None:
            self.loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
            await self._main()

        try:
            asyncio.run(run())
        except Exception as problem:  # noqa: BLE001 - `start` raises it
            self._problem = problem
        finally:
            self.loop = None
            self._calls.clear()
            self._ready.set()
