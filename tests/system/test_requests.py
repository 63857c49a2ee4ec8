"""Requests between processes and engines: over multicast, and when one of them is killed."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import pytest
from tests.conftest import Eventually
from tests.support.lab import Lab

import tidecast.sync
from tidecast.errors import ConnectionLost, NoResponders, RequestTimeout, ResponderLost

SOON_S = 5.0


def found(client: tidecast.sync.Connection, topic: str, n: int) -> bool:
    """``n`` responders are known to a client."""
    try:
        client.begin_request(topic, b"x").result(30.0)
    except NoResponders:
        return False
    (about,) = client.stats()["client"]["requests"]
    return bool(about["responders"] == n)


def test_engines_share_requests_over_multicast(lab: Lab, eventually: Eventually) -> None:
    left, right = lab.pair()
    client = right.connect()
    with pytest.raises(NoResponders):
        client.request("work", b"")
    with left.connect().responder("work") as one, right.connect().responder("work") as two:
        handled: Counter[int] = Counter()
        pending: list[Any] = []

        def answer() -> bool:
            for number, responder in enumerate((one, two)):
                for request in responder.poll():
                    handled[number] += 1
                    request.respond(b"%d" % number + request.data)
            return all(each.poll() for each in pending)

        first = client.begin_request("work", b"first", timeout=10.0)
        pending.append(first)
        eventually(answer, "the first reply")
        eventually(
            lambda: client.stats()["client"]["requests"][0]["responders"] == 2, "both responders"
        )
        handled.clear()
        pending = [client.begin_request("work", b" %d" % n, timeout=30.0) for n in range(400)]
        eventually(answer, "all replies", timeout_s=30.0)
        assert handled == {0: 200, 1: 200}
        assert [each.result().data.partition(b" ")[2] for each in pending] == [
            b"%d" % n for n in range(400)
        ]
        large = bytes(range(256)) * 2000
        pending = [client.begin_request("work", large, timeout=30.0) for _ in range(4)]
        eventually(answer, "large replies", timeout_s=30.0)
        assert {each.result().data[1:] for each in pending} == {large}
        replies = client.request_many("work", b"all", timeout=30.0)
        assert replies.asked == 2
        pending.clear()
        eventually(lambda: answer() and handled[0] + handled[1] == 406, "all have handled it")
        assert sorted(each.data for each in replies) == [b"0all", b"1all"]
    eventually(
        lambda: not left.overview().publications, "announcements and replies to end", timeout_s=30.0
    )


@pytest.mark.parametrize("where", ["same engine", "other engine"])
def test_a_killed_responder_fails_its_requests_at_once(
    lab: Lab, eventually: Eventually, where: str
) -> None:
    left, right = lab.pair()
    platform = left if where == "same engine" else right
    role = lab.role("respond", platform.url, "work")
    client = left.connect()
    eventually(lambda: found(client, "work", 1), "the responder")
    assert client.request("work", b"hello").data == b"HELLO"
    pending = client.begin_request("work", b"hold")
    assert role.line() == "held"
    role.kill()
    began_s = time.monotonic()
    with pytest.raises(ResponderLost):
        pending.result(timeout=None)
    assert time.monotonic() - began_s < SOON_S
    with pytest.raises(NoResponders):
        client.request("work", b"hello", timeout=None)


def test_the_engine_of_a_responder_is_killed(lab: Lab, eventually: Eventually) -> None:
    left, right = lab.pair(image_timeout_s=2.0)
    role = lab.role("respond", right.url, "work")
    client = left.connect()
    eventually(lambda: found(client, "work", 1), "the responder")
    pending = client.begin_request("work", b"hold")
    assert role.line() == "held"
    right.kill()
    with pytest.raises(RequestTimeout):
        client.request("work", b"hello", timeout=0.5)
    with pytest.raises((RequestTimeout, ResponderLost)):
        pending.result(timeout=20.0)
    right.start()

    def answers() -> bool:
        try:
            return client.request("work", b"again", timeout=1.0).data == b"AGAIN"
        except (NoResponders, RequestTimeout, ResponderLost):
            return False

    eventually(answers, "the responder to be back", timeout_s=30.0)


def test_the_engine_of_both_is_killed(lab: Lab, eventually: Eventually) -> None:
    platform = lab.platform()
    role = lab.role("respond", platform.url, "work")
    client = platform.connect()
    eventually(lambda: found(client, "work", 1), "the responder")
    pending = client.begin_request("work", b"hold")
    assert role.line() == "held"
    platform.kill()
    with pytest.raises(ConnectionLost):
        pending.result(timeout=None)
    platform.start()

    def answers() -> bool:
        try:
            return client.request("work", b"again", timeout=1.0).data == b"AGAIN"
        except (ConnectionLost, NoResponders, RequestTimeout, ResponderLost):
            return False

    eventually(answers, "requests to work again", timeout_s=30.0)
