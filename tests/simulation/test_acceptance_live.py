"""Acceptance tests that Artery and Aeron suggest and no other file has; see tests/README.md."""

from __future__ import annotations

import pytest
from tests.support.simulation import DropOnce, Reader, Stream, network_of, transfer

from tidecast.events import ReceiverTimeout
from tidecast.layout import packet as wire
from tidecast.testing import Network
from tidecast.testing.switch import Packet


def test_a_packet_that_a_whole_group_misses_is_asked_for_by_some_and_sent_to_all() -> None:
    with Network(seed=3, delay_us=100) as net:
        a, *others = network_of(net, "abcdefgh")
        readers = [Reader(node) for node in others]
        stream = Stream(a, count=20, size=1200)
        assert transfer(net, [stream], readers, burst=1)
        net.intercept(DropOnce(25, 30, 35))
        stream.count = 60
        assert transfer(net, [stream], readers, burst=1)
        for reader in readers:
            assert reader.found == stream.messages
        assert a.count("packets_resent") <= 2 * 3, "of 21 that were missed"
        assert sum(node.count("naks_sent") for node in others) <= 15


def _round_trips(rounds: int) -> None:
    """Each of four senders waits for the answers of three receivers before it sends the next."""
    with Network(seed=4, drop=0.01, delay_us=20) as net:
        senders, receivers = network_of(net, "abcd"), network_of(net, "xyz")
        asked = [Reader(node, "t") for node in receivers]
        replies = [Stream(node, "reply") for node in receivers]
        heard = [Reader(node, "reply") for node in senders]
        publishers = [node.connect().publisher("t") for node in senders]
        answered, sent = [0] * len(receivers), [0] * len(senders)
        looked, mine = [0] * len(senders), [0] * len(senders)

        def step() -> bool:
            for i, (reader, reply) in enumerate(zip(asked, replies, strict=True)):
                reader.take()
                while answered[i] < len(reader.found):
                    if not reply.publisher.try_publish(reader.found[answered[i]]):
                        break
                    answered[i] += 1
            for i, reader in enumerate(heard):
                reader.take()
                mine[i] += sum(m.startswith(b"%d:" % i) for m in reader.found[looked[i] :])
                looked[i] = len(reader.found)
                if sent[i] < rounds and mine[i] == 3 * sent[i]:
                    sent[i] += publishers[i].try_publish(b"%d:%d" % (i, sent[i]))
            return all(len(r.found) == 3 * len(senders) * rounds for r in heard)

        assert net.run(60_000_000.0 * rounds, until=step)
        for reader in asked:
            for i in range(len(senders)):
                asked_by = [m for m in reader.found if m.startswith(b"%d:" % i)]
                assert asked_by == [b"%d:%d" % (i, n) for n in range(rounds)]


def test_round_trips_between_four_and_three() -> None:
    _round_trips(20)


@pytest.mark.long
def test_a_thousand_round_trips_between_four_and_three() -> None:
    _round_trips(1000)


def test_reports_of_an_older_incarnation_hold_nobody_back() -> None:
    with Network(seed=5, delay_us=20) as net:
        a, b = network_of(net, "ab", receiver_timeout_s=1.0)
        reader, stream = Reader(b), Stream(a, count=300)
        old: list[Packet] = []
        net.intercept(lambda p: old.append(p) if p.type in (wire.STATUS, wire.NAK) else None)
        assert transfer(net, [stream], [reader])
        reports = [packet for packet in old if packet.source == b.id]
        assert reports
        b = net.restart("b")
        again = Reader(b)
        net.run(2_000_000)
        assert [each.reason for each in stream.events(ReceiverTimeout)] == ["silent"]
        for packet in reports:
            net.switch.inject(a.id, packet.data)
        stream.count, resent = 3000, a.count("packets_resent")
        assert transfer(net, [stream], [again], until=lambda: len(again.found) == 2700)
        assert again.found == stream.messages[300:]
        assert a.count("packets_resent") == resent
