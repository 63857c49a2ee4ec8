"""Browsing over engines and queues: all that is kept, once, in order; what was not seen is said."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.logs import opened, put
from tidecast.control_link.browse import browse
from tidecast_control.kit.problems import ProblemError
from tidecast_control.messages.browse import Found, Kept, decode, search

NODES = ("a", "b")


class Hub:
    """Engines in this process: what `search` needs of the hub."""

    def __init__(self) -> None:
        self.topics: dict[str, Any] = {}
        self.failing: dict[str, ProblemError] = {}

    def connected(self) -> list[str]:
        return sorted({*self.topics, *self.failing})

    async def ask(self, node: str, command: str, args: dict[str, Any]) -> dict[str, Any]:
        assert command == "browse"
        if node in self.failing:
            raise self.failing[node]
        answer: dict[str, Any] = browse(SimpleNamespace(name=node), self.topics[node], args)  # type: ignore[arg-type]
        return answer


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    """Two engines with three queues each; message n was published at n, by turns."""
    made = Hub()
    logs = {node: [opened(tmp_path / node / str(q), queue=q) for q in range(3)] for node in NODES}
    for n in range(60):
        log = logs[NODES[n % 2]][n // 2 % 3]
        put(log, str(n).encode(), time_ns=1_000_000 + n)
    for node, each in logs.items():
        made.topics[node] = SimpleNamespace(logs=each, config=SimpleNamespace(name="t"))
    yield made
    for each in logs.values():
        for log in each:
            log.close()


EACH = Kept(True, "", 3, NODES)


def _page(hub: Any, kept: Kept = EACH, cursor: str | None = None, **args: Any) -> Found:
    wanted = {"topic": "t", "start": "earliest", "limit": 7, "q": "", "node": ""} | args
    place = None if cursor is None else decode(cursor, "t")
    return asyncio.run(search(hub, kept, wanted, place))


def _numbers(page: Found) -> list[int]:
    return [int(base64.b64decode(m["payload"])) for m in page.messages]


def test_all_queues_of_all_engines_are_read_forward_page_by_page(hub: Hub) -> None:
    page, found = _page(hub), list[int]()
    while True:
        found += _numbers(page)
        if page.complete:
            break
        page = _page(hub, cursor=page.next_cursor)
    assert found == list(range(60))
    put(hub.topics["b"].logs[1], b"60", time_ns=2_000_000)
    assert _numbers(_page(hub, cursor=page.next_cursor)) == [60]


def test_the_newest_are_read_and_then_the_older_ones(hub: Hub) -> None:
    page, found = _page(hub, start="latest"), list[int]()
    assert _numbers(page) == list(range(53, 60))
    newest = page
    while True:
        found = _numbers(page) + found
        if page.previous_cursor is None:
            break
        page = _page(hub, cursor=page.previous_cursor)
    assert page.complete
    assert found == list(range(60))
    put(hub.topics["a"].logs[0], b"60", time_ns=2_000_000)
    assert _numbers(_page(hub, cursor=newest.next_cursor)) == [60]


def test_pages_lead_back_and_forth(hub: Hub) -> None:
    first = _page(hub)
    second = _page(hub, cursor=first.next_cursor)
    back = _page(hub, cursor=second.previous_cursor)
    assert _numbers(back) == _numbers(first) == list(range(7))
    assert back.previous_cursor is None
    assert _numbers(_page(hub, cursor=back.next_cursor)) == _numbers(second)


def test_a_filter_looks_through_all_of_it(hub: Hub) -> None:
    for start in ("earliest", "latest"):
        page = _page(hub, q="7", start=start)
        assert _numbers(page) == [7, 17, 27, 37, 47, 57], start
        assert page.complete


def test_one_queue_has_a_token_too(hub: Hub) -> None:
    page = _page(hub, queue=1, node="b", limit=4)
    assert _numbers(page) == [3, 9, 15, 21]
    assert page.next_token == "4"
    rest = _page(hub, queue=1, node="b", start="token", token="4", limit=100)
    assert _numbers(rest) == [27, 33, 39, 45, 51, 57]
    assert rest.complete
    assert _numbers(_page(hub, cursor=page.next_cursor, limit=100)) == _numbers(rest)


def test_what_could_not_be_looked_at_is_said(hub: Hub) -> None:
    hub.topics.pop("b")
    page = _page(hub, limit=100)
    assert _numbers(page) == list(range(0, 60, 2))
    assert not page.complete
    assert [(m.node, m.reason) for m in page.missing] == [("b", "b is not connected")]
    hub.failing["b"] = ProblemError("node_timeout", "b: no answer to browse")
    page = _page(hub, limit=100)
    assert not page.complete
    assert [(m.node, m.reason) for m in page.missing] == [("b", "b: no answer to browse")]
    hub.topics.clear()
    with pytest.raises(ProblemError, match="no answer to browse"):
        _page(hub)


def test_the_owner_of_the_queues_is_asked_not_the_first_node(hub: Hub) -> None:
    owned = Kept(True, "b", 3, NODES)
    page = _page(hub, owned, limit=100)
    assert _numbers(page) == list(range(1, 60, 2))
    assert page.complete
    hub.topics["a"].logs = []  # it has no queue of this topic
    hub.topics.pop("b")
    page = _page(hub, owned)
    assert (page.messages, page.complete) == ([], False)
    (missing,) = page.missing
    assert (missing.node, missing.queues) == ("b", [0, 1, 2])
    shared = _page(hub, Kept(True, "*", 3, NODES)).missing
    assert [(m.queues, m.reason) for m in shared] == [([0, 1, 2], "no connected engine has them")]


def test_a_cursor_of_another_topic_or_made_up_is_refused(hub: Hub) -> None:
    cursor = _page(hub).next_cursor
    assert cursor is not None
    with pytest.raises(ProblemError, match="made for topic t"):
        decode(cursor, "u")
    for wrong in ("abc", "eJw", cursor[:-4], "A" * 300):
        with pytest.raises(ProblemError, match="not a cursor"):
            decode(wrong, "t")


def test_a_live_message_that_every_engine_heard_is_shown_once() -> None:
    heard = [
        {"topic": "t", "node": node, "session": 1, "at_ns": n, "payload": "", "size": 0}
        for n, node in enumerate(("a", "b", "stranger"))
    ]

    class Live(Hub):
        async def ask(self, node: str, command: str, args: dict[str, Any]) -> dict[str, Any]:
            return {"messages": [dict(m) for m in heard], "scanned": 3, "complete": True}

    hub = Live()
    hub.topics = {"a": None, "b": None}
    page = _page(hub, Kept(False, "", 1, NODES))
    assert [m["node"] for m in page.messages] == ["a", "b", "stranger"]
    assert page.complete
    assert page.next_cursor is None
