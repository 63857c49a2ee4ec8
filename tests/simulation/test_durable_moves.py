"""A producer that moves to another node: what its older ring holds is never left out by halves.

The owner's queues refuse one by one and it crashes: a part of what was sent is in the log.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.simulation.test_durable_remote import SETTINGS, Pair, check_keys

from tidecast.buffers.recorder import read_records
from tidecast.config.topology import TopicConfig
from tidecast.errors import Fenced, Timeout
from tidecast.events import ProducerHole
from tidecast.layout import packet as wire
from tidecast.layout import recorder as rec
from tidecast.layout.counters import QueueCounter
from tidecast.native.system.files import F_ERRNO
from tidecast.testing import Network

FULL = 28
MESSAGES = [b"%d" % i for i in range(1, 30)]


class Moved(Pair):
    """The producer was at ``b``; after a crash of ``a`` one queue lacks what the others have."""

    def __init__(self, net: Network, away_us: float) -> None:
        super().__init__(net)
        topic = TopicConfig(name="orders", **SETTINGS)  # type: ignore[arg-type]
        self.c = net.node("c", topics=[topic])
        first = self.publisher(producer="billing")
        first.publish(b"1", key=b"k", ack="durable")
        kept = self.a.engine.durable.topics["orders"]
        kept.logs[1].state.disk[F_ERRNO] = FULL
        for payload in MESSAGES[1:]:
            first.publish(payload, key=payload)
        topics = self.a.engine.durable.registry.runtime.state.topics
        assert net.run(10e6, until=lambda: bool(topics[kept.slot]["errno"]))
        away_until_ns, b = net.clock() + int(away_us * 1e3), self.b.id
        net.intercept(lambda p: p.source != b or net.clock() > away_until_ns)
        self.crash(self.a)
        seqs = sorted(row[2] for row in self.rows())
        self.last = seqs[-1]
        assert self.last > len(seqs) > 1, "there are holes"

    def told(self) -> list[ProducerHole]:
        return [e for e in self.a.engine.durable.registry.notified if isinstance(e, ProducerHole)]


@pytest.fixture
def net() -> Iterator[Network]:
    with Network(seed=1) as made:
        yield made


@pytest.mark.parametrize("to", ["another node", "the owner"])
def test_a_session_waits_for_the_ring_that_its_producer_left_at_another_node(
    net: Network, to: str
) -> None:
    three = Moved(net, away_us=4e6)
    there = three.c if to == "another node" else three.a
    second: Any = there.connect().publisher("orders", producer="billing")
    assert second.producer_session.first_seq == len(MESSAGES) + 1
    second.publish(b"%d" % (len(MESSAGES) + 1), ack="durable", timeout=60.0)
    assert three.payloads() == [*MESSAGES, b"%d" % (len(MESSAGES) + 1)]
    check_keys(three.rows())
    assert not three.told()


def test_a_ring_that_never_comes_back_is_given_up_and_told(net: Network) -> None:
    three = Moved(net, away_us=1e12)
    began_ns = net.clock()
    second: Any = three.c.connect().publisher("orders", producer="billing")
    patience_s = three.a.topology.node.image_timeout_s
    assert patience_s <= (net.clock() - began_ns) / 1e9 < patience_s + 2
    assert second.producer_session.first_seq == three.last + 1
    second.publish(b"next", ack="durable", timeout=60.0)
    [hole] = three.told()
    assert (hole.topic, hole.first, hole.end) == ("orders", 2, three.last)
    engine = three.a.engine
    rows = [engine.durable.registry.row_of("orders", queue) for queue in range(3)]
    assert engine.counters.values[rows][:, QueueCounter.PRODUCER_HOLES].tolist() == [1, 0, 0]
    recorded = np.fromfile(engine.recorder_path, dtype=np.uint8)
    [note] = [each for each in read_records(recorded) if each.code == rec.Code.PRODUCER_HOLE]
    assert note.arguments == (int(hole.producer, 16), hole.first, hole.end, 0)


def test_a_topic_with_such_a_hole_grows_when_it_is_filled(net: Network) -> None:
    """Else what is still to come would pass for a duplicate in a queue that is new."""
    three = Moved(net, away_us=1e6)
    config = three.a.engine.topic_by_name["orders"]
    three.a.engine.durable.edit_topic(msgspec.structs.replace(config, queues=6))
    topic = three.a.engine.durable.topics["orders"]
    assert topic.map.queues == 3
    assert net.run(30e6, until=lambda: topic.map.queues == 6)
    assert net.run(30e6, until=lambda: len(three.payloads()) == len(MESSAGES))
    assert three.payloads() == MESSAGES


def test_a_topic_waits_with_its_growth_for_a_publisher_that_repeats_what_is_missing(
    net: Network,
) -> None:
    three = Moved(net, away_us=1e12)
    config = three.a.engine.topic_by_name["orders"]
    three.a.engine.durable.edit_topic(msgspec.structs.replace(config, queues=6))
    left = three.c.connect()
    gone: Any = left.publisher("orders", producer="billing", first_seq=2)
    for payload in MESSAGES[1:]:
        gone.publish(payload, key=payload)
    three.c.engine.client_gone(left.link.client_id)
    topic = three.a.engine.durable.topics["orders"]
    assert net.run(60e6, until=lambda: topic.map.queues == 6)
    assert three.payloads() == MESSAGES
    assert not three.told()


def test_what_is_repeated_after_a_hole_was_given_up_and_the_topic_grew_is_stored(
    net: Network,
) -> None:
    """A new queue does not know of all that was sent, but of what the log has: others may come."""
    three = Moved(net, away_us=1e12)
    config = three.a.engine.topic_by_name["orders"]
    three.a.engine.durable.edit_topic(msgspec.structs.replace(config, queues=6))
    topic = three.a.engine.durable.topics["orders"]
    assert net.run(30e6, until=lambda: topic.map.queues == 6)
    assert len(three.told()) == 1
    second: Any = three.c.connect().publisher("orders", producer="billing", first_seq=2)
    for payload in MESSAGES[1:]:
        second.publish(payload, key=payload)
    second.wait_durable(timeout=60.0)
    assert sorted(set(three.payloads()), key=int) == MESSAGES


def test_where_nothing_is_missing_no_session_waits(net: Network) -> None:
    two = Pair(net)
    two.publisher(producer="billing").publish_batch([b"1", b"2", b"3"], ack="durable").check()
    two.crash(two.a)
    known = two.a.engine.durable.topics["orders"].producers.known
    assert [each.torn_seq for each in known.values()] == [0]


@pytest.mark.parametrize("known", [True, False])
def test_a_grant_outlives_the_owner_and_fences_the_ring_that_was_before(
    net: Network, known: bool
) -> None:
    """Else the older ring's messages would take the sequences that the new session was given.

    ``known``: the older session has messages in the log; else it shares its epoch with the new one.
    """
    two = Pair(net)
    c = net.node("c", topics=[TopicConfig(name="orders", **SETTINGS)])  # type: ignore[arg-type]
    cut: set[int] = set()
    net.intercept(lambda p: p.source not in cut or p.type != wire.DATA)
    before = two.publisher(producer="billing")
    if known:
        before.publish(b"1", ack="durable")
    cut.add(two.b.id)
    for _ in range(5):
        before.publish(b"of before", flush=True)
    net.run(2e6)
    cut.add(c.id)
    after: Any = c.connect().publisher("orders", producer="billing")
    after.publish_batch([b"of after"] * 3)
    net.run(1e6)
    net.partition(two.a, c)
    two.crash(two.a)
    cut.clear()
    net.run(15e6)
    assert b"of before" not in two.payloads()
    net.heal()
    after.wait_durable(timeout=30.0)
    assert two.payloads() == [*[b"1"][: int(known)], *[b"of after"] * 3]
    with pytest.raises(Fenced):
        before.wait_durable(timeout=30.0)


def test_a_publisher_elsewhere_learns_that_it_is_fenced(net: Network) -> None:
    """While it waits for room, and by an event if it does nothing."""
    two = Pair(net, history_bytes=1 << 16)
    c = net.node("c", topics=[TopicConfig(name="orders", **SETTINGS)])  # type: ignore[arg-type]
    before = two.publisher(producer="billing")
    before.publish(b"1", ack="durable")
    net.partition(two.a, two.b)
    full = before.publish_batch([bytes(1000)] * 100, timeout=0.001)  # real: at once
    assert isinstance(full.error, Timeout)
    after: Any = c.connect().publisher("orders", producer="billing")
    after.publish(b"2", ack="durable", timeout=30.0)
    net.heal()
    with pytest.raises(Fenced, match="newer session"):
        before.publish(bytes(1000), timeout=30.0)
    newest = two.publisher(producer="billing")
    net.run(5e6)
    after.connection.pump()
    with pytest.raises(Fenced, match="newer session"):
        after.publish(b"3")
    newest.publish(b"3", ack="durable", timeout=30.0)
    assert two.payloads() == [b"1", b"2", b"3"]
