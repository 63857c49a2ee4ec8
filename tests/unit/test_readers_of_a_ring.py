"""A ring has places for so many subscriptions of a node. The next one is refused, no publisher."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.support.gateways import TIMEOUT_S, local, until_event

from tidecast.config.topology import topology_from
from tidecast.embedded import EmbeddedLink
from tidecast.errors import Conflict
from tidecast.events import SubscriptionEnded

PLACES = {1: 38, 2: 294}
"""Subscriptions that have a place, by the level of the cluster."""


@pytest.fixture(scope="module", params=PLACES)
def level(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture(scope="module")
def link(level: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedLink]:
    settings = {"transports": [{"name": "ipc", "kind": "ipc"}], "level": level}
    made = EmbeddedLink.open(topology_from(settings), data_dir=tmp_path_factory.mktemp("node"))
    yield made
    made.close()


@pytest.fixture
def places(level: int) -> int:
    return PLACES[level]


@pytest.mark.parametrize("publisher_first", [False, True])
def test_a_further_subscription_is_refused_and_publishers_are_served(
    link: EmbeddedLink, places: int, publisher_first: bool
) -> None:
    topic = f"full{int(publisher_first)}"
    with local(link) as client, local(link) as other:
        if publisher_first:
            other.publish(topic, b"before", flush=True)
        subs = [client.subscribe(topic).open() for _ in range(places)]
        with pytest.raises(Conflict, match=rf"topic {topic}: this node has {places} subscriptions"):
            client.subscribe(topic).open()
        other.publish(topic, b"x", flush=True)
        assert {bytes(sub.next(TIMEOUT_S).data) for sub in subs} == {b"x"}
        subs[0].close()
        with client.subscribe(topic) as last:
            other.publish(topic, b"y", flush=True)
            assert bytes(last.next(TIMEOUT_S).data) == b"y"
        for sub in subs[1:]:
            sub.close()


@pytest.mark.parametrize("level", [2], indirect=True)
def test_a_reader_of_a_tail_is_woken_by_each_message(link: EmbeddedLink) -> None:
    """Each answer follows a message that a sleeping reader of the tail took."""
    rounds = 1000
    with local(link) as client, local(link) as other:
        idle = [
            other.subscribe(topic).open() for topic in ("ping", "pong") for _ in range(PLACES[1])
        ]
        asked, answered = other.subscribe("ping").open(), client.subscribe("pong").open()

        def answer() -> None:
            for _ in range(rounds):
                other.publish("pong", bytes(asked.next(TIMEOUT_S).data), flush=True)

        with ThreadPoolExecutor(1) as pool:
            ended = pool.submit(answer)
            for n in range(rounds):
                client.publish("ping", b"%d" % n, flush=True)
                assert bytes(answered.next(TIMEOUT_S).data) == b"%d" % n
            ended.result(TIMEOUT_S)
        for sub in (*idle, asked, answered):
            sub.close()


def test_a_pattern_that_finds_a_full_ring_later_ends(link: EmbeddedLink, places: int) -> None:
    with local(link) as client, local(link) as other:
        subs = [client.subscribe("late.t").open() for _ in range(places)]
        wild = client.subscribe("late.*").open()
        other.publish("late.t", b"x", flush=True)
        assert {bytes(sub.next(TIMEOUT_S).data) for sub in subs} == {b"x"}
        ended = until_event(client, SubscriptionEnded)
        assert (ended.pattern, ended.code) == ("late.*", "conflict")
        with pytest.raises(Conflict, match=rf"topic late\.t: this node has {places} subscriptions"):
            wild.next(TIMEOUT_S)
        with pytest.raises(Conflict, match=rf"topic late\.t: this node has {places} subscriptions"):
            client.subscribe("late.>").open()
        for sub in subs:
            sub.close()


def test_a_further_requester_is_refused_with_the_name_of_the_topic(
    link: EmbeddedLink, places: int
) -> None:
    clients = [local(link) for _ in range(places + 2)]
    try:
        service, *requesters = clients
        responder = service.responder("ask")
        for number, client in enumerate(requesters[:-1]):
            asked = client.begin_request("ask", b"%d" % number)
            responder.next(TIMEOUT_S).respond(b"yes")
            assert asked.result(TIMEOUT_S).data == b"yes"
        with pytest.raises(Conflict, match=f"topic ask: this node has {places} requesters of it"):
            requesters[-1].request("ask", b"x", timeout=TIMEOUT_S)
        responder.close()
    finally:
        for client in clients:
            client.close()
