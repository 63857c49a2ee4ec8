"""Commands to a connected engine: each has one answer, in time or not. Ends of connections."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import Any, cast

import pytest

from tests.support.control import Service
from tidecast_control.kit.models import utc_now
from tidecast_control.kit.problems import ProblemError
from tidecast_control.lifespan import NodesCheck
from tidecast_control.link.hub import COMMANDS_UNDER_WAY_MAX, Engine, Hub
from tidecast_control.live.append import Tail
from tidecast_control.nodes.models import NodeStateRow
from tidecast_control.supervisor import Unsupervised


class _Socket:
    """The websocket of an engine that reads messages and answers none."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.arrived = asyncio.Event()

    async def send_text(self, text: str) -> None:
        self.sent.append(json.loads(text))
        self.arrived.set()


def _connected() -> tuple[Hub, Engine, list[dict[str, Any]]]:
    hub, socket = Hub(cast("Any", None)), _Socket()
    engine = Engine("n1", cast("Any", socket), 0)
    hub._engines["n1"] = engine
    return hub, engine, socket.sent


def test_a_stream_without_an_answer_is_a_time_out_and_is_cancelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The engine may begin it late: then nobody would ever end it."""
    monkeypatch.setattr("tidecast_control.link.hub.COMMAND_TIMEOUT_S", 0.01)
    hub, engine, sent = _connected()
    with pytest.raises(ProblemError, match="n1: no answer to tail") as raised:
        asyncio.run(hub.stream("n1", "tail", {"topic": "a"}, lambda _items: None))
    assert raised.value.problem == "node_timeout"
    assert [each["type"] for each in sent] == ["command", "cancel"]
    assert sent[0]["id"] == sent[1]["id"]
    assert (engine.answers, engine.streams) == ({}, {})


def test_a_stream_counts_among_the_commands_under_way() -> None:
    async def main() -> None:
        hub, engine, sent = _connected()
        for n in range(COMMANDS_UNDER_WAY_MAX):
            engine.answers[str(n)] = asyncio.get_running_loop().create_future()
        for ask in (hub.ask("n1", "sample", {}), hub.stream("n1", "tail", {}, lambda _: None)):
            with pytest.raises(ProblemError) as raised:
                await ask
            assert raised.value.problem == "throttled"
        assert (sent, engine.streams) == ([], {})

    asyncio.run(main())


def test_the_check_of_nodes_ends_the_connections_that_it_missed_alone(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection that begins while the check writes is another than the one that it missed."""
    began = utc_now()

    def connect(since: Any) -> None:
        with service.ctx.db.begin() as session:
            session.merge(NodeStateRow(name="n1", connected=True, connected_at=since))

    def is_up() -> bool:
        with service.ctx.db.begin() as session:
            return session.get_one(NodeStateRow, "n1").connected

    note = NodesCheck._note

    def beside_a_hello(self: NodesCheck, gone: Any) -> None:
        connect(began + timedelta(seconds=1))
        note(self, gone)

    async def twice() -> None:
        check = NodesCheck(service.ctx)
        for _ in range(2):
            await check.step(Unsupervised())

    connect(began)
    with monkeypatch.context() as patch:
        patch.setattr(NodesCheck, "_note", beside_a_hello)
        asyncio.run(twice())
    assert is_up()
    asyncio.run(twice())
    assert not is_up()


class _Answering(_Socket):
    """The websocket of an engine that begins each stream at once."""

    def __init__(self) -> None:
        super().__init__()
        self.engine: Engine

    async def send_text(self, text: str) -> None:
        await super().send_text(text)
        answer = self.engine.answers.get(str(self.sent[-1].get("id")))
        if answer is not None and not answer.done():
            answer.set_result({"ok": True, "value": {}})

    @property
    def names(self) -> list[str]:
        return [each.get("name", each["type"]) for each in self.sent]


def _engine(socket: _Answering, name: str = "n1") -> Engine:
    socket.engine = Engine(name, cast("Any", socket), 0)
    return socket.engine


def test_a_stream_that_is_given_up_before_its_answer_is_cancelled() -> None:
    """A viewer that leaves then would keep a tail of the engine for ever."""

    async def main() -> None:
        hub, engine, sent = _connected()
        stream = asyncio.create_task(hub.stream("n1", "tail", {"topic": "a"}, lambda _items: None))
        await cast("_Socket", engine.websocket).arrived.wait()
        stream.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stream
        assert [each["type"] for each in sent] == ["command", "cancel"]
        assert sent[0]["id"] == sent[1]["id"]
        assert engine.streams == {}

    asyncio.run(main())


def test_a_tail_that_is_given_up_as_it_opens_ends_the_streams_that_it_has() -> None:
    async def main() -> None:
        hub, engine, _ = _connected()
        first = _Answering()
        hub._engines["a"] = _engine(first, "a")
        tail = Tail("t", hub, withheld=False)
        opening = asyncio.create_task(tail.open())
        await cast("_Socket", engine.websocket).arrived.wait()
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        assert first.names == ["tail", "cancel"]

    asyncio.run(main())


def test_a_tail_follows_an_engine_to_its_next_connection() -> None:
    """The name stays connected throughout: the next connection replaces the one before."""

    async def main() -> None:
        hub, before, after = Hub(cast("Any", None)), _Answering(), _Answering()
        hub._engines["n1"] = _engine(before)
        tail = Tail("t", hub, withheld=False)
        await tail.open()
        await tail.take(1)
        hub._engines["n1"] = _engine(after)
        await tail.take(1)
        await tail.take(1)
        assert (before.names, after.names) == (["tail"], ["tail"])

    asyncio.run(main())


async def _watched(hub: Hub, engine: Engine) -> None:
    await hub.watch(250)
    assert engine.asking is not None
    await engine.asking


def test_an_engine_that_reads_slowly_learns_how_often_telemetry_is_wanted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was left out for ever, as silent, when it was busy for two seconds."""
    monkeypatch.setattr("tidecast_control.link.hub.SEND_TIMEOUT_S", 0.01)

    async def main() -> None:
        hub, engine, sent = _connected()
        async with engine._sending:  # a large topology leaves
            await _watched(hub, engine)
        assert sent == []
        await _watched(hub, engine)
        await _watched(hub, engine)
        assert sent == [{"type": "watch", "interval_ms": 250}]

    asyncio.run(main())
