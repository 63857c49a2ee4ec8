"""How an engine applies a topology: many topics at once, and settings that do not fit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tidecast.config.store import TopologyStore
from tidecast.config.topology import default_topology
from tidecast.control_link.apply import Applier
from tidecast.embedded import EmbeddedLink
from tidecast.errors import Closed
from tidecast.telemetry.views import connect_inside
from tidecast_control.topics.schemas import TopicSpec

REST: dict[str, Any] = {"version": 1, "faults": {}, "traffic": {}, "subscriptions": {}}


class Engine:
    """A node and what applies topologies to it."""

    def __init__(self, data_dir: Path) -> None:
        self.link = EmbeddedLink.open(default_topology(), mode="inline", data_dir=data_dir)
        store = TopologyStore(self.link.node.topology, data_dir / "topology.yaml")
        self.applier = Applier(self.link.node, store, [])

    def apply(self, topics: dict[str, Any], *, full: bool = False) -> dict[str, str]:
        """The errors."""
        return dict(self.applier.apply({"full": full, "topics": topics} | REST).errors)

    def names(self) -> set[str]:
        return {t.name for t in self.link.node.topics()}


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    made = Engine(tmp_path)
    yield made
    made.applier.stop()
    made.link.close()


def test_many_topics_cost_one_look_at_all_topics(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not one a topic: 10,000 topics took 42 s, and take 4 s."""
    looks: list[int] = []
    wanted_topics = engine.link.node.durable.wanted
    update = wanted_topics.changed

    def counted(names: Iterable[str]) -> None:
        looks.append(1)
        update(names)

    monkeypatch.setattr(wanted_topics, "changed", counted)
    wanted = {f"many.s{n}": {"id": n + 1, "history_bytes": 65536} for n in range(600)}
    assert engine.apply(wanted, full=True) == {}
    assert engine.names() >= wanted.keys()
    assert len(looks) == 1
    changed = {name: {**raw, "linger_us": 5} for name, raw in list(wanted.items())[:300]}
    assert engine.apply(changed) == {}
    assert len(looks) == 1, "a live change concerns no receiver"
    assert engine.apply(dict.fromkeys(wanted)) == {}
    assert not engine.names() & wanted.keys()
    assert len(looks) == 2


def test_one_that_does_not_fit_keeps_none_of_the_others_out(engine: Engine) -> None:
    errors = engine.apply(
        {
            "a": {"id": 7},
            "b": {"id": 7},
            "c": {"history_bytes": 1},
            "d": {"transport": "none"},
            "e": {"id": 8},
        },
        full=True,
    )
    assert sorted(errors) == ["topic/b", "topic/c", "topic/d"]
    assert "topic a" in errors["topic/b"]
    assert engine.names() >= {"a", "e"}
    assert not engine.names() & {"b", "c", "d"}
    assert "topic e has the same" in engine.apply({"a": {"id": 8}})["topic/a"]
    assert engine.link.node.topic("a").wire_id == 7, "what ran before runs on"
    errors = engine.apply({"a": {"id": 8}, "e": {"id": 7}})
    assert not errors.keys() & {"topic/a", "topic/e"}, "two may change places"


def test_readers_and_example_traffic_survive_a_topic_that_is_made_anew(engine: Engine) -> None:
    told = {"topic": "t", "messages_per_s": 100, "message_bytes": 100, "keys": 0, "subscribers": 1}
    traffic = REST | {"traffic": {"t": told}}
    engine.applier.apply({"full": True, "topics": {"t": {"id": 7}}} | traffic)
    node = engine.link.node
    reader = connect_inside(node, "reader")
    subscription = reader.subscribe("t", on_gap="skip")
    publisher = reader.publisher("t")
    before = {p.id for p in node.pubs.values() if p.topic.name == "t"}
    changed = {"t": {"id": 7, "history_bytes": 1 << 20}}
    assert not engine.applier.apply({"topics": changed} | traffic).errors
    assert node.subs[subscription.subscription_id].pattern == "t"
    open_now = {
        p.id
        for p in node.pubs.values()
        if p.topic.name == "t" and not p.closing and p.ending_s == 0.0
    }
    assert open_now, "the generator publishes again"
    assert not open_now & before
    reader.pump()
    with pytest.raises(Closed, match="open another publisher"):
        publisher.publish(b"nobody would send it")
    engine.apply({"t": None})
    assert subscription.subscription_id not in node.subs, "it ended with its topic"
    reader.close()


def test_settings_that_a_topic_has_already_end_no_publisher(engine: Engine) -> None:
    """A client opened the topic before the service's settings arrived: it has the defaults."""
    client = connect_inside(engine.link.node, "early")
    publisher = client.publisher("early")
    wanted = TopicSpec().model_dump(exclude={"wire_id", "rate_packets_per_s", "rate_bytes_per_s"})
    wanted |= {"id": None, "rate_packets_per_s": 0, "rate_bytes_per_s": 0}
    assert not engine.apply({"early": wanted | {"labels": {"a": "b"}, "description": "d"}})
    assert not engine.apply({"early": wanted | {"linger_us": 0, "rate_bytes_per_s": 1 << 30}})
    client.pump()
    publisher.publish(b"still open")
    assert engine.link.node.topic("early").linger_us == 0
    client.close()


def test_a_transport_that_is_refused_stays_in_the_file_beside_others(engine: Engine) -> None:
    """Else the next start opened the other transport alone, and topics of this one not at all."""
    before = engine.link.node.topology.transports[0]
    wanted: dict[str, Any] = {before.name: {"lanes": 900}, "second": {"port": 7_900, "lanes": 2}}
    wanted |= {"ipc": {"kind": "ipc"}}
    found = engine.applier.apply({"full": False, "topics": {}, "transports": wanted} | REST)
    assert found.errors.keys() == {f"transport/{before.name}"}
    assert "lanes" in found.errors[f"transport/{before.name}"]
    assert found.restart_needed == ["transport/second"]
    kept = engine.applier._store.topology.transports
    assert [each.name for each in kept] == [before.name, "second", "ipc"]
    assert (kept[0], kept[1].lanes) == (before, 2)
