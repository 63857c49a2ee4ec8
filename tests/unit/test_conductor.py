"""The conductor: a job that fails in a way nobody foresaw is reported, and ends nothing else."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tidecast import sync
from tidecast.buffers.recorder import read_records
from tidecast.config.topology import (
    NodeConfig,
    TopicConfig,
    Topology,
    TransportConfig,
    topology_from,
)
from tidecast.embedded import EmbeddedLink, connect_to
from tidecast.events import EngineFault
from tidecast.native.mapped import MappedFile
from tidecast.node.conductor import REPEATED_PAUSE_S
from tidecast.node.node import Node

PATIENCE_S = 60.0


def made(directory: Path, *topics: TopicConfig) -> Node:
    transports = [TransportConfig(name="here", kind="ipc")]
    given = Topology(node=NodeConfig(id=1, name="one"), transports=transports, topics=list(topics))
    return Node(topology_from(given), directory, connect=connect_to)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = made(tmp_path)
    node.start()
    yield node
    node.stop()


def broken() -> None:
    raise KeyError("nobody foresaw this")


def settle(node: Node) -> None:
    """All that was posted before is done, unless the conductor is dead."""
    done = threading.Event()
    node.post(done.set)
    assert done.wait(PATIENCE_S), "the conductor is dead"


def test_a_job_that_fails_is_told_and_the_next_is_done(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    client = node.attach("test")
    node.post(broken)
    settle(node)
    [told] = node.take_events(client)
    assert isinstance(told, EngineFault)
    assert (told.node, told.faults) == ("one", 1)
    assert told.problem == "KeyError: 'nobody foresaw this'"
    assert "in broken" in caplog.text, "no traceback"
    [alert] = [
        each
        for each in read_records(MappedFile.open(node.recorder_path).array)
        if each.section == "alert"
    ]
    assert (alert.writer, alert.text) == ("conductor", "engine fault agent=0 faults=1 in_a_row=1")
    assert node.stats()["node"][0]["engine_faults"] == 1


def test_one_that_fails_again_and_again_is_told_once_and_slows_down(node: Node) -> None:
    client, pauses = node.attach("test"), []

    class Pause(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            pauses.append(timeout)
            return False

    node.conductor._pause = Pause()
    for _ in range(50):
        node.post(broken)
    settle(node)
    assert [type(each) for each in node.take_events(client)] == [EngineFault]
    assert node.conductor.faults == 50
    assert pauses == [REPEATED_PAUSE_S] * 49


def test_a_tick_that_fails_ends_neither_jobs_nor_other_parts_of_the_tick(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticked = threading.Event()
    monkeypatch.setattr(node.sessions, "try_refused", lambda _: broken())
    monkeypatch.setattr(node.durable, "tick", lambda _: ticked.set())
    assert ticked.wait(PATIENCE_S)
    settle(node)


def test_health_shows_it(node: Node) -> None:
    link: Any = EmbeddedLink(node, "test", owns_node=False)
    with sync.connect(link=link) as client:
        assert client.health().healthy
        node.post(broken)
        settle(node)
        client.pump()
        found = client.health()
        assert (found.healthy, found.engine_faults) == (False, 1)


def test_what_agents_post_while_the_node_starts_waits_for_the_conductor(tmp_path: Path) -> None:
    """Run at once, in an agent's thread, it changed what the start was about to make."""
    node, ran = made(tmp_path), list[str]()
    start = node.durable.start

    def post_and_start() -> None:
        agent = threading.Thread(
            target=node.post, args=(lambda: ran.append(threading.current_thread().name),)
        )
        agent.start()
        agent.join(PATIENCE_S)
        assert ran == []
        start()

    node.durable.start = post_and_start  # type: ignore[method-assign]
    node.start()
    settle(node)
    node.stop()
    assert ran == ["tidecast-node"]


def test_a_node_that_starts_handles_what_the_drained_rings_report(tmp_path: Path) -> None:
    """A gap in the ring of a dead engine held the start up for ten seconds."""
    node, waits, flushes = made(tmp_path, TopicConfig(name="t", mode="durable")), [1], list[int]()
    registry = node.durable.registry

    def flush() -> None:
        flushes.append(1)
        node.post(waits.clear)

    registry.flush, registry.busy = flush, lambda: bool(waits)  # type: ignore[method-assign]
    node.start()
    node.stop()
    assert flushes == [1]
