"""Commands for agents' threads: one whose asker gave up never runs, and leaves nothing behind."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.support.durable import platform
from tests.support.simulation import network_of

from tidecast.agents.command import PendingCommand
from tidecast.agents.puller.runtime import Puller
from tidecast.agents.runner import AgentRunner
from tidecast.api.link import PublicationOptions
from tidecast.errors import SharedMemoryError, Timeout
from tidecast.layout import member as mem
from tidecast.layout import ring as lay
from tidecast.testing import Network

PATIENCE_S = 60.0


def test_one_that_was_given_up_never_runs_and_one_that_runs_is_not_given_up() -> None:
    ran: list[int] = []
    first = PendingCommand(lambda: ran.append(1))
    assert first.give_up()
    first()
    assert (ran, first.done.is_set()) == ([], False)
    second = PendingCommand(lambda: second.give_up())
    second()
    assert second.done.is_set()
    assert second.outcome() is False


class _Stuck:
    """An agent whose duty cycle does not end until `go`; then it waits for commands."""

    def __init__(self) -> None:
        self.go, self.inside = threading.Event(), threading.Event()

    def __call__(self) -> int:
        self.inside.set()
        assert self.go.wait(PATIENCE_S)
        return 0


def test_a_command_of_an_agent_that_did_not_answer_in_time_never_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tidecast.agents.runner.COMMAND_TIMEOUT_S", 0.01)
    cycle, ran = _Stuck(), []
    agent = AgentRunner(
        "test", cycle, np.zeros(8, dtype=np.int64), lambda: None, lambda: None, _raise
    )
    agent.start()
    assert cycle.inside.wait(PATIENCE_S)
    with pytest.raises(Timeout, match="agent test does not answer"):
        agent.call(lambda: ran.append("too late"))
    monkeypatch.setattr("tidecast.agents.runner.COMMAND_TIMEOUT_S", PATIENCE_S)
    cycle.go.set()
    agent.call(lambda: ran.append("in time"))
    agent.stop()
    assert ran == ["in time"]


def test_a_command_of_a_puller_that_did_not_answer_in_time_never_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tidecast.agents.puller.runtime.COMMAND_TIMEOUT_S", 0.01)
    bells = np.zeros(lay.DOORBELLS_MAX * lay.DOORBELL_BYTES, dtype=np.uint8)
    puller = Puller(wakes=np.zeros(mem.WAKES_BYTES, dtype=np.uint8), bells=bells)
    puller.start()
    inside, go = threading.Event(), threading.Event()
    ran: list[str] = []

    def stick() -> None:
        inside.set()
        go.wait(PATIENCE_S)

    puller.post(stick)
    assert inside.wait(PATIENCE_S)
    with pytest.raises(Timeout, match="agent puller does not answer"):
        puller.call(ran.append, "too late")
    puller._agent._timeout_s = PATIENCE_S
    go.set()
    puller.call(ran.append, "in time")
    puller.stop()
    assert ran == ["in time"]


def _raise(_agent: str, problem: Exception, _in_a_row: int) -> None:
    raise problem


def _refuse(_command: Callable[[], Any]) -> Any:
    raise Timeout("agent sender does not answer")


def test_a_publication_that_its_sender_does_not_take_leaves_no_counters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Network(seed=1) as net:
        [a] = network_of(net, "a")
        client = a.connect()
        rows = len(a.engine.counters.rows())
        [runtime] = a.engine.runtimes.values()
        with monkeypatch.context() as patch:
            patch.setattr(runtime, "on_sender", _refuse)
            for _ in range(3):
                with pytest.raises(Timeout):
                    client.publisher("t")
        assert len(a.engine.counters.rows()) == rows
        assert a.engine.pubs == {}


def _no_room(*_: Any, **__: Any) -> Any:
    raise SharedMemoryError("an engine archives at most 4096 publications")


@pytest.mark.parametrize("breaks", ["add_source", "_connect"])
def test_a_durable_publication_that_cannot_be_opened_leaves_no_open_session(
    breaks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An open session is never forgotten; and nothing reads a ring that is unmapped."""
    with platform() as one:
        link = one.connect().link
        where: Any = (
            one.durable.registry.tables if breaks == "add_source" else one.node._publications
        )
        with monkeypatch.context() as patch:
            patch.setattr(where, breaks, _no_room)
            with pytest.raises(SharedMemoryError):
                link.open_publication("orders", PublicationOptions(producer="me"))
        assert (one.node.pubs, one.durable.sources) == ({}, {})
        one.run(5)
        [known] = one.topic.producers.known.values()
        assert known.sessions == 0
