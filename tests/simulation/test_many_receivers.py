"""Thousands of receivers of one publisher: few ask for a lost packet, and few report.

The publisher's node is a true one; of its receivers one is, the others are light ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from tests.support.receivers import STATUS_NS, LightReceivers, Seqs
from tests.support.simulation import Census, Reader, Stream, network_of, transfer

from tidecast.events import ImageGone, PeerTimeout, ReceiverTimeout
from tidecast.layout import packet as wire
from tidecast.protocol.flow_control import RECEIVERS_MAX
from tidecast.testing import Network
from tidecast.testing.switch import Packet

SETTLED_US = 1_500_000
"""For the first reports, and a SETUP behind them."""
EVERY = 10
"""One packet in so many is lost."""
COUNTS = [1000, pytest.param(10_000, marks=pytest.mark.long)]
Losses = Callable[[Packet], Seqs]


class Crowd:
    """A publisher, one true receiver and many light ones."""

    def __init__(
        self, net: Network, count: int, *, delay_us: float, loses: Losses, flow: str = "rate"
    ) -> None:
        self.a, self.b = network_of(net, "ab", flow=flow, receiver_timeout_s=2.0)
        self.net, self.delay_us = net, delay_us
        self.reader, self.stream = Reader(self.b), Stream(self.a, count=1, size=1200)
        assert transfer(net, [self.stream], [self.reader])
        self.others = LightReceivers(
            net,
            self.a,
            self.stream.publisher.session,
            count,
            via=self.b,
            delay_us=delay_us,
            loses=loses,
        )
        self.others.run(SETTLED_US)

    def go_on(self) -> bool:
        self.stream.push()
        self.reader.take()
        return False

    def lose(self, losses: int) -> None:
        """Send until so many packets were lost, and all of them are repaired."""
        for _ in range(losses):
            self.stream.count += EVERY
            self.others.run(10_000 + 20 * self.delay_us, until=self.go_on)
        assert self.others.run(1_000_000, until=lambda: self.go_on() or not self.others.missing)
        assert self.others.losses == losses

    def counted(self, name: str) -> int:
        return self.a.count(name)


@contextmanager
def crowd(
    count: int,
    loses: Losses = lambda packet: np.zeros(0, dtype=np.int64),
    *,
    delay_us: float = 50,
    flow: str = "rate",
) -> Iterator[Crowd]:
    with Network(seed=1, delay_us=delay_us) as net:
        yield Crowd(net, count, delay_us=delay_us, loses=loses, flow=flow)


def at_all(count: int) -> Losses:
    """Each tenth packet is lost before the network divides: nobody gets it. Repairs arrive."""
    everybody = np.arange(count)

    def loses(packet: Packet) -> Seqs:
        lost = not packet.is_resent and packet.seq % EVERY == EVERY // 2
        return everybody if lost else everybody[:0]

    return loses


@pytest.mark.parametrize("delay_us", [50, 500])
@pytest.mark.parametrize("count", COUNTS)
def test_a_packet_that_all_lost_costs_few_naks_and_about_one_repair(
    count: int, delay_us: float
) -> None:
    losses = 20
    with crowd(count, at_all(count), delay_us=delay_us) as many:
        before = many.counted("naks_received")
        many.lose(losses)
        naks = many.counted("naks_received") - before
        assert losses <= naks <= 8 * losses
        assert many.others.repairs <= 1.2 * losses
        assert many.reader.found == many.stream.messages
        assert not many.reader.gaps


@pytest.mark.parametrize("count", COUNTS)
def test_losses_of_some_are_repaired_also_where_repairs_are_lost(count: int) -> None:
    random = np.random.default_rng(5)
    everybody = np.arange(count)

    def loses(packet: Packet) -> Seqs:
        some = packet.is_resent or packet.seq % EVERY == EVERY // 2
        return everybody[random.random(count) < (0.05 if some else 0.0)]

    with crowd(count, loses) as many:
        many.lose(10)
        assert many.counted("naks_received") <= 8 * many.others.repairs
        assert many.counted("naks_too_late") == 0


@pytest.mark.parametrize("count", COUNTS)
def test_few_report_and_stand_for_all(count: int) -> None:
    with crowd(count) as many:
        assert RECEIVERS_MAX // 8 <= len(many.others.reporters) <= RECEIVERS_MAX
        assert count / 2 < many.others.group < count * 2
        [publication] = many.a.engine.publications()
        assert count / 2 < publication["receivers"] < count * 2
        many.others.sent.clear()
        many.others.run(10 * STATUS_NS / 1000)
        assert many.others.sent[wire.STATUS] <= 11 * RECEIVERS_MAX
        assert many.others.round_trip_ns >= 2 * many.delay_us * 1000
        assert not many.stream.events(ReceiverTimeout), "who need not report is not missed"


@pytest.mark.same_kernels
def test_the_sample_grows_when_the_others_have_left() -> None:
    with crowd(1000) as many:
        assert many.others.sampling > 0
        many.others.silent = True
        many.others.run(30_000_000, until=lambda: many.others.sampling == 0 or many.go_on())
        assert many.others.sampling == 0
        assert many.others.run(3_000_000, until=lambda: len(many.a.engine.receivers()) == 1)


def test_a_true_receiver_that_need_not_report_gets_all_and_an_end() -> None:
    with crowd(1000) as many:
        census = Census()
        many.net.intercept(census)
        many.stream.count = 500
        done = many.others.run(
            3_000_000, until=lambda: many.go_on() or len(many.reader.found) >= 500
        )
        assert done
        mine = [r for r in many.a.engine.receivers() if r["node"] == "b"]
        assert not mine, "by its id it is none of the sample"
        assert not [p for p in census.of(wire.STATUS) if p.source == many.b.id]
        many.stream.publisher.close()
        many.others.run(1_000_000, until=lambda: many.reader.take() < 0)
        assert [gone.reason for gone in many.reader.events(ImageGone)] == ["closed"]
        assert not many.reader.events(PeerTimeout)
        assert many.reader.found == many.stream.messages


def test_min_flow_waits_for_the_receivers_that_came_first() -> None:
    with crowd(200, flow="min") as many:
        assert many.others.sampling == 0
        assert len(many.a.engine.receivers()) == RECEIVERS_MAX
        assert many.counted("receivers_refused") > 0
