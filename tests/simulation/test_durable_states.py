"""Each transition of the tables of producers' sessions: at the owner, and at the publisher."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from tests.simulation.test_durable_remote import Pair
from tests.support.state_tables import names_of, transitions_of

from tidecast.events import RingDrained, RingDropped
from tidecast.layout import ring as lay
from tidecast.node.durable import owner_side, publisher_side
from tidecast.node.durable.owner_side import OwnerSide, PublisherRings
from tidecast.node.durable.publisher_side import PublisherSide
from tidecast.node.durable.recovery import Recovery
from tidecast.node.durable.session_order import Grants
from tidecast.node.live.setup import Setup
from tidecast.node.state import Publication
from tidecast.testing import Network


@pytest.fixture
def net() -> Iterator[Network]:
    with Network(seed=5) as made:
        yield made


def always(value: Any) -> Callable[..., Any]:
    return lambda *_, **__: value


class Owner:
    """Node ``a``, which gets SETUPs of sessions that nobody has."""

    def __init__(self, net: Network, patch: pytest.MonkeyPatch) -> None:
        announced: list[tuple[Any, Setup, Any]] = []
        on_setup = OwnerSide.on_setup

        def note(side: OwnerSide, *setup: Any) -> bool:
            announced.append(setup)  # type: ignore[arg-type]
            return on_setup(side, *setup)

        patch.setattr(OwnerSide, "on_setup", note)
        self.patch, self.pair = patch, Pair(net)
        for payload in (b"1", b"2"):  # the second session has epoch 2
            publisher = self.pair.publisher(producer="billing")
            publisher.publish(payload, ack="durable")
            publisher.close()
            assert net.run(60e6, until=lambda: not self.side._registry.sources)
        patch.setattr(OwnerSide, "on_setup", on_setup)
        self.runtime, self.setup, self.config = announced[0]

    @property
    def side(self) -> OwnerSide:
        return self.pair.a.engine.durable.owner_side

    def send(self, session: int, epoch: int = 0, first_seq: int = 0, **changed: Any) -> str:
        """A SETUP comes; the session's state then."""
        assert self.setup.producer is not None
        block = replace(self.setup.producer, epoch=epoch, first_seq=first_seq)
        setup = replace(self.setup, session=session, producer=block, **changed)
        self.side.on_setup(self.runtime, setup, self.config)
        return self.state(session)

    def state(self, session: int) -> str:
        return self.side.state_of("orders", session).name


def test_every_transition_at_the_owner(net: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = Owner(net, monkeypatch)
    now_s = owner.pair.a.engine.durable.ctx.now_s
    with transitions_of(owner_side.TRANSITIONS) as reached, monkeypatch.context() as patch:
        patch.setattr(Grants, "ready", always(False))
        assert owner.send(101) == owner.send(101) == "WAITING"
        owner.side.look(now_s() + 4)
        assert owner.state(101) == "UNKNOWN"
        assert owner.send(102) == owner.send(102, epoch=1, first_seq=1) == "WAITING"
        with patch.context() as full:
            full.setattr(PublisherRings, "slots_for", always(0))
            assert owner.send(102, epoch=2, first_seq=3) == "WAITING"
            assert owner.send(103, epoch=2, first_seq=3) == "UNKNOWN"
        assert owner.send(103, epoch=1, first_seq=1) == "UNKNOWN"
        assert owner.send(102, epoch=2, first_seq=3) == "READ"
        assert owner.send(102) == "READ"
        assert not owner.side._openings.asked
        owner.side.evicted(102)
        assert owner.state(102) == "UNKNOWN"
        assert owner.send(102, epoch=2, first_seq=3) == "READ"
        incarnation = owner.setup.incarnation + 1
        assert owner.send(102, epoch=2, first_seq=3, incarnation=incarnation) == "READ"
        patch.setattr(OwnerSide, "_over", always(True))
        owner.side.tick(now_s())
        assert owner.state(102) == "UNKNOWN"

        patch.setattr(Grants, "ready", always(True))
        assert owner.send(104, first_seq=9) == "UNKNOWN", "a gap: 3 is due"
        with patch.context() as overtaken:
            overtaken.setattr(Grants, "overtaken", always(True))
            assert owner.send(104) == "UNKNOWN"
        assert owner.send(105) == owner.send(105) == "GRANTED"
        assert owner.send(105, epoch=1, first_seq=1) == "GRANTED"
        with patch.context() as full:
            full.setattr(PublisherRings, "slots_for", always(0))
            assert owner.send(105, epoch=3, first_seq=3) == "GRANTED"
        owner.side.tick(now_s() + 61)
        assert owner.state(105) == "UNKNOWN"
        assert owner.send(106) == "GRANTED"
        assert owner.send(106, epoch=4, first_seq=3) == "READ"
    assert reached == names_of(owner_side.TRANSITIONS)


def test_no_more_sessions_wait_than_allowed(net: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = Owner(net, monkeypatch)
    monkeypatch.setattr(owner_side, "OPENED_MAX", 2)
    with monkeypatch.context() as patch:
        patch.setattr(Grants, "ready", always(False))
        for session in (1, 2, 3):
            assert owner.send(session) == "WAITING"
    assert [owner.state(session) for session in (1, 2, 3)] == ["UNKNOWN", "WAITING", "WAITING"]
    monkeypatch.setattr(Grants, "ready", always(True))
    for session in (4, 5, 6):
        assert owner.send(session) == "GRANTED"
    assert [owner.state(session) for session in (4, 5, 6)] == ["UNKNOWN", "GRANTED", "GRANTED"]


class Publishing:
    """The side of publishers at a node, and one publication of it."""

    def __init__(self, node: Any) -> None:
        self.engine = node.engine
        self.publisher = node.connect().publisher("orders")
        self.session = self.publisher.session

    @property
    def side(self) -> PublisherSide:
        side: PublisherSide = self.engine.durable.publisher_side
        return side

    @property
    def publication(self) -> Publication:
        return next(p for p in self.engine.pubs.values() if p.session == self.session)

    @property
    def state(self) -> str:
        return self.side.state_of(self.publication).name

    def give_away(self) -> None:
        """Another node keeps the topic now."""
        durable = self.engine.durable
        source = durable.sources[self.publication.source]
        self.side.take_back(source, durable.topics["orders"])

    def take(self) -> None:
        """This node keeps the topic now."""
        self.side.take_own("orders")

    def begin(self) -> None:
        """Begin the held publications that need not wait any more."""
        self.side.begin_held(self.engine.durable.ctx.now_s())

    def orphan(self, *, dropped: bool) -> None:
        """Its engine died; all of it is acked, or its session was ``dropped``."""
        self.publication.orphan(self.engine.durable.ctx.now_s())
        if dropped:
            self.engine.durable.registry.set_ack_state(
                self.publication.mapped.array, lay.ACK_FENCED
            )


def test_every_transition_at_the_publishers_node(
    net: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = Pair(net)
    with transitions_of(publisher_side.TRANSITIONS) as reached, monkeypatch.context() as patch:
        with patch.context() as older:
            older.setattr(PublisherSide, "_older", always(True))
            held, closed = Publishing(pair.b), Publishing(pair.b)
            held.begin()
            assert held.state == closed.state == "HELD"
            pair.b.engine.pubs.pop(closed.publication.id)
            held.begin()
            assert len(held.side._pending.held) == 1
        held.begin()
        assert held.state == Publishing(pair.b).state == "SENT"

        with patch.context() as waiting:  # at the node that keeps the topic
            waiting.setattr(Grants, "ready", always(False))
            held, acked, dropped = (Publishing(pair.a) for _ in range(3))
            assert held.state == "HELD"
            acked.orphan(dropped=False)
            dropped.publisher.publish(b"never stored", flush=True)
            dropped.orphan(dropped=True)
            acked.side.tick()
            waiting.setattr(Recovery, "may_begin", always(True))
            read = Publishing(pair.a)
            assert read.state == "READ"
            held.begin()
            assert held.state == "READ"
            read.give_away()
            assert read.state == "SENT"
            read.take()
            assert read.state == "READ"
            read.give_away()
            waiting.setattr(Recovery, "may_begin", always(False))
            read.take()
            assert read.state == "HELD"
            waiting.setattr(Recovery, "may_begin", always(True))
            read.begin()
            acked, dropped = Publishing(pair.a), Publishing(pair.a)
            for each in (acked, dropped):
                each.give_away()
            acked.orphan(dropped=False)
            dropped.publisher.publish(b"never stored", flush=True)
            dropped.orphan(dropped=True)
            acked.side.tick()
        notified = [type(e) for e in pair.a.engine.durable.registry.notified]
        assert (notified.count(RingDrained), notified.count(RingDropped)) == (2, 2)
    assert reached == names_of(publisher_side.TRANSITIONS)


def test_an_orphaned_ring_that_is_read_here_is_not_sent_again(
    net: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sender would continue with a ring that is unmapped when it is durable."""
    pair = Pair(net)
    one = Publishing(pair.a)
    one.give_away()
    one.publisher.publish(b"kept", flush=True)
    publication = one.publication
    assert publication.slot >= 0
    one.orphan(dropped=False)
    with monkeypatch.context() as patch:
        patch.setattr(Recovery, "may_begin", always(False))
        one.take()
    one.begin()
    assert publication.slot == -1
    assert net.run(10e6, until=lambda: pair.payloads() == [b"kept"])
