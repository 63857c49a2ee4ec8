"""Connections: opening, codecs, fork, exit, losing the engine and finding it again."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections import deque
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from tests.conftest import Eventually
from tests.support.clients import loop_client, loop_link
from tests.support.loop_link import LoopLink, ReconnectingLoopLink
from tests.support.patience import wait_until

import tidecast.sync
from tidecast.api.link import Link
from tidecast.client.links.socket_session import EVENTS_HELD_MAX, EngineSession
from tidecast.codecs import Json, MsgPack, Raw
from tidecast.errors import (
    Closed,
    CodecError,
    ConfigError,
    ConnectionLost,
    EngineNotRunning,
    ForkedProcess,
    Timeout,
)
from tidecast.events import EngineBack, EngineLost, PublicationEnded


def test_the_double_is_a_link(tmp_path: Path) -> None:
    assert isinstance(LoopLink(tmp_path), Link)


def test_importing_is_quick_and_loads_no_numba() -> None:
    code = (
        "import sys, tidecast, tidecast.sync\n"
        "tidecast.Json, tidecast.Latest(), tidecast.TidecastError, dir(tidecast)\n"
        "loaded = {'numba', 'numpy', 'pyarrow', 'asyncio'} & set(sys.modules)\n"
        "raise SystemExit(', '.join(loaded) or 0)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    with pytest.raises(AttributeError, match="nothing"):
        tidecast.nothing  # type: ignore[attr-defined]  # noqa: B018
    for name in tidecast.__all__:
        assert getattr(tidecast, name) is not None


def test_connecting_imports_the_client_outside_the_loop(tmp_path: Path) -> None:
    code = (
        "import asyncio, sys, threading, tidecast\n"
        "homes = {}\n"
        "class Note:\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        homes[name] = threading.current_thread() is threading.main_thread()\n"
        "sys.meta_path.insert(0, Note())\n"
        "async def main():\n"
        "    try:\n"
        f"        async with tidecast.connect('tidecast://{tmp_path}'): pass\n"
        "    except tidecast.EngineNotRunning:\n"
        "        return homes['tidecast.client.aio'], homes['numba']\n"
        "print(asyncio.run(main()))\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (run.stdout, run.stderr) == ("(False, False)\n", "")


@pytest.mark.parametrize(
    ("url", "options", "match"),
    [
        ("http://host", {}, "url: 'http://host'"),
        ("tidecast:///somewhere?x=1", {}, "x: '1': tidecast:// has no such option"),
        ("embedded://", {"mode": "fast"}, "mode: 'fast'.*threads, inline"),
        ("embedded://?speed=9", {}, "speed: '9'"),
        ("embedded://here.yaml", {}, "topology='here.yaml' for a file"),
        (5, {}, "url: 5: allowed is text"),
        ("tidecast://", {"name": 5}, "name: 5: allowed is text"),
        ("tidecast://", {"token": 5}, "token: 5: allowed is text"),
    ],
)
def test_wrong_urls(url: str, options: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        tidecast.sync.connect(url, **options)


def test_no_engine(tmp_path: Path) -> None:
    with pytest.raises(EngineNotRunning, match="tidecast up"):
        tidecast.sync.connect(f"tidecast://{tmp_path}")


class Order(msgspec.Struct):
    id: int
    side: str


@pytest.mark.parametrize("codec", [Json, MsgPack])
def test_codecs(codec: Any) -> None:
    with loop_client() as (client, _), client.subscribe("t", codec=codec(Order)) as sub:
        publisher = client.publisher("t", codec=codec())
        publisher.publish(Order(1, "buy"), key=b"1")
        assert publisher.publish_batch([Order(2, "sell"), {"id": 3, "side": "x"}]).ok
        assert publisher.try_publish(Order(4, "y"))
        assert sub.next(1.0).value == Order(1, "buy")
        assert sub.poll().values() == [Order(2, "sell"), Order(3, "x"), Order(4, "y")]
        publisher.publish({"id": "no number"})
        wrong = sub.next(1.0)
        with pytest.raises(CodecError, match=r"topic t: .* cannot decode .* as Order"):
            _ = wrong.value
        with pytest.raises(CodecError, match=r"topic t: .* cannot encode object"):
            publisher.publish(object())
        assert bytes(wrong.copy().data) == bytes(wrong.data)


def test_raw_and_no_codec() -> None:
    with loop_client() as (client, _):
        with client.subscribe("t", codec="raw") as sub:
            client.publisher("t", codec=Raw()).publish(bytearray(b"x"))
            assert sub.next(1.0).value == b"x"
        with client.subscribe("t") as sub:
            client.publish("t", b"x")
            message = sub.next(1.0)
            with pytest.raises(ConfigError, match="no codec"):
                _ = message.value
        with pytest.raises(CodecError, match="payload is int: allowed are bytes"):
            client.publisher("t", codec="raw").publish(5)

    class Wrong:
        def encode(self, value: Any) -> Any:
            return "text"

        def decode(self, data: Any) -> Any:
            return None

    with loop_client() as (client, _), pytest.raises(CodecError, match="returned str"):
        client.publisher("t", codec=Wrong()).publish(5)


def test_closed_connections_refuse() -> None:
    with loop_client() as (client, link):
        sub = client.subscribe("t")
        publisher = client.publisher("t")
        client.close()
        client.close()
        assert link.closed
        assert client.status == "closed"
        for call in (
            lambda: client.publish("t", b"x"),
            lambda: client.publisher("t"),
            lambda: client.subscribe("t"),
            lambda: publisher.publish(b"x"),
            lambda: sub.poll(),
            client.stats,
            client.flush,
            client.work,
        ):
            with pytest.raises(Closed):
                call()
        assert not list(client.events())


def test_drain_flushes_and_ends_iteration(eventually: Eventually) -> None:
    with loop_client() as (client, link):
        publisher = client.publisher("t")
        with client.subscribe("t") as sub:
            publisher.buffering = True
            publisher.publish(b"collected")
            seen: list[bytes] = []
            thread = threading.Thread(target=sub.run, args=(lambda m: seen.append(bytes(m.data)),))
            thread.start()
            eventually(lambda: sub.running, "the handler's run")
            client.drain(10.0)
            thread.join()
        assert seen == [b"collected"]
        assert link.closed


def test_drain_gives_up_on_packets_that_are_not_sent() -> None:
    with loop_client(has_network=True) as (client, link):
        client.publish("t", b"x")
        with pytest.raises(Timeout, match="unsent"):
            client.drain(0.02)
        assert link.closed


def in_child(action: Any) -> int:
    """Exit status of a forked child that runs ``action``."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = int(action())
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_forked_child_is_refused_and_harms_nobody() -> None:
    with loop_client() as (client, link), client.subscribe("t") as sub:
        publisher = client.publisher("t")
        publisher.buffering = True
        publisher.publish(b"collected by the parent")

        def child() -> int:
            calls = [
                lambda: publisher.publish(b"x"),
                lambda: publisher.try_publish(b"x"),
                lambda: client.publish("t", b"x"),
                lambda: client.publisher("t"),
                lambda: sub.poll(),
                lambda: client.stats(),
                lambda: list(client.events()),
                lambda: publisher.publish_batch([b"x"]),
            ]
            for call in calls:
                try:
                    call()
                except ForkedProcess:
                    continue
                return 2
            client.close()
            return 3 if link.closed else 0

        assert in_child(child) == 0
        publisher.flush()
        assert bytes(sub.next(1.0).data) == b"collected by the parent"


def test_what_was_collected_is_handed_over_at_exit(tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[2]
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "import tidecast.sync\n"
        "from tests.support.loop_link import LoopLink\n"
        "link = LoopLink(Path(sys.argv[1]))\n"
        "link.close = lambda: None\n"
        "publisher = tidecast.sync.connect(link=link).publisher('t')\n"
        "publisher.buffering = True\n"
        "publisher.publish(b'at the last moment')\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    [ring] = tmp_path.glob("ring-*")
    assert b"at the last moment" in ring.read_bytes()


def test_a_lost_engine_without_a_way_back_is_an_error() -> None:
    with loop_client() as (client, link), client.subscribe("t") as sub:
        publisher = client.publisher("t")
        publisher.publish(b"x")
        assert bytes(sub.next(1.0).data) == b"x"
        link.lose()
        client.pump()
        with pytest.raises(ConnectionLost):
            publisher.publish(b"y")
        with pytest.raises(ConnectionLost):
            sub.next(1.0)
        assert [type(each) for each in client.events()][-1] is EngineLost
        assert client.health().status == "reconnecting"
        link.lost = False


def test_the_engine_comes_back(eventually: Eventually) -> None:
    with loop_client(ReconnectingLoopLink) as (client, link), client.subscribe("t") as sub:
        block, error = client.publisher("t"), client.publisher("t", on_full="error")
        drop = client.publisher("t", on_full="drop")
        block.publish(b"before")
        assert bytes(sub.next(1.0).data) == b"before"
        link.lose()
        eventually(lambda: client.status == "reconnecting", "the loss")
        with pytest.raises(ConnectionLost):
            error.publish(b"lost")
        drop.publish(b"lost")
        with pytest.raises(Timeout, match="reconnect"):
            block.publish(b"late", timeout=0.01)
        assert not client.health().healthy
        link.restart()
        block.publish(b"after", timeout=10.0)
        error.publish(b"too")
        found = {bytes(sub.next(10.0).data) for _ in range(2)}
        assert found == {b"after", b"too"}
        assert client.status == "connected"
        kinds = [type(each) for each in client.events()]
        assert kinds.index(EngineLost) < kinds.index(EngineBack)
        assert block.stats().messages == 2
        assert link.incarnation == 2


def test_links_are_closed_with_the_connection() -> None:
    with loop_link() as link:
        with tidecast.sync.connect(link=link) as client:
            assert client.health().healthy
        assert link.closed


def test_pump_does_not_wait_for_a_publication_to_be_given_back() -> None:
    """Event loops call it."""
    asked, go = threading.Event(), threading.Event()

    def close(_publication_id: int) -> None:
        asked.set()
        assert go.wait(30.0)

    with loop_client() as (client, link):
        publisher = client.publisher("t")
        link.close_publication = close
        link.push(
            PublicationEnded(topic="t", session=publisher.session, code="closed", reason="deleted")
        )
        pump = threading.Thread(target=client.pump)
        pump.start()
        assert asked.wait(30.0)
        pump.join(5.0)
        waited = pump.is_alive()
        go.set()
        pump.join()
        assert not waited


def test_a_port_is_found_where_it_is_before_the_old_one_is_freed() -> None:
    with loop_client() as (client, _):
        publisher: Any = client.publisher("t")
        old, seen = publisher._port, []

        class Address:
            def __setitem__(self, _at: int, _value: int) -> None:
                seen.append(publisher._port is old)

        publisher._port_at = Address()
        publisher._take_port(old.copy())
        assert seen == [True]
        publisher._take_port(old)


def test_health_knows_of_a_dead_engine_before_its_event_came() -> None:
    with loop_client(ReconnectingLoopLink) as (client, link):
        with client.publisher("t", on_full="error") as publisher:
            link.lost = True
            assert (client.health().healthy, client.health().status) == (False, "reconnecting")
            publisher.publish(b"its ring keeps it for the next engine")
        link.lost = False
        assert client.health().healthy


def test_an_engine_that_ends_while_a_client_connects_is_not_running(short_dir: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(short_dir / "engine.sock"))
        listener.listen()

        def hang_up() -> None:
            listener.accept()[0].close()

        ending = threading.Thread(target=hang_up)
        ending.start()
        with pytest.raises(EngineNotRunning, match="ended while this client connected"):
            tidecast.sync.connect(f"tidecast://{short_dir}")
        ending.join()


def test_the_engine_is_owed_one_answer_whoever_takes_the_last_event() -> None:
    """One thread counts what waits, another takes it all in between."""
    posted: list[Any] = []
    session: Any = EngineSession.__new__(EngineSession)
    session._closed = session._owed = False
    session._counting = threading.Lock()
    session._wire = SimpleNamespace(post=posted.append)
    taker = threading.Thread(target=lambda: session.take_events())

    class Events(deque[Any]):
        def __len__(self) -> int:
            n = super().__len__()
            if taker.ident is None:
                taker.start()
                taker.join(0.2)
            return n

    session._events = Events()
    session._pushed(session._wire, [EngineBack(incarnation=1)] * EVENTS_HELD_MAX)
    taker.join()
    session.take_events()
    assert len(posted) == 1


def test_a_session_that_is_closed_while_it_reconnects_ends() -> None:
    """The engine kept it, with all that the keeper then opened there, as long as the process."""
    ended: list[str] = []
    wires = [SimpleNamespace(lost="gone", close=partial(ended.append, name)) for name in "ab"]
    session: Any = EngineSession.__new__(EngineSession)
    session._closed, session._reconnecting, session._pid = False, threading.Lock(), os.getpid()
    session._wire = wires[0]

    def connect() -> Any:
        session.close()
        return wires[1], None

    session._connect = connect
    with pytest.raises(Closed):
        session.reconnect()
    assert ended == ["a", "a", "b"]


class Interrupted(ReconnectingLoopLink):
    """The engine ends, and the next one is there, between the answer to ``kind`` and its reader."""

    client: Any = None
    kind = ""

    def _open(self, kind: str, granted: Any) -> Any:
        if self.kind == kind:
            self.kind = ""
            self.lose()
            self.restart()
            wait_until(lambda: self.incarnation == 2 and not self.client.reconnecting, 20.0, "next")
        return granted

    def open_publication(self, topic: str, options: Any) -> Any:
        return self._open("publication", super().open_publication(topic, options))

    def open_subscription(self, pattern: str, options: Any) -> Any:
        return self._open("subscription", super().open_subscription(pattern, options))


@pytest.mark.parametrize("kind", ["publication", "subscription"])
def test_an_object_that_an_engine_granted_before_it_ended_is_opened_at_the_next(kind: str) -> None:
    """A publisher wrote into a ring that no engine read; a subscriber waited for ever."""
    with loop_client(Interrupted) as (client, link):
        link.client = client
        if kind == "publication":
            with client.subscribe("t") as subscription:
                link.kind = kind
                publisher = client.publisher("t")
                publisher.publish(b"x")
                assert bytes(subscription.next(timeout=10.0).data) == b"x"
            return
        publisher = client.publisher("t")
        link.kind = kind
        with client.subscribe("t") as subscription:
            publisher.publish(b"x")
            assert bytes(subscription.next(timeout=10.0).data) == b"x"
            assert list(link.subscriptions) == [subscription.subscription_id]


class EndsAgain(ReconnectingLoopLink):
    """The second engine ends when the second publication is opened there."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.ended_again = threading.Event()

    def open_publication(self, topic: str, options: Any) -> Any:
        if self.incarnation == 2 and self.publications:
            self.lose()
            self.ended_again.set()
        return super().open_publication(topic, options)


def test_rings_of_an_engine_that_ended_while_all_was_opened_there_end(
    eventually: Eventually,
) -> None:
    """Their sessions continue in other rings, which are read behind them: so they never were."""
    with loop_client(EndsAgain) as (client, link), client.subscribe("t") as subscription:
        publishers = [client.publisher("t") for _ in range(2)]
        publishers[0].publish(b"first")
        assert bytes(subscription.next(timeout=10.0).data) == b"first"
        link.lose()
        link.restart()
        assert link.ended_again.wait(60.0)
        while subscription.poll():
            pass
        link.restart()
        eventually(lambda: link.incarnation == 3 and not client.reconnecting, "the third engine")
        for publisher in publishers:
            publisher.publish(b"x")
            assert bytes(subscription.next(timeout=10.0).data) == b"x"
        eventually(lambda: len(subscription.poll() or subscription.images()) == 2, "two rings")


def test_events_of_closed_subscriptions_are_not_kept() -> None:
    """After 10,000 of them no event was kept that came before the answer of an opening."""
    with loop_client() as (client, _):
        client.publisher("t")
        for _ in range(3):
            client.subscribe("t").close()
        client.pump()
        assert client._early == {}
