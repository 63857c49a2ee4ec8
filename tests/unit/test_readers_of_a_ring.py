"""A ring has places for so many subscriptions of a node. The next one is refused, no publisher."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.gateways import TIMEOUT_S, local, until_event

from tidecast.config.topology import topology_from
from tidecast.embedded import EmbeddedLink
from tidecast.errors import Conflict
from tidecast.events import SubscriptionEnded
from tidecast.node.live.agent_tables import READERS_MAX


@pytest.fixture(scope="module")
def link(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedLink]:
    settings = {"transports": [{"name": "ipc", "kind": "ipc"}]}
    made = EmbeddedLink.open(topology_from(settings), data_dir=tmp_path_factory.mktemp("node"))
    yield made
    made.close()


@pytest.mark.parametrize("publisher_first", [False, True])
def test_a_further_subscription_is_refused_and_publishers_are_served(
    link: EmbeddedLink, publisher_first: bool
) -> None:
    topic = f"full{int(publisher_first)}"
    with local(link) as client, local(link) as other:
        if publisher_first:
            other.publish(topic, b"before", flush=True)
        subs = [client.subscribe(topic).open() for _ in range(READERS_MAX)]
        with pytest.raises(Conflict, match=rf"topic {topic}: this node has 38 subscriptions"):
            client.subscribe(topic).open()
        other.publish(topic, b"x", flush=True)
        assert {bytes(sub.next(TIMEOUT_S).data) for sub in subs} == {b"x"}
        subs[0].close()
        with client.subscribe(topic) as last:
            other.publish(topic, b"y", flush=True)
            assert bytes(last.next(TIMEOUT_S).data) == b"y"
        for sub in subs[1:]:
            sub.close()


def test_a_pattern_that_finds_a_full_ring_later_ends(link: EmbeddedLink) -> None:
    with local(link) as client, local(link) as other:
        subs = [client.subscribe("late.t").open() for _ in range(READERS_MAX)]
        wild = client.subscribe("late.*").open()
        other.publish("late.t", b"x", flush=True)
        assert {bytes(sub.next(TIMEOUT_S).data) for sub in subs} == {b"x"}
        ended = until_event(client, SubscriptionEnded)
        assert (ended.pattern, ended.code) == ("late.*", "conflict")
        with pytest.raises(Conflict, match=r"topic late\.t: this node has 38 subscriptions"):
            wild.next(TIMEOUT_S)
        with pytest.raises(Conflict, match=r"topic late\.t: this node has 38 subscriptions"):
            client.subscribe("late.>").open()
        for sub in subs:
            sub.close()


def test_a_further_requester_is_refused_with_the_name_of_the_topic(link: EmbeddedLink) -> None:
    clients = [local(link) for _ in range(READERS_MAX + 2)]
    try:
        service, *requesters = clients
        responder = service.responder("ask")
        for number, client in enumerate(requesters[:-1]):
            asked = client.begin_request("ask", b"%d" % number)
            responder.next(TIMEOUT_S).respond(b"yes")
            assert asked.result(TIMEOUT_S).data == b"yes"
        with pytest.raises(Conflict, match="topic ask: this node has 38 requesters of it"):
            requesters[-1].request("ask", b"x", timeout=TIMEOUT_S)
        responder.close()
    finally:
        for client in clients:
            client.close()
