"""Forged packets: one from a foreign address does nothing, one from the true address does not last.

Nothing on the wire proves who sent a packet, so these hold against strangers who cannot send from
the address of another host, and bound what those can do who can.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.support import packets
from tests.support.simulation import Reader, Stream, network_of, transfer

from tidecast.config.topology import TopicConfig
from tidecast.events import (
    ForeignPackets,
    ImageGone,
    NodeConflict,
    PeerJoined,
    PeerTimeout,
    PublisherRefused,
    ReceiverTimeout,
    StaleIncarnation,
)
from tidecast.layout import packet as wire
from tidecast.node.durable.archiver_tables import ring_session
from tidecast.node.live.peers import EVENTS_A_SECOND, EVENTS_MAX, PEERS_MAX
from tidecast.protocol.flow_control import RECEIVERS_AN_ADDRESS_MAX, RECEIVERS_MAX
from tidecast.testing import Network, SimulatedNode

STRANGER = 999
"""A host that no node runs on."""
SLOTS = 64
RING = SLOTS * 1400
SIZE = 1300
DAY_NS = 24 * 3600 * 1_000_000_000


class Rig:
    """One publisher, one subscriber, and somebody who forges packets."""

    def __init__(self, net: Network, **settings: Any) -> None:
        self.net = net
        self.a, self.b = network_of(
            net, "ab", **{"history_bytes": RING, "receive_bytes": RING, **settings}
        )
        self.reader = Reader(self.b)
        net.run(1000)
        self.stream = Stream(self.a, count=20, size=SIZE)
        assert transfer(net, [self.stream], [self.reader])

    @property
    def fields(self) -> dict[str, Any]:
        topic = int(self.b.engine.topic_by_name["t"].wire_id)
        return {"session": self.stream.publisher.session, "source": self.a.id, "topic": topic}

    def forge(self, packet: bytes, source: int = STRANGER) -> None:
        """To the subscriber's node."""
        self.net.switch.inject(self.b.id, packet, source=source)
        self.net.run(1000)

    def forge_back(self, packet: bytes, source: int = STRANGER) -> None:
        """To the publisher's node."""
        self.net.switch.inject(self.a.id, packet, control=True, source=source)
        self.net.run(100)

    def unharmed(self, more: int = 200) -> None:
        """All is delivered, once and in order, and the session ends as it should."""
        self.stream.count += more
        began = self.net.now_ns
        assert transfer(self.net, [self.stream], [self.reader])
        assert self.net.now_ns - began < 400_000_000, "nobody was held back"
        assert self.reader.found == self.stream.messages
        assert not self.reader.gaps
        self.stream.publisher.close()
        self.net.run(1_000_000, until=lambda: self.reader.take() < 0)
        assert [gone.reason for gone in self.reader.events(ImageGone)] == ["closed"]
        assert not self.reader.events(PeerTimeout)


@pytest.fixture
def rig() -> Iterator[Rig]:
    with Network(seed=1, delay_us=20) as net:
        yield Rig(net)


FORGED = {
    "an end where it is": lambda f: packets.heartbeat(seq=20, flags=wire.FLAG_END, **f),
    "an end ahead": lambda f: packets.heartbeat(seq=3000, flags=wire.FLAG_END, **f),
    "a far heartbeat": lambda f: packets.heartbeat(seq=1 << 59, **f),
    "lost ahead": lambda f: packets.lost(seq=50, **f),
    "lost a turn of control words ahead": lambda f: packets.lost(seq=20 + (1 << 31), **f),
    "data ahead": lambda f: packets.data(packets.message(b"forged"), seq=20, **f),
    "rubbish ahead": lambda f: packets.data(b"\xff\xff\xff\x03", seq=25, **f),
    "a setup": lambda f: packets.setup("a", "t", incarnation=1, **f),
}


@pytest.mark.parametrize("what", FORGED)
def test_packets_of_a_session_from_a_foreign_address_do_nothing(rig: Rig, what: str) -> None:
    rig.forge(FORGED[what](rig.fields))
    assert rig.b.count("foreign_address") == 1
    [told] = rig.reader.events(ForeignPackets)
    assert (told.session, told.node_id) == (rig.stream.publisher.session, rig.a.id)
    assert told.address == str(STRANGER)
    rig.unharmed()


def test_foreign_packets_are_reported_once_a_second(rig: Rig) -> None:
    for _ in range(50):
        rig.forge(packets.lost(seq=50, **rig.fields))
    assert rig.b.count("foreign_address") == 50
    assert len(rig.reader.events(ForeignPackets)) == 1
    rig.net.run(1_000_000)
    rig.forge(packets.lost(seq=50, **rig.fields))
    assert len(rig.reader.events(ForeignPackets)) == 2


# --- from the true address ------------------------------------------------------------------------


def test_a_false_end_is_taken_back_by_data_from_behind_it(rig: Rig) -> None:
    rig.stream.count = 40
    rig.stream.push(10)
    rig.net.switch.inject(
        rig.b.id, packets.heartbeat(seq=25, flags=wire.FLAG_END, **rig.fields), source=rig.a.id
    )
    assert transfer(rig.net, [rig.stream], [rig.reader])
    assert rig.b.count("ends_corrected") == 1
    rig.unharmed()


def test_a_false_end_ahead_is_corrected_by_the_true_one(rig: Rig) -> None:
    rig.forge(packets.heartbeat(seq=3000, flags=wire.FLAG_END, **rig.fields), source=rig.a.id)
    rig.unharmed()
    assert rig.b.count("ends_corrected") == 1
    assert rig.b.count("lost_for_good") == 0


@pytest.mark.parametrize("seq", [1 << 59, 20 + (1 << 30)])
def test_a_far_heartbeat_is_out_of_range(rig: Rig, seq: int) -> None:
    before = rig.b.count("invalid_field")
    rig.forge(packets.heartbeat(seq=seq, **rig.fields), source=rig.a.id)
    assert rig.b.count("invalid_field") == before + 1
    rig.unharmed()


def test_lost_beyond_what_the_publisher_spoke_of_is_out_of_range(rig: Rig) -> None:
    for seq in (21, 50, 20 + (1 << 31)):
        rig.forge(packets.lost(seq=seq, **rig.fields), source=rig.a.id)
    assert rig.b.count("invalid_field") == 3
    rig.unharmed()
    assert rig.b.count("lost_for_good") == 0


# --- incarnations ---------------------------------------------------------------------------------


def newer(rig: Rig, ahead_ns: int, **fields: Any) -> bytes:
    incarnation = rig.a.engine.incarnation + ahead_ns
    return packets.setup("a", "t", incarnation=incarnation, **{**rig.fields, **fields})


@pytest.mark.parametrize("session", [77, None])
def test_a_living_node_does_not_move(rig: Rig, session: int | None) -> None:
    fields = {} if session is None else {"session": session}
    rig.forge(newer(rig, 5, **fields))
    assert rig.reader.events(NodeConflict)
    assert _node_count(rig.b, "SETUPS_REFUSED") == 1
    rig.unharmed()
    assert len(rig.reader.events(PeerJoined)) == 1


def _node_count(node: SimulatedNode, name: str) -> int:
    from tidecast.layout.counters import NodeCounter

    engine = node.engine
    return int(engine.counters.values[engine.context.node_row, NodeCounter[name]])


def test_a_node_that_fell_silent_may_come_back_elsewhere(rig: Rig) -> None:
    setup = newer(rig, 5, session=77)
    rig.net.kill("a")
    rig.net.run(1_100_000)
    rig.forge(setup)
    assert len(rig.reader.events(PeerJoined)) == 2
    rig.net.run(6_000_000)  # its publishers might continue
    assert [gone.reason for gone in rig.reader.events(ImageGone)] == ["restarted"]


@pytest.mark.parametrize("host", ["true", "stranger"])
def test_an_incarnation_of_the_day_after_tomorrow_is_refused(rig: Rig, host: str) -> None:
    wall_ns = rig.b.engine.context.wall_ns()
    setup = newer(rig, wall_ns + 2 * DAY_NS, session=77)
    rig.forge(setup, source=rig.a.id if host == "true" else STRANGER)
    rig.net.run(2_500_000)
    assert _node_count(rig.b, "SETUPS_REFUSED") == 1
    rig.unharmed()


def test_a_false_incarnation_is_forgotten_when_it_is_silent() -> None:
    with Network(seed=2, delay_us=20) as net:
        a, b = network_of(net, "ab", node={"image_timeout_s": 1.0})
        reader = Reader(b)
        net.run(1000)
        setup = packets.setup(
            "a", "none", incarnation=a.engine.incarnation + 5, session=77, topic=999, source=a.id
        )
        net.switch.inject(b.id, setup, source=STRANGER)
        net.run(1000)
        assert reader.events(PeerJoined)
        stream = Stream(a, count=20, size=SIZE)
        assert transfer(net, [stream], [reader], limit_us=4_000_000)
        assert reader.found == stream.messages
        assert len(reader.events(StaleIncarnation)) == 1


# --- receivers ------------------------------------------------------------------------------------


def test_a_stranger_cannot_take_a_receiver_away(rig: Rig) -> None:
    [receiver] = rig.a.engine.receivers()
    fields = rig.fields | {"source": rig.b.id, "receiver_id": receiver["receiver"]}
    rig.forge_back(packets.status(flags=wire.FLAG_LEAVE, **fields))
    rig.forge_back(packets.status(consumed=0, contiguous=0, window=1, **fields))
    nak = {k: v for k, v in fields.items() if k != "receiver_id"}
    raw = bytearray(packets.nak([(0, 20)], **nak))
    raw[wire.NAK_RECEIVER_AT : wire.NAK_RECEIVER_AT + 8] = int(receiver["receiver"]).to_bytes(
        8, "little"
    )
    rig.forge_back(bytes(raw))
    assert rig.a.count("foreign_address") == 3
    assert [r["receiver"] for r in rig.a.engine.receivers()] == [receiver["receiver"]]
    assert rig.a.count("packets_resent") == 0
    assert rig.stream.events(ForeignPackets)
    rig.unharmed()


def test_one_address_has_few_receivers_and_new_ones_are_rated(rig: Rig) -> None:
    fields = rig.fields | {"consumed": 20, "contiguous": 20}
    for i in range(50):
        rig.forge_back(packets.status(receiver_id=1000 + i, **fields))
    assert len(rig.a.engine.receivers()) == 1 + RECEIVERS_AN_ADDRESS_MAX
    for i in range(200):
        rig.forge_back(packets.status(receiver_id=2000 + i, **fields), source=STRANGER + i)
        rig.forge_back(
            packets.status(receiver_id=2000 + i, flags=wire.FLAG_LEAVE, **fields),
            source=STRANGER + i,
        )
    joined = 50 + 200 - rig.a.count("receivers_refused")
    assert joined <= RECEIVERS_MAX + 2
    rig.net.run(6_000_000)
    assert len(rig.a.engine.receivers()) == 1
    rig.unharmed()


def test_a_receiver_from_the_past_holds_back_no_more_than_history() -> None:
    with Network(seed=3, delay_us=20) as net:
        rig = Rig(net, receiver_timeout_s=0.5)
        rig.stream.count = 5 * SLOTS
        assert transfer(net, [rig.stream], [rig.reader])
        rig.forge_back(packets.status(receiver_id=1000, consumed=0, contiguous=0, **rig.fields))
        [_, late] = rig.a.engine.receivers()
        assert late["consumed"] == 4 * SLOTS
        net.run(1_000_000)
        assert len(rig.stream.events(ReceiverTimeout)) == 1
        rig.unharmed()


def test_a_nak_asks_for_nothing_that_its_receiver_has(rig: Rig) -> None:
    [receiver] = rig.a.engine.receivers()
    net = rig.net
    net.run(300_000)
    raw = bytearray(packets.nak([(0, 20)], **(rig.fields | {"source": rig.b.id})))
    raw[wire.NAK_RECEIVER_AT : wire.NAK_RECEIVER_AT + 8] = int(receiver["receiver"]).to_bytes(
        8, "little"
    )
    rig.forge_back(bytes(raw), source=rig.b.id)
    assert rig.a.count("naks_refused") == 20
    assert rig.a.count("packets_resent") == 0
    rig.unharmed()


def test_a_flood_of_naks_costs_a_bounded_number_of_repairs(rig: Rig) -> None:
    rig.stream.count = SLOTS
    assert transfer(rig.net, [rig.stream], [rig.reader])
    began = rig.net.now_ns
    for _ in range(1000):
        rig.forge_back(packets.nak([(0, SLOTS)], **(rig.fields | {"source": rig.b.id})))
        rig.net.run(1000)
    seconds = (rig.net.now_ns - began) / 1e9
    assert rig.a.count("packets_resent") <= 2 * SLOTS + SLOTS * 4 + SLOTS * seconds + 1
    assert rig.a.count("naks_refused") > 100 * SLOTS
    rig.unharmed()


# --- owners of durable topics ---------------------------------------------------------------------

ACKS = {
    "an owner of the last epoch": {"owner": wire.EPOCH_MAX, "state": 0},
    "a fence": {"epoch": 2, "state": -1},
    "more than is durable": {"seq": 1, "count": 1 << 20, "state": 0},
}


@pytest.mark.parametrize("what", ACKS)
def test_only_the_owner_acks(what: str) -> None:
    with Network(seed=6, delay_us=20) as net:
        topic = TopicConfig(name="orders", mode="durable", owner="a", fsync="batch")
        a, b = net.node("a", topics=[topic]), net.node("b", topics=[topic])
        publisher = b.connect().publisher("orders")
        for i in range(10):
            publisher.publish(b"%d" % i)
        assert net.run(5_000_000, until=lambda: publisher.durable_position >= 10)
        [mine] = b.engine.pubs.values()
        producer, epoch, _ = ring_session(mine.mapped.array)
        forged = packets.ack(
            **{
                "producer": producer,
                "epoch": epoch,
                "session": mine.session,
                "source": a.id,
                "topic": topic.wire_id,
                **ACKS[what],
            }
        )
        for _ in range(20):
            net.switch.inject(b.id, forged, control=True, source=STRANGER)
            net.run(100_000)
        refused = b.count("foreign_address")
        assert refused + b.count("stale_session") == 20
        assert refused == 20 if what != "an owner of the last epoch" else 15 <= refused < 20
        assert publisher.durable_position == 10
        for i in range(10, 30):
            publisher.publish(b"%d" % i)
        assert net.run(5_000_000, until=lambda: publisher.durable_position >= 30)


# --- memory ---------------------------------------------------------------------------------------


def test_a_flood_of_setups_has_a_bounded_share_of_memory() -> None:
    limit = 4 << 20
    with Network(seed=4, delay_us=20) as net:
        [a] = network_of(net, "a", history_bytes=RING, receive_bytes=RING)
        node = {"image_rings_bytes_max": limit, "image_timeout_s": 1.0}
        [b] = network_of(net, "b", history_bytes=RING, receive_bytes=RING, node=node)
        reader = Reader(b)
        net.run(1000)
        stream = Stream(a, count=20, size=SIZE)
        assert transfer(net, [stream], [reader])
        topic = int(b.engine.topic_by_name["t"].wire_id)
        for i in range(200):
            net.switch.inject(
                b.id, packets.setup("x", "t", source=500, session=5000 + i, topic=topic)
            )
            net.run(20)
        used = sum(i.mapped.array.size for i in b.engine.images_by_id.values())
        assert limit // 2 < used <= limit
        assert used == b.engine._images.refused.live_bytes
        assert reader.events(PublisherRefused)
        assert _node_count(b, "IMAGES_REFUSED") > 100
        stream.count = 100
        assert transfer(net, [stream], [reader])
        assert reader.found == stream.messages
        net.run(4_000_000, until=lambda: reader.take() < 0)
        assert len(b.engine.images_by_id) == 1
        assert b.engine._images.refused.live_bytes < limit // 4


def test_a_flood_of_nodes_is_forgotten_and_reported_in_part(rig: Rig) -> None:
    net, b = rig.net, rig.b
    count = PEERS_MAX + 500
    began = net.now_ns
    for i in range(count):
        setup = packets.setup(f"n{i}", "none", source=1000 + i, session=5000 + i, topic=999)
        net.switch.inject(b.id, setup)
        if i % 32 == 0:
            net.run(20)
    net.run(1000)
    seconds = (net.now_ns - began) / 1e9
    told = len(rig.reader.events(PeerJoined))
    assert told <= EVENTS_MAX + EVENTS_A_SECOND * seconds + 1
    assert told + _node_count(b, "PEER_EVENTS_DROPPED") == count + 1
    assert len(b.engine.peers.by_id) == PEERS_MAX
    assert _node_count(b, "PEERS_FORGOTTEN") == count + 1 - PEERS_MAX
    rig.unharmed()


def test_the_rate_of_events_is_bounded_by_the_clock_that_is_passed_in() -> None:
    from tidecast.node.live.peers import EventRate

    rate = EventRate()
    assert sum(rate.allows(10.0) for _ in range(1000)) == EVENTS_MAX
    assert sum(rate.allows(11.0) for _ in range(1000)) == EVENTS_A_SECOND
    assert np.isclose(rate.left, 0.0)
