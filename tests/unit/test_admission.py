"""Clients and engine over a real unix socket, with a node that has no agents."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.project import ROOT
from tests.support.fake_node import FakeNode
from tests.support.hearing import LIMIT_S, HearingClock

from tidecast.agents import warmup
from tidecast.api import progress
from tidecast.api.frames import socket as frames
from tidecast.api.frames.common import Goodbye
from tidecast.api.link import Link, PublicationOptions, SubscriptionOptions
from tidecast.client.links import socket_session
from tidecast.client.links.socket import SocketLink
from tidecast.client.links.socket_session import EngineControl, dial, receive_frame
from tidecast.config.store import TopologyStore
from tidecast.config.topology import FaultSettings, TopicConfig, default_topology, load_topology
from tidecast.engine import admission
from tidecast.engine.admission import AdmissionServer
from tidecast.errors import (
    AuthError,
    Closed,
    ConfigError,
    Conflict,
    ConnectionLost,
    EngineNotRunning,
    ForkedProcess,
    GapError,
    NoResponders,
    NotFound,
    RateLimited,
    SharedMemoryError,
    TidecastError,
    Timeout,
)
from tidecast.events import EngineBack, EngineLost, Gap, PeerJoined
from tidecast.layout.ring import DOORBELL_BYTES

Eventually = Callable[..., None]


class Served:
    def __init__(self, data_dir: Path, token: str | None = None) -> None:
        self.data_dir = data_dir
        topology = default_topology()
        self.node = FakeNode(topology, data_dir)
        self.node.start()
        store = TopologyStore(topology, data_dir / "topology.yaml")
        self.server = AdmissionServer(self.node, data_dir, store, token)
        self.server.start()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    one = Served(tmp_path / "data")
    yield one
    one.server.stop()


class SlowCompiler:
    """The node's `create_topic` waits for ``done``; the engine has news about it."""

    def __init__(self, served: Served, patch: pytest.MonkeyPatch) -> None:
        self.done, self.begun = threading.Event(), threading.Semaphore(0)
        self._create = served.node.create_topic
        patch.setattr(served.node, "create_topic", self.create)
        patch.setattr(warmup, "news", self.news)
        patch.setattr(progress, "NEWS_S", 0.05)
        self.told = threading.Semaphore(0)

    def create(self, topic: TopicConfig) -> None:
        self.begun.release()
        assert self.done.wait(60.0)
        self._create(topic)

    def news(self) -> str:
        self.told.release()
        return "it compiles kernels"


def create(name: str) -> frames.Administer:
    return frames.Administer(action="create_topic", arguments={"topic": name})


def test_a_call_waits_while_the_engine_compiles(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = SlowCompiler(served, monkeypatch)
    links = [SocketLink.connect(served.data_dir, f"c{n}") for n in range(admission.POOL_THREADS)]
    clocks = [HearingClock(link._wire._calls) for link in links]
    problems: list[BaseException] = []

    def ask(link: SocketLink, n: int) -> None:
        try:
            link._wire.ask(create(f"t{n}"), LIMIT_S)
        except BaseException as problem:  # noqa: BLE001
            problems.append(problem)

    threads = [threading.Thread(target=ask, args=(link, n)) for n, link in enumerate(links)]
    for thread in threads:
        thread.start()
    for _ in threads:
        assert compiler.begun.acquire(timeout=30.0)
    late = SocketLink.connect(served.data_dir, "late")  # while all of the pool's threads wait
    for clock in clocks:
        clock.wait()
    compiler.done.set()
    for thread in threads:
        thread.join(30.0)
    assert problems == []
    assert {t.name for t in served.node.topics()} >= {f"t{n}" for n in range(len(links))}
    for each in (*links, late):
        each.close()


def test_a_client_that_knows_no_news_gets_none(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = SlowCompiler(served, monkeypatch)
    sock = dial(served.data_dir)
    sock.sendall(frames.frame(frames.Request(1, frames.Hello(name="old", attach=False))))
    sock.sendall(frames.frame(frames.Request(2, create("t"))))
    for _ in range(3):
        assert compiler.told.acquire(timeout=30.0)
    compiler.done.set()
    answers = [frames.decode_from_engine(receive_frame(sock) or b"") for _ in range(2)]
    assert [(type(each).__name__, getattr(each, "id", 0)) for each in answers] == [
        ("Reply", 1),
        ("Reply", 2),
    ]
    sock.close()


@pytest.fixture
def link(served: Served) -> Iterator[SocketLink]:
    one = SocketLink.connect(served.data_dir, "test")
    yield one
    one.close()


class Collected:
    """Events of a link, as they arrive."""

    def __init__(self, link: SocketLink) -> None:
        self.link = link
        self.events: list[object] = []

    def count(self) -> int:
        self.events += self.link.take_events()
        return len(self.events)

    def now(self) -> list[object]:
        self.count()
        return self.events


def test_a_client_opens_and_closes(served: Served, link: SocketLink) -> None:
    assert isinstance(link, Link)
    grant = link.open_publication("a.b", PublicationOptions(linger_us=3))
    assert (grant.publication_id, grant.topic) == (5, "a.b")
    assert link.open_subscription("a.*", SubscriptionOptions()).subscriber_id == 4
    link.close_publication(5)
    link.close_subscription(3)
    link.release_image(3, 1)
    assert served.node.calls == [
        ("attach", "test"),
        ("open_publication", link.client_id, "a.b", PublicationOptions(linger_us=3)),
        ("open_subscription", link.client_id, "a.*", SubscriptionOptions()),
        ("close_publication", link.client_id, 5),
        ("close_subscription", link.client_id, 3),
        ("release_image", link.client_id, 3, 1),
    ]
    assert link.node_id_of(link.node_name) == link.node_id == served.node.id
    assert link.stats() == {"node": {"packets_sent": 3, "ratio": 0.5}}
    assert link.incarnation == 77
    assert link.work() == 0


@pytest.mark.parametrize(
    ("field", "wrong"),
    [("age_s", -1.0), ("age_s", float("inf")), ("resume", dict.fromkeys(range(8193), 0))],
)
def test_where_a_subscription_goes_on_is_checked(link: SocketLink, field: str, wrong: Any) -> None:
    options = SubscriptionOptions(**{field: wrong})
    in_frames = {"age_s": "away_s"}.get(field, field)
    with pytest.raises(ConfigError, match=in_frames):
        link.open_subscription("a.*", options)
    assert link.open_subscription("a.*", SubscriptionOptions()).subscriber_id == 4


@pytest.mark.parametrize(
    "problem",
    [
        NotFound("no topic"),
        ConfigError("two", ["one", "two"]),
        SharedMemoryError("full"),
        RateLimited("slow down", 0.25),
        GapError("lost", (3, 9)),
        Conflict("there"),
        TidecastError("other"),
    ],
)
def test_errors_arrive_as_they_were(
    served: Served, link: SocketLink, problem: TidecastError
) -> None:
    served.node.fail = problem
    with pytest.raises(type(problem)) as caught:
        link.open_publication("a", PublicationOptions())
    assert type(caught.value) is type(problem)
    assert caught.value.__dict__ == problem.__dict__
    assert str(caught.value) == str(problem)


def test_an_internal_error_does_not_end_the_session(served: Served, link: SocketLink) -> None:
    served.node.fail = ZeroDivisionError("oops")
    with pytest.raises(TidecastError, match="internal error in the engine: ZeroDivisionError"):
        link.close_publication(1)
    served.node.fail = None
    link.close_publication(1)


def test_no_responders(link: SocketLink) -> None:
    with pytest.raises(NoResponders):
        link.node_id_of("nobody")


def test_events_are_pushed_and_ring_the_bell(
    served: Served, link: SocketLink, eventually: Eventually
) -> None:
    at = link.doorbell * DOORBELL_BYTES
    assert link.bells[at] == 0
    sent = [PeerJoined(node="x", node_id=i, incarnation=2) for i in range(1000)]
    served.node.emit(link.client_id, *sent)
    got = Collected(link)
    eventually(lambda: got.count() == 1000, "all events")
    assert got.events == sent
    bell = link.bells[at : at + 4].view("<u4")
    eventually(lambda: bell[0] >= 4, "the bell of the last ones")
    served.node.emit(link.client_id, Gap(topic="a", node="x", session=1, first=2, end=3, at_ns=5))
    eventually(lambda: got.count() == 1001, "one more")


@pytest.mark.parametrize("when", ["first", "again"])
def test_events_right_behind_the_welcome_are_taken_and_more_may_follow(
    served: Served, eventually: Eventually, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """Before whoever connects has gone on: an engine that begins has much to tell."""
    ask = socket_session._Wire.ask

    def slowly(wire: Any, body: Any, timeout_s: float) -> Any:
        answer = ask(wire, body, timeout_s)
        if isinstance(answer, frames.Welcome):
            event = PeerJoined(node="x", node_id=7, incarnation=2)
            served.node.emit(answer.client_id, event)
            eventually(lambda: event in wire._session()._events, "the event")
        return answer

    if when == "first":
        monkeypatch.setattr(socket_session._Wire, "ask", slowly)
    link = SocketLink.connect(served.data_dir, "test")
    if when == "again":
        got = Collected(link)
        link._wire.abandon()
        eventually(lambda: EngineLost in [type(e) for e in got.now()], "it is lost")
        monkeypatch.setattr(socket_session._Wire, "ask", slowly)
        link.reconnect()
    got = Collected(link)
    got.count()
    served.node.emit(link.client_id, PeerJoined(node="y", node_id=8, incarnation=2))
    eventually(lambda: "y" in [getattr(e, "node", "") for e in got.now()], "one more")
    link.stats()
    link.close()


def test_many_untaken_events_stay_in_the_engine(
    served: Served, link: SocketLink, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket_session, "EVENTS_HELD_MAX", 1)

    def events(n: int) -> list[PeerJoined]:
        return [PeerJoined(node="x", node_id=i, incarnation=2) for i in range(n)]

    served.node.emit(link.client_id, *events(1))
    eventually(lambda: len(link._events) == 1, "the first push")
    served.node.emit(link.client_id, *events(500))
    link.stats()  # a round trip: whatever was to be pushed has been
    assert len(link._events) == 1
    assert len(served.node._events[link.client_id]) == 500


def test_sync_brings_what_happened_before(
    served: Served, link: SocketLink, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket_session, "EVENTS_HELD_MAX", 1)
    served.node.emit(link.client_id, PeerJoined(node="first", node_id=1, incarnation=2))
    eventually(lambda: len(link._events) == 1, "the first push, which is not taken")
    for n in range(1, 4):
        served.node.emit(link.client_id, PeerJoined(node="x", node_id=n, incarnation=2))
        link.sync()
        assert len(link._events) == 1 + n
    many = admission.PUSHES_AHEAD_MAX * frames.EVENTS_PUSHED_MAX
    many_events = [PeerJoined(node="y", node_id=n, incarnation=2) for n in range(many)]
    served.node.emit(link.client_id, *many_events)
    link.sync()
    held = len(link._events)
    assert many - 3 * frames.EVENTS_PUSHED_MAX <= held < many
    link.sync()
    assert len(link._events) == held, "a client that takes none gets no more"
    got = Collected(link)
    eventually(lambda: got.count() == many + 4, "all events")
    assert got.events[4:] == many_events


def test_an_event_does_not_wait_until_those_before_it_are_taken(
    served: Served, link: SocketLink, eventually: Eventually
) -> None:
    for n in range(1, 4):
        served.node.emit(link.client_id, PeerJoined(node="x", node_id=n, incarnation=2))
        eventually(lambda n=n: len(link._events) == n, f"push {n}")


def test_what_the_engine_could_not_read_is_refused_here_and_the_session_lives(
    link: SocketLink,
) -> None:
    with pytest.raises(ConfigError, match=r"NodeIdOf: Expected `str`, got `int` - at `name`"):
        link.node_id_of(5)  # type: ignore[arg-type]
    assert link.stats()


def test_a_closed_client_is_cleaned_up(
    served: Served, link: SocketLink, eventually: Eventually
) -> None:
    link.close()
    link.close()
    eventually(lambda: served.node.gone == [link.client_id], "the clean-up")
    with pytest.raises(Closed):
        link.stats()


def test_a_forgotten_client_is_cleaned_up(served: Served, eventually: Eventually) -> None:
    link = SocketLink.connect(served.data_dir, "forgotten")
    client_id = link.client_id
    del link
    eventually(lambda: served.node.gone == [client_id], "the clean-up")


@pytest.mark.parametrize("arguments", [[], ["fork"]])
def test_a_killed_client_is_cleaned_up(
    served: Served, arguments: list[str], eventually: Eventually
) -> None:
    """Also when a forked child of it lives on with the inherited socket."""
    victim = subprocess.Popen(
        [sys.executable, "-m", "tests.support.attach_client", served.data_dir, *arguments],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT / "engine")},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert victim.stdin is not None
    assert victim.stdout is not None
    client_id = int(victim.stdout.readline())
    assert served.node.gone == []
    victim.send_signal(signal.SIGKILL)
    victim.wait()
    eventually(lambda: served.node.gone == [client_id], "the clean-up")
    victim.stdin.close()
    victim.stdout.close()


def test_engine_lost_and_back(served: Served, link: SocketLink, eventually: Eventually) -> None:
    served.server.stop()
    lost = Collected(link)
    eventually(lost.count, "EngineLost")
    assert lost.events == [EngineLost(reason="the engine stopped")]
    assert not link.connected
    with pytest.raises(ConnectionLost, match="the engine stopped"):
        link.stats()
    with pytest.raises(EngineNotRunning, match="tidecast up"):
        link.reconnect()
    again = Served(served.data_dir)
    try:
        again.node.incarnation = 78
        link.reconnect()
        assert link.incarnation == 78
        assert link.take_events() == [EngineBack(incarnation=78)]
        link.reconnect()  # already there: nothing happens
        assert again.node.calls == [("attach", "test")]
    finally:
        again.server.stop()


def test_a_request_in_flight_fails_when_the_engine_goes(served: Served, link: SocketLink) -> None:
    entered, go_on = threading.Event(), threading.Event()

    def stuck() -> dict[str, object]:
        entered.set()
        go_on.wait(30)
        return {}

    served.node.stats = stuck  # type: ignore[method-assign]
    failures: list[BaseException] = []

    def ask() -> None:
        try:
            link.stats()
        except TidecastError as problem:
            failures.append(problem)

    thread = threading.Thread(target=ask)
    thread.start()
    assert entered.wait(10)
    link._wire.sock.shutdown(socket.SHUT_RDWR)
    thread.join(10)
    go_on.set()
    assert isinstance(failures[0], ConnectionLost)


def test_a_grant_that_comes_too_late_is_given_back(
    served: Served, link: SocketLink, eventually: Eventually
) -> None:
    go_on, real = threading.Event(), served.node.open_publication

    def slow(*arguments: object) -> object:
        go_on.wait(30)
        return real(*arguments)  # type: ignore[arg-type]

    served.node.open_publication = slow  # type: ignore[method-assign, assignment]
    with pytest.raises(Timeout, match="did not answer OpenPublication"):
        link.ask(frames.OpenPublication(topic="a", options=PublicationOptions()), 0.01)
    go_on.set()
    closed = ("close_publication", link.client_id, 5)
    eventually(lambda: closed in served.node.calls, "the late grant to be given back")


def test_topics_are_changed_and_saved(served: Served) -> None:
    path = served.data_dir / "topology.yaml"
    with EngineControl(served.data_dir) as control:
        assert control.create_topic(TopicConfig(name="a")).transport == "multicast"
        with pytest.raises(Conflict, match="exists already"):
            control.create_topic(TopicConfig(name="a"))
        with pytest.raises(ConfigError, match="allowed at most"):
            control.create_topic(TopicConfig(name="b" * 201))
        edited = control.edit_topic("a", {"linger_us": 7})
        assert edited.linger_us == 7
        with pytest.raises(ConfigError, match="history_bytes of topic a cannot change"):
            control.edit_topic("a", {"history_bytes": 1 << 20})
        control.edit_topic("a", {"history_bytes": 1 << 20}, recreate=True)
        assert served.node.calls == [
            ("create_topic", "a"),
            ("edit_topic", "a", {"linger_us": 7}),
            ("delete_topic", "a"),
            ("create_topic", "a"),
        ]
        assert control.topics() == load_topology(path).topics
        assert control.topics()[0].history_bytes == 1 << 20
        with pytest.raises(NotFound):
            control.edit_topic("x", {"linger_us": 7})
        control.delete_topic("a")
        assert load_topology(path).topics == []
        with pytest.raises(NotFound):
            control.delete_topic("a")


def test_faults_and_overview(served: Served) -> None:
    with EngineControl(served.data_dir) as control:
        control.set_faults("multicast", FaultSettings(drop=0.5, partition=("b",)))
        assert control.faults()["multicast"] == FaultSettings(drop=0.5, partition=("b",))
        assert control.overview().publications == [{"topic": "a", "session": 9}]
        with pytest.raises(ConfigError, match="needs a session that attached"):
            control.ask(frames.ClosePublication(publication_id=1))
    assert served.node.gone == []


def test_a_token_is_asked_for(tmp_path: Path) -> None:
    served = Served(tmp_path, token="secret")
    try:
        for wrong in (None, "guess"):
            with pytest.raises(AuthError, match="needs its token"):
                SocketLink.connect(tmp_path, "x", wrong)
        SocketLink.connect(tmp_path, "x", "secret").close()
    finally:
        served.server.stop()


def test_the_socket_is_private(served: Served) -> None:
    assert served.server.path.stat().st_mode & 0o777 == 0o600
    assert served.data_dir.stat().st_mode & 0o777 == 0o700


def test_a_long_path_works(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 120) / "data"
    served = Served(deep)
    try:
        SocketLink.connect(deep, "x").close()
    finally:
        served.server.stop()
    assert not served.server.path.exists()


def test_a_stale_socket_is_replaced(tmp_path: Path) -> None:
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(tmp_path / "engine.sock"))
    stale.close()
    with pytest.raises(EngineNotRunning):
        SocketLink.connect(tmp_path, "x")
    served = Served(tmp_path)
    SocketLink.connect(tmp_path, "x").close()
    served.server.stop()


def test_nobody_there(tmp_path: Path) -> None:
    for where in (tmp_path, tmp_path / "none", tmp_path / ("x" * 150)):
        with pytest.raises(EngineNotRunning, match="no engine runs on"):
            SocketLink.connect(where, "x")


def request(body: frames.AnyBody) -> bytes:
    return frames.frame(frames.Request(1, body))


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (struct.pack("<I", 0xFFFFFFFF), "a frame of 4294967295 bytes"),
        (b"\x03\0\0\0abc", "not a request"),
        (request(frames.Stats()), "first request must be Hello"),
        (request(frames.Hello(name="x", protocol=99)), "do not speak the same protocol"),
        (b"\x10\0\0\0cut", ""),
        (b"", ""),
    ],
)
def test_nonsense_ends_the_session_and_nothing_else(
    served: Served, link: SocketLink, sent: bytes, said: str
) -> None:
    sock = dial(served.data_dir)
    sock.sendall(sent)
    sock.shutdown(socket.SHUT_WR)
    answers = []
    while (content := receive_frame(sock)) is not None:
        answers.append(frames.decode_from_engine(content))
    sock.close()
    last = answers[-1] if answers else Goodbye(reason="")
    assert isinstance(last, Goodbye)
    assert said in last.reason
    assert link.stats()


def test_a_forked_child_is_told(served: Served, link: SocketLink) -> None:
    link._pid -= 1
    with pytest.raises(ForkedProcess):
        link.stats()
    link._pid += 1
