"""The messages of each subscriber: early and late, several publishers, closing, addressing."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.support import packets
from tests.support.simulation import (
    Census,
    Reader,
    Stream,
    network_of,
    settle_and_read,
    transfer,
)

from tidecast import Earliest, Latest
from tidecast.agents.live.publications import NAMES_KEPT_MAX
from tidecast.errors import NoResponders
from tidecast.events import ImageGone, ReceiverJoined
from tidecast.layout import packet as wire
from tidecast.testing import Network, SimulatedNode


def test_a_subscriber_that_was_there_first_gets_everything_from_packet_0() -> None:
    with Network(seed=1, drop=0.1, delay_us=100) as net:
        a, b = network_of(net, "ab")
        reader = Reader(b, start=Latest())
        net.run(300_000)
        stream = Stream(a, count=500)
        stream.push()
        assert transfer(net, [stream], [reader])
        assert reader.found == stream.messages


def test_a_node_that_knew_the_topic_long_before_its_publisher() -> None:
    with Network(seed=2) as net:
        [b] = network_of(net, "b")
        reader = Reader(b)
        net.run(5_000_000)
        [a] = network_of(net, "a")
        stream = Stream(a, count=3)
        stream.push()
        assert settle_and_read(net, reader) == stream.messages


def test_a_late_joiner_starts_at_the_live_edge() -> None:
    with Network(seed=3, delay_us=20) as net:
        a, b, c = network_of(net, "abc")
        first, stream = Reader(b), Stream(a, count=300)
        assert transfer(net, [stream], [first])
        late = Reader(c, start=Latest())
        net.run(10_000)
        stream.count = 600
        assert transfer(net, [stream], [first, late], until=lambda: len(first.found) == 600)
        assert settle_and_read(net, late) == stream.messages[300:]
        assert first.found == stream.messages
        assert not late.gaps


@pytest.mark.parametrize("held_up_us", [10_000, 3_000_000])
def test_a_conductor_that_is_held_up_makes_no_publication_younger(
    monkeypatch: pytest.MonkeyPatch, held_up_us: int
) -> None:
    """A SETUP waits for the conductor while a subscription begins: it is older than that."""
    with Network(seed=3, delay_us=20) as net:
        a, b = network_of(net, "ab")
        jobs: list[Callable[[], None]] = []
        with monkeypatch.context() as held:
            held.setattr(b.engine, "post", jobs.append)
            stream = Stream(a, count=100)
            stream.push()
            assert net.run(500_000, until=lambda: jobs)
            net.run(500_000)
            late = Reader(b, start=Latest())
            net.run(held_up_us)
        for job in jobs:
            job()
        assert net.run(5_000_000, until=lambda: b.engine.images_by_id), "it asks again"
        stream.count = 200
        assert transfer(net, [stream], [late], until=lambda: len(late.found) == 100)
        assert settle_and_read(net, late) == stream.messages[100:]
        assert not late.gaps


def test_the_age_of_a_subscription_is_that_when_the_setup_came(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It began behind the publication and before its SETUP, which waits for the conductor."""
    with Network(seed=3, delay_us=20) as net:
        a, b = network_of(net, "ab")
        net.partition(a, b)
        stream = Stream(a, count=100)
        stream.push()
        net.run(500_000)
        late = Reader(b, start=Latest())
        jobs: list[Callable[[], None]] = []
        with monkeypatch.context() as held:
            held.setattr(b.engine, "post", jobs.append)
            net.heal()
            assert net.run(5_000_000, until=lambda: jobs)
            net.run(5_000_000)
        for job in jobs:
            job()
        stream.count = 200
        assert transfer(net, [stream], [late], until=lambda: len(late.found) == 100)
        assert settle_and_read(net, late) == stream.messages[100:]
        assert not late.gaps


def test_a_conductor_that_is_held_up_takes_nothing_from_an_earlier_subscription(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Network(seed=3, delay_us=20) as net:
        a, b = network_of(net, "ab")
        early = Reader(b, start=Latest())
        jobs: list[Callable[[], None]] = []
        with monkeypatch.context() as held:
            held.setattr(b.engine, "post", jobs.append)
            net.run(10_000)
            stream = Stream(a, count=100)
            stream.push()
            net.run(500_000)
            late = Reader(b, start=Latest())
            net.run(3_000_000)
        for job in jobs:
            job()
        assert settle_and_read(net, early) == stream.messages
        net.run(3_000_000)
        stream.count = 200
        assert transfer(net, [stream], [early, late], until=lambda: len(early.found) == 200)
        assert early.found == stream.messages
        assert settle_and_read(net, late) == stream.messages[100:]
        assert not early.gaps


def test_a_late_joiner_may_ask_for_what_history_holds() -> None:
    with Network(seed=4, delay_us=20, drop=0.05) as net:
        a, b, c = network_of(net, "abc", history_bytes=1 << 17)
        first, stream = Reader(b), Stream(a, count=300, size=1300)
        assert transfer(net, [stream], [first])
        late = Reader(c, start=Earliest())
        found = settle_and_read(net, late)
        assert 32 <= len(found) <= 94
        assert found == stream.messages[-len(found) :]
        assert not late.gaps


def test_a_subscriber_of_the_same_node_reads_the_ring_itself() -> None:
    with Network(seed=5) as net:
        [a] = network_of(net, "a")
        early, stream = Reader(a), Stream(a, count=100)
        stream.push()
        late, all_of_it = Reader(a), Reader(a, start=Earliest())
        stream.count = 150
        stream.push()
        net.run(1000)
        for reader in (early, late, all_of_it):
            reader.take()
        assert early.found == all_of_it.found == stream.messages
        assert late.found == stream.messages[100:]
        assert net.switch.counts["packets"] == 0


def test_several_publishers_on_one_topic_keep_their_own_order() -> None:
    with Network(seed=6, drop=0.05, duplicate=0.02, reorder=0.05, delay_us=30) as net:
        a, b, c, d = network_of(net, "abcd")
        readers = [Reader(d), Reader(a)]
        streams = [Stream(a, count=700), Stream(b, count=500), Stream(c, count=300)]
        streams.append(Stream(a, count=200, name="a2"))
        assert transfer(net, streams, readers)
        for reader in readers:
            for stream in streams:
                mark = f"{stream.name}:".encode()
                assert [m for m in reader.found if m.startswith(mark)] == stream.messages
            assert len(reader.found) == 1700


@pytest.mark.parametrize("drop", [0.0, 0.05])
def test_eight_nodes_get_everything_and_each_packet_is_sent_once(drop: float) -> None:
    with Network(seed=7, drop=drop, delay_us=30) as net:
        nodes = network_of(net, ["a", *(f"n{i}" for i in range(7))])
        readers = [Reader(node) for node in nodes[1:]]
        stream = Stream(nodes[0], count=600, size=1200)
        net.run(1000)
        assert transfer(net, [stream], readers)
        for reader in readers:
            assert reader.found == stream.messages
        a = nodes[0]
        assert a.count("packets_sent") == 600
        lost = net.switch.counts["dropped_data_bytes"]
        assert a.count("bytes_resent") <= 1.2 * lost
        assert len(stream.events(ReceiverJoined)) == 7
        if drop:
            # one repair serves all who lost the packet; what differs between nodes is asked for
            # by each, and suppressed at the sender when it was sent a moment ago
            assert a.count("packets_resent") <= 600 * (1 - 0.95**7) * 1.3


def test_closing_drains_to_all() -> None:
    with Network(seed=8, drop=0.1, delay_us=50) as net:
        a, b, c = network_of(net, "abc")
        readers = [Reader(b), Reader(c)]
        net.run(1000)
        stream = Stream(a, count=900)
        transfer(net, [stream], readers, until=stream.push)
        stream.publisher.close()
        assert net.run(10_000_000, until=lambda: not a.engine.pubs)
        net.run(3_000_000)
        for reader in readers:
            reader.take()
            assert reader.found == stream.messages
            [gone] = reader.events(ImageGone)
            assert gone.reason == "closed"
            assert reader.subscription.step(10) is None
        net.run(500_000)
        assert not b.engine.images_by_id
        assert not c.engine.images_by_id
        assert a.count("receiver_timeouts") == 0


def test_closing_without_receivers_ends_soon() -> None:
    with Network(seed=9) as net:
        [a] = network_of(net, "a")
        stream = Stream(a, count=10)
        stream.push()
        stream.publisher.close()
        assert net.run(2_000_000, until=lambda: not a.engine.pubs)


def test_unsubscribing_stops_the_traffic_back() -> None:
    with Network(seed=10) as net:
        a, b = network_of(net, "ab")
        reader, stream = Reader(b), Stream(a, count=10)
        assert transfer(net, [stream], [reader])
        reader.subscription.close()
        net.run(200_000)
        assert not b.engine.images_by_id
        census = Census()
        net.intercept(census)
        stream.count = 500
        assert transfer(net, [stream], [], until=lambda: stream.done == 500)
        net.run(1_000_000)
        assert not census.of(wire.STATUS)
        assert b.count("filtered") >= 490


def test_unicast_reaches_one_node_and_leaves_no_gap_elsewhere() -> None:
    with Network(seed=11, drop=0.05, delay_us=20) as net:
        a, b, c = network_of(net, "abc")
        readers = [Reader(b), Reader(c)]
        stream = Stream(a)  # a knows b by what it receives: b publishes nothing
        net.run(20_000)
        expected: dict[str, list[bytes]] = {"b": [], "c": []}
        for i in range(300):
            message = b"m%d" % i
            only = "b" if i % 3 == 0 else None
            stream.publisher.publish(message, to=only)
            for name, kept in expected.items():
                if only in (None, name):
                    kept.append(message)
            net.run(50)
        assert net.settle()
        for reader in readers:
            reader.take()
            assert reader.found == expected[reader.node.name]
            assert not reader.gaps


def test_the_sender_knows_the_names_of_those_who_receive() -> None:
    with Network(seed=13) as net:
        a, b, _ = network_of(net, "abc")
        Reader(b)
        stream = Stream(a)
        net.run(20_000)
        [joined] = stream.events(ReceiverJoined)
        assert (joined.node, joined.node_id) == ("b", b.id)
        assert a.engine.node_id_of("b") == b.id
        assert [row["node"] for row in a.engine.receivers()] == ["b"]
        with pytest.raises(NoResponders, match=r"no node 'c' was seen: known are b$"):
            a.engine.node_id_of("c")
        old = packets.status(session=stream.publisher.session, source=77, receiver_id=5)
        net.switch.inject(a.id, old, control=True)  # of a node that sends no name
        net.run(100)
        with pytest.raises(NoResponders, match=r"not known yet: give their id, 77$"):
            a.engine.node_id_of("c")
        stream.publisher.publish(b"hello", to=77)


def test_more_names_at_once_than_have_room_are_learnt_later() -> None:
    with Network(seed=14) as net:
        [a] = network_of(net, "a")
        stream = Stream(a)
        net.run(1000)
        for _ in range(2):
            for k in range(NAMES_KEPT_MAX + 20):
                raw = packets.status(
                    session=stream.publisher.session,
                    source=100 + k,
                    receiver_id=1 + k,
                    name=b"n%d" % k,
                )
                net.switch.inject(a.id, raw, control=True, source=100 + k)
            net.run(100)
        assert all(a.engine.node_id_of(f"n{k}") == 100 + k for k in range(NAMES_KEPT_MAX + 20))


def test_unicast_to_one_subscriber_of_several_on_a_node() -> None:
    with Network(seed=12) as net:
        a, b = network_of(net, "ab")
        one, two = Reader(b), Reader(b)
        stream = Stream(a)
        stream.publisher.publish(b"all")
        stream.publisher.publish(b"one", subscriber=one.subscription.subscriber_id)
        stream.publisher.publish(b"two", subscriber=two.subscription.subscriber_id)
        big = bytes(range(256)) * 20
        stream.publisher.publish(big, subscriber=two.subscription.subscriber_id)
        assert net.settle()
        one.take()
        two.take()
        assert one.found == [b"all", b"one"]
        assert two.found == [b"all", b"two", big]


def test_patterns_cover_topics_that_appear_later() -> None:
    with Network(seed=13, drop=0.05) as net:
        a, b = net.node("a"), net.node("b")
        reader = Reader(b, "md.>")
        streams = [
            Stream(a, topic, count=50, name=topic) for topic in ("md.eu.bonds", "md.us", "other")
        ]
        for stream in streams:
            stream.push()
        assert net.settle()
        reader.take()
        assert sorted(reader.found) == sorted(streams[0].messages + streams[1].messages)


def _history(net: Network, count: int = 300) -> tuple[SimulatedNode, SimulatedNode, Stream]:
    """Two nodes whose history has room for 64 packets, and a stream on the first."""
    a, b = network_of(net, "ab", history_bytes=1 << 17)
    return a, b, Stream(a, count=count, size=1300)


@pytest.mark.parametrize("drop", [0.0, 0.05])
def test_history_is_there_beside_a_subscription_that_began_live(drop: float) -> None:
    with Network(seed=20, delay_us=20, drop=drop) as net:
        _, b, stream = _history(net)
        stream.count = 200
        assert transfer(net, [stream], [], until=lambda: stream.done == 200)
        net.run(50_000)
        live = Reader(b)  # a late joiner: its image begins at the live edge
        net.run(50_000)
        stream.count = 202
        assert transfer(net, [stream], [], until=lambda: (live.take(), len(live.found) == 2)[1])
        late = [Reader(b, start=Earliest()), Reader(b, start=Earliest())]
        net.run(100_000)
        stream.count = 230
        assert transfer(net, [stream], [live], until=lambda: stream.done == 230)
        assert net.settle()
        for reader in late:
            reader.take()
            assert 32 <= len(reader.found) - 28 <= 94
            assert reader.found == stream.messages[-len(reader.found) :]
            assert not reader.gaps
        live.take()
        assert live.found == stream.messages[200:]


def test_history_that_moves_on_while_one_joins_is_no_gap() -> None:
    """The publisher is at it: what history held at its SETUP is gone when it is asked for."""
    with Network(seed=25, delay_us=300) as net:
        _, b, stream = _history(net)
        stream.count = 3000
        transfer(net, [stream], [], until=lambda: stream.done > 500, burst=4)
        late = Reader(b, start=Earliest())
        assert transfer(net, [stream], [late], until=lambda: stream.done == 3000, burst=4)
        found = settle_and_read(net, late)
        assert len(found) > 2000
        assert found == stream.messages[-len(found) :]
        assert not late.gaps
        assert b.count("lost_for_good") == 0


def test_history_that_the_live_image_holds_needs_no_other() -> None:
    with Network(seed=21, delay_us=20) as net:
        _, b, stream = _history(net, count=40)
        live = Reader(b)
        net.run(20_000)
        assert transfer(net, [stream], [live])
        late = Reader(b, start=Earliest())
        late.take()
        assert late.found == stream.messages  # at once: nothing is asked for
        assert len(b.engine.images_by_id) == 1
        stream.count = 400
        late.paused = True
        transfer(net, [stream], [live], until=lambda: stream.done == 400, limit_us=100_000)
        late.paused = False
        assert transfer(net, [stream], [live, late])
        assert live.found == late.found == stream.messages
        assert not late.gaps


def test_the_live_edge_is_there_beside_a_subscription_with_history() -> None:
    with Network(seed=22, delay_us=20, drop=0.05) as net:
        _, b, stream = _history(net)
        stream.count = 60
        assert transfer(net, [stream], [], until=lambda: stream.done == 60)
        early = Reader(b, start=Earliest())
        assert settle_and_read(net, early) == stream.messages
        late = Reader(b, start=Latest())
        stream.count = 300
        assert transfer(net, [stream], [early, late], until=lambda: len(early.found) == 300)
        assert settle_and_read(net, late) == stream.messages[60:]
        assert early.found == stream.messages
        assert len(b.engine.images_by_id) == 1


def test_the_live_edge_does_not_wait_for_an_image_that_catches_up() -> None:
    with Network(seed=23, delay_us=500) as net:
        _, b, stream = _history(net)
        stream.count = 50
        assert transfer(net, [stream], [], until=lambda: stream.done == 50)
        net.run(50_000)
        early = Reader(b, start=Earliest())
        assert net.run(100_000, until=lambda: b.engine.images_by_id)  # it has nothing yet
        live = Reader(b, start=Latest())
        stream.count = 60
        assert transfer(net, [stream], [early, live], until=lambda: len(live.found) == 10)
        assert settle_and_read(net, early) == stream.messages
        assert live.found == stream.messages[50:]


def test_each_goes_on_where_it_was_when_a_silent_publisher_is_back() -> None:
    with Network(seed=24, delay_us=20) as net:
        _, b, stream = _history(net, count=40)
        early = Reader(b, start=Earliest())
        net.run(20_000)
        assert transfer(net, [stream], [early])
        net.switch.drop = 1.0
        net.run(15_000_000)
        late = Reader(b, start=Latest())
        net.switch.drop = 0.0
        net.run(2_000_000)
        stream.count = 60
        assert transfer(net, [stream], [early, late], until=lambda: len(early.found) == 60)
        assert net.settle()
        late.take()
        assert early.found == stream.messages
        assert late.found == stream.messages[40:]
