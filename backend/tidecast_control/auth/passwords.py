"""Where passwords are verified: a few at a time, for each takes 64 MiB and a core for a moment."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from tidecast_control.kit.problems import ProblemError

AT_ONCE_MAX, WAITING_MAX = 4, 32
T = TypeVar("T")


class Passwords:
    """Threads apart from those of other requests."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(AT_ONCE_MAX, thread_name_prefix="password")
        self._room = threading.BoundedSemaphore(AT_ONCE_MAX + WAITING_MAX)

    async def run(self, work: Callable[[], T]) -> T:
        """Do it in a thread, when it is its turn. Raises `throttled`: too many wait."""
        if not self._room.acquire(blocking=False):
            raise ProblemError("throttled", "too many logins at once", retry_after_s=1.0)
        try:
            future = self._threads.submit(work)
        except RuntimeError:  # the service stops
            self._room.release()
            raise
        future.add_done_callback(lambda _done: self._room.release())
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)
