"""Progress of a long request: its client waits while reports come, and names the last in errors.

An engine that compiles kernels does not hang. So it reports its step to clients that know such
reports, as long as it works on their requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

NEWS_S = 1.0
"""How often an asker hears: well below all of its time limits."""
T = TypeVar("T")


async def with_news(
    work: Awaitable[T],
    news: Callable[[], str],
    say: Callable[[str], None],
    every_s: float | None = None,
) -> T:
    """The result of ``work``. While it lasts, ``say`` gets the ``news`` every second; "": none."""
    task = asyncio.ensure_future(work)
    try:
        while True:
            done, _ = await asyncio.wait({task}, timeout=NEWS_S if every_s is None else every_s)
            if done:
                return task.result()
            if text := news():
                say(text)
    finally:
        if not task.done():
            task.cancel()
