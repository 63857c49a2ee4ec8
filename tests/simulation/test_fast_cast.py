"""The sixteen defects of fast-cast 3.0, each as a test of ours.

They were found by reading and measuring it; see the list in `docs/adr`. A test is named after the
defect, so that it is clear what a change would bring back.
"""

from __future__ import annotations

import threading

import pytest
from tests.support.simulation import Census, DropOnce, Reader, Stream, network_of, transfer

from tidecast.agents import idle as idle_of
from tidecast.agents.idle import BACKOFF, BLOCK, BUSY, SPINS, YIELDS
from tidecast.errors import PayloadTooLarge
from tidecast.layout import packet as wire
from tidecast.native.jit import kernel
from tidecast.testing import Network


@kernel
def time_to_park(idle, quiet):  # type: ignore[no-untyped-def]
    return idle_of.time_to_park(idle, quiet)


def test_fast_cast_01_tail_loss_does_not_wait_for_a_heartbeat() -> None:
    with Network(seed=1, delay_us=25) as net:
        a, b = network_of(net, "ab")
        reader, stream = Reader(b), Stream(a, count=20, size=1300)
        transfer(net, [stream], [reader], burst=1)
        net.run(1_000_000)
        net.intercept(DropOnce(20))
        stream.count, began = 21, net.now_ns
        assert transfer(net, [stream], [reader])
        assert net.now_ns - began < 500_000, "fast-cast: 500 ms"


@pytest.mark.parametrize("packet_bytes", [576, 32_000, 32_776, 65_000])
def test_fast_cast_02_large_datagrams_with_large_messages(packet_bytes: int) -> None:
    with Network(seed=2, packet_bytes=packet_bytes, drop=0.02, inbox_packets=512) as net:
        a, b = network_of(net, "ab", history_bytes=16 << 20, receive_bytes=4 << 20)
        reader = Reader(b)
        stream = Stream(a, count=12, size=100_000)
        assert transfer(net, [stream], [reader])
        assert reader.found == stream.messages


def test_fast_cast_03_every_one_byte_message_is_a_message() -> None:
    with Network(seed=3) as net:
        a, b = network_of(net, "ab")
        reader, stream = Reader(b), Stream(a)
        sent = [bytes([value]) for value in range(256)] + [b""] * 3
        for payload in sent:
            stream.publisher.publish(payload, flush=True)
        assert net.settle()
        reader.take()
        assert reader.found == sent


def test_fast_cast_04_two_threads_may_publish() -> None:
    with Network(seed=4) as net:
        a, b = network_of(net, "ab", history_bytes=16 << 20, receive_bytes=16 << 20)
        reader, stream = Reader(b), Stream(a)

        def publish(mark: int) -> None:
            for i in range(1000):
                while not stream.publisher.try_publish(b"%d:%d:" % (mark, i) + b"x" * (i % 300)):
                    pass

        threads = [threading.Thread(target=publish, args=(mark,)) for mark in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert transfer(net, [], [reader], until=lambda: len(reader.found) == 4000)
        for mark in range(4):
            mine = [m for m in reader.found if m.startswith(b"%d:" % mark)]
            assert mine == [b"%d:%d:" % (mark, i) + b"x" * (i % 300) for i in range(1000)]


def test_fast_cast_05_a_gap_amid_a_large_message_leaves_nothing_dirty() -> None:
    with Network(seed=5) as net:
        a, b = network_of(net, "ab", flow="rate", history_bytes=64 << 10, receive_bytes=1 << 20)
        reader, stream = Reader(b), Stream(a, count=5, size=10_000)
        assert transfer(net, [stream], [reader])
        net.intercept(lambda p: not (p.type == wire.DATA and stream.done == 6 and p.seq > 42))
        stream.count = 6
        transfer(net, [stream], [reader], limit_us=20_000)
        net.partition("a", "b")
        stream.count = 40
        assert transfer(net, [stream], [reader], until=stream.push)
        net.run(10_000)
        net.heal()
        net.switch.looks.clear()
        net.run(1_000_000, until=lambda: reader.take() < 0)
        assert reader.gaps
        assert reader.found[:5] == stream.messages[:5]
        assert set(reader.found) <= set(stream.messages), "no message made of two"
        assert reader.found[-1] == stream.messages[-1]


def test_fast_cast_06_idle_time_banks_no_credit() -> None:
    with Network(seed=6, step_us=50) as net:
        a, b = network_of(net, "ab")
        reader, stream = Reader(b), Stream(a, count=1, size=1300, rate_packets_per_s=5000)
        assert transfer(net, [stream], [reader])
        net.run(10_000_000)
        census = Census()
        net.intercept(census)
        stream.count = 1000
        began = net.now_ns
        assert transfer(net, [stream], [reader])
        data = [p.now_ns - began for p in census.of(wire.DATA)]
        assert sum(1 for t in data if t < 1_000_000) <= 64 + 6, "fast-cast: 50,000 at once"
        assert data[-1] > (1000 - 64) / 5000 * 1e9 * 0.95


def test_fast_cast_07_no_count_of_cycles_turns_spinning_off() -> None:
    for quiet in (1 << 31, 1 << 32, (1 << 62) + 1):
        assert not time_to_park(BUSY, quiet)
        assert time_to_park(BACKOFF, quiet)
    assert not time_to_park(BACKOFF, SPINS + YIELDS - 1)
    assert time_to_park(BLOCK, 1)
    assert not time_to_park(BLOCK, 0)  # it has just worked


def test_fast_cast_08_a_message_larger_than_history_is_refused_by_name() -> None:
    with Network(seed=8) as net:
        a, b = network_of(net, "ab", history_bytes=64 << 10)
        reader, stream = Reader(b), Stream(a, count=3)
        limit = stream.publisher.payload_bytes_max
        with pytest.raises(PayloadTooLarge, match=rf"the limit is {limit}: half the history"):
            stream.publisher.publish(bytes(limit + 1))
        assert transfer(net, [stream], [reader])
        stream.publisher.publish(bytes(limit))
        assert transfer(net, [], [reader], until=lambda: len(reader.found) == 4)


def test_fast_cast_09_repairs_do_not_wait_for_a_large_send() -> None:
    with Network(seed=9, delay_us=20) as net:
        a, b = network_of(net, "ab", history_bytes=16 << 20, receive_bytes=16 << 20)
        reader, stream = Reader(b), Stream(a, count=64, size=1300)
        assert transfer(net, [stream], [reader])
        drop, census = DropOnce(70), Census()
        net.intercept(drop)
        net.intercept(census)
        stream.count, stream.size = 67, 4_000_000
        assert transfer(net, [stream], [reader])
        [repair] = census.resent
        behind = [p for p in census.of(wire.DATA) if p.now_ns > repair.now_ns]
        assert len(behind) > 1000, "it overtook what was still to be sent"


def test_fast_cast_10_unreliable_unicast_blocks_no_slots() -> None:
    with Network(seed=10) as net:
        a, b, c = network_of(
            net,
            "abc",
            reliability="unreliable",
            flow="rate",
            history_bytes=32 << 10,
            receive_bytes=32 << 10,
        )
        readers = [Reader(b), Reader(c)]
        stream = Stream(a)
        net.run(20_000)
        for i in range(500):
            stream.publisher.publish(b"%d" % i, to="b" if i % 2 else None, flush=True)
            net.run(30)
            for reader in readers:
                reader.take()
        net.run(10_000, until=lambda: all(r.take() < 0 for r in readers))
        assert readers[0].found == [b"%d" % i for i in range(500)]
        assert readers[1].found == [b"%d" % i for i in range(0, 500, 2)]


def test_fast_cast_11_the_first_message_arrives() -> None:
    with Network(seed=11) as net:
        a, b = network_of(net, "ab")
        reader, stream = Reader(b), Stream(a, count=1)
        assert transfer(net, [stream], [reader], limit_us=100_000)
        assert reader.found == stream.messages


def test_fast_cast_12_a_burst_at_the_start_loses_nothing() -> None:
    with Network(seed=12) as net:
        a, b = network_of(net, "ab")
        reader, stream = Reader(b), Stream(a, count=1400, size=1300)
        stream.push()
        assert transfer(net, [stream], [reader])
        assert reader.found == stream.messages
        assert b.count("losses") == 0 == a.count("packets_resent"), "the ring is there before"


# 13: hostile packets: tests/property/test_hostile_packets.py.


def test_fast_cast_14_a_packet_is_as_long_as_its_messages() -> None:
    with Network(seed=14, packet_bytes=65_000, inbox_packets=64) as net:
        a, b = network_of(net, "ab")
        reader, stream = Reader(b), Stream(a, count=1, size=10)
        census = Census()
        net.intercept(census)
        assert transfer(net, [stream], [reader])
        [packet] = census.of(wire.DATA)
        assert len(packet.data) == wire.PACKET_HEADER_BYTES + wire.MESSAGE_HEADER_BYTES + 10


def test_fast_cast_15_packet_sizes_need_not_match() -> None:
    with Network(seed=15, packet_bytes=8000, drop=0.05) as net:
        a = net.node("a", topics=["t"], transport={"packet_bytes": 576})
        b = net.node("b", topics=["t"], transport={"packet_bytes": 8000})
        readers = [Reader(a), Reader(b)]
        streams = [Stream(a, count=100, size=3000), Stream(b, count=100, size=3000)]
        assert transfer(net, streams, readers)
        for stream in streams:
            for reader in readers:
                mark = f"{stream.name}:".encode()
                assert [m for m in reader.found if m.startswith(mark)] == stream.messages


def test_fast_cast_16_unsubscribe_and_statistics() -> None:
    with Network(seed=16) as net:
        a, b = network_of(net, "ab")
        reader, stream = Reader(b), Stream(a, count=100)
        assert transfer(net, [stream], [reader])
        assert reader.client.stats()["image"][0]["packets_received"] > 0
        assert reader.subscription.stats()["messages"] == 100
        reader.subscription.close()
        net.run(200_000)
        assert not b.engine.images()
        assert not a.engine.receivers()
