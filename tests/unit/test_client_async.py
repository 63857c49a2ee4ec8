"""The asyncio client: the same names, awaited."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np
import pytest
from tests.support.clients import loop_link
from tests.support.loop_link import LoopLink

import tidecast
from tidecast.errors import BackPressure, Closed, ConfigError, GapError, Timeout
from tidecast.events import ImageAvailable

Scene = Callable[[tidecast.Connection, LoopLink], Coroutine[Any, Any, None]]


def play(scene: Scene, **options: Any) -> None:
    async def run() -> None:
        with loop_link(**options) as link:
            async with tidecast.connect(link=link) as client:
                await asyncio.wait_for(scene(client, link), 60.0)

    asyncio.run(run())


def test_publish_and_iterate() -> None:
    async def scene(client: tidecast.Connection, _: LoopLink) -> None:
        async with client.subscribe("t") as sub:
            await client.publish("t", b"one", key=b"k")
            result = await client.publish_batch("t", [b"two", b"three"])
            assert result.ok
            found = []
            async for message in sub:
                found.append((bytes(message.data), message.key))
                if len(found) == 3:
                    break
            assert found == [(b"one", b"k"), (b"two", None), (b"three", None)]
            assert len(sub.poll()) == 0

    play(scene)


def test_what_publish_returns_is_awaited_gathered_or_made_a_task() -> None:
    async def scene(client: tidecast.Connection, _: LoopLink) -> None:
        async with client.subscribe("t") as sub:
            publish = client.publisher("t").publish
            done = publish(b"0")  # done already: there was room
            assert len(sub.poll()) == 1
            await done
            await asyncio.create_task(publish(b"1"))
            await asyncio.gather(publish(b"2"), publish(b"3", key=b"k"))
            await asyncio.wait_for(publish(b"4"), 5.0)
            cancelled = asyncio.create_task(publish(b"5"))
            cancelled.cancel()
            with pytest.raises(asyncio.CancelledError):
                await cancelled
            assert [(await sub.next(5.0)).data for _ in range(5)] == [b"1", b"2", b"3", b"4", b"5"]

    play(scene)


def test_await_instead_of_async_with() -> None:
    async def run() -> None:
        with loop_link() as link:
            client = await tidecast.connect(link=link)
            sub = await client.subscribe("t")
            publisher = client.publisher("t")
            assert publisher.try_publish(b"x")
            assert bytes((await sub.next(5.0)).data) == b"x"
            await publisher.close()
            await sub.close()
            await client.close()
            await client.close()

    asyncio.run(run())


def test_waiting_is_woken_by_other_threads() -> None:
    async def scene(client: tidecast.Connection, _: LoopLink) -> None:
        publisher = client.publisher("t")
        async with client.subscribe("t") as sub:
            for i in range(5):
                timer = threading.Timer(0.03, publisher.try_publish, args=(b"%d" % i,))
                timer.start()
                assert bytes((await sub.next(10.0)).data) == b"%d" % i
                timer.join()
            with pytest.raises(Timeout):
                await sub.next(0.01)

    play(scene)


def test_a_subscriber_that_is_behind_does_not_hog_the_loop() -> None:
    async def scene(client: tidecast.Connection, _: LoopLink) -> None:
        n = 20_000
        async with client.subscribe("t") as sub:

            async def publish() -> None:
                publisher = client.publisher("t")
                for i in range(n):
                    await publisher.publish(b"%d" % i)
                await publisher.flush()

            task = asyncio.create_task(publish())
            expected = 0
            async for message in sub:
                assert bytes(message.data) == b"%d" % expected
                expected += 1
                if expected == n:
                    break
            await task

    play(scene)


def test_batches() -> None:
    async def scene(client: tidecast.Connection, _: LoopLink) -> None:
        publisher = client.publisher("t")
        async with client.subscribe("t") as sub:
            publisher.try_publish(b"0")
            timer = threading.Timer(0.05, publisher.try_publish, args=(b"1",))
            timer.start()
            async for batch in sub.batches(max_messages=2, max_wait=10.0):
                assert batch.payloads() == [b"0", b"1"]
                break
            timer.join()

    play(scene)


def test_on_full() -> None:
    async def scene(client: tidecast.Connection, _: LoopLink) -> None:
        block, error = client.publisher("t"), client.publisher("u", on_full="error")
        async with client.subscribe("*") as sub:
            n = 0
            for publisher in (block, error):
                while publisher.try_publish(bytes(1000)):
                    n += 1
            with pytest.raises(Timeout):
                await block.publish(bytes(1000), timeout=0.02)
            with pytest.raises(BackPressure):
                await error.publish(bytes(1000))
            waiting = asyncio.create_task(block.publish(b"in the end"))
            found = [len((await sub.next(5.0)).data) for _ in range(n + 1)]
            await waiting
            assert sorted(found) == [10, *[1000] * n]

    play(scene)


def test_gaps() -> None:
    async def scene(client: tidecast.Connection, _: LoopLink) -> None:
        publisher = client.publisher("t")
        async with client.subscribe("t", tethered=False) as sub:
            for _i in range(200):
                await publisher.publish(bytes(1000), flush=True)
            with pytest.raises(GapError) as caught:
                await sub.next(1.0)
            assert caught.value.lost_range[0] == 0
            assert (await sub.next(1.0)).size == 1000

    play(scene)


@pytest.mark.parametrize("concurrency", [1, 8])
@pytest.mark.parametrize("plain", [False, True])
def test_handlers(concurrency: int, plain: bool) -> None:
    async def scene(client: tidecast.Connection, _: LoopLink) -> None:
        seen: list[bytes] = []
        most = now = 0

        async def handler(message: tidecast.Message) -> None:
            nonlocal now, most
            now += 1
            most = max(most, now)
            await asyncio.sleep(0)
            seen.append(bytes(message.data))
            now -= 1

        async with client.subscribe("t") as sub:
            await client.publish_batch("t", [b"%d" % i for i in range(100)])
            chosen: Any = (lambda m: seen.append(bytes(m.data))) if plain else handler
            run = asyncio.create_task(sub.run(chosen, concurrency))
            await asyncio.sleep(0)
            await sub.drain(10.0)
            assert await run == 100
            assert sorted(seen) == sorted(b"%d" % i for i in range(100))
            if not plain:
                assert most <= concurrency

    play(scene)


def test_wrong_handlers_are_refused_at_the_call() -> None:
    async def scene(client: tidecast.Connection, _: LoopLink) -> None:
        async with client.subscribe("t") as sub:
            with pytest.raises(ConfigError, match="handler"):
                sub.run(lambda: None)  # type: ignore[misc, arg-type]
            await client.publish("t", b"x")

            async def fails(message: tidecast.Message) -> None:
                raise ValueError("mine")

            with pytest.raises(ValueError, match="mine"):
                await sub.run(fails)
            await client.publish_batch("t", [b"x"] * 5)
            with pytest.raises(ValueError, match="mine"):
                await sub.run(fails, concurrency=2)

    play(scene)


def test_events_and_the_end() -> None:
    async def scene(client: tidecast.Connection, _: LoopLink) -> None:
        sub = await client.subscribe("t")
        await client.publish("t", b"x")
        kinds = [type(each) async for each in client.events(timeout=0.05)]
        assert kinds == [ImageAvailable]
        await sub.next(1.0)
        closing = asyncio.get_running_loop().call_later(
            0.05, lambda: asyncio.ensure_future(sub.close())
        )
        assert [each async for each in sub] == []
        assert closing.when() > 0
        with pytest.raises(Closed):
            await sub.next()
        assert client.health().healthy
        await client.drain(5.0)
        assert client.status == "closed"
        with pytest.raises(Closed):
            await client.publish("t", b"x")
        with pytest.raises(Closed):
            client.subscribe("t")

    play(scene)


def test_inline() -> None:
    async def scene(client: tidecast.Connection, link: LoopLink) -> None:
        publisher = client.publisher("t")
        turns = iter([0, 0, 1])

        def work() -> int:
            did = next(turns, 0)
            if did:
                publisher.try_publish(b"by an agent")
            return did

        async with client.subscribe("t") as sub:
            link.work_hook = work
            assert bytes((await sub.next(5.0)).data) == b"by an agent"
            await publisher.publish(b"x", flush=True)
            assert client.work() == 0

    play(scene, inline=True)


def test_compiled_both_ways() -> None:
    def write(buf: Any, i: int, state: Any) -> int:
        buf[0] = i & 255
        return 1 + i % state[0]

    def add(data: Any, state: Any) -> None:
        state[0] += 1
        state[1] += data.size

    async def scene(client: tidecast.Connection, _: LoopLink) -> None:
        counts = np.zeros(2, dtype=np.int64)
        n = 20_000
        async with client.subscribe("t") as sub:
            handling = asyncio.create_task(sub.run_compiled(add, counts, max_messages=n))
            publisher = client.publisher("t")
            limits = np.array([10])
            sent = await publisher.run_compiled(write, limits, n, message_bytes_max=10)
            assert sent == n
            assert await handling == n
        assert counts.tolist() == [n, sum(1 + i % 10 for i in range(n))]

    play(scene)
