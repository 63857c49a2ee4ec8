"""The right to publish: orphaned rings, publishers that resume, publishers that came later."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from tests.simulation.test_durable_remote import SETTINGS, Pair, check_keys

from tidecast.api.link import PublicationOptions
from tidecast.client.core import producer as receipts
from tidecast.config.topology import TopicConfig
from tidecast.errors import ConfigError, Conflict, Fenced
from tidecast.events import ProducerFenced, ProducersExpired, RingDrained, RingDropped
from tidecast.layout import packet as wire
from tidecast.layout import ring as lay
from tidecast.layout.counters import QueueCounter
from tidecast.native.packing import pack_into, unpack_from
from tidecast.node.durable.archiver_tables import ring_session
from tidecast.node.durable.owner_side import Openings
from tidecast.protocol.dedup import producer_id
from tidecast.testing import Network, SimulatedNode

OLDER = [b"of before %d" % i for i in range(2, 7)]
NEWER = [b"of after %d" % i for i in range(2, 5)]


def cases(*fast: bool) -> list[Any]:
    """All of two switches; those that are not ``fast`` are run with the long tests."""
    each = itertools.product([False, True], repeat=2)
    return [pytest.param(*one, marks=[] if one == fast else pytest.mark.long) for one in each]


class Left(Pair):
    """``b`` has a ring without a session whose publisher is gone; ``c`` is there for the next."""

    def __init__(self, net: Network, *, line: bool) -> None:
        super().__init__(net)
        self.c = net.node("c", topics=[TopicConfig(name="orders", **SETTINGS)])
        self.shut: set[int] = set()
        net.intercept(lambda p: p.source not in self.shut)
        before = self.publisher(producer="billing")
        before.publish(b"1", key=b"k", ack="durable")
        session = before.session
        before.close()
        assert net.run(10e6, until=lambda: not self.a.engine.durable.sources)
        self.shut.add(self.b.id)
        again = self.publisher(producer="billing", first_seq=2)
        if line:  # as a publisher does whose engine was killed
            pack_into("<II", again._ring, lay.LINE_AT, session, 1)
        pack_into("<q", again._ring, lay.CREATED_AT, net.clock())
        for payload in OLDER:
            again.publish(payload, key=b"k", flush=True)
        net.run(1e5)
        self.crash(self.b)
        net.run(1e6)

    def fenced(self) -> int:
        engine = self.a.engine
        row = engine.durable.registry.row_of("orders", 0)
        return int(engine.counters.values[row, QueueCounter.SESSIONS_FENCED])

    def dropped(self) -> list[RingDropped]:
        return [e for e in self.b.engine.durable.registry.notified if isinstance(e, RingDropped)]

    def opened(self, at: SimulatedNode) -> Any:
        return at.connect().publisher("orders", producer="billing")


@pytest.fixture
def net(monkeypatch: pytest.MonkeyPatch) -> Iterator[Network]:
    """Its time of day goes with its clock."""
    monkeypatch.setattr(receipts, "OPEN_TIMEOUT_S", 60.0)  # the first test may compile
    with Network(seed=1) as made:
        made.set_time_of_day(made.clock())
        yield made


@pytest.mark.parametrize(("line", "owner_restarts"), cases(False, True))
def test_a_ring_whose_publisher_is_gone_never_fences_one_that_lives(
    net: Network, line: bool, owner_restarts: bool
) -> None:
    three = Left(net, line=line)
    living = three.opened(three.c)
    living.publish_batch(NEWER[:2], ack="durable").check()
    if owner_restarts:
        three.crash(three.a)
    three.shut.clear()
    assert net.run(30e6, until=three.dropped)
    living.publish(NEWER[2], ack="durable", timeout=30.0)
    assert three.payloads() == [b"1", *NEWER]
    [dropped] = three.dropped()
    assert (dropped.topic, dropped.first, dropped.reason) == ("orders", 2, "fenced")
    assert dropped.packets >= 1
    assert three.fenced() == 1
    told = [e for e in three.a.engine.durable.registry.notified if isinstance(e, ProducerFenced)]
    assert [e.session for e in told] == [dropped.session]
    assert not three.b.engine.pubs, "nothing stays of it"


@pytest.mark.parametrize(("line", "owner_restarts"), cases(False, True))
def test_one_that_comes_when_the_next_has_ended_is_older_than_that(
    net: Network, line: bool, owner_restarts: bool
) -> None:
    """Its sequences are the other's now."""
    three = Left(net, line=line)
    next_ = three.opened(three.c)
    next_.publish_batch(NEWER, ack="durable").check()
    next_.close()
    net.run(5e6)
    if owner_restarts:
        three.crash(three.a)
    three.shut.clear()
    assert net.run(30e6, until=lambda: not three.b.engine.pubs)
    assert three.payloads() == [b"1", *NEWER]
    assert [e.first for e in three.dropped()] == [2]


@pytest.mark.parametrize(("line", "owner_restarts"), cases(True, True))
def test_one_that_nobody_came_after_is_stored_however_late(
    net: Network, line: bool, owner_restarts: bool
) -> None:
    three = Left(net, line=line)
    if owner_restarts:
        three.crash(three.a)
    three.shut.clear()
    assert net.run(30e6, until=lambda: not three.b.engine.pubs)
    assert three.payloads() == [b"1", *OLDER]
    assert not three.dropped()


@pytest.mark.parametrize("owner_restarts", [False, True])
def test_of_two_that_were_left_behind_the_younger_follows_an_older_one_that_came_late(
    net: Network, owner_restarts: bool
) -> None:
    """The age of a ring counts, not the time when its session was granted at last."""
    three = Left(net, line=False)
    three.shut |= {three.b.id, three.c.id}
    younger: Any = three.c.connect().publisher("orders", producer="billing", first_seq=7)
    pack_into("<q", younger._ring, lay.CREATED_AT, net.clock())
    for payload in NEWER:
        younger.publish(payload, key=b"k", flush=True)
    net.run(1e5)
    three.c = net.restart(three.c)
    net.run(1e6)
    three.shut.discard(three.b.id)
    assert net.run(30e6, until=lambda: not three.b.engine.pubs)
    assert three.payloads() == [b"1", *OLDER]
    if owner_restarts:
        three.crash(three.a)
    three.shut.clear()
    assert net.run(30e6, until=lambda: not three.c.engine.pubs)
    assert three.payloads() == [b"1", *OLDER, *NEWER]
    check_keys(three.rows())
    for node in (three.b, three.c):
        assert not [e for e in node.engine.durable.registry.notified if isinstance(e, RingDropped)]


def test_a_clock_that_jumps_back_does_not_exchange_two_rings_of_a_host(net: Network) -> None:
    three = Left(net, line=False)
    net.set_time_of_day(1)
    younger = three.publisher(producer="billing", first_seq=7)
    for payload in NEWER:
        younger.publish(payload, key=b"k", flush=True)
    net.run(1e5)
    three.crash(three.b)
    three.shut.clear()
    assert net.run(30e6, until=lambda: not three.b.engine.pubs)
    assert three.payloads() == [b"1", *OLDER, *NEWER]
    check_keys(three.rows())
    assert not three.dropped()


@pytest.mark.parametrize(("line", "at_owner"), cases(False, False))
def test_of_two_that_wait_what_was_left_behind_comes_first(
    net: Network, line: bool, at_owner: bool
) -> None:
    """The new one asked before; the owner has just begun, and so waits for others a while."""
    three = Left(net, line=line)
    three.shut |= {three.a.id, three.c.id}
    three.crash(three.a)
    three.shut.clear()
    comes_ns = net.clock() + 900_000_000
    net.intercept(lambda p: p.source != three.b.id or net.clock() > comes_ns)
    next_ = three.opened(three.a if at_owner else three.c)
    assert next_.producer_session.first_seq == 2 + len(OLDER)
    next_.publish(b"last", key=b"k", ack="durable", timeout=30.0)
    assert three.payloads() == [b"1", *OLDER, b"last"]
    check_keys(three.rows())
    assert not three.dropped()


@pytest.mark.parametrize("at", ["a", "b"])
def test_one_that_goes_on_learns_that_another_has_begun_under_its_name(
    net: Network, at: str
) -> None:
    """Else what it repeats would pass for duplicates of the other's, and be acked."""
    two = Pair(net)
    node = two.a if at == "a" else two.b
    first: Any = node.connect().publisher("orders", producer="billing")
    first.publish(b"1", ack="durable")
    line, epoch = first.session, first.producer_session.epoch
    other = two.b.connect().publisher("orders", producer="billing")
    other.publish(b"2 of the other", ack="durable", timeout=30.0)
    options = PublicationOptions(
        producer_id=first.producer_session.producer_id, first_seq=2, line=line, after=epoch
    )
    client = node.connect()
    if at == "a":
        with pytest.raises(Fenced, match="newer session"):
            client.link.open_publication("orders", options)
    else:
        grant = client.link.open_publication("orders", options)
        ring = next(p for p in node.engine.pubs.values() if p.id == grant.publication_id)

        def state() -> int:
            return int(unpack_from("<q", ring.mapped.array, lay.ACK_STATE_AT)[0])

        assert net.run(10e6, until=lambda: state() != lay.ACK_OPENING)
        assert state() == lay.ACK_FENCED
    other.publish(b"3 of the other", ack="durable", timeout=30.0)
    assert two.payloads() == [b"1", b"2 of the other", b"3 of the other"]


@pytest.mark.parametrize("field", ["line", "after"])
def test_what_it_says_it_goes_on_with_is_checked(net: Network, field: str) -> None:
    two = Pair(net)
    for value in (-1, 1 << 32):
        options: dict[str, Any] = {field: value}
        with pytest.raises(ConfigError, match=f"{field}: .* allowed 0"):
            two.b.connect().link.open_publication("orders", PublicationOptions(**options))


def test_one_that_goes_on_twice_is_known_though_an_answer_was_lost(net: Network) -> None:
    """Its line was granted an epoch that it never heard of, and the owner has restarted since."""
    two = Pair(net)
    first = two.publisher(producer="billing")
    first.publish(b"1", ack="durable")
    line, producer = first.session, first.producer_session.producer_id
    first.close()
    net.run(10e6)
    cut = [True]
    net.intercept(lambda p: not cut[0] or p.type != wire.ACK)
    options = PublicationOptions(producer_id=producer, first_seq=2, line=line, after=1)
    two.b.connect().link.open_publication("orders", options)
    known = two.a.engine.durable.topics["orders"].producers.known
    assert net.run(10e6, until=lambda: known[producer].epoch == 2)
    two.crash(two.a)
    two.crash(two.b)
    cut[0] = False
    grant = two.b.connect().link.open_publication("orders", options)
    ring = next(p for p in two.b.engine.pubs.values() if p.id == grant.publication_id)
    assert net.run(10e6, until=lambda: ring_session(ring.mapped.array)[1])
    assert ring_session(ring.mapped.array)[1] == 3


def _longer(jobs: list[Callable[[], None]], had: int) -> bool:
    return len(jobs) > had


def test_a_setup_is_taken_before_another_is_written_over_it(net: Network) -> None:
    """The conductor may be behind: what it does about one must not read the next one's bytes."""
    two = Pair(net)
    c = net.node("c", topics=[TopicConfig(name="orders", **SETTINGS)])
    jobs: list[Callable[[], None]] = []
    conductor: Any = two.a.engine.conductor
    post, conductor.post = conductor.post, jobs.append
    publishers: list[Any] = []
    for node in (two.b, c):
        had = len(jobs)
        publisher: Any = node.connect().publisher("orders", first_seq=1)
        publisher.publish(b"from " + node.name.encode(), flush=True)
        assert net.run(1e6, until=partial(_longer, jobs, had))
        publishers.append(publisher)
    conductor.post = post
    for job in jobs:
        job()
    for publisher in publishers:
        two.until_durable(publisher)
    opened = {p.producer_session.producer_id for p in publishers}
    assert set(two.a.engine.durable.topics["orders"].producers.known) == opened
    assert sorted(row[1] for row in two.rows()) == [b"from b", b"from c"]


def test_a_setup_of_before_a_session_began_changes_nothing_when_it_is_taken_late(
    net: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two that were reordered, and both taken once the conductor has time: the session goes on."""
    asked: list[Any] = []
    ask = Openings.wait

    def noted(self: Openings, *setup: Any) -> None:
        asked.append(setup)
        ask(self, *setup)

    monkeypatch.setattr(Openings, "wait", noted)
    two = Pair(net)
    publisher = two.publisher(producer="billing")
    publisher.publish(b"a", ack="durable")
    runtime, setup, block, topic = asked[-1]
    assert block.epoch == 0
    [source] = two.a.engine.durable.sources.values()
    two.a.engine.durable.owner_side.on_setup(
        runtime, setup, two.a.engine.durable.topics[topic].config
    )
    assert list(two.a.engine.durable.sources.values()) == [source], "its image stays"
    net.run(5e6)
    publisher.publish(b"b", ack="durable")
    assert two.payloads() == [b"a", b"b"]
    assert not [e for e in two.a.engine.durable.registry.notified if isinstance(e, ProducerFenced)]


# --- how long a producer is remembered, and how many are ------------------------------------------


def test_a_producer_that_is_silent_for_its_time_to_live_is_forgotten_and_that_is_told(
    net: Network,
) -> None:
    two = Pair(net, producer_ttl_s=20.0)
    known = two.a.engine.durable.topics["orders"].producers.known
    idle = two.publisher(producer="idle")
    gone = two.publisher(producer="gone")
    for publisher in (idle, gone):
        publisher.publish(b"1", ack="durable")
    gone.close()
    net.run(15e6)
    assert len(known) == 2
    net.run(10e6)
    assert list(known) == [idle.producer_session.producer_id], "one with a session stays"
    told = [e for e in two.a.engine.durable.registry.notified if isinstance(e, ProducersExpired)]
    assert [(e.topic, e.producers) for e in told] == [("orders", 1)]
    row = two.a.engine.durable.registry.row_of("orders", 0)
    assert two.a.engine.counters.values[row, QueueCounter.PRODUCERS_EXPIRED] == 1
    again = two.publisher(producer="gone")
    assert again.producer_session.first_seq == 1


def test_a_topic_remembers_so_many_producers_and_the_oldest_idle_one_makes_room(
    net: Network,
) -> None:
    two = Pair(net)
    producers = two.a.engine.durable.topics["orders"].producers
    producers.producers_max = 2
    for name in ("first", "second"):
        with two.a.connect().publisher("orders", producer=name) as publisher:
            publisher.publish(b"1", ack="durable")
        net.run(5e6)
    third = two.a.connect().publisher("orders", producer="third")
    assert set(producers.known) == {producer_id("second"), producer_id("third")}
    assert producers.granted.keys() == producers.known.keys()
    net.run(2e6)
    assert [
        e.producers
        for e in two.a.engine.durable.registry.notified
        if isinstance(e, ProducersExpired)
    ] == [1]
    second = two.a.connect().publisher("orders", producer="second")
    with pytest.raises(Conflict, match="2 producers with open sessions"):
        two.a.connect().publisher("orders", producer="fourth")
    for publisher in (second, third):
        publisher.publish(b"2", ack="durable")


def begins(two: Pair) -> float:
    """Seconds until the producer's next session begins: its older ones must be over."""
    since_ns = two.net.clock()
    again = two.publisher(producer="billing")
    took_s = (two.net.clock() - since_ns) / 1e9
    again.publish(b"next", ack="durable")
    return took_s


def leave(two: Pair, payload: bytes) -> None:
    """A publisher comes and goes, and the owner hears nothing of it."""
    last = len(two.payloads())
    publisher = two.publisher(producer="billing", first_seq=last + 1)
    publisher.publish(payload, flush=True)
    publisher.close()


def test_an_owner_that_comes_late_learns_of_the_end_at_once(net: Network) -> None:
    """When it was announced nobody was there: without the end the next session would wait."""
    two = Pair(net)
    first = two.publisher(producer="billing")
    first.publish(b"a", ack="durable")
    first.close()
    assert two.net.run(10e6, until=lambda: not two.b.engine.pubs)
    two.net.partition(two.a, two.b)
    leave(two, b"b")
    two.net.run(2e6)
    two.net.heal()
    assert begins(two) < 2.5
    assert two.payloads() == [b"a", b"b", b"next"]


def test_what_a_dead_engine_left_ends_at_its_owner_too(net: Network) -> None:
    """The owner learns of the end, though it was announced when it did not hear."""
    two = Pair(net)
    publisher = two.publisher(producer="billing")
    publisher.publish(b"a", ack="durable")
    two.net.partition(two.a, two.b)
    publisher.publish_batch([b"b", b"c"])
    two.net.run(1e5)
    two.crash(two.b)
    two.net.heal()
    assert two.net.run(10e6, until=lambda: len(two.payloads()) == 3)
    b, deaf_until_ns = two.b.id, two.net.clock() + 10**9
    two.net.intercept(lambda p: p.source != b or two.net.clock() > deaf_until_ns)
    leave(two, b"d")
    assert begins(two) < 3.5
    assert two.payloads() == [b"a", b"b", b"c", b"d", b"next"]
    [told] = [e for e in two.b.engine.durable.registry.notified if isinstance(e, RingDrained)]
    assert told.messages == 3
    assert two.net.run(10e6, until=lambda: len(two.b.engine.pubs) == 1)
