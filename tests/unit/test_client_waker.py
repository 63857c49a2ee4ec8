"""How the doorbell wakes event loops: at once, each waiting task, in one loop after another."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.clients import loop_link

from tidecast.client.flows.steps import LoopDriver
from tidecast.client.waiting import Bell

LONG_S = 600.0
"""A test that waits so long has failed."""


@pytest.fixture
def bell() -> Iterator[Bell]:
    with loop_link() as link:
        yield Bell(link)


def event_descriptors() -> int:
    """Eventfds of this process."""
    found = 0
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # that of the listing itself
            found += "eventfd" in str(path.readlink())
    return found


async def rung(driver: LoopDriver, bell: Bell) -> float:
    """Seconds until a ring wakes two tasks."""
    waits = [asyncio.create_task(driver.ring(lambda: bell.word, LONG_S)) for _ in range(2)]
    await asyncio.sleep(0)  # both wait
    await asyncio.sleep(0)
    began = time.monotonic()
    bell.ring()
    assert await asyncio.wait_for(asyncio.gather(*waits), LONG_S / 2) == [True, True]
    return time.monotonic() - began


def test_a_ring_wakes_each_task_that_waits_again_and_again(bell: Bell) -> None:
    driver = LoopDriver(lambda: bell)

    async def many() -> None:
        for _ in range(200):
            await rung(driver, bell)
        await asyncio.to_thread(driver.stop)

    asyncio.run(many())


def test_a_wait_ends_with_its_time_and_needs_none_where_something_is_there(bell: Bell) -> None:
    driver = LoopDriver(lambda: bell)

    async def waits() -> None:
        assert await driver.ring(lambda: bell.word, 0.001)
        assert await driver.ring(lambda: None, LONG_S)
        await asyncio.to_thread(driver.stop)

    asyncio.run(waits())


def test_another_bell_wakes_what_waits(bell: Bell) -> None:
    """The client has a new engine: what rang before nobody knows."""
    with loop_link() as link:
        other, now = Bell(link), [bell]
        driver = LoopDriver(lambda: now[0])

        async def changes() -> None:
            await rung(driver, bell)
            wait = asyncio.create_task(driver.ring(lambda: bell.word, LONG_S))
            await asyncio.sleep(0)
            now[0] = other
            await asyncio.wait_for(wait, LONG_S / 2)
            await rung(driver, other)
            await asyncio.to_thread(driver.stop)

        asyncio.run(changes())


def test_loops_one_after_another_leave_no_descriptor(bell: Bell) -> None:
    before = event_descriptors()
    driver = LoopDriver(lambda: bell)

    async def once() -> None:
        await rung(driver, bell)

    for _ in range(3):
        asyncio.run(once())
    driver.stop()
    driver.stop()
    assert event_descriptors() == before


def test_stop_wakes_what_waits(bell: Bell) -> None:
    driver = LoopDriver(lambda: bell)

    async def stopped() -> None:
        wait = asyncio.create_task(driver.ring(lambda: bell.word, LONG_S))
        await asyncio.sleep(0)
        await asyncio.to_thread(driver.stop)
        await asyncio.wait_for(wait, LONG_S / 2)

    asyncio.run(stopped())
