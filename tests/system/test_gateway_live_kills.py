"""kill -9 of an engine while it holds live messages that its gateway confirmed and it did not send.

The remote publisher keeps them until they are sent, so the next engine gets them. Where no engine
can have them, the client reports how many there are.
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.conftest import Eventually
from tests.support.gateways import TIMEOUT_S, Served, until_event
from tests.support.lab import Lab, multicast, topology

from tidecast.errors import AuthError
from tidecast.events import EngineLost, GatewayBack, GatewayLost, MessagesUnsent

COUNT, RATE = 300, 100
"""Messages, each in a packet of its own, and packets a second: three seconds to send them all."""
BATCH = 20
"""Messages that may share a frame: what is known to be sent is known by frames."""


class Apart:
    """A remote publisher at an engine with a gateway; a subscriber at another engine."""

    def __init__(self, lab: Lab, eventually: Eventually) -> None:
        self._eventually = eventually
        topics = [{"name": "ticks", "id": 7, "rate_packets_per_s": RATE}]
        wire = multicast()
        self.served = Served(lab, topics, wire)
        right = lab.platform(topology(wire, name="right", topics=topics))
        self.subscription = right.connect().subscribe("ticks", on_gap="event").open()
        self.far = self.served.connect()
        self.publisher = self.far.publisher("ticks")
        self.sent: list[bytes] = []
        self.found: list[bytes] = []

    def publish(self, count: int = COUNT) -> None:
        """Publish; the gateway has confirmed all of it when this returns."""
        link: Any = self.far.link
        out = link._out[self.publisher.publication_id]
        for _ in range(count):
            self.sent.append(b"%d" % len(self.sent) + bytes(1000))
            self.publisher.publish(self.sent[-1])
            if len(self.sent) % BATCH == 0:
                self._eventually(
                    lambda: out._image.behind() == 0 and out.unconfirmed == 0, "confirmations"
                )

    def take(self) -> int:
        """Read what has arrived; how many different messages that are by now."""
        self.found += [bytes(each) for each in self.subscription.poll(1000).payloads()]
        return len(set(self.found))

    def kill(self, at_least: int) -> None:
        """kill -9 of the engine once so many messages have arrived."""
        self._eventually(lambda: self.take() >= at_least, "some messages")
        self.served.platform.kill()

    def check(self) -> None:
        """All arrives."""
        self._eventually(lambda: self.take() == len(self.sent), "all", timeout_s=TIMEOUT_S)
        assert set(self.found) == set(self.sent)
        assert self.far.health().unsent == 0
        self.far.close()


@pytest.fixture
def apart(lab: Lab, eventually: Eventually) -> Apart:
    return Apart(lab, eventually)


def test_the_next_engine_sends_what_the_killed_one_had_confirmed(apart: Apart) -> None:
    apart.publish()
    apart.kill(at_least=2 * BATCH)
    assert apart.take() < COUNT, "nothing was left to send"
    apart.served.start()
    assert not until_event(apart.far, GatewayBack).resumed
    apart.publish(BATCH)
    apart.check()
    assert len(apart.found) < 2 * COUNT, "what was known to be sent is not sent again"


def test_a_second_kill_amid_the_recovery_loses_nothing_either(apart: Apart) -> None:
    apart.publish()
    for least in (2 * BATCH, 4 * BATCH):
        apart.kill(at_least=least)
        apart.served.start()
        until_event(apart.far, GatewayBack)
    apart.check()


def test_an_engine_that_stops_in_order_leaves_the_rest_to_the_next_one(apart: Apart) -> None:
    apart.publish()
    assert apart.take() < COUNT
    apart.served.platform.stop()
    apart.served.start()
    until_event(apart.far, GatewayBack)
    apart.check()


def test_a_client_that_may_not_come_back_reports_what_may_be_unsent(apart: Apart) -> None:
    """The machine has the shared memory of the dead engine still, but the token is another one."""
    apart.publish()
    apart.kill(at_least=2 * BATCH)
    (apart.served.platform.directory / "gateway.token").write_text("another-token-of-tests\n")
    apart.served.start()
    unsent = until_event(apart.far, MessagesUnsent)
    until_event(apart.far, EngineLost)
    missing = COUNT - apart.take()
    assert missing <= unsent.messages < COUNT
    assert unsent.bytes >= unsent.messages
    assert (unsent.topic, unsent.session) == ("ticks", apart.publisher.session)
    assert apart.far.health().unsent == apart.publisher.stats().unsent == unsent.messages
    with pytest.raises(AuthError):
        apart.publisher.publish(b"late")


def test_a_publisher_that_is_closed_while_its_gateway_is_away_reports_what_may_be_unsent(
    apart: Apart,
) -> None:
    apart.publish()
    apart.kill(at_least=2 * BATCH)
    until_event(apart.far, GatewayLost)
    apart.publisher.close()
    unsent = until_event(apart.far, MessagesUnsent)
    missing = COUNT - apart.take()
    assert missing <= unsent.messages < COUNT
    assert apart.far.health().unsent == unsent.messages
