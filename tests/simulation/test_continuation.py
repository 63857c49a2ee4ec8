"""Live topics when an engine ends: subscribers get what publishers published, once, in order."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest
from tests.support.durable import Platform, platform
from tests.support.simulation import (
    Reader,
    Stream,
    find_engine,
    lose_engine,
    network_of,
    outliving,
    transfer,
)

from tidecast.api.link import Continued, PublicationOptions
from tidecast.errors import ConfigError
from tidecast.events import Gap, ImageGone, MessagesUnsent
from tidecast.testing import Network


class Local:
    """A publisher and a subscription on one engine, each with a connection of its own."""

    def __init__(self, one: Platform, **options: Any) -> None:
        self.one, self.writer, self.reader = one, one.connect(), one.connect()
        self.subscription = self.reader.subscribe("live").open()
        self.publisher = self.writer.publisher("live", buffer=False, **options)
        self.sent: list[bytes] = []
        self.found: list[bytes] = []

    def publish(self, n: int) -> None:
        for _ in range(n):
            self.sent.append(b"%d" % len(self.sent))
            self.publisher.publish(self.sent[-1])

    def read(self) -> None:
        while batch := self.subscription.step(4096):
            self.found += batch.payloads()


@pytest.mark.parametrize(
    ("lose", "find"),
    list(itertools.product(itertools.permutations(("writer", "reader")), repeat=2)),
)
@pytest.mark.parametrize("in_order", [False, True])
def test_a_local_subscription_misses_nothing_in_whatever_order_clients_notice(
    lose: tuple[str, str], find: tuple[str, str], in_order: bool
) -> None:
    """Each client notices the end and finds the next engine by itself."""
    with platform() as one:
        local = Local(one)
        for _ in range(2):
            local.publish(10)
            local.read()
            if in_order:
                one.node.end()
                one.node.stop()
            else:
                one.crash(noticed=False)
            local.publish(10)
            for who in lose:
                one.lose_engine(getattr(local, who))
                local.read()
                if who == "reader" and lose[0] == "reader":
                    local.publish(10)  # its publisher knows of nothing yet
            local.read()
            one.start()
            for who in find:
                one.find_engine(getattr(local, who))
                if who == "writer":
                    local.publish(10)
                local.read()
            local.read()
            assert local.found == local.sent
        assert local.reader.health().gaps == 0
        assert local.publisher.stats().messages == local.publisher.position == len(local.sent)


def test_a_subscription_that_comes_back_late_finds_its_place_kept() -> None:
    """Its publisher is back before it, and fills a whole ring: it waits for the subscription."""
    with platform() as one:
        local = Local(one, history_bytes=1 << 16, on_full="error")
        local.publish(10)
        local.read()
        one.crash()
        one.start()
        one.find_engine(local.writer)
        while local.publisher.try_publish(b"%d" % len(local.sent)):
            local.sent.append(b"%d" % len(local.sent))
        one.find_engine(local.reader)
        local.read()
        assert local.found == local.sent
        local.publish(10)
        local.read()
        assert local.found == local.sent


def test_what_a_subscription_that_never_comes_back_holds_is_freed_and_a_late_one_gets_a_gap() -> (
    None
):
    with platform() as one:
        local = Local(one, history_bytes=1 << 16, on_full="error")
        local.publish(10)
        local.read()
        one.crash()
        one.start()
        one.find_engine(local.writer)
        size = b"." * 1000
        while local.publisher.try_publish(size):
            pass
        one.run(4000)
        published = 0
        while local.publisher.try_publish(size) and published < 500:
            published += 1
        assert published == 500
        local.subscription.on_gap = "event"
        one.find_engine(local.reader)
        local.read()
        [gap] = [each for each in local.reader._events if isinstance(each, Gap)]
        assert local.subscription.stats()["lost_packets"] == gap.end - gap.first > 0
        assert gap.first == 1, "behind the packet that it has read"


class Apart:
    """A publisher at node ``a``, a reader at node ``b`` and one at ``a``."""

    def __init__(self, net: Network, *, rate: int = 0, **topic: Any) -> None:
        self.net = net
        self.a, b = network_of(net, "ab", **topic)
        self.remote, self.local = Reader(b), Reader(self.a)
        outliving(self.local.client)
        net.run(20_000)
        self.stream = Stream(self.a, rate_packets_per_s=rate)
        outliving(self.stream.client)

    @property
    def clients(self) -> tuple[Any, Any]:
        return self.stream.client, self.local.client

    def publish(self, count: int, **options: Any) -> bool:
        self.stream.count = count
        return transfer(self.net, [self.stream], [self.remote, self.local], **options)

    def restart(self) -> None:
        self.a = self.net.restart(self.a)
        lose_engine(*self.clients)
        find_engine(self.a, *self.clients)

    def check(self, messages: int) -> None:
        assert self.remote.found == self.stream.messages[:messages]
        assert self.local.found == self.stream.messages
        assert self.remote.gaps == self.local.gaps == []


@pytest.mark.parametrize("drop", [0.0, 0.1])
def test_what_an_engine_had_not_sent_when_it_was_killed_is_sent_by_the_next(drop: float) -> None:
    with Network(seed=7, drop=drop, delay_us=50) as net:
        apart = Apart(net, rate=2_000)
        for count in (300, 600, 900):
            apart.publish(count, until=apart.stream.push)  # most of it waits in the ring
            net.run(20_000)
            net.kill(apart.a)
            apart.stream.count += 5
            apart.stream.push()  # it knows of nothing yet
            lose_engine(*apart.clients)
            net.run(1_000)
            apart.a = net.restart(apart.a)
            find_engine(apart.a, *apart.clients)
        assert apart.publish(1000)
        apart.check(1000)
        assert apart.stream.publisher.session in {p.session for p in apart.a.engine.pubs.values()}


def test_a_session_that_is_continued_late_keeps_its_images() -> None:
    """Another publisher is first, and tells of the new incarnation."""
    with Network(seed=13, delay_us=50) as net:
        apart = Apart(net)
        other = Reader(apart.remote.node, "u")
        assert apart.publish(50)
        net.kill(apart.a)
        lose_engine(*apart.clients)
        apart.a = net.restart(apart.a)
        early = Stream(apart.a, "u", count=10)
        assert transfer(net, [early], [other])
        net.run(3_000_000)
        find_engine(apart.a, *apart.clients)
        assert apart.publish(100)
        net.run(10_000_000)
        assert apart.publish(150)
        apart.check(150)
        assert apart.remote.events(ImageGone) == []


def test_what_was_sent_and_lost_on_its_way_is_repaired_by_the_next_engine() -> None:
    with Network(seed=8, delay_us=50) as net:
        apart = Apart(net)
        assert apart.publish(50)
        net.switch.drop = 1.0
        apart.publish(80, until=lambda: apart.stream.push() and len(apart.local.found) == 80)
        net.run(2_000)  # sent, and nothing arrives
        net.kill(apart.a)
        net.switch.drop = 0.0
        apart.restart()
        assert apart.publish(100)
        apart.check(100)


def test_an_engine_that_stops_in_order_leaves_open_what_it_cannot_send() -> None:
    with Network(seed=9, delay_us=50) as net:
        apart = Apart(net, rate=100)
        apart.publish(200, until=apart.stream.push)
        net.run(50_000)
        apart.a.engine.end()
        for client in apart.clients:
            apart.a.engine.client_gone(client.link.client_id)
        net.run(100_000)
        assert net.run(until=lambda: net.switch.in_flight == 0)
        left = apart.a.engine._publications.left_behind()
        apart.remote.take()
        assert (left.publications, left.waiting_messages) == (1, 200 - len(apart.remote.found))
        assert apart.remote.events(ImageGone) == [], "its publisher has not ended"
        apart.restart()
        assert apart.publish(220)
        apart.check(220)


def test_a_publisher_that_is_closed_before_the_next_engine_comes_reports_what_was_not_sent() -> (
    None
):
    with Network(seed=10, delay_us=50) as net:
        apart = Apart(net, rate=500)
        apart.publish(300, until=apart.stream.push)
        net.run(20_000)
        apart.remote.take()
        net.kill(apart.a)
        lose_engine(*apart.clients)
        net.run(2_000)
        apart.remote.take()
        apart.stream.publisher.close()
        [unsent] = apart.stream.events(MessagesUnsent)
        assert 0 < unsent.messages < 300
        assert unsent.messages == 300 - len(apart.remote.found)
        assert apart.stream.client.health().unsent == unsent.messages
        assert not apart.stream.client.health().healthy
        apart.local.take()
        assert apart.local.found == apart.stream.messages


def test_what_the_next_engine_cannot_continue_is_reported() -> None:
    with Network(seed=11, delay_us=50) as net:
        apart = Apart(net, rate=500)
        apart.publish(300, until=apart.stream.push)
        net.run(20_000)
        net.kill(apart.a)
        net.run(2_000)
        apart.remote.take()
        arrived = len(apart.remote.found)
        [topic] = apart.a.topology.topics
        apart.a.topology = msgspec.structs.replace(
            apart.a.topology, topics=[msgspec.structs.replace(topic, history_bytes=1 << 16)]
        )
        before = apart.stream.publisher.session
        apart.restart()
        [unsent] = apart.stream.events(MessagesUnsent)
        assert unsent.messages == 300 - arrived
        assert unsent.session == before != apart.stream.publisher.session
        assert apart.stream.publisher.stats().unsent == unsent.messages


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("session", 0),
        ("session", 1 << 31),
        ("head", -1),
        ("sent", 7),
        ("age_s", -1.0),
        ("first", 9),
        ("head", 1 << 61),
    ],
)
def test_numbers_that_no_ring_has_are_refused(field: str, value: Any) -> None:
    given: dict[str, Any] = {
        "session": 5,
        "incarnation": 1,
        "topic": 1,
        "slots": 64,
        "slot_bytes": 1400,
        "first": 0,
        "head": 6,
        "sent": 3,
        "readers": 0,
        "age_s": 1.0,
    }
    given[field] = value
    with Network(seed=12) as net:
        [a] = network_of(net, "a")
        client = outliving(a.connect())
        with pytest.raises(ConfigError, match=r"continues\.\w+: "):
            client.link.open_publication("t", PublicationOptions(continues=Continued(**given)))
        assert not a.engine.pubs


@pytest.mark.parametrize("apart_s", [0.5, 5.0])
def test_a_publisher_that_a_subscription_never_heard_of_is_read_from_its_begin(
    apart_s: float,
) -> None:
    """The reader's engine dies before it hears of the publisher: the subscription is older."""
    with Network(seed=17, delay_us=50) as net:
        a, b = network_of(net, "ab")
        reader = Reader(b)
        outliving(reader.client)
        net.run(20_000)
        net.partition(a, b)
        stream = Stream(a, count=22)
        assert stream.push()
        net.run(apart_s * 1e6)
        b = net.restart(b)
        lose_engine(reader.client)
        net.run(1_000)
        find_engine(b, reader.client)
        net.heal()
        stream.count = 46
        assert transfer(net, [stream], [reader])
        assert reader.found == stream.messages
        assert reader.gaps == []
