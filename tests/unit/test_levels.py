"""Levels: what the ends of a connection read, what both speak, what is refused and why."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.fake_node import FakeNode
from tests.support.gateways import TIMEOUT_S, TOKEN, make_gateway
from websockets.sync.client import connect as connect_websocket

import tidecast.sync
from tidecast.api import levels
from tidecast.api.frames import common
from tidecast.api.frames import socket as frames
from tidecast.api.levels import UNSAID, Range, agreed, range_of
from tidecast.client.links.socket import SocketLink
from tidecast.client.links.socket_session import dial, receive_frame
from tidecast.client.remote import frames as remote_frames
from tidecast.config.store import TopologyStore
from tidecast.config.topology import default_topology, topology_from
from tidecast.embedded import EmbeddedLink
from tidecast.engine.admission import AdmissionServer
from tidecast.errors import ConfigError, ConnectionLost
from tidecast.layout import member, ring, segment
from tidecast.layout.levels import LEVEL_MAX, LEVELS, LOWEST, NEWEST
from tidecast.node.live.agent_tables import LEVEL_OF_TAILS
from tidecast.node.live.setup import LEVEL_OF_AREA

OLD, NEW = LEVELS[NEWEST], "9.9.9"


@pytest.fixture
def next_build(monkeypatch: pytest.MonkeyPatch) -> None:
    """This build reads the next level, too."""
    following = OLD._replace(since=NEW, socket=OLD.socket + 1, gateway=OLD.gateway + 1)
    monkeypatch.setitem(LEVELS, NEWEST + 1, following)
    monkeypatch.setattr(levels, "OURS", Range(NEWEST, NEWEST + 1))


@pytest.fixture
def later_build(monkeypatch: pytest.MonkeyPatch) -> None:
    """This build reads the level after that, and no longer ours of today."""
    monkeypatch.setitem(LEVELS, NEWEST + 2, OLD._replace(since=NEW, socket=99, gateway=99))
    monkeypatch.setattr(levels, "OURS", Range(NEWEST + 2, NEWEST + 2))


def test_the_table_agrees_with_what_is_written() -> None:
    assert Range(LOWEST, NEWEST) == levels.OURS
    assert NEWEST - LOWEST <= 1, "a build reads its level and the one before"
    assert LEVELS[NEWEST].log == segment.SEGMENT_VERSION == segment.BATCH_VERSION
    assert LEVELS[LOWEST].ring == member.MEMBER_VERSION, "members' rings did not change"
    magics = {1: ring.MAGIC, 2: ring.MAGIC_WITH_TAIL}
    assert {each.ring for each in LEVELS.values()} == set(magics)
    assert (LEVELS[LEVEL_OF_TAILS - 1].ring, LEVELS[LEVEL_OF_TAILS].ring) == (1, 2)
    assert (LEVELS[LEVEL_OF_AREA - 1].wire, LEVELS[LEVEL_OF_AREA].wire) == (1, 2)
    for number, magic in magics.items():
        assert magic.to_bytes(8, "little") == b"TDCRING%d" % number
    assert [levels.protocol_of(each) for each in ("socket", "gateway", "control")] == [1, 2, 1]


@pytest.mark.usefixtures("next_build")
@pytest.mark.parametrize("connection", ["socket", "gateway", "control"])
def test_a_hello_with_a_bare_number_reads_the_first_level_alone(connection: Any) -> None:
    """Also where later levels have the same number: that of the control link does not change."""
    number = getattr(LEVELS[1], connection)
    assert range_of(connection, number) == Range(1, 1)
    with pytest.raises(ConfigError, match="protocol: 98 on the"):
        range_of(connection, 98)
    assert range_of(connection, 98, [1, 3]) == Range(1, 3), "levels count, if there are any"


@pytest.mark.parametrize(
    "said", [(0, 1), (2, 1), (1, LEVEL_MAX + 1), (-1, 5), (1,), (1, 2, 3), ("1", "2"), 7, "ab"]
)
def test_levels_that_are_none_are_refused(said: Any) -> None:
    with pytest.raises(ConfigError, match="levels: "):
        range_of("control", 1, said)


@pytest.mark.usefixtures("next_build")
def test_both_speak_the_highest_level_that_both_read() -> None:
    assert agreed("client", "", Range(NEWEST, NEWEST), "engine") == NEWEST
    assert agreed("client", "", Range(1, NEWEST + 9), "engine") == NEWEST + 1


@pytest.mark.usefixtures("later_build")
def test_a_refusal_names_both_ranges_and_the_cure() -> None:
    with pytest.raises(ConfigError) as old:
        agreed("client", "0.1.0", Range(NEWEST, NEWEST + 1), "engine")
    assert str(Range(NEWEST, NEWEST + 1)) in str(old.value)
    assert str(levels.OURS) in str(old.value)
    assert f"upgrade the client to >= {NEW}" in str(old.value)
    with pytest.raises(ConfigError, match=r"upgrade the engine to >= 12\.0"):
        agreed("client", "12.0", Range(50, 60), "engine")
    with pytest.raises(ConfigError, match="upgrade the engine to a version that reads level 50"):
        agreed("client", "", Range(50, 60), "engine")


# --- the unix socket ------------------------------------------------------------------------------


@pytest.fixture
def level() -> int:
    """The level of the cluster."""
    return LOWEST


@pytest.fixture
def served(tmp_path: Path, level: int) -> Iterator[Path]:
    topology = msgspec.structs.replace(default_topology(), level=level)
    node = FakeNode(topology, tmp_path)
    node.start()
    server = AdmissionServer(node, tmp_path, TopologyStore(topology, tmp_path / "topology.yaml"))
    server.start()
    yield tmp_path
    server.stop()
    node.stop()


def greeted(data_dir: Path, **said: Any) -> frames.Welcome | str:
    """The engine's answer to a hello: the welcome, or the reason of a refusal."""
    sock = dial(data_dir)
    hello = frames.Hello(name="x", **{"attach": False, **said})
    sock.sendall(frames.frame(frames.Request(1, hello)))
    sock.shutdown(socket.SHUT_WR)
    content = receive_frame(sock)
    assert content is not None
    answer = frames.decode_from_engine(content)
    sock.close()
    assert isinstance(answer, common.Reply)
    if answer.failure is not None:
        return answer.failure.message
    return msgspec.msgpack.decode(answer.result, type=frames.Welcome)


def test_an_engine_serves_clients_of_the_level_before(served: Path) -> None:
    for said in ({"protocol": LEVELS[LOWEST].socket}, {"levels": (LOWEST, LOWEST)}):
        welcome = greeted(served, **said)
        assert isinstance(welcome, frames.Welcome)
        assert welcome.level in levels.OURS


@pytest.mark.usefixtures("next_build")
def test_an_engine_of_the_next_level_serves_clients_of_this_one(served: Path) -> None:
    old, new = greeted(served, levels=(1, NEWEST)), greeted(served, levels=(NEWEST, NEWEST + 1))
    assert isinstance(old, frames.Welcome)
    assert isinstance(new, frames.Welcome)
    assert (old.level, new.level) == (NEWEST, NEWEST + 1)


@pytest.mark.parametrize("level", [1, 2])
def test_rings_of_the_clusters_level_are_for_clients_that_read_them(
    served: Path, level: int
) -> None:
    assert isinstance(greeted(served, levels=(1, 1)), frames.Welcome), "it reads no rings"
    answer = greeted(served, levels=(1, 1), version="0.1.0", attach=True)
    if level == 1:
        assert isinstance(answer, frames.Welcome)
    else:
        assert answer == (
            "client 0.1.0 reads level 1, the rings of this engine are of level 2: "
            "upgrade the client to >= 0.2.0"
        )
    for reads in ((1, 2), (2, 3)):
        assert isinstance(greeted(served, levels=reads, attach=True), frames.Welcome)


@pytest.mark.usefixtures("later_build")
def test_an_engine_refuses_a_client_of_a_level_that_it_no_longer_reads(served: Path) -> None:
    refusal = greeted(served, levels=(1, NEWEST), version="0.1.0")
    assert isinstance(refusal, str)
    assert f"client 0.1.0 reads {Range(1, NEWEST)}" in refusal
    assert f"upgrade the client to >= {NEW}" in refusal


def test_a_client_refuses_an_engine_whose_level_it_no_longer_reads(
    served: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine is of a build that knows no levels: its welcome names none."""
    monkeypatch.setattr(levels, "agreed", lambda *_: levels.FIRST)
    SocketLink.connect(served, "now").close()
    monkeypatch.setattr(levels, "OURS", Range(3, 3))
    monkeypatch.setitem(LEVELS, 3, OLD._replace(since=NEW))
    with pytest.raises(ConfigError, match=f"upgrade the engine to >= {NEW}"):
        SocketLink.connect(served, "later")


# --- the gateway ----------------------------------------------------------------------------------


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Any]:
    settings = {"transports": [{"name": "ipc", "kind": "ipc"}]}
    node = EmbeddedLink.open(topology_from(settings), data_dir=tmp_path, name="host")
    serving = make_gateway(node)
    yield serving
    serving.stop()
    node.close()


def greeted_remotely(gateway: Any, **said: Any) -> remote_frames.Welcome | str:
    url = f"ws://{gateway.host}:{gateway.port}{remote_frames.PATH}"
    headers = {"Authorization": f"Bearer {TOKEN}"}
    with connect_websocket(url, additional_headers=headers, proxy=None, compression=None) as web:
        web.send(remote_frames.encode(remote_frames.Hello(name="x", **said)))
        frame, _ = remote_frames.from_gateway(web.recv(TIMEOUT_S))
    if isinstance(frame, common.Goodbye):
        return frame.reason
    assert isinstance(frame, remote_frames.Welcome)
    return frame


def test_a_gateway_speaks_the_highest_common_level(
    gateway: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for said in ({"protocol": LEVELS[LOWEST].gateway}, {"levels": (LOWEST, LOWEST)}):
        older = greeted_remotely(gateway, **said)
        assert isinstance(older, remote_frames.Welcome)
    with tidecast.sync.connect(gateway.url, token=TOKEN) as far:
        assert far.health().healthy
    monkeypatch.setitem(LEVELS, NEWEST + 2, OLD._replace(since=NEW))
    monkeypatch.setattr(levels, "OURS", Range(NEWEST + 2, NEWEST + 2))
    refusal = greeted_remotely(gateway, levels=(1, NEWEST), version="0.1.0")
    assert isinstance(refusal, str)
    assert f"upgrade the client to >= {NEW}" in refusal
    assert "levels: " in str(greeted_remotely(gateway, levels=(3, 2)))


def test_a_remote_client_shows_why_it_is_refused(
    gateway: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(levels, "range_of", lambda *_: Range(NEWEST + 1, NEWEST + 1))
    with pytest.raises(ConnectionLost, match=f"reads level {NEWEST + 1}"):
        tidecast.sync.connect(gateway.url, token=TOKEN)


def test_an_unsaid_range_is_not_a_range() -> None:
    assert UNSAID[0] not in levels.OURS
