"""Nodes die, come back, are cut off, are not who they say."""

from __future__ import annotations

import struct

import pytest
from tests.support.simulation import (
    Reader,
    Stream,
    network_of,
    settle_and_read,
    transfer,
)

from tidecast.config.topology import FaultSettings, TopicConfig, derive_topic_id
from tidecast.errors import ConfigError, NoResponders
from tidecast.events import (
    ImageGone,
    PeerJoined,
    PeerTimeout,
    ReceiverTimeout,
    StaleIncarnation,
    SubscriberEvicted,
)
from tidecast.layout import packet as wire
from tidecast.node.live.images import RESTART_GRACE_NS
from tidecast.testing import Network
from tidecast.testing.network import TRANSPORT
from tidecast.testing.switch import Packet


def test_a_publisher_that_restarts_is_a_new_incarnation() -> None:
    with Network(seed=1, delay_us=20) as net:
        a, b = network_of(net, "ab")
        reader, stream = Reader(b), Stream(a, count=200)
        assert transfer(net, [stream], [reader])
        a = net.restart("a")
        again = Stream(a, count=200, name="again")
        assert transfer(net, [again], [reader], until=lambda: len(reader.found) == 400)
        assert reader.found == stream.messages + again.messages
        assert len(reader.events(PeerJoined)) == 2
        assert reader.events(ImageGone) == [], "its publisher may continue it"
        net.run(RESTART_GRACE_NS / 1000 + 200_000)
        assert [gone.reason for gone in reader.events(ImageGone)] == ["restarted"]


def test_a_pause_of_the_whole_machine_times_nobody_out() -> None:
    """Silence is measured by those who listen: nobody did for a minute, and nothing is lost."""
    with Network(seed=21, delay_us=20, drop=0.05) as net:
        a, b = network_of(net, "ab", history_bytes=1 << 17, receive_bytes=1 << 17)
        reader, near = Reader(b), Reader(a)
        net.run(1000)
        stream = Stream(a, count=2000)
        for _ in range(3):
            transfer(net, [stream], [reader, near], limit_us=2_000)
            reader.paused = near.paused = True
            transfer(net, [stream], [], limit_us=20_000)  # both rings are full
            net.now_ns += 60_000_000_000
            transfer(net, [stream], [], limit_us=20_000)
            reader.paused = near.paused = False
        assert transfer(net, [stream], [reader, near])
        assert reader.found == near.found == stream.messages
        timeouts = (ReceiverTimeout, PeerTimeout, SubscriberEvicted, ImageGone)
        assert not [
            e for each in (stream, reader, near) for kind in timeouts for e in each.events(kind)
        ]
        assert a.count("receiver_timeouts") == b.count("lost_for_good") == 0


def test_what_a_dead_publisher_had_sent_is_read_to_the_end() -> None:
    with Network(seed=2, delay_us=20) as net:
        a, b = network_of(net, "ab")
        reader, stream = Reader(b), Stream(a, count=200)
        reader.paused = True
        transfer(net, [stream], [reader], until=stream.push)
        assert net.settle()
        net.kill("a")
        net.run(12_000_000)
        reader.paused = False
        reader.take()
        assert reader.found == stream.messages
        assert reader.events(PeerTimeout)
        net.run(500_000, until=lambda: reader.take() < 0)
        assert not b.engine.images_by_id


def test_a_receiver_that_restarts_joins_anew_and_the_other_misses_nothing() -> None:
    with Network(seed=3, delay_us=20) as net:
        a, b, c = network_of(net, "abc", receiver_timeout_s=1.0, history_bytes=1 << 17)
        first, other, stream = Reader(b), Reader(c), Stream(a, count=300, size=1300)
        assert transfer(net, [stream], [first, other])
        b = net.restart("b")
        again = Reader(b)
        stream.count = 800
        assert transfer(net, [stream], [other, again], until=lambda: len(other.found) == 800)
        assert other.found == stream.messages
        found = settle_and_read(net, again)
        assert found == stream.messages[-len(found) :]
        assert len(found) >= 400
        assert [e.reason for e in stream.events(ReceiverTimeout)] == ["silent"]


@pytest.mark.parametrize("flow", ["min", "rate"])
def test_three_seconds_of_partition(flow: str) -> None:
    with Network(seed=4, delay_us=20, drop=0.01) as net:
        a, b = network_of(net, "ab", flow=flow)
        reader = Reader(b)
        net.run(1000)
        stream = Stream(a, count=500)
        assert transfer(net, [stream], [reader])
        net.partition("a", "b")
        stream.count = 1000
        transfer(net, [stream], [reader], until=stream.push, limit_us=1_000_000)
        net.run(3_000_000)
        net.heal()
        began = net.now_ns
        assert transfer(net, [stream], [reader])
        assert reader.found == stream.messages
        assert not reader.gaps
        assert net.now_ns - began < 1_000_000_000
        assert not stream.events(ReceiverTimeout)
        assert not reader.events(PeerTimeout)


def test_a_partition_by_name_waits_for_those_not_seen_yet() -> None:
    with Network(seed=5) as net:
        a, b = network_of(net, "ab")
        for node in (a, b):
            node.engine.set_faults(TRANSPORT, FaultSettings(partition=("a", "b")))
        reader, stream = Reader(b), Stream(a, count=50)
        assert not transfer(net, [stream], [reader], limit_us=500_000)
        assert not reader.found
        for node in (a, b):
            node.engine.set_faults(TRANSPORT, FaultSettings())
        assert transfer(net, [stream], [reader])
        assert reader.found == stream.messages
        for wrong in ("0", "65535", "99999999999"):
            with pytest.raises(ConfigError, match=rf"partition: {wrong}: allowed"):
                a.engine.set_faults(TRANSPORT, FaultSettings(partition=(wrong,)))


def test_a_long_partition_times_out_and_goes_on_where_it_was() -> None:
    with Network(seed=5, delay_us=20) as net:
        a, b = network_of(net, "ab", flow="rate")
        reader = Reader(b)
        net.run(1000)
        stream = Stream(a, count=500)
        assert transfer(net, [stream], [reader])
        net.partition("a", "b")
        stream.count = 1000
        assert transfer(net, [stream], [reader], until=stream.push)
        net.run(15_000_000)
        assert len(reader.events(PeerTimeout)) == 1
        net.heal()
        assert transfer(net, [stream], [reader])
        assert reader.found == stream.messages
        assert not reader.gaps


def test_after_a_time_out_what_was_unread_comes_first() -> None:
    with Network(seed=6, delay_us=20) as net:
        a, b = network_of(net, "ab", flow="rate")
        reader = Reader(b)
        net.run(1000)
        stream = Stream(a, count=1500)
        reader.paused = True
        assert transfer(net, [stream], [reader], until=stream.push)
        net.run(100_000)
        net.partition("a", "b")
        stream.count = 2000
        assert transfer(net, [stream], [reader], until=stream.push)
        net.run(15_000_000)
        net.heal()
        net.run(2_000_000)
        reader.paused, reader.batch_messages = False, 10
        assert transfer(net, [stream], [reader])
        assert reader.found == stream.messages


def test_a_message_that_a_time_out_cut_in_two_arrives_whole() -> None:
    with Network(seed=14, delay_us=20) as net:
        a, b = network_of(net, "ab", flow="rate")
        reader, stream = Reader(b), Stream(a, count=3, size=20_000)
        net.run(1000)
        assert transfer(net, [stream], [reader])
        # the last packets of the fourth message, and all that follows, come after the time-out
        net.intercept(lambda p: not (p.source == a.id and p.seq >= 50 and net.now_ns < 16e9))
        stream.count = 6
        transfer(net, [stream], [reader], limit_us=14_500_000)
        assert len(reader.found) == 3
        assert reader.events(PeerTimeout)
        assert transfer(net, [stream], [reader])
        assert reader.found == stream.messages


def test_one_way_loss_is_healed_as_well() -> None:
    with Network(seed=7, delay_us=20) as net:
        a, b = network_of(net, "ab")
        reader = Reader(b)
        stream = Stream(a, count=100)
        assert transfer(net, [stream], [reader])
        deaf = [True]
        net.intercept(lambda p: not (deaf[0] and p.type in (wire.NAK, wire.STATUS)))
        net.switch.drop = 0.05
        stream.count = 1500
        transfer(net, [stream], [reader], until=stream.push, limit_us=2_000_000)
        deaf[0] = False
        assert transfer(net, [stream], [reader])
        assert reader.found == stream.messages


def forged(packet: Packet, **fields: int) -> bytes:
    """The same packet with other header fields."""
    data = bytearray(packet.data)
    for name, value in fields.items():
        at, form = {
            "session": (wire.SESSION_AT, "<I"),
            "source": (wire.SOURCE_AT, "<H"),
            "seq": (wire.SEQ_AT, "<q"),
            "incarnation": (wire.SETUP_INCARNATION_AT, "<q"),
        }[name]
        struct.pack_into(form, data, at, value)
    return bytes(data)


def test_a_stale_incarnation_cannot_inject() -> None:
    with Network(seed=8) as net:
        a, b = network_of(net, "ab")
        reader, old = Reader(b), Stream(a, count=5)
        kept: list[Packet] = []
        net.intercept(lambda p: kept.append(p) if p.source == a.id else None)
        assert transfer(net, [old], [reader])
        a = net.restart("a")
        new = Stream(a, count=5, name="new")
        assert transfer(net, [new], [reader], until=lambda: len(reader.found) == 10)
        replayed = [p for p in kept if p.now_ns < net.now_ns and p.source == a.id]
        before = b.count("stale_session")
        for packet in replayed:
            if packet.session == old.publisher.session:
                net.switch.inject(b.id, packet.data)
                # under a session that nobody has seen: its SETUP is of an older incarnation
                net.switch.inject(b.id, forged(packet, session=77))
        net.run(2_000_000)
        reader.take()
        assert reader.found == old.messages + new.messages
        assert b.count("stale_session") > before
        assert reader.events(StaleIncarnation)
        new.count = 50
        assert transfer(net, [new], [reader], until=lambda: len(reader.found) == 55)


def test_a_quarantined_node_cannot_inject_or_hold_back() -> None:
    with Network(seed=9) as net:
        a, b = network_of(net, "ab")
        c = net.node("c", topics=["t"], node={"quarantined": [a.id]})
        readers = [Reader(b), Reader(c)]
        stream = Stream(a, count=50)
        assert transfer(net, [stream], [readers[0]])
        net.run(200_000)
        readers[1].take()
        assert not readers[1].found
        assert not c.engine.images_by_id
        assert c.count("quarantined") > 50
        back = Stream(c, count=50)
        assert transfer(net, [back], [readers[0]], until=lambda: len(readers[0].found) == 100)
        listener = Reader(a)
        back.count = 60
        transfer(net, [back], [readers[0], listener], until=lambda: len(readers[0].found) == 110)
        net.run(500_000)
        assert back.publisher.stats().topic == "t"
        assert {r["node_id"] for r in c.engine.receivers()} == {b.id}


def test_topics_that_share_an_id_are_told_apart_by_name() -> None:
    with Network(seed=10) as net:
        a = net.node("a", topics=[TopicConfig(name="prices", id=9)])
        b = net.node("b", topics=[TopicConfig(name="orders", id=9)])
        readers = [Reader(b, name) for name in ("orders", "prices", ">")]
        streams = [Stream(a, "prices", count=10), Stream(b, "orders", count=10, name="orders")]
        transfer(net, streams, [], until=lambda: all(s.done == 10 for s in streams))
        net.run(500_000)
        for reader in readers:
            reader.take()
        orders, prices, both = [sorted(reader.found) for reader in readers]
        assert orders == streams[1].messages
        assert prices == streams[0].messages
        assert both == sorted(orders + prices)


def test_a_thousand_topics_start_though_some_ids_collide() -> None:
    names = [f"s.{i}" for i in range(1000)]
    by_id: dict[int, list[str]] = {}
    for name in names:
        by_id.setdefault(derive_topic_id(name), []).append(name)
    one, other = next(same for same in by_id.values() if len(same) > 1)
    with Network(seed=11) as net:
        a, b = net.node("a", topics=names), net.node("b", topics=names)
        reader = Reader(b, other)
        streams = [Stream(a, name, count=10, name=name) for name in (one, other)]
        assert transfer(net, streams, [], until=lambda: sum(s.push() for s in streams) == 2)
        assert transfer(net, [], [reader], until=lambda: len(reader.found) == 10)
        assert reader.found == streams[1].messages
        net.run(200_000)  # it is held back for receivers that may come
        late = Reader(b, one)
        net.run(2_000_000)  # until the next SETUP of a session that was ignored
        streams[0].count = 20
        assert transfer(net, streams, [late], until=lambda: len(late.found) == 10)
        assert late.found == streams[0].messages[10:]


def test_unicast_to_a_node_that_nobody_knows() -> None:
    with Network(seed=11) as net:
        [a] = network_of(net, "a")
        stream = Stream(a)
        with pytest.raises(NoResponders, match="no node 'nobody'"):
            stream.publisher.publish(b"x", to="nobody")


def test_kill_amid_a_stream_leaves_whole_messages_only() -> None:
    with Network(seed=12, drop=0.1, delay_us=50) as net:
        a, b = network_of(net, "ab")
        reader, stream = Reader(b), Stream(a, count=500, size=5000)
        transfer(net, [stream], [reader], until=lambda: len(reader.found) > 100)
        net.kill("a")
        net.run(12_000_000, until=lambda: reader.take() < 0)
        reader.take()
        assert reader.found == stream.messages[: len(reader.found)]


def test_everybody_restarts_again_and_again() -> None:
    with Network(seed=13, drop=0.02, delay_us=20) as net:
        network_of(net, "ab")
        for turn in range(6):
            reader = Reader(net.find("b"))
            stream = Stream(net.find("a"), count=100, name=f"turn{turn}")
            assert transfer(net, [stream], [reader], limit_us=8_000_000)
            assert reader.found == stream.messages
            net.restart("ab"[turn % 2])
            if turn % 2 == 0:
                reader.client.close()
