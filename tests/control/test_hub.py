"""Commands to a connected engine: each has one answer, in time or not."""

from __future__ import annotations

import asyncio
import json
from typing import Any, cast

import pytest

from tidecast_control.kit.problems import ProblemError
from tidecast_control.link.hub import COMMANDS_UNDER_WAY_MAX, Engine, Hub


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
