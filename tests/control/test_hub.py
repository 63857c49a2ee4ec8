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
from tidecast_control.nodes.models import NodeStateRow
from tidecast_control.supervisor import Unsupervised


class _Socket:
    """The websocket of an engine that reads messages and answers none."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []

    async def send_text(self, text: str) -> None:
        self.sent.append(json.loads(text))


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
