"""Rings with unacked messages whose topic the next engine does not have, or cannot open."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest
from click.testing import CliRunner, Result
from tests.support.durable import Platform, platform, powered, rows_of

from tidecast import doctor
from tidecast.cli import main
from tidecast.config.topology import Topology, default_topology, topology_from
from tidecast.events import DiskBack, Event, RingDrained, RingDropped, RingStranded
from tidecast.layout import ring as lay
from tidecast.native.mapped import MappedFile
from tidecast.native.packing import unpack_from
from tidecast.node.durable import service
from tidecast.node.durable.publisher_side import PublisherSide
from tidecast.node.durable.recovery import Recovery
from tidecast.node.durable.service import Durable

ACKED, UNACKED = [b"1", b"22"], [b"333", b"4444", b"55555"]
WITHOUT: Topology = topology_from({"transports": [{"name": "ipc", "kind": "ipc"}]})


def queue_orphans(one: Platform, *arguments: str, answer: str = "") -> Result:
    command = ["queue", "orphans", *arguments, "--data-dir", str(one.directory)]
    return CliRunner().invoke(main, command, input=answer)


def restart(one: Platform, topology: Topology) -> None:
    one.crash()
    one.connections.clear()
    one.topology = topology
    one.start()


E = TypeVar("E", bound=Event)


def notified(one: Platform, kind: type[E]) -> list[E]:
    return [e for e in one.durable.registry.notified if isinstance(e, kind)]


def stranded(one: Platform) -> list[RingStranded]:
    return notified(one, RingStranded)


def payloads(one: Platform) -> list[bytes]:
    return [row[3] for row in sorted(rows_of(one.topic), key=lambda row: row[4])]


def leave_unacked(one: Platform) -> None:
    """A publisher has some messages acked and others not; then its engine dies."""
    publisher = one.publisher(producer="p")
    for payload in ACKED:
        publisher.publish(payload, flush=True)
    one.run()
    assert publisher.durable_position == len(ACKED)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Durable, "work", lambda _, now_ns: 0 * now_ns)
        for payload in UNACKED:
            publisher.publish(payload, flush=True)
    one.crash()
    one.forget_clients()


def rings(one: Platform) -> list[Path]:
    return sorted(one.node.directory.glob("pub-left-*"))


@pytest.fixture(params=[False, True], ids=["shared memory", "spool"])
def left(request: pytest.FixtureRequest) -> Iterator[tuple[Platform, Topology]]:
    with platform(spool=request.param) as made:
        leave_unacked(made)
        before, made.topology = made.topology, WITHOUT
        made.start()
        yield made, before


def test_it_is_reported_once_a_start_and_stored_when_the_topic_is_back(
    left: tuple[Platform, Topology],
) -> None:
    one, before = left
    for start in range(2):
        if start:
            restart(one, WITHOUT)
        [event] = stranded(one)
        assert (event.topic, event.messages, event.bytes) == ("orders", 3, 12)
        assert Path(event.file).exists()
        late = one.connect()
        late.pump()
        assert [e.file for e in late._events if isinstance(e, RingStranded)] == [event.file]
    restart(one, before)
    assert not stranded(one)
    assert payloads(one) == ACKED + UNACKED
    assert json.loads(queue_orphans(one, "--json").output) == {"rings": [], "removed": False}


def test_the_doctor_and_the_shell_name_it_and_only_a_stopped_engine_lets_it_go(
    left: tuple[Platform, Topology],
) -> None:
    one, before = left
    [event] = stranded(one)
    place = doctor.Place(data_dir=one.directory, topology=default_topology())
    [finding] = doctor.check_stranded_rings(place)
    assert finding.status == doctor.WARN
    assert f"{event.file} holds 3 unacked messages (12 bytes) of orders" in finding.detail
    refused = queue_orphans(one, "--remove", "--yes")
    assert refused.exit_code == 1
    assert "an engine of" in refused.output
    assert Path(event.file).exists()
    one.crash()
    one.connections.clear()
    shown = queue_orphans(one, "--remove", answer="n\n")
    assert "orders: 3 messages" in shown.output
    assert "3 unacked messages: those that no log has are lost." in shown.output
    assert Path(event.file).exists()
    removed = json.loads(queue_orphans(one, "--remove", "--yes", "--json").output)
    assert removed["removed"]
    assert [ring["messages"] for ring in removed["rings"]] == [3]
    assert not Path(event.file).exists()
    one.topology = before
    one.start()
    assert [row[3] for row in rows_of(one.topic)] == ACKED


def test_it_is_stored_when_its_topic_is_created_while_the_engine_runs(
    left: tuple[Platform, Topology],
) -> None:
    one, before = left
    [event] = stranded(one)
    [topic] = before.topics
    live = msgspec.structs.replace(topic, mode="live")
    one.node.create_topic(live)
    one.node.delete_topic(live.name)
    assert Path(event.file).exists(), "a live topic of that name has no use for it"
    one.node.create_topic(topic)
    one.run()
    assert payloads(one) == ACKED + UNACKED
    assert not one.durable.registry.standing
    one.run(1000)
    assert not Path(event.file).exists()
    assert len(notified(one, RingDrained)) == 1


def test_rings_are_taken_in_the_order_in_which_they_were_made() -> None:
    """Names of files have numbers of any length."""
    with platform() as one, pytest.MonkeyPatch.context() as patched:
        publishers = [one.publisher() for _ in range(12)]
        patched.setattr(Durable, "work", lambda _, now_ns: 0 * now_ns)
        for publisher in publishers:
            publisher.publish(b"kept", flush=True)
        one.crash()
        one.forget_clients()
        taken: list[int] = []
        take_over = PublisherSide.take_over

        def noted(side: PublisherSide, rings: Iterable[MappedFile]) -> None:
            found = list(rings)
            taken.extend(unpack_from("<q", each.array, lay.CREATED_AT)[0] for each in found)
            take_over(side, found)

        patched.setattr(PublisherSide, "take_over", noted)
        patched.setattr(service, "DRAIN_S", 0.0)
        one.start()
        assert len(taken) == 12
        assert taken == sorted(taken)


# --- a disk that refuses when the topic is opened -------------------------------------------------


@pytest.fixture
def unopened() -> Iterator[Platform]:
    """An engine whose topic cannot be opened; a ring with unacked messages of it is there."""
    with powered() as one:
        leave_unacked(one)
        one.disk.failing = lambda path: path.is_relative_to(one.directory / "queues")
        one.start()
        assert "orders" in one.durable.registry.broken
        assert len(rings(one)) == 1
        yield one


def test_its_ring_is_stored_once_the_disk_is_back(unopened: Platform) -> None:
    unopened.run(1500)
    assert not notified(unopened, DiskBack)
    unopened.disk.failing = None
    unopened.run(4000)
    assert len(notified(unopened, DiskBack)) == 1
    assert payloads(unopened) == ACKED + UNACKED
    assert not rings(unopened)
    assert len(notified(unopened, RingDrained)) == 1


def test_its_ring_stays_for_the_next_engine_when_this_one_stops(unopened: Platform) -> None:
    with pytest.MonkeyPatch.context() as patched:
        closed: list[Path] = []
        patched.setattr(MappedFile, "close", lambda mapped: closed.append(mapped.path))
        [ring] = rings(unopened)
        unopened.node.stop()
        assert ring in closed
    unopened.disk.failing = None
    unopened.start()
    unopened.run()
    assert payloads(unopened) == ACKED + UNACKED


def test_its_ring_is_dropped_with_its_topic(unopened: Platform) -> None:
    unopened.node.delete_topic("orders")
    [event] = notified(unopened, RingDropped)
    assert (event.topic, event.first, event.reason) == ("orders", len(ACKED) + 1, "deleted")
    assert event.packets == 1
    assert not rings(unopened)


# --- a topic that is deleted or recreated while a ring is read ------------------------------------


@pytest.fixture(params=["read", "held"])
def reading(request: pytest.FixtureRequest) -> Iterator[tuple[Platform, pytest.MonkeyPatch]]:
    """An engine that has begun to read such a ring, or lets it wait for an older session."""
    with powered() as one, pytest.MonkeyPatch.context() as patched:
        leave_unacked(one)
        patched.setattr(service, "DRAIN_S", 0.0)
        if request.param == "held":
            patched.setattr(Recovery, "may_begin", lambda *_, **__: False)
        patched.setattr(Durable, "work", lambda _, now_ns: 0 * now_ns)
        one.start()
        assert len(rings(one)) == 1
        yield one, patched


def test_a_ring_that_is_read_is_dropped_with_its_topic(
    reading: tuple[Platform, pytest.MonkeyPatch],
) -> None:
    one, _ = reading
    one.node.delete_topic("orders")
    [event] = notified(one, RingDropped)
    assert (event.topic, event.first, event.reason) == ("orders", len(ACKED) + 1, "deleted")
    assert not rings(one)
    assert not one.node.pubs


def test_a_ring_that_is_read_outlives_a_change_that_recreates_its_topic(
    reading: tuple[Platform, pytest.MonkeyPatch],
) -> None:
    one, patched = reading
    config = one.node.topic("orders")
    one.node.delete_topic("orders", keep_data=True)
    patched.undo()
    one.node.create_topic(config)
    one.run(600)
    assert payloads(one) == ACKED + UNACKED
    assert not notified(one, RingDropped)
    assert not rings(one)
