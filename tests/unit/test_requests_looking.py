"""Replies that come soon: an event loop looks on for a while before it sleeps."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

import tidecast
from tidecast.client.requests.connection import known_requester
from tidecast.client.waiting import LoopSpin
from tidecast.config.topology import topology_from
from tidecast.embedded import EmbeddedLink

TIMEOUT_S = 30.0


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedLink]:
    settings = {"transports": [{"name": "ipc", "kind": "ipc"}]}
    link = EmbeddedLink.open(topology_from(settings), data_dir=tmp_path_factory.mktemp("node"))
    yield link
    link.close()


def upper(request: Any) -> bytes:
    return bytes(request.data).upper()


def _client(node: EmbeddedLink, name: str) -> Any:
    """An asyncio client of the module's node."""
    link: Any = EmbeddedLink(node.node, name, owns_node=False)
    return tidecast.connect(link=link)


def _in_flight(client: Any, topic: str) -> int:
    """Requests of a client that wait for their replies."""
    asking = known_requester(client, topic)
    return 0 if asking is None else asking.stats()["in_flight"]


def test_a_request_that_is_cancelled_before_its_first_look_is_forgotten(
    node: EmbeddedLink,
) -> None:
    """Its task is cancelled in the turn that it gives to others."""

    async def ask() -> None:
        async with _client(node, "early") as client, client.responder("cancel.early"):
            task = asyncio.create_task(client.request("cancel.early", b"", timeout=None))
            while not _in_flight(client, "cancel.early"):  # noqa: ASYNC110 - turns count here
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert _in_flight(client, "cancel.early") == 0

    asyncio.run(ask())


def test_requests_one_by_one_let_other_tasks_run(node: EmbeddedLink) -> None:
    """Replies that are found by looking, without a sleep of the loop, starve no task."""

    async def ask() -> None:
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        async with _client(node, "turns") as client, client.responder("turns") as responder:
            serving = asyncio.create_task(responder.serve(upper))
            await client.request("turns", b"first", timeout=TIMEOUT_S)
            counting = asyncio.create_task(count())
            for n in range(200):
                await client.request("turns", b"%d" % n, timeout=TIMEOUT_S)
            assert turns >= 200
            for task in (counting, serving):
                task.cancel()
            await asyncio.gather(counting, serving, return_exceptions=True)

    asyncio.run(ask())


def test_looks_that_do_not_pay_become_rare() -> None:
    """1, 3, 7, ... 63 waits without; the first that pays makes the next one look again."""
    spin, looked = LoopSpin(), []
    for wait in range(400):
        if spin.looks():
            looked.append(wait)
            spin.looked(found=False)
    without = [b - a - 1 for a, b in pairwise(looked)]
    assert without[:6] == [1, 3, 7, 15, 31, 63]
    assert set(without[6:]) == {63}
    while not spin.looks():
        pass
    spin.looked(found=True)
    assert spin.looks() > 0
