"""The thread of a server: calls from other threads wake its loop once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tidecast.node.server_thread import ServerThread

TIMEOUT_S = 60.0


@pytest.fixture
def served() -> Iterator[ServerThread]:
    async def main() -> None:
        await made.serve()

    made = ServerThread(main, "test-server")
    made.start("test", "nothing", timeout_s=TIMEOUT_S)
    yield made
    made.stop(timeout_s=TIMEOUT_S)


def test_calls_that_follow_each_other_wake_the_loop_once(
    served: ServerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    wakes, got = list[Callable[..., Any]](), list[int]()
    held, resumed, done = threading.Event(), threading.Event(), threading.Event()

    def hold() -> None:
        held.set()
        resumed.wait(TIMEOUT_S)

    served.call(hold)
    assert held.wait(TIMEOUT_S)
    loop = served.loop
    assert loop is not None
    wake = loop.call_soon_threadsafe

    def counted(callback: Callable[..., Any], *arguments: Any, **given: Any) -> asyncio.Handle:
        wakes.append(callback)
        return wake(callback, *arguments, **given)

    monkeypatch.setattr(loop, "call_soon_threadsafe", counted)
    for i in range(5):
        served.call(got.append, i)
    served.call(done.set)
    resumed.set()
    assert done.wait(TIMEOUT_S)
    assert got == [0, 1, 2, 3, 4]
    assert len(wakes) == 1
    done.clear()
    served.call(done.set)
    assert done.wait(TIMEOUT_S), "a later call wakes it again"


def test_a_call_that_fails_loses_none_behind_it(served: ServerThread) -> None:
    held, resumed, done = threading.Event(), threading.Event(), threading.Event()
    failures: list[Any] = []

    def hold() -> None:
        assert served.loop is not None
        served.loop.set_exception_handler(lambda _loop, context: failures.append(context))
        held.set()
        resumed.wait(TIMEOUT_S)

    def fail() -> None:
        raise KeyError

    served.call(hold)
    assert held.wait(TIMEOUT_S)
    served.call(fail)
    served.call(done.set)
    resumed.set()
    assert done.wait(TIMEOUT_S)
    assert len(failures) == 1


def test_calls_behind_the_end_are_not_kept(served: ServerThread) -> None:
    served.stop(timeout_s=TIMEOUT_S)
    served.call(served.stop)
    assert served.loop is None
    assert not served._calls
