"""Rings with unacked messages whose topic the next engine does not have."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests.support.durable import Platform, platform, rows_of

from tidecast import doctor
from tidecast.cli import main
from tidecast.config.topology import Topology, default_topology, topology_from
from tidecast.events import RingStranded
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


def stranded(one: Platform) -> list[RingStranded]:
    return [e for e in one.durable.registry.notified if isinstance(e, RingStranded)]


@pytest.fixture(params=[False, True], ids=["shared memory", "spool"])
def left(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Platform, Topology]]:
    with platform(spool=request.param) as made:
        publisher = made.publisher(producer="p")
        for payload in ACKED:
            publisher.publish(payload, flush=True)
        made.run()
        assert publisher.durable_position == len(ACKED)
        with monkeypatch.context() as patched:
            patched.setattr(Durable, "work", lambda _, now_ns: 0 * now_ns)
            for payload in UNACKED:
                publisher.publish(payload, flush=True)
            before = made.topology
            restart(made, WITHOUT)
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
    assert [row[3] for row in sorted(rows_of(one.topic), key=lambda r: r[4])] == ACKED + UNACKED
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
