"""Actions that the engine answers in pages, for the client and the command line alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from tidecast.client.admin.types import Cancelled, sum_of

SCHEDULED_PAGE = 1000
Ask = Callable[..., Any]
"""One action of the engine: its name, and its arguments by name."""


def read_scheduled(ask: Ask, *, limit: int, **chosen: Any) -> tuple[list[dict[str, Any]], bool]:
    """At most ``limit`` scheduled records, by queue and offset. Are there more?"""
    rows: list[dict[str, Any]] = []
    after: Any = None
    while len(rows) < limit:
        page = ask("scheduled", limit=min(limit - len(rows), SCHEDULED_PAGE), after=after, **chosen)
        rows += page["records"]
        after = page["next"]
        if after is None:
            break
    return rows, after is not None


def cancel_scheduled(ask: Ask, **chosen: Any) -> Cancelled:
    """Cancel scheduled records; the sums of all pages."""
    pages: list[Cancelled] = []
    after: Any = None
    while not pages or after is not None:
        page = ask("cancel_scheduled", after=after, **chosen)
        pages.append(msgspec.convert(page, Cancelled))
        after = page["next"]
    return sum_of(pages)
