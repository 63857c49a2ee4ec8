"""Openings that are cancelled, or fail halfway: nothing stays open."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import Eventually
from tests.support.clients import loop_client
from tests.support.loop_link import ReconnectingLoopLink
from tests.unit.test_consumer import BODIES, topology

import tidecast
import tidecast.sync
from tidecast.api.in_thread import made_in_thread
from tidecast.api.link import Link
from tidecast.config.internal import RESPONDERS
from tidecast.embedded import EmbeddedLink
from tidecast.errors import Conflict, ConnectionLost, Fenced, SharedMemoryError
from tidecast.native.mapped import MappedFile


@pytest.mark.parametrize("begun", [True, False])
def test_what_was_made_for_a_cancelled_caller_is_undone(
    begun: bool, eventually: Eventually
) -> None:
    undone: list[str] = []
    made, go_on = threading.Event(), threading.Event()

    def make() -> str:
        made.set()
        assert go_on.wait(10.0)
        return "made"

    async def main() -> None:
        if not begun:
            go_on.set()
        task = asyncio.create_task(made_in_thread(make, undone.append))
        await asyncio.sleep(0)
        assert made.wait(10.0)  # not awaited: the task learns of the result after the cancel
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        go_on.set()

    asyncio.run(main())
    eventually(lambda: undone == ["made"], "it is undone once")


def test_a_caller_that_waits_gets_the_object() -> None:
    undone: list[str] = []
    assert asyncio.run(made_in_thread(lambda: "made", undone.append)) == "made"
    assert undone == []


class Slow:
    """Lets an operation of a link begin, and end once the test lets it."""

    def __init__(self, link: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked, self._go_on, self._do = (
            threading.Event(),
            threading.Event(),
            getattr(link, name),
        )
        monkeypatch.setattr(link, name, self)

    def __call__(self, *given: Any) -> Any:
        self.asked.set()
        assert self._go_on.wait(10.0)
        return self._do(*given)

    async def cancel(self, task: asyncio.Future[Any]) -> None:
        """Cancel a call in the middle of the operation."""
        await asyncio.to_thread(self.asked.wait, 10.0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        self._go_on.set()


async def _entered(manager: Any) -> None:
    async with manager:
        pass


OPENINGS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "consumer": ("consumer", lambda client: client.consumer("orders", "billing")),
    "subscription": ("subscription", lambda client: client.subscribe("live")),
    "responder": ("subscription", lambda client: client.responder("live")),
}


@pytest.mark.parametrize("kind", OPENINGS)
def test_a_cancelled_opening_leaves_nothing_open(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch, eventually: Eventually
) -> None:
    """A member or a subscriber that no code knew held records and publishers back for good."""
    operation, opening = OPENINGS[kind]

    async def main() -> None:
        link: Any = EmbeddedLink.open(topology(), data_dir=tmp_path)
        node = link.node

        def is_clean() -> bool:
            left = client._consumers or client._subscriptions or client._publishers
            return not (left or node.consumers.consumers or node.subs)

        async with tidecast.connect(link=link) as client:
            with monkeypatch.context() as patch:
                slow, closed = Slow(link, f"open_{operation}", patch), threading.Event()
                close = getattr(link, f"close_{operation}")

                def closing(number: int) -> None:
                    close(number)
                    closed.set()

                patch.setattr(link, f"close_{operation}", closing)
                await slow.cancel(asyncio.create_task(_entered(opening(client))))
                assert await asyncio.to_thread(closed.wait, 10.0), "it is closed"
            await asyncio.to_thread(eventually, is_clean, "nothing is open")
            if kind == "consumer":
                await client.publish_batch("orders", BODIES)
                async with opening(client) as consumer, asyncio.timeout(10.0):
                    found = [bytes((await consumer.next()).data) for _ in BODIES]
                assert sorted(found) == sorted(BODIES), "no share lies with a member that is gone"

    asyncio.run(main())


def test_a_cancelled_publish_opens_no_second_publication(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, eventually: Eventually
) -> None:
    async def main() -> None:
        link: Any = EmbeddedLink.open(topology(), data_dir=tmp_path)
        async with tidecast.connect(link=link) as client:
            with monkeypatch.context() as patch:
                slow = Slow(link, "open_publication", patch)
                await slow.cancel(asyncio.create_task(client.publish("orders", b"lost")))
            await asyncio.to_thread(eventually, lambda: not client._publishers, "it is closed")
            await client.publish("orders", b"kept", ack="durable")
            assert len(client._publishers) == 1

    asyncio.run(main())


def test_a_cancelled_connect_leaves_no_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, eventually: Eventually
) -> None:
    from tidecast.client.core import connection

    before = set(connection._open)
    opened: list[Link] = []

    async def main() -> None:
        from tidecast.client.links import open as opening

        real: Any = opening.open_link

        class Opener:
            def open_link(self, *given: Any) -> Link:
                opened.append(real(*given))
                return opened[-1]

        slow = Slow(opener := Opener(), "open_link", monkeypatch)
        monkeypatch.setattr(opening, "open_link", opener.open_link)
        await slow.cancel(asyncio.ensure_future(_connect(tmp_path)))

    asyncio.run(main())
    eventually(lambda: bool(opened) and set(connection._open) == before, "it is closed")


async def _connect(directory: Path) -> None:
    topology_file = directory / "topology.yaml"
    topology_file.write_text("transports: [{name: ipc, kind: ipc}]\n")
    await tidecast.connect("embedded://", topology=topology_file)


def test_a_responder_that_cannot_be_announced_leaves_nothing_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link: Any = EmbeddedLink.open(topology(), data_dir=tmp_path)
    with tidecast.sync.connect(link=link) as client:
        publisher = client.publisher

        def refuses(topic: str, **options: Any) -> Any:
            if topic.startswith(RESPONDERS):
                raise Conflict("no more publications")
            return publisher(topic, **options)

        monkeypatch.setattr(client, "publisher", refuses)
        with pytest.raises(Conflict):
            client.responder("live")
        assert not link.node.subs
        assert not client._subscriptions
        assert not client._publishers


def mapped_rings() -> int:
    lines = Path("/proc/self/maps").read_text().splitlines()
    return sum("/ring-" in line or "/pub-" in line for line in lines)


@pytest.mark.parametrize("ends", ["fenced", "deleted", "kept"])
def test_a_failed_publisher_gives_its_ring_back(
    tmp_path: Path, ends: str, eventually: Eventually
) -> None:
    """Each left a mapped ring, and a fenced one also a publication, until its connection ended."""
    link: Any = EmbeddedLink.open(topology(), data_dir=tmp_path)
    with tidecast.sync.connect(link=link) as client:

        def once() -> None:
            if ends == "fenced":
                with (
                    client.publisher("orders", producer="one") as older,
                    client.publisher("orders", producer="one"),
                    pytest.raises(Fenced),
                ):
                    older.publish(b"late", ack="durable", timeout=10.0)
                return
            client.topics.ensure("gone")
            publisher = (
                client.kept_publisher("gone") if ends == "kept" else client.publisher("gone")
            )
            publisher.publish(b"x")
            client.topics.delete("gone")
            eventually(lambda: not [*client.events()] and publisher.closed, "it has ended")
            if ends == "deleted":
                publisher.close()
                publisher.close()

        once()
        before = mapped_rings()
        for _ in range(5):
            once()
        eventually(lambda: len(link.node.pubs) <= 1, "the node has given them up")
        assert len(client._publishers) <= 1
        eventually(lambda: mapped_rings() <= before + 1, "the rings are unmapped")


def test_a_wait_for_the_disk_survives_a_publisher_that_closes(tmp_path: Path) -> None:
    """The ring of a session was looked at twice: another thread could unmap it in between."""
    link: Any = EmbeddedLink.open(topology(), data_dir=tmp_path)
    with tidecast.sync.connect(link=link) as client:
        publisher = client.publisher("orders")
        publisher.publish(b"x", ack="durable")
        session = publisher.producer_session
        assert session is not None
        publisher.close()
        assert (session.arm(), session.durable_seq, session.state) == (1, 1, 0)


class Refuses:
    """The system maps no file whose name begins so, as when a process has too many open files."""

    def __init__(self, begins: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begins, self.asked, real = begins, 0, MappedFile.open

        def refuse(path: Path) -> MappedFile:
            if self.begins and path.name.startswith(self.begins):
                self.asked += 1
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            return real(path)

        monkeypatch.setattr(MappedFile, "open", refuse)

    def end(self) -> None:
        """There is room again."""
        self.begins = ""


def test_a_ring_that_cannot_be_mapped_is_read_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error was raised once, and then nothing more came of the publisher, which waited."""
    with loop_client() as (client, _), client.subscribe("t") as subscription:
        publisher = client.publisher("t")
        publisher.publish(b"kept")
        refuses = Refuses("ring", monkeypatch)
        for _ in range(2):
            with pytest.raises(SharedMemoryError, match="topic t: its ring cannot be mapped: Too"):
                subscription.next(timeout=1.0)
        refuses.end()
        assert bytes(subscription.next(timeout=10.0).data) == b"kept"


MAPPED: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "publisher": ("pub", lambda client: client.publisher("orders")),
    "ring of a consumer": ("member", lambda client: client.consumer("orders", "billing")),
    "wakes of a consumer": ("wakes", lambda client: client.consumer("orders", "billing")),
}


@pytest.mark.parametrize("kind", MAPPED)
def test_an_opening_without_a_mapping_leaves_nothing_open(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    link: Any = EmbeddedLink.open(topology(), data_dir=tmp_path)
    node, (file_name, open_one) = link.node, MAPPED[kind]
    with tidecast.sync.connect(link=link) as client:
        refuses = Refuses(file_name, monkeypatch)
        with pytest.raises(SharedMemoryError, match="topic orders: its ring cannot be mapped"):
            open_one(client)
        assert refuses.asked == 1
        refuses.end()
        assert [each for each in node.pubs.values() if not each.closing] == []
        assert not node.consumers.consumers
        assert not client._publishers


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_keeper_that_fails_fails_what_it_keeps(eventually: Eventually) -> None:
    """Else all of the connection would wait for an engine that nothing looks for."""
    with loop_client(ReconnectingLoopLink) as (client, link), client.subscribe("t") as subscription:
        publisher = client.publisher("t")

        def fails() -> None:
            raise RuntimeError("a defect")

        link.reconnect = fails
        link.lose()
        with pytest.raises(ConnectionLost, match="the client failed: RuntimeError"):
            publisher.publish_batch([bytes(1000)] * 1000, timeout=10.0).check()
        with pytest.raises(ConnectionLost, match="the client failed: RuntimeError"):
            subscription.next(timeout=10.0)
