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
from tidecast.events import EngineLost, Gap, GatewayBack, GatewayLost, MessagesUnsent

COUNT, RATE, HELD_RATE = 300, 100, 5
"""Messages, each in a packet of its own; packets a second of later engines, and of the first one.

The first engine sends 64 at once and the others within 47 s: it ends before, beside other load too.
"""
BATCH = 20
"""Messages that may share a frame: what is known to be sent is known by frames."""


class Apart:
    """A remote publisher at an engine with a gateway; a subscriber at another engine."""

    def __init__(self, lab: Lab, eventually: Eventually) -> None:
        self._eventually = eventually
        topics = [{"name": "ticks", "id": 7, "rate_packets_per_s": HELD_RATE}]
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

    def start(self) -> None:
        """The next engine, which sends without waiting for long."""
        file = self.served.platform.directory / "topology.yaml"
        held = f"rate_packets_per_s: {HELD_RATE}\n"
        file.write_text(file.read_text().replace(held, f"rate_packets_per_s: {RATE}\n"))
        self.served.start()

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
    apart.start()
    assert not until_event(apart.far, GatewayBack).resumed
    apart.publish(BATCH)
    apart.check()
    assert len(apart.found) < 2 * COUNT, "what was known to be sent is not sent again"


def test_a_second_kill_amid_the_recovery_loses_nothing_either(apart: Apart) -> None:
    apart.publish()
    for least in (2 * BATCH, 4 * BATCH):
        apart.kill(at_least=least)
        apart.start()
        until_event(apart.far, GatewayBack)
    apart.check()


def test_an_engine_that_stops_in_order_leaves_the_rest_to_the_next_one(apart: Apart) -> None:
    apart.publish()
    assert apart.take() < COUNT
    apart.served.platform.stop()
    apart.start()
    until_event(apart.far, GatewayBack)
    apart.check()


def test_down_counts_what_a_remote_publisher_sends_again_as_waiting(
    apart: Apart, eventually: Eventually
) -> None:
    """Subscriber, publisher and command agree: what did not arrive waits, nothing is lost."""
    apart.publish()
    left = apart.served.platform.json("down")
    assert left["lost_messages"] == 0
    assert left["waiting_messages"] > 0
    eventually(lambda: COUNT - apart.take() == left["waiting_messages"], "what was sent")
    assert apart.far.health().unsent == 0
    apart.start()
    until_event(apart.far, GatewayBack)
    apart.check()


def test_down_counts_what_a_closed_remote_publisher_left_as_lost(
    apart: Apart, eventually: Eventually
) -> None:
    apart.publish()
    apart.publisher.close()
    left = apart.served.platform.json("down")
    assert left["waiting_messages"] == 0
    eventually(lambda: COUNT - apart.take() == left["lost_messages"] > 0, "what was sent")


def test_a_client_that_may_not_come_back_reports_what_may_be_unsent(apart: Apart) -> None:
    """The machine has the shared memory of the dead engine still, but the token is another one."""
    apart.publish()
    apart.kill(at_least=2 * BATCH)
    (apart.served.platform.directory / "gateway.token").write_text("another-token-of-tests\n")
    apart.start()
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


class Behind:
    """A remote subscriber at an engine with a gateway, a publisher at another engine."""

    def __init__(self, lab: Lab, eventually: Eventually, **topic: Any) -> None:
        self._eventually = eventually
        topics = [{"name": "ticks", "id": 7, **topic}]
        wire = multicast()
        self.served = Served(lab, topics, wire)
        self.right = lab.platform(topology(wire, name="right", topics=topics))
        self.far = self.served.connect()
        self.subscription = self.far.subscribe("ticks", on_gap="event").open()
        self.publisher = self.right.connect().publisher("ticks")
        self.count = 0
        self.found: list[int] = []

    def publish(self, count: int = COUNT) -> None:
        """Publish messages, each in a packet of its own."""
        for _ in range(count):
            self.publisher.publish(b"%d" % self.count + bytes(1000))
            self.count += 1
        self.publisher.flush()

    def take_all(self) -> None:
        """Read until the newest message is there."""

        def there() -> bool:
            payloads = self.subscription.poll(1000).payloads()
            self.found += [int(each.rstrip(b"\0")) for each in payloads]
            return self.found[-1:] == [self.count - 1]

        self._eventually(there, "the newest message", timeout_s=TIMEOUT_S)


def test_a_subscription_resumes_from_histories_behind_the_next_engine(
    lab: Lab, eventually: Eventually
) -> None:
    behind = Behind(lab, eventually)
    behind.publish()
    behind.take_all()
    behind.served.platform.kill()
    behind.publish()
    behind.served.start()
    until_event(behind.far, GatewayBack)
    behind.publish()
    behind.take_all()
    assert behind.found == list(range(3 * COUNT)), "nothing is lost, or comes twice"
    assert behind.subscription.stats()["gaps"] == 0


def test_a_kill_amid_a_stream_that_waits_for_its_reader_is_no_gap(
    lab: Lab, eventually: Eventually
) -> None:
    """The client has messages of which it has read none, some of them of an unfinished batch."""
    behind = Behind(lab, eventually)
    for _ in range(3):
        behind.publish()
        eventually(lambda: behind.subscription.lag() > 0, "messages at the client")
        behind.served.platform.kill()
        behind.publish()
        behind.served.start()
        until_event(behind.far, GatewayBack)
    behind.take_all()
    assert behind.found == list(range(6 * COUNT))
    assert behind.subscription.stats()["gaps"] == 0


def test_a_gap_names_the_packets_that_no_history_holds(lab: Lab, eventually: Eventually) -> None:
    behind = Behind(lab, eventually, history_bytes=128 << 10)
    behind.publish(20)
    behind.take_all()
    before = behind.subscription.images()[0]
    behind.served.platform.kill()
    behind.publish(COUNT)
    behind.served.start()
    behind.take_all()
    gap = until_event(behind.far, Gap)
    missing = sorted(set(range(behind.count)) - set(behind.found))
    assert len(behind.found) == len(set(behind.found))
    assert missing == list(range(20, 20 + len(missing))), "one range, from the first one missed"
    assert 0 < len(missing) < COUNT
    assert gap.end - gap.first == len(missing), "a message a packet"
    assert before.gaps == 0
    assert behind.subscription.stats()["gaps"] == 1


def test_a_publisher_that_is_gone_when_the_gateway_is_back_ends_with_a_gap(
    lab: Lab, eventually: Eventually
) -> None:
    behind = Behind(lab, eventually)
    behind.publish(5)
    behind.take_all()
    session = behind.publisher.session
    behind.served.platform.kill()
    behind.publish(5)
    behind.right.kill()
    behind.served.start()

    def has_gap() -> bool:
        assert len(behind.subscription.poll()) == 0, "nothing that was read comes again"
        return behind.subscription.stats()["gaps"] == 1

    eventually(has_gap, "the gap", timeout_s=TIMEOUT_S)
    gap = until_event(behind.far, Gap)
    assert (gap.session, gap.reason, gap.end - gap.first) == (session, "reconnect", 1)
