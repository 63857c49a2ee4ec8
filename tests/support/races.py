"""Two requests at once, at the point where one must wait for the other."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import pytest
from sqlalchemy import text

from tests.conftest import Eventually
from tidecast_control.db import Database

T = TypeVar("T")
WAIT_S = 30.0


def two_at_once(
    at: tuple[Any, str],
    calls: tuple[Callable[[], T], Callable[[], T]],
    db: Database,
    patch: pytest.MonkeyPatch,
    eventually: Eventually,
) -> tuple[T, T]:
    """The results of two calls, the second of which begins while the first has read.

    The first stops where it calls ``at`` (module, name of a function). It goes on once the second
    has come there, too, or waits for a lock of the database, as it should.
    """
    owner, name = at
    real = getattr(owner, name)
    first_is_there, go_on = threading.Event(), threading.Event()

    def held(*arguments: Any) -> Any:
        if first_is_there.is_set():
            go_on.set()
        first_is_there.set()
        assert go_on.wait(WAIT_S)
        return real(*arguments)

    def second_waits() -> bool:
        with db.begin() as session:
            found = session.execute(text("SELECT count(*) FROM pg_locks WHERE NOT granted"))
            return bool(found.scalar_one())

    patch.setattr(owner, name, held)
    with ThreadPoolExecutor(2) as pool:
        try:
            first = pool.submit(calls[0])
            assert first_is_there.wait(WAIT_S)
            second = pool.submit(calls[1])
            eventually(lambda: go_on.is_set() or second_waits(), "the second", timeout_s=WAIT_S)
        finally:
            go_on.set()
        return first.result(), second.result()
