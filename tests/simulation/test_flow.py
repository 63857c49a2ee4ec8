"""Flow control, rate limits, laggards, channels."""

from __future__ import annotations

import pytest
from tests.support.simulation import (
    Census,
    Reader,
    Stream,
    network_of,
    settle_and_read,
    transfer,
)

from tidecast.events import Gap, ReceiverTimeout, SubscriberEvicted
from tidecast.layout import packet as wire
from tidecast.testing import Network

RING = 1 << 17
SLOTS = 64  # of 1,400 bytes in RING, rounded down to a power of two


def test_min_flow_holds_the_publisher_back_and_loses_nothing() -> None:
    with Network(seed=1) as net:
        a, b, c = network_of(net, "abc", flow="min", history_bytes=RING, receive_bytes=RING)
        fast, slow = Reader(b), Reader(c)
        net.run(1000)
        stream = Stream(a, count=1000, size=1300)
        slow.paused = True
        transfer(net, [stream], [fast, slow], until=stream.push, limit_us=1_000_000)
        assert stream.done < 3 * SLOTS
        assert len(fast.found) <= stream.done
        assert stream.publisher.stats().full > 0
        [row] = a.engine.publications()
        assert 0.5e9 < row["flow_held_ns"] <= 1.0e9, "how long, too"
        assert row["rate_held_ns"] == 0
        slow.paused = False
        assert transfer(net, [stream], [fast, slow])
        assert fast.found == slow.found == stream.messages
        assert a.count("packets_resent") == 0
        assert b.count("overruns") == c.count("overruns") == 0


def test_a_subscription_that_fills_its_ring_is_evicted_by_its_own_node() -> None:
    """Its node sees the full ring first: the publisher does not drop the node."""
    with Network(seed=2) as net:
        a, b, c = network_of(
            net, "abc", flow="min", history_bytes=RING, receive_bytes=RING, receiver_timeout_s=1.0
        )
        fast, stuck = Reader(b), Reader(c)
        net.run(1000)
        stream = Stream(a, count=1000, size=1300)
        stuck.paused = True
        began = net.now_ns
        assert transfer(net, [stream], [fast], limit_us=10_000_000)
        assert fast.found == stream.messages
        assert 1e9 <= net.now_ns - began < 3e9
        [evicted] = stuck.events(SubscriberEvicted)
        assert evicted.behind_packets == SLOTS
        assert not stream.events(ReceiverTimeout)
        assert a.count("receiver_timeouts") == 0
        stuck.paused = False
        stream.count = 1100
        assert transfer(net, [stream], [fast, stuck], until=lambda: len(fast.found) == 1100)
        assert net.settle()
        stuck.take()
        kept = [int(m.split(b":")[1]) for m in stuck.found]
        assert kept == sorted(set(kept)), "in order, once"
        assert kept[-1] == 1099, "it goes on behind what it lost"
        lost = sum(end - first for first, end in stuck.gaps)
        assert lost + len(kept) >= 1100, "nothing is skipped in silence"


@pytest.mark.parametrize("reply", ["positions", "nothing"])
def test_a_receiver_that_stands_still_is_dropped_by_the_publisher(reply: str) -> None:
    """Its ring is larger than the publisher's: its own node sees no full ring."""
    with Network(seed=14) as net:
        a, b, c = network_of(
            net, "abc", history_bytes=RING, receive_bytes=8 * RING, receiver_timeout_s=1.0
        )
        fast, stuck = Reader(b), Reader(c)
        net.run(1000)
        stream = Stream(a, count=400, size=1300)
        stuck.paused = True
        if reply == "nothing":
            transfer(net, [stream], [fast], until=lambda: fast.found)
            net.kill(c)
        assert transfer(net, [stream], [fast], limit_us=10_000_000)
        [dropped] = stream.events(ReceiverTimeout)
        expected = "stuck" if reply == "positions" else "silent"
        assert (dropped.reason, dropped.node_id) == (expected, c.id)
        assert a.count("receiver_timeouts") == 1
        assert not stuck.events(SubscriberEvicted)


def test_a_reader_that_may_be_lapped_holds_nobody_back() -> None:
    """Beside one that holds the publisher back: what it misses is a gap, its own alone."""
    with Network(seed=16, drop=0.02) as net:
        a, b = network_of(net, "ab", flow="min", history_bytes=RING, receive_bytes=RING)
        reader, onlooker = Reader(b), Reader(b, tethered=False)
        net.run(1000)
        stream = Stream(a, count=1000, size=1300)
        onlooker.paused = True
        began = net.now_ns
        assert transfer(net, [stream], [reader])
        assert net.now_ns - began < 1_000_000_000, "no time-out had to end"
        assert reader.found == stream.messages
        assert b.count("lost_for_good") == b.count("overruns") == 0
        assert not stream.events(ReceiverTimeout)
        onlooker.paused = False
        assert net.run(400_000, until=lambda: onlooker.take() > 0)
        [(first, end)] = onlooker.gaps
        assert (first, onlooker.found) == (0, stream.messages[end:])


@pytest.mark.parametrize("drop", [0.0, 0.02])
def test_readers_that_may_be_lapped_hold_nobody_back_without_others(drop: float) -> None:
    with Network(seed=17, drop=drop) as net:
        a, b = network_of(net, "ab", flow="min", history_bytes=RING, receive_bytes=RING)
        onlooker, reading = Reader(b, tethered=False), Reader(b, tethered=False)
        net.run(1000)
        stream = Stream(a, count=1000, size=1300)
        onlooker.paused = reading.paused = True
        assert transfer(net, [stream], [], until=lambda: stream.done == 1000, limit_us=1_000_000)
        [row] = a.engine.publications()
        assert row["flow_held_ns"] < 0.1e9
        assert b.count("lost_for_good") == b.count("overruns") == 0
        assert not stream.events(ReceiverTimeout)
        net.run(100_000)
        for late in (onlooker, reading):
            late.paused = False
            late.take()
            [(first, end)] = late.gaps
            assert (first, late.found) == (0, stream.messages[end:])


def test_a_receiver_that_was_idle_for_long_is_not_stuck() -> None:
    with Network(seed=15) as net:
        a, b = network_of(
            net, "ab", history_bytes=RING, receive_bytes=8 * RING, receiver_timeout_s=1.0
        )
        reader, stream = Reader(b), Stream(a, count=2, size=1300)
        assert transfer(net, [stream], [reader])
        net.run(20_000_000)
        reader.paused = True
        stream.count = 60
        transfer(net, [stream], [], until=lambda: stream.done == 60)
        net.run(500_000)
        assert not stream.events(ReceiverTimeout)


def test_a_reader_that_rests_has_its_node_report_once_a_heartbeat() -> None:
    """Seven packets of 64 wait for it: less than an eighth of its ring."""
    with Network(seed=33) as net:
        a, b = network_of(net, "ab", flow="min", history_bytes=RING, receive_bytes=RING)
        reader = Reader(b)
        net.run(1000)
        reader.paused = True
        stream = Stream(a, count=SLOTS // 8 - 1, size=1300)
        transfer(net, [stream], [reader], until=stream.push)
        net.run(1_000_000)
        before = b.count("status_sent")
        net.run(1_000_000)
        assert b.count("status_sent") - before <= 12, "one a heartbeat"
        reader.paused = False
        before = b.count("status_sent")
        reader.take()
        assert len(reader.found) == stream.count
        net.run(1000)
        assert b.count("status_sent") == before + 1, "its progress is reported within 500 us"


def test_rate_flow_lets_a_laggard_gap_and_nobody_waits() -> None:
    with Network(seed=3) as net:
        a, b, c = network_of(net, "abc", flow="rate", history_bytes=RING, receive_bytes=RING)
        fast, laggard = Reader(b), Reader(c)
        net.run(1000)
        stream = Stream(a, count=2000, size=1300, rate_packets_per_s=100_000)
        laggard.paused = True
        began = net.now_ns
        assert transfer(net, [stream], [fast])
        assert fast.found == stream.messages
        assert net.now_ns - began < 100_000_000
        laggard.paused = False
        net.run(400_000, until=lambda: laggard.take() < 0)
        stream.count = 2300
        assert transfer(net, [stream], [fast, laggard], until=lambda: len(fast.found) == 2300)
        net.run(400_000, until=lambda: laggard.take() < 0)
        assert laggard.gaps
        assert laggard.events(Gap) or laggard.events(SubscriberEvicted)
        kept = [int(m.split(b":")[1]) for m in laggard.found]
        assert kept == sorted(set(kept))
        assert kept[-1] == 2299
        lost = {i for first, end in laggard.gaps for i in range(first, end)}
        assert lost | set(kept) == set(range(2300)), "each is delivered, or lies in a gap"


def test_a_slow_receiver_in_rate_flow_does_not_ask_for_what_it_cannot_hold() -> None:
    with Network(seed=4) as net:
        a, b = network_of(net, "ab", flow="rate", history_bytes=RING * 8, receive_bytes=RING)
        slow = Reader(b)
        net.run(1000)
        stream = Stream(a, count=400, size=1300, rate_packets_per_s=50_000)
        slow.paused = True
        assert transfer(net, [stream], [slow], until=stream.push)
        net.run(3_000_000)
        assert a.count("packets_resent") < 50, "no storm of repairs that find no room"
        slow.paused = False
        assert transfer(net, [stream], [slow], limit_us=3_000_000)
        assert slow.found == stream.messages, "history still had them"


def test_an_unreliable_reader_that_fell_far_behind_goes_on() -> None:
    with Network(seed=5) as net:
        a, b = network_of(
            net,
            "ab",
            reliability="unreliable",
            flow="rate",
            history_bytes=RING,
            receive_bytes=RING,
        )
        slow = Reader(b, on_gap="raise")
        net.run(1000)
        stream = Stream(a, count=1000, size=1300, rate_packets_per_s=50_000)
        slow.paused = True
        assert transfer(net, [stream], [slow], until=stream.push)
        slow.paused = False
        slow.take()
        stream.count = 1200
        assert transfer(net, [stream], [slow], until=stream.push)
        net.run(200_000, until=lambda: slow.take() < 0)
        kept = [int(m.split(b":")[1]) for m in slow.found]
        assert kept == sorted(set(kept))
        assert kept[-1] == 1199
        lost = {i for first, end in slow.gaps for i in range(first, end)}
        assert lost | set(kept) == set(range(1200))


def test_max_flow_follows_the_fastest() -> None:
    with Network(seed=6) as net:
        a, b, c = network_of(net, "abc", flow="max", history_bytes=RING, receive_bytes=RING)
        fast, slow = Reader(b), Reader(c)
        net.run(1000)
        stream = Stream(a, count=1000, size=1300)
        slow.paused = True
        assert transfer(net, [stream], [fast])
        assert fast.found == stream.messages
        fast.paused = True
        stream.count = 3000
        transfer(net, [stream], [fast, slow], until=stream.push, limit_us=500_000)
        assert stream.done < 1000 + 4 * SLOTS, "nobody reads: even max stops"


def test_history_overrun_is_a_gap_with_the_right_range() -> None:
    with Network(seed=7) as net:
        a, b = network_of(net, "ab", flow="rate", history_bytes=RING, receive_bytes=RING * 8)
        reader = Reader(b)
        net.run(1000)
        stream = Stream(a, count=100, size=1300)
        assert transfer(net, [stream], [reader])
        net.partition("a", "b")
        stream.count = 400
        assert transfer(net, [stream], [reader], until=lambda: stream.push())
        net.run(10_000)
        net.heal()
        assert net.settle(2_000_000)
        reader.take()
        kept = [int(m.split(b":")[1]) for m in reader.found]
        [(first, end)] = reader.gaps
        assert first == 100
        assert end == 400 - SLOTS, "as far back as history reaches"
        assert kept == [*range(100), *range(end, 400)]
        assert not reader.events(Gap), "the reader's GapError is enough"
        assert a.count("naks_too_late") == b.count("lost_for_good") == end - first


@pytest.mark.parametrize("drop", [0.0, 0.1])
def test_packet_rate_holds_with_retransmissions(drop: float) -> None:
    with Network(seed=8, drop=drop, delay_us=20, step_us=50) as net:
        a, b = network_of(net, "ab")
        reader = Reader(b)
        net.run(1000)
        stream = Stream(a, count=3000, size=1300, rate_packets_per_s=10_000)
        census = Census()
        net.intercept(census)
        assert transfer(net, [stream], [reader])
        assert reader.found == stream.messages
        data = [p.now_ns for p in census.of(wire.DATA)]
        span_s = (data[-1] - data[0]) / 1e9
        assert (len(data) - 64) / span_s <= 10_000 * 1.01, "the burst is one of 64 packets"
        assert (len(data) - 64) / span_s >= 10_000 * 0.8
        worst = max(
            sum(1 for t in data[i : i + 400] if t < data[i] + 10_000_000)
            for i in range(0, len(data), 20)
        )
        assert worst <= 100 + 64 + 2, "10 ms: a hundred packets and one burst"
        if drop:
            assert a.count("packets_resent") > 200


def test_byte_rate_holds_and_changes_at_run_time() -> None:
    with Network(seed=9, step_us=100) as net:
        a, b = network_of(net, "ab")
        reader = Reader(b)
        net.run(1000)
        stream = Stream(a, count=1 << 30, size=1300)
        census = Census()
        net.intercept(census)

        def bytes_in(duration_us: float) -> int:
            before = len(census.packets)
            transfer(
                net, [stream], [reader], until=lambda: stream.push() and False, limit_us=duration_us
            )
            return sum(len(p.data) for p in census.packets[before:] if p.type == wire.DATA)

        bytes_in(60_000)
        assert bytes_in(5_000) > 2_000_000, "no limit yet"
        a.engine.edit_topic("t", {"rate_bytes_per_s": 2_000_000})
        bytes_in(50_000)
        before = a.engine.publications()[0]
        limited = bytes_in(500_000)
        assert 0.8e6 <= limited <= 1.02e6
        after = a.engine.publications()[0]
        assert 0.4e9 < after["rate_held_ns"] - before["rate_held_ns"] <= 0.5e9, "how long, too"
        assert after["flow_held_ns"] == before["flow_held_ns"]
        a.engine.edit_topic("t", {"rate_bytes_per_s": 8_000_000})
        bytes_in(20_000)
        assert 3.2e6 <= bytes_in(500_000) <= 4.1e6
        a.engine.edit_topic("t", {"rate_bytes_per_s": 0, "rate_packets_per_s": 1000})
        bytes_in(100_000)
        assert 450 * 1336 <= bytes_in(500_000) <= 520 * 1400


def test_a_limit_set_after_unlimited_traffic_holds_from_its_own_time() -> None:
    """Bytes that were sent while there was no limit are no debt: sending continues at the rate."""
    with Network(seed=10, step_us=50) as net:
        a, b = network_of(net, "ab")
        reader = Reader(b)
        net.run(1000)
        stream = Stream(a, count=10_000, size=1300)
        assert transfer(net, [stream], [reader])
        a.engine.edit_topic("t", {"rate_packets_per_s": 1000})
        stream.count += 200
        began = net.now_ns
        assert transfer(net, [stream], [reader])
        assert net.now_ns - began < 250_000_000


def test_transport_limit_is_shared_by_its_publications() -> None:
    with Network(seed=11, step_us=50) as net:
        limits = {"rate_packets_per_s": 5000}
        a = net.node("a", topics=["t", "u"], transport=limits)
        b = net.node("b", topics=["t", "u"])
        readers = [Reader(b, "t"), Reader(b, "u")]
        net.run(1000)
        streams = [Stream(a, "t", count=500, size=1300), Stream(a, "u", count=500, size=1300)]
        began = net.now_ns
        done = lambda: all(len(r.found) == 500 for r in readers)  # noqa: E731
        assert transfer(net, streams, readers, until=done)
        took_s = (net.now_ns - began) / 1e9
        assert (1000 - 64 - 2) / 5000 <= took_s <= 1000 / 5000 * 1.3


def test_a_large_message_with_loss_delays_small_ones_by_no_more_than_a_burst() -> None:
    with Network(seed=12, drop=0.05, delay_us=20) as net:
        a, b = network_of(net, "ab", large_history_bytes=16 << 20, receive_bytes=4 << 20)
        reader = Reader(b)
        net.run(1000)
        client = a.connect()
        large = client.publisher("t", channel="large")
        small = Stream(a, count=1, size=200)
        large.publish(b"the first waits for its receivers")
        assert transfer(net, [small], [reader], until=lambda: len(reader.found) == 2)
        reader.found.clear()
        census = Census()
        net.intercept(census)
        payload = bytes(bytearray(range(251))) * (4 * 1024 * 1024 // 251)
        published: dict[int, int] = {}
        large.publish(payload)

        def go_on() -> bool:
            if small.count < 400:
                small.count += 1
                small.push()
                published[small.done - 1] = len(census.packets)
            reader.take()
            return len(reader.found) == 400 and small.count == 400

        assert net.run(5_000_000, until=go_on)
        numbers = [m for m in reader.found if len(m) < 1000]
        assert numbers == small.messages[1:]
        assert payload in reader.found
        at = reader.found.index(payload)
        assert at > 30, "small ones overtook it"
        first_sent: dict[int, int] = {}
        for place, packet in enumerate(census.packets):
            if packet.type == wire.DATA and packet.channel == wire.CHANNEL_ORDINARY:
                for i in published:
                    if i not in first_sent and small.message(i)[:8] in packet.data:
                        first_sent[i] = place
        waits = []
        for i, place in first_sent.items():
            between = census.packets[published[i] : place]
            waits.append(sum(1 for p in between if p.channel == wire.CHANNEL_LARGE))
        # it lingers 20 us = two steps of a burst each; its own turn is one more
        assert max(waits) <= 3 * (64 + 32)


def test_large_messages_of_all_sizes_arrive_whole_under_loss() -> None:
    with Network(seed=13, drop=0.05, reorder=0.05) as net:
        a, b = network_of(net, "ab", history_bytes=4 << 20)
        reader, stream = Reader(b), Stream(a)
        net.run(1000)
        sizes = [1363, 1364, 1365, 5000, 70_000, 1_000_000, 0, 1, 1_300_000]
        messages = [bytes([n % 251]) * n for n in sizes]
        left = list(messages)

        def go_on() -> bool:
            while left and stream.publisher.try_publish(left[0]):
                left.pop(0)
            reader.take()
            return len(reader.found) == len(messages)

        assert net.run(10_000_000, until=go_on)
        assert reader.found == messages
        assert settle_and_read(net, reader) == messages
