"""Requests between nodes of a simulated network: loss, a cut, nodes that are killed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tidecast.errors import NoResponders, ResponderLost, TidecastError
from tidecast.testing import Network

TOPIC = "orders"


def answer(responders: list[Any], pending: list[Any], limit: int = 20_000) -> int:
    """Let responders answer until all requests are done; how many they handled."""
    handled = 0
    for _ in range(limit):
        for responder in responders:
            for request in responder.poll(4096):
                request.respond(request.data[::-1])
                handled += 1
        waiting = [each for each in pending if not each.done]
        if not waiting:
            return handled
        waiting[0].poll()
    raise AssertionError(f"{len(waiting)} requests are not done")


def until(call: Callable[[], Any], network: Network, limit: int = 5000) -> None:
    for _ in range(limit):
        if call():
            return
        network.run(1000.0)
    raise AssertionError("it never came true")


@pytest.mark.parametrize("drop", [0.0, 0.05])
def test_each_request_has_one_handler_and_its_reply(drop: float) -> None:
    with Network(seed=11, drop=drop, reorder=drop) as network:
        nodes = [network.node(name, topics=[TOPIC]) for name in ("a", "b", "c")]
        clients = [node.connect() for node in nodes]
        responders = [client.responder(TOPIC, group="g") for client in clients[:2]]
        asker = clients[2]
        asker.begin_request(TOPIC, b"").cancel()
        until(lambda: asker.stats()["client"]["requests"][0]["responders"] == 2, network)
        for responder in responders:
            responder.poll()
        payloads = [b"request %d" % n for n in range(1000)]
        pending = [asker.begin_request(TOPIC, each) for each in payloads]
        assert answer(responders, pending) in (1000, 1001)  # the first one may come as late
        assert [each.result().data for each in pending] == [each[::-1] for each in payloads]
        counts = asker.stats()["client"]["requests"][0]
        assert (counts["replies"], counts["lapped"], counts["lost"]) == (1000, 0, 0)
        assert sum(nodes[2].count(name) for name in ("LOST_FOR_GOOD",)) == 0
        naks = sum(node.count("NAKS_SENT") for node in nodes)
        assert (naks > 0) == (drop > 0)


def test_an_answer_comes_from_each_node() -> None:
    with Network(seed=12, drop=0.05) as network:
        clients = [network.node(name, topics=[TOPIC]).connect() for name in ("a", "b", "c")]
        responders = [client.responder(TOPIC) for client in clients]
        asker = clients[0]
        asker.begin_request(TOPIC, b"").cancel()
        until(lambda: asker.stats()["client"]["requests"][0]["responders"] == 3, network)
        replies = asker.request_many(TOPIC, b"all", timeout=None)
        assert replies.asked == 3
        for _ in range(3):
            until(lambda: _respond(responders), network)
        assert [reply.data for reply in replies] == [b"all"] * 3


def _respond(responders: list[Any]) -> bool:
    for responder in responders:
        for request in responder.poll():
            if request.data:
                request.respond(request.data)
                return True
            request.respond(b"")
    return False


def test_without_responders_on_any_node_the_request_fails() -> None:
    with Network(seed=13) as network:
        network.node("a", topics=[TOPIC]).connect().subscribe(TOPIC)
        asker = network.node("b", topics=[TOPIC]).connect()
        with pytest.raises(NoResponders):
            asker.request(TOPIC, b"", timeout=None)


def test_a_responder_whose_node_is_killed_fails_its_requests() -> None:
    with Network(seed=14) as network:
        a, b = network.node("a", topics=[TOPIC]), network.node("b", topics=[TOPIC])
        responder, asker = a.connect().responder(TOPIC), b.connect()
        pending = asker.begin_request(TOPIC, b"")
        until(lambda: responder.poll(), network)
        network.kill("a")
        until(pending.poll, network, 100_000)
        with pytest.raises(ResponderLost):
            pending.result()
        with pytest.raises(NoResponders):
            asker.request(TOPIC, b"", timeout=None)


def test_a_responder_is_found_again_after_a_cut() -> None:
    with Network(seed=15) as network:
        a, b = network.node("a", topics=[TOPIC]), network.node("b", topics=[TOPIC])
        responder, asker = a.connect().responder(TOPIC), b.connect()
        answer([responder], [asker.begin_request(TOPIC, b"1")])
        network.partition("a", "b")
        pending = asker.begin_request(TOPIC, b"2")
        until(pending.poll, network, 100_000)  # image_timeout_s of silence
        with pytest.raises(ResponderLost):
            pending.result()
        network.heal()

        def asks() -> bool:
            try:
                again.append(asker.begin_request(TOPIC, b"3", timeout=0.0))
            except TidecastError:
                return False
            return True

        again: list[Any] = []
        until(asks, network)
        answer([responder], again)
        assert again[0].result().data == b"3"
