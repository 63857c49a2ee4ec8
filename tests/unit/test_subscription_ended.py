"""A topic is deleted under its subscribers: they read what was published, then they learn it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.support.gateways import TIMEOUT_S, local, make_gateway, remote, until_event

import tidecast
from tidecast.config.topology import TopicConfig, topology_from
from tidecast.embedded import EmbeddedLink
from tidecast.errors import Closed
from tidecast.events import SubscriptionEnded


@pytest.fixture(scope="module")
def link(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedLink]:
    settings = {"transports": [{"name": "ipc", "kind": "ipc"}]}
    made = EmbeddedLink.open(topology_from(settings), data_dir=tmp_path_factory.mktemp("node"))
    yield made
    made.close()


def test_it_learns_of_the_end_behind_what_was_published(link: EmbeddedLink) -> None:
    node = link.node
    with local(link) as one, local(link) as other, other.subscribe(">") as everything:
        sub, elsewhere = other.subscribe("t").open(), other.subscribe("u").open()
        publisher = one.publisher("t")
        publisher.publish(b"seen", flush=True)
        assert bytes(sub.next(TIMEOUT_S).data) == b"seen"
        publisher.publish(b"unseen", flush=True)
        node.delete_topic("t")
        assert sub.next(TIMEOUT_S).data == b"unseen"
        assert sub.subscription_id in node.context.ending_subs, (
            "its publisher may still add to the ring"
        )
        one.pump()
        with pytest.raises(Closed, match="topic t: it was deleted: subscribe again"):
            list(sub)
        assert (sub.closed, node.context.ending_subs) == (True, {})
        for call in (sub.poll, sub.next, lambda: list(sub), lambda: list(sub.batches())):
            with pytest.raises(Closed, match="it was deleted"):
                call()
        ended = until_event(other, SubscriptionEnded)
        assert (ended.pattern, ended.code) == ("t", "closed")
        # Others go on, and the topic may come again.
        one.publish("u", b"u", flush=True)
        assert bytes(elsewhere.next(TIMEOUT_S).data) == b"u"
        with other.subscribe("t") as again:
            one.publisher("t").publish(b"again", flush=True)
            assert bytes(again.next(TIMEOUT_S).data) == b"again"
        found = sorted(bytes(everything.next(TIMEOUT_S).data) for _ in range(4))
        assert found == [b"again", b"seen", b"u", b"unseen"]


def test_a_topic_made_anew_at_once_is_read_on(link: EmbeddedLink) -> None:
    node = link.node
    with local(link) as client, client.subscribe("anew") as sub:
        client.publish("anew", b"before", flush=True)
        node.delete_topic("anew", keep_data=True)
        node.create_topic(TopicConfig(name="anew", transport="ipc", history_bytes=1 << 20))
        assert bytes(sub.next(TIMEOUT_S).data) == b"before"
        client.publish("anew", b"after", flush=True)
        assert bytes(sub.next(TIMEOUT_S).data) == b"after"


@pytest.mark.parametrize("over", ["engine", "gateway"])
@pytest.mark.parametrize("how", ["iterate", "run", "wait"])
def test_whoever_waits_is_woken(
    link: EmbeddedLink, over: str, how: str, eventually: Callable[..., None]
) -> None:
    gateway = make_gateway(link)
    try:
        with remote(gateway.url) if over == "gateway" else local(link) as client:
            publisher = client.publisher("w", buffer=False)
            sub = client.subscribe("w").open()
            publisher.publish(b"one", flush=True)
            eventually(sub.lag, "the message to arrive")
            if how == "wait":
                assert bytes(sub.next(TIMEOUT_S).data) == b"one"
            deleter = threading.Timer(0.05, link.node.delete_topic, ["w"])
            deleter.start()
            seen: list[bytes] = []
            waits: dict[str, Any] = {
                "iterate": lambda: seen.extend(bytes(each.data) for each in sub),
                "run": lambda: sub.run(lambda message: seen.append(bytes(message.data))),
                "wait": lambda: sub.next(),
            }
            with pytest.raises(Closed, match="topic w: it was deleted"):
                waits[how]()
            deleter.join()
            if how in ("iterate", "run"):
                assert seen == [b"one"]
            assert until_event(client, SubscriptionEnded).subscription_id == sub.subscription_id
    finally:
        gateway.stop()
    assert link.node.context.ending_subs == {}


def test_asyncio(link: EmbeddedLink) -> None:
    async def scene() -> None:
        inner: Any = EmbeddedLink(link.node, "async", owns_node=False)
        async with tidecast.connect(link=inner) as client, client.subscribe("a") as sub:
            await client.publish("a", b"one", flush=True)
            task = asyncio.create_task(sub.next(TIMEOUT_S))
            assert bytes((await task).data) == b"one"
            waiting = asyncio.create_task(sub.next(TIMEOUT_S))
            await asyncio.sleep(0)
            link.node.delete_topic("a")
            with pytest.raises(Closed, match="topic a: it was deleted"):
                await waiting
            with pytest.raises(Closed, match="topic a: it was deleted"):
                async for _ in sub:
                    pass

    asyncio.run(scene())
