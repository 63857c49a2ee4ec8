"""Flows through both drivers: the blocking and the asyncio client do the same."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
import time
from collections.abc import Callable, Generator, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from tests.support.clients import loop_link

import tidecast
import tidecast.sync
from tidecast.client.flows.steps import (
    TURN,
    Ask,
    BlockingDriver,
    Flow,
    LoopDriver,
    Pause,
    Ring,
    Step,
)
from tidecast.client.flows.subscription import await_handlers, run_handler
from tidecast.client.waiting import Bell, Deadline, InlinePace
from tidecast.embedded import EmbeddedLink
from tidecast.errors import Fenced, TidecastError
from tidecast.layout import ring as lay

Take = Callable[[Any, int], list[Any]]


class Shell:
    """One client, blocking or asyncio, used alike: `do` awaits what is to be awaited."""

    def __init__(self, link: Any, runner: asyncio.Runner | None) -> None:
        self._runner = runner
        self.log: list[Any] = []
        connect: Any = tidecast.sync.connect if runner is None else tidecast.connect
        self.client: Any = self.do(connect(link=link))

    def do(self, value: Any) -> Any:
        """``value``, or its result if it is awaitable."""
        if self._runner is None or not inspect.isawaitable(value):
            return value

        async def wait() -> Any:
            return await value

        return self._runner.run(wait())

    def note(
        self, call: Callable[[], Any], show: Callable[[Any], Any] = lambda value: value
    ) -> Any:
        """Log what a call gives, or how it fails."""
        try:
            found = self.do(call())
            self.log.append(show(found))
        except TidecastError as problem:
            self.log.append((type(problem).__name__, str(problem)))
        else:
            return found

    def take(self, source: Any, n: int) -> list[bytes]:
        """The first messages of an iterator, which is then left."""
        if self._runner is None:
            return [bytes(each.data) for each in islice(source, n)]

        async def walk() -> list[bytes]:
            found = []
            async for each in source:
                found.append(bytes(each.data))
                if len(found) == n:
                    break
            return found

        return self._runner.run(walk())

    def all(self, source: Any) -> list[Any]:
        """All items of an iterator."""
        if self._runner is None:
            return list(source)

        async def walk() -> list[Any]:
            return [each async for each in source]

        return self._runner.run(walk())


Scene = Callable[[Shell, Any], None]


def play(scene: Scene, opened: Callable[[], Any]) -> list[Any]:
    """A scene with both clients; what both logged. Fails when they differ."""
    with opened() as link:
        blocking = Shell(link, None)
        scene(blocking, link)
        blocking.do(blocking.client.close())
    with asyncio.Runner() as runner, opened() as link:
        aio = Shell(link, runner)
        scene(aio, link)
        aio.do(aio.client.close())
    assert blocking.log == aio.log
    return blocking.log


def loop(**options: Any) -> Callable[[], Any]:
    return lambda: loop_link(**options)


def data(message: Any) -> tuple[bytes, Any]:
    return bytes(message.data), message.key


def result(batch: Any) -> tuple[Any, ...]:
    return batch.requested, batch.appended, batch.dropped, type(batch.error).__name__


@pytest.mark.parametrize("on_full", ["block", "error", "drop"])
@pytest.mark.parametrize("buffer", [False, True])
def test_a_full_ring(on_full: str, buffer: bool) -> None:
    def scene(shell: Shell, link: Any) -> None:
        publisher = shell.client.publisher("t", on_full=on_full, buffer=buffer)
        while publisher.try_publish(b"x" * 700):
            pass
        shell.note(lambda: publisher.publish(b"one", key=b"k", timeout=0.01))
        shell.note(lambda: publisher.publish(b"y" * 1000, timeout=0.01))
        shell.note(lambda: publisher.publish_batch([b"z" * 1000] * 3, timeout=0.01), result)
        shell.note(lambda: publisher.flush(timeout=0.01))
        shell.note(lambda: publisher.publish(b"durable", ack="durable"))
        shell.note(lambda: publisher.publish(b"odd", ack="odd"))
        shell.note(lambda: publisher.wait_durable(timeout=0.0))
        shell.note(lambda: publisher.publish_batch([b"a", "text"]), result)
        shell.note(lambda: publisher.publish(b"w" * 100_000))
        shell.log.append(publisher.stats().dropped)
        link.allow(publisher.publication_id, 1 << 40)
        shell.note(lambda: publisher.publish(b"two", key=b"k", timeout=10.0))
        shell.note(lambda: publisher.publish_batch([b"z" * 1000] * 3, timeout=10.0), result)
        shell.note(lambda: publisher.flush(timeout=10.0))
        shell.note(lambda: publisher.close(timeout=0.01))
        shell.note(lambda: publisher.publish(b"three", flush=True))
        shell.note(lambda: publisher.close())
        events = [type(each).__name__ for each in shell.all(shell.client.events(timeout=0.0))]
        shell.log.append(events)

    log = play(scene, loop(slots=lay.SLOTS_MIN, has_network=True))
    assert log[-1] == (["MessagesDropped"] if on_full == "drop" else [])
    assert ("Timeout" in str(log[0])) == (on_full == "block")


def test_room_comes_while_a_publisher_waits() -> None:
    def scene(shell: Shell, link: Any) -> None:
        publisher = shell.client.publisher("t")
        while publisher.try_publish(b"x" * 700):
            pass
        link.works, limit = 0, publisher.stats().packets

        def work() -> int:
            if link.works % 4 == 0:
                link.allow(publisher.publication_id, limit + link.works // 4)
            return 0

        link.work_hook = work
        for _ in range(4):
            shell.note(lambda: publisher.publish(b"1" * 900, key=b"k", timeout=10.0))
        shell.note(lambda: publisher.publish_batch([b"b" * 1000] * 5, timeout=10.0), result)
        shell.note(lambda: publisher.flush())
        shell.log.append(publisher.stats().messages)

    play(scene, loop(slots=lay.SLOTS_MIN, has_network=True, inline=True))


def test_receiving() -> None:
    def scene(shell: Shell, link: Any) -> None:
        client = shell.client
        shell.note(lambda: client.subscribe("t", on_gap="never"))
        sub = shell.do(client.subscribe("t"))
        shell.note(lambda: sub.next(timeout=0.0))
        shell.note(lambda: sub.next(timeout=0.01))
        shell.do(client.publish_batch("t", [b"%d" % n for n in range(6)]))
        shell.do(client.publish("t", b"keyed", key=b"k"))
        shell.log.append(shell.take(sub, 2))
        shell.note(lambda: sub.next(timeout=5.0), data)
        shell.log.append(shell.take(sub.messages(), 2))
        shell.note(lambda: sub.poll(1), lambda batch: [bytes(each.data) for each in batch])
        shell.note(lambda: sub.next(timeout=5.0), data)
        shell.note(lambda: sub.batches(0))
        shell.do(client.publish_batch("t", [b"a", b"b"]))
        shell.note(lambda: sub.drain(timeout=1.0))
        shell.log.append([len(batch) for batch in shell.all(sub.batches(16, max_wait=0.01))])
        shell.note(lambda: sub.next(timeout=1.0))
        shell.note(sub.close)
        shell.note(lambda: sub.next(timeout=1.0))
        shell.note(sub.close)
        again = shell.do(client.subscribe("t"))
        again.running = 1  # a handler that does not return
        shell.note(lambda: again.drain(timeout=0.01))

    log = play(scene, loop())
    assert [b"0", b"1"] in log
    assert [b"3", b"4"] in log


def test_the_end_of_a_connection() -> None:
    def scene(shell: Shell, link: Any) -> None:
        client = shell.client
        publisher = client.publisher("t")
        sub = shell.do(client.subscribe("t"))
        shell.do(publisher.publish(b"1"))
        shell.note(lambda: client.flush(timeout=0.1))
        shell.note(lambda: client.drain(timeout=0.01))  # nobody sends what the ring holds
        shell.log.append(client.status)
        for call in (sub.next, client.flush, client.drain, client.close, publisher.flush):
            shell.note(call)
        shell.note(lambda: client.publish("t", b"late"))
        shell.log.append(shell.all(client.events(timeout=0.0)))

    log = play(scene, loop(has_network=True))
    assert log[1][0] == "Timeout"
    assert log[2] == "closed"


def durable(directory: Path) -> Callable[[], Any]:
    topology = {
        "transports": [{"name": "ipc", "kind": "ipc"}],
        "topics": [{"name": "orders", "mode": "durable", "fsync_interval_ms": 1}, {"name": "live"}],
    }
    homes = iter((directory / "blocking", directory / "asyncio"))

    @contextlib.contextmanager
    def opened() -> Iterator[Any]:
        yield EmbeddedLink.open(topology, mode="inline", data_dir=next(homes))

    return opened


def test_durable_topics(tmp_path: Path) -> None:
    def scene(shell: Shell, link: Any) -> None:
        client = shell.client
        consumer = shell.do(client.consumer("orders", "all"))
        shell.note(lambda: consumer.fetch(5, 0.0), len)
        shell.note(lambda: consumer.next(timeout=0.01))
        publisher = client.publisher("orders")
        shell.note(lambda: publisher.publish(b"0", ack="durable", timeout=10.0))
        shell.note(
            lambda: publisher.publish_batch([b"%d" % n for n in range(1, 9)], ack="durable"), result
        )
        shell.note(lambda: publisher.wait_durable(9, timeout=10.0))
        shell.note(lambda: publisher.wait_durable(10, timeout=0.01))
        shell.note(lambda: consumer.next(timeout=10.0), data)
        shell.log.append(shell.take(consumer, 2))
        shell.note(lambda: consumer.next(timeout=10.0), data)
        shell.log.append(shell.take(consumer.messages(), 2))
        batch = shell.note(lambda: consumer.fetch(2, 10.0), lambda found: found.payloads())
        batch.ack()
        shell.note(lambda: consumer.fetch(0, 1.0))
        seen: list[bytes] = []
        shell.note(lambda: consumer.run(lambda each: seen.append(each.data), max_messages=1))
        shell.log.append(seen)
        shell.note(lambda: consumer.seek("earliest"), lambda rows: [row["after"] for row in rows])
        shell.note(lambda: consumer.next(timeout=10.0), data)
        shell.note(lambda: consumer.drain(timeout=1.0))
        shell.note(lambda: consumer.fetch(5, 0.01), len)
        shell.note(consumer.close)
        shell.note(lambda: consumer.next(timeout=0.01))
        shell.note(lambda: client.publish("live", b"1", ack="durable"))
        other = shell.do(client.consumer("orders", "other"))
        other.fail(Fenced("somebody else"))
        for call in (other.fetch, other.next, other.close):
            shell.note(call)

    log = play(scene, durable(tmp_path))
    assert [b"1", b"2"] in log
    assert [b"4", b"5"] in log


# --- the drivers ----------------------------------------------------------------------------------


def run_blocking(flow: Flow[Any], bell: Any = None) -> Any:
    return BlockingDriver(lambda: bell).run(flow)


def run_on_loop(flow: Flow[Any], bell: Any = None) -> Any:
    driver = LoopDriver(lambda: bell)
    try:
        return asyncio.run(driver.run(flow))
    finally:
        driver.stop()


DRIVERS = pytest.mark.parametrize("run", [run_blocking, run_on_loop])


@DRIVERS
def test_a_flow_gets_results_and_exceptions_of_its_steps(run: Callable[..., Any]) -> None:
    done: list[str] = []

    def fails() -> None:
        raise ValueError("step")

    def inner() -> Generator[Step, Any, int]:
        yield TURN
        yield Pause(0.0)
        try:
            yield Ask(fails)
        except ValueError as problem:
            done.append(str(problem))
        return (yield Ask(lambda: 41)) + 1

    def flow() -> Generator[Step, Any, int]:
        try:
            return (yield from inner())
        finally:
            done.append("end")

    assert run(flow()) == 42
    assert done == ["step", "end"]

    def unheard() -> Generator[Step, Any, None]:
        try:
            yield Ask(fails)
        finally:
            done.append("cleaned")

    with pytest.raises(ValueError, match="step"):
        run(unheard())
    assert done[-1] == "cleaned"


@DRIVERS
def test_a_flow_sleeps_until_the_doorbell_rings(run: Callable[..., Any]) -> None:
    with loop_link() as link:
        bell = Bell(link)
        armed = threading.Event()

        def arm() -> int:
            word = bell.word
            armed.set()
            return word

        def flow() -> Generator[Step, Any, tuple[bool, bool]]:
            needless = yield Ring(lambda: None, 60.0)
            rang = yield Ring(arm, 60.0)
            while bell.word == 0:  # a slice of the wait may end before
                rang = yield Ring(arm, 60.0)
            return needless, rang

        def ring() -> None:
            armed.wait(30.0)
            bell.ring()

        ringer = threading.Thread(target=ring)
        ringer.start()
        assert run(flow(), bell) == (True, True)
        ringer.join()


def test_a_cancelled_flow_cleans_up() -> None:
    with loop_link() as link:
        bell, done = Bell(link), []

        def flow() -> Generator[Step, Any, None]:
            try:
                yield Ring(lambda: bell.word, 60.0)
            finally:
                done.append("cleaned")

        async def main() -> None:
            driver = LoopDriver(lambda: bell)
            task = asyncio.create_task(driver.run(flow()))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.to_thread(driver.stop)

        asyncio.run(main())
        assert done == ["cleaned"]


class Source:
    """The source of a compiled handler, without messages."""

    pattern, running, ended = "t", 0, False

    def __init__(self, connection: Any = None) -> None:
        self.connection, self.idled = connection, 0

    def idle_flow(self, deadline: Deadline, pace: InlinePace) -> Flow[None]:
        self.idled += 1
        yield TURN


class Handler:
    """Handles every second time; then it has enough."""

    def __init__(self) -> None:
        self.steps = 0

    @property
    def ended(self) -> bool:
        return self.steps == 6

    def step(self) -> bool:
        self.steps += 1
        return self.steps % 2 == 0


@DRIVERS
def test_a_compiled_handler_runs_until_it_has_enough(run: Callable[..., Any]) -> None:
    source, handler = Source(), Handler()
    run(run_handler(source, handler, Deadline(None)))
    assert (handler.steps, source.idled, source.running) == (6, 3, 0)
    late = Handler()
    run(run_handler(source, late, Deadline(0.0)))
    assert late.steps == 0


@DRIVERS
def test_handlers_are_waited_for(run: Callable[..., Any]) -> None:
    class Bells:
        rung = 0

        def ring(self) -> None:
            self.rung += 1

    class Connection:
        bell = Bells()

        class link:  # noqa: N801
            inline, now_s = True, time.monotonic

            @staticmethod
            def work() -> int:
                source.running -= 1
                return 1

    source = Source(Connection)
    source.running = 3
    run(await_handlers(source, None))
    assert source.running == 0
    assert Connection.bell.rung == 1
