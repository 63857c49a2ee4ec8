"""The network in memory itself: virtual time, determinism, faults, both kinds of connection."""

from __future__ import annotations

import gc
import hashlib
import resource
import weakref
from pathlib import Path

import pytest
from tests.support.simulation import Reader, Stream, network_of, transfer

import tidecast.sync
import tidecast.testing
from tidecast.errors import Closed, ConfigError, ConnectionLost, NotFound
from tidecast.layout import packet as wire
from tidecast.testing import Network
from tidecast.testing.network import network_of as network_named

NEW_YEAR_2020_NS = 1_577_836_800 * 10**9


def story(seed: int) -> tuple[str, list[bytes], int]:
    """(digest of every packet delivered and when, what b received, end of time)."""
    with Network(seed=seed, drop=0.1, duplicate=0.05, reorder=0.1, delay_us=30, trace=True) as net:
        a, b = net.node("a", topics=["t"]), net.node("b", topics=["t"])
        messages = b.connect().subscribe("t")
        publisher = a.connect().publisher("t")
        got: list[bytes] = []
        for i in range(300):
            publisher.publish(b"%d" % i, flush=i % 3 == 0)
            net.run(20)
            got += messages.poll().payloads()
        assert net.settle()
        while (batch := messages.poll()) or net.now_ns < 0:
            got += batch.payloads()
        assert net.switch.trace is not None
        return hashlib.sha256(repr(net.switch.trace).encode()).hexdigest(), got, net.now_ns


def test_the_same_seed_gives_the_same_packets_at_the_same_times() -> None:
    first, second, other = story(7), story(7), story(8)
    assert first == second
    assert first[0] != other[0]
    assert first[1] == other[1] == [b"%d" % i for i in range(300)]


@pytest.mark.parametrize("by_s", [-86_400, 86_400])
def test_records_have_the_time_of_day_of_their_world(by_s: int) -> None:
    with Network() as net:
        net.set_time_of_day(NEW_YEAR_2020_NS)
        client = net.node("a", durable=["orders"]).connect()
        consumer = client.consumer("orders", "billing")
        publisher = client.publisher("orders")
        publisher.publish(b"before", flush=True)
        before = consumer.fetch(1, 5.0).messages[0].timestamp
        assert 0 <= before - NEW_YEAR_2020_NS < 10 * 10**9
        net.set_time_of_day(net.wall_ns() + by_s * 10**9)
        publisher.publish(b"after", flush=True)
        after = consumer.fetch(1, 5.0).messages[0].timestamp
        assert abs(after - before - by_s * 10**9) < 10 * 10**9
        assert net.clock() < 20 * 10**9, "timers were not affected"


def test_silence_costs_nothing() -> None:
    with Network() as net:
        a, b = net.node("a"), net.node("b")
        messages = b.connect().subscribe("t")
        a.connect().publish("t", b"x")
        net.settle()
        assert messages.poll().payloads() == [b"x"]
        messages.poll()
        before = net.switch.counts["packets"]
        net.run(10_000_000)
        assert net.now_ns >= 10_000_000_000
        # STATUS and heartbeats each 100 ms or so, SETUP each second
        assert 50 < net.switch.counts["packets"] - before < 260
        assert a.count("setups_sent") >= 10
        assert a.count("receiver_timeouts") == b.count("duplicates") == 0


def test_real_time_connections_reach_each_other_and_themselves() -> None:
    with tidecast.testing.connect() as one, tidecast.testing.connect() as two:
        mine, others = one.subscribe("prices"), two.subscribe("prices")
        one.publish("prices", b"1.25")
        assert bytes(mine.next(timeout=5.0).data) == b"1.25"
        assert bytes(others.next(timeout=5.0).data) == b"1.25"
        two.publish("prices", b"1.26")
        assert bytes(mine.next(timeout=5.0).data) == b"1.26"
    assert network_named("default") is None


def test_waiting_in_virtual_time_makes_it_pass() -> None:
    with Network(delay_us=500) as net:
        a, b = net.node("a", topics=["t"]), net.node("b", topics=["t"])
        messages = b.connect().subscribe("t")
        a.connect().publish("t", b"x")
        before = net.now_ns
        assert bytes(messages.next(timeout=30.0).data) == b"x"
        assert net.now_ns - before > 500_000


def test_a_killed_node_is_gone_and_its_connections_say_so() -> None:
    with Network() as net:
        a, b = net.node("a", topics=["t"]), net.node("b", topics=["t"])
        client = a.connect()
        messages = b.connect().subscribe("t")
        client.publish("t", b"x")
        net.settle()
        net.kill("a")
        with pytest.raises(ConnectionLost, match="node a was killed"):
            client.publisher("u")
        client.close()
        with pytest.raises(NotFound, match=r"no node 'a'.*there are b"):
            net.find("a")
        assert messages.poll().payloads() == [b"x"]


def test_partitions_cut_both_ways_and_heal() -> None:
    with Network() as net:
        a, b = net.node("a", topics=["t"]), net.node("b", topics=["t"])
        messages = b.connect().subscribe("t")
        publisher = a.connect().publisher("t")
        publisher.publish(b"1")
        assert net.settle()
        net.partition("a", "b")
        seen: list[int] = []
        net.intercept(lambda packet: seen.append(packet.type))
        publisher.publish(b"2")
        assert not net.settle(50_000)
        assert not seen
        net.heal()
        assert net.settle()
        assert messages.poll().payloads() + messages.poll().payloads() == [b"1", b"2"]
        assert wire.HEARTBEAT in seen


def test_names_are_unique_and_settings_are_checked() -> None:
    with Network() as net:
        net.node("a")
        with pytest.raises(ConfigError, match="node a"):
            net.node("a")
        with pytest.raises(ConfigError, match="history_bytes"):
            net.node("b", topics=["t"], history_bytes=1)
        with pytest.raises(NotFound, match="no counter 'packet_sent': did you mean PACKETS_SENT"):
            net.find("a").count("packet_sent")
    with pytest.raises(ConfigError, match=r"drop: 2: allowed 0\.\.1"):
        Network(drop=2)


def test_networks_in_memory_are_told_apart_by_name() -> None:
    with (
        tidecast.sync.connect("memory://one") as one,
        tidecast.sync.connect("memory://one") as two,
        tidecast.sync.connect("memory://other") as other,
    ):
        assert one.link.node_id != two.link.node_id
        near, far = two.subscribe("t"), other.subscribe("t")
        one.publish("t", b"x")
        assert near.next(timeout=5.0).data == b"x"
        assert not len(far.poll())


def test_a_network_that_is_closed_keeps_nothing_in_memory() -> None:
    """Nor of nodes that were killed and connections left open: suites make thousands."""
    with Network() as net:
        a, b = net.node("a"), net.node("b")
        publisher, subscription = a.connect().publisher("t"), b.connect().subscribe("t")
        publisher.publish(b"x")
        assert subscription.next(1.0).data == b"x"
        net.kill(b)
        nodes = [weakref.ref(node.engine) for node in (a, b)]
    with pytest.raises(Closed):
        publisher.publish(b"y")
    del a, b, publisher, subscription, net
    gc.collect()
    assert [node() for node in nodes] == [None, None]


def test_networks_that_are_closed_keep_no_memory() -> None:
    """Not even until the garbage collector runs: a test process makes thousands of them."""

    def resident_bytes() -> int:
        pages = Path("/proc/self/statm").read_text("ascii").split()[1]
        return int(pages) * resource.getpagesize()

    def run_one(seed: int) -> None:
        with Network(seed=seed) as net:
            a, b = network_of(net, "ab", history_bytes=32 << 10, receive_bytes=32 << 10)
            reader, stream = Reader(b), Stream(a, count=100)
            assert transfer(net, [stream], [reader])

    gc.disable()
    try:
        run_one(0)
        before = resident_bytes()
        for seed in range(20):
            run_one(seed)
        grown = resident_bytes() - before
    finally:
        gc.enable()
    assert grown < 20 * (8 << 20), f"{grown >> 20} MiB for 20 networks"
