"""Unexpected exceptions in an agent's thread: logged, counted, recorded; the thread continues."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.ports import free_port

from tidecast import sync
from tidecast.agents.events import A_STOP
from tidecast.agents.guard import PAUSE_S_MAX, STUCK_FAULTS, Guard
from tidecast.agents.puller.runtime import Puller
from tidecast.buffers.recorder import read_records
from tidecast.config.topology import NodeConfig, Topology, TransportConfig, topology_from
from tidecast.embedded import EmbeddedLink, connect_to
from tidecast.errors import ConnectionLost
from tidecast.events import EngineFault, ImageGone
from tidecast.layout import member as mem
from tidecast.layout import ring as lay
from tidecast.layout.counters import COLUMNS
from tidecast.layout.recorder import Code
from tidecast.native.mapped import MappedFile
from tidecast.node.durable.archiver import ArchiverRuntime
from tidecast.node.node import Node

PATIENCE_S = 60.0


def broken(*_: Any) -> Any:
    raise KeyError("nobody foresaw this")


def two_nodes(tmp_path: Path) -> Iterator[tuple[Node, Node]]:
    ports = [free_port(), free_port()]
    made = []
    for k in range(2):
        wire = TransportConfig(
            name="wire",
            kind="udp-unicast",
            port=ports[k],
            bind="127.0.0.1",
            peers=[f"127.0.0.1:{ports[1 - k]}"],
        )
        topology = Topology(node=NodeConfig(id=k + 1, name=f"n{k + 1}"), transports=[wire])
        made.append(Node(topology_from(topology), tmp_path / str(k), connect=connect_to))
        made[k].start()
    yield made[0], made[1]
    for node in made:
        node.stop()


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[tuple[Node, Node]]:
    yield from two_nodes(tmp_path)


def client_of(node: Node) -> sync.Connection:
    link: Any = EmbeddedLink(node, "test", owns_node=False)
    return sync.connect(link=link)


def wait_for(found: Callable[[], Any]) -> Any:
    pause = threading.Event()
    for _ in range(int(PATIENCE_S / 0.01)):
        value = found()
        if value:
            return value
        pause.wait(0.01)
    raise AssertionError("it never came")


def events_of(client: sync.Connection, kind: type) -> list[Any]:
    found = []
    while (event := client.take_event()) is not None:
        found.append(event)
    return [event for event in found if isinstance(event, kind)]


@pytest.mark.parametrize("agent", ["sender", "receiver"])
def test_an_agent_that_fails_once_is_told_and_goes_on(
    nodes: tuple[Node, Node], agent: str, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = nodes
    faulty = one if agent == "sender" else two
    thread: Any = getattr(faulty.runtimes["wire"], f"_{agent}")
    with client_of(one) as left, client_of(two) as right, right.subscribe("t") as messages:
        told = left if agent == "sender" else right
        run = thread._run

        def once() -> int:
            thread._run = run
            return broken()

        thread._run = once
        thread.call(lambda: None)
        [fault] = wait_for(lambda: events_of(told, EngineFault))
        assert (fault.agent, fault.problem, fault.faults) == (
            f"{agent}-wire",
            "KeyError: 'nobody foresaw this'",
            1,
        )
        assert not told.health().healthy
        assert faulty.stats()["node"][0]["engine_faults"] == 1
        records = read_records(MappedFile.open(faulty.recorder_path).array)
        [alert] = [each for each in records if each.code == Code.ENGINE_FAULT]
        assert (alert.section, alert.arguments[0]) == ("alert", 1 + (agent == "receiver"))
        assert f"{agent}-wire failed; it resumes" in caplog.text
        assert "in broken" in caplog.text, "no traceback"
        with left.publisher("t") as publisher:
            publisher.publish(b"it goes on")
            assert bytes(messages.next(timeout=PATIENCE_S).data) == b"it goes on"


def test_a_sender_that_only_fails_ends_its_publishers(nodes: tuple[Node, Node]) -> None:
    thread: Any = nodes[0].runtimes["wire"]._sender
    with client_of(nodes[0]) as client:
        publisher = client.publisher("t")
        run, thread._run = thread._run, broken
        thread.call(lambda: None)

        def publish() -> None:
            client.pump()
            publisher.publish(b"x")

        with pytest.raises(ConnectionLost, match="sender-wire fails again and again"):
            wait_for(publish)
        thread._run = run  # what was wrong is over: it goes on
        with client.publisher("t") as other:
            other.publish(b"y")


def test_a_receiver_that_only_fails_tells_its_subscribers(nodes: tuple[Node, Node]) -> None:
    one, two = nodes
    thread: Any = two.runtimes["wire"]._receiver
    with client_of(one) as left, client_of(two) as right, right.subscribe("t") as messages:
        publisher = left.publisher("t")
        publisher.publish(b"first")
        assert bytes(messages.next(timeout=PATIENCE_S).data) == b"first"
        run, thread._run = thread._run, broken
        thread.call(lambda: None)
        gone = wait_for(lambda: events_of(right, ImageGone))
        assert gone[0].reason == "failed"
        thread._run = run
        publisher.publish(b"second")  # where it was when it is back
        assert bytes(messages.next(timeout=PATIENCE_S).data) == b"second"


def test_what_fails_beside_the_agents_is_told_too(tmp_path: Path) -> None:
    topology = topology_from(
        {
            "transports": [{"name": "ipc", "kind": "ipc"}],
            "node": {"leases": {"lease_s": 2.0}},
            "topics": [{"name": "d", "mode": "durable", "transport": "ipc", "owner": "*"}],
        }
    )
    node = Node(topology, tmp_path, connect=connect_to)
    node.start()
    try:
        with client_of(node) as client:
            consumers, leases = node.consumers, node.durable.leases
            wait_for(lambda: consumers.topics.get("d"))
            consumers._inbox.put(broken)
            step, failed = leases.step, threading.Event()

            def once() -> None:
                setattr(leases, "step", step)  # noqa: B010
                failed.set()
                broken()

            setattr(leases, "step", once)  # noqa: B010
            assert failed.wait(PATIENCE_S)
            agents: set[str] = set()

            def told() -> bool:
                agents.update(each.agent for each in events_of(client, EngineFault))
                return agents >= {"subscriptions", "leases"}

            wait_for(told)
            client.publish("d", b"it goes on", ack="durable")
    finally:
        node.stop()


def test_each_step_is_done_whatever_the_others_do_and_pauses_grow() -> None:
    told: list[tuple[str, int]] = []
    guard = Guard("a", lambda agent, _, in_a_row: told.append((agent, in_a_row)))
    pauses: list[float] = []

    class Pause(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            pauses.append(timeout or 0.0)
            return False

    guard._pause = Pause()
    done: list[int] = []
    for _ in range(STUCK_FAULTS + 4):
        guard.round(broken, lambda: done.append(1))
    assert len(done) == STUCK_FAULTS + 4
    assert told == [("a", n + 1) for n in range(STUCK_FAULTS + 4)]
    assert pauses == sorted(pauses)
    assert sum(pauses[:STUCK_FAULTS]) < 3.0
    assert pauses[-1] == PAUSE_S_MAX
    guard.round(lambda: None)
    guard.round(broken)
    assert told[-1] == ("a", 1)


def test_a_command_that_fails_ends_neither_the_puller_nor_what_waits() -> None:
    told: list[str] = []
    wakes = np.zeros(mem.WAKES_BYTES, dtype=np.uint8)
    bells = np.zeros(lay.DOORBELLS_MAX * lay.DOORBELL_BYTES, dtype=np.uint8)
    puller = Puller(wakes=wakes, bells=bells, on_fault=lambda agent, *_: told.append(agent))
    puller.start()
    try:
        puller.post(broken)
        puller.post(broken)
        assert puller.call(lambda: 7) == 7
        assert told == ["puller", "puller"]
    finally:
        puller.stop()


def test_a_command_that_comes_while_others_were_run_is_not_forgotten() -> None:
    wakes = np.zeros(mem.WAKES_BYTES, dtype=np.uint8)
    bells = np.zeros(lay.DOORBELLS_MAX * lay.DOORBELL_BYTES, dtype=np.uint8)
    puller = Puller(wakes=wakes, bells=bells)
    ran: list[int] = []
    puller.post(lambda: ran.append(1))

    class Commands(deque[Callable[[], None]]):
        """Somebody posts right behind the last look, which found nothing."""

        looks = 0

        def __bool__(self) -> bool:
            empty = len(self) == 0
            self.looks += empty
            if empty and self.looks == 2:
                puller.post(lambda: ran.append(2))
            return not empty

    puller._agent._commands = Commands(puller._agent._commands)
    puller._agent.obey()
    assert puller.state.attention[A_STOP] == 1, "the kernel would not return for it"
    puller._agent.obey()
    assert ran == [1, 2]


def test_a_posted_command_runs_in_the_next_cycle_of_an_inline_puller() -> None:
    """It has no thread: before, the command waited for ever."""
    wakes = np.zeros(mem.WAKES_BYTES, dtype=np.uint8)
    bells = np.zeros(lay.DOORBELLS_MAX * lay.DOORBELL_BYTES, dtype=np.uint8)
    puller = Puller(wakes=wakes, bells=bells)
    ran: list[int] = []
    puller.post(lambda: ran.append(1))
    puller.work()
    puller.work()
    assert (ran, puller.state.attention[A_STOP]) == ([1], 0)


def test_a_sync_that_fails_is_told_and_made_up_for() -> None:
    counters = np.zeros((4, COLUMNS), dtype=np.int64)
    bells = np.zeros(lay.DOORBELLS_MAX * lay.DOORBELL_BYTES, dtype=np.uint8)
    made = ArchiverRuntime(
        counters=counters,
        bells=bells,
        inline=True,
        on_events=broken,
        sync=broken,
        on_fault=broken,
    )
    queues, topics = made.state.queues, made.state.topics
    queues["active"][0] = queues["dirty"][0] = topics["syncing"][0] = 1
    with pytest.raises(KeyError):
        made.sync_all()
    assert queues["dirty"][0] == 1, "it would be taken as durable"
