"""Requests and replies through a gateway: scoped keys, forged addresses, broken connections."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.conftest import Eventually
from tests.support.gateways import TIMEOUT_S, local, make_gateway, remote, until_event
from tests.support.proxy import Proxy

import tidecast.sync
from tidecast.access import Scope, new_key
from tidecast.client.core import metadata
from tidecast.client.core.outgoing import Outgoing
from tidecast.client.requests import wire
from tidecast.config.internal import REPLIES, RESPONDERS
from tidecast.config.topology import topology_from
from tidecast.embedded import EmbeddedLink
from tidecast.errors import (
    AuthError,
    ConnectionLost,
    NoResponders,
    RequestFailed,
    ResponderLost,
    TidecastError,
)
from tidecast.events import AccessDenied, GatewayBack
from tidecast.gateway.server import Gateway

ASKER, ASKER_KEY = new_key("asker", [Scope(pattern="orders.*", rights=["publish"])])
WORKER, WORKER_KEY = new_key("worker", [Scope(pattern="orders.*", rights=["publish", "subscribe"])])
WATCHER, WATCHER_KEY = new_key("watcher", [Scope(pattern=">", rights=["subscribe"])])


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedLink]:
    keys = [msgspec.to_builtins(each) for each in (ASKER_KEY, WORKER_KEY, WATCHER_KEY)]
    settings = {"transports": [{"name": "ipc", "kind": "ipc"}], "keys": keys}
    directory: Path = tmp_path_factory.mktemp("node")
    link = EmbeddedLink.open(topology_from(settings), data_dir=directory, name="host")
    yield link
    link.close()


@pytest.fixture
def gateway(node: EmbeddedLink) -> Iterator[Gateway]:
    made = make_gateway(node, find_key=node.node.keys.find, notify=node.node.notify_all)
    yield made
    made.stop()


@pytest.fixture
def asker(gateway: Gateway) -> Iterator[tidecast.sync.Connection]:
    with remote(gateway.url, "asker", token=ASKER) as client:
        yield client


@pytest.fixture
def worker(gateway: Gateway) -> Iterator[tidecast.sync.Connection]:
    with remote(gateway.url, "worker", token=WORKER) as client:
        yield client


def upper(request: Any) -> bytes:
    if request.data == b"bad":
        raise ValueError("bad")
    data: bytes = request.data
    return data.upper()


class Serving:
    """A responder that serves in a thread."""

    def __init__(self, client: tidecast.sync.Connection, topic: str) -> None:
        self.responder = client.responder(topic)
        self._thread = threading.Thread(target=self.responder.serve, args=(upper,))
        self._thread.start()

    def __enter__(self) -> Serving:
        return self

    def __exit__(self, *_: object) -> None:
        self.responder.close()
        self._thread.join(TIMEOUT_S)


@pytest.mark.parametrize("where", ["remote", "local"])
def test_remote_requests(
    where: str,
    node: EmbeddedLink,
    asker: Any,
    worker: tidecast.sync.Connection,
    eventually: Eventually,
) -> None:
    topic = f"orders.{where}"
    with local(node) as near, Serving(worker if where == "remote" else near, topic):
        assert asker.request(topic, b"hello", headers={"a": 1}).data == b"HELLO"
        assert near.request(topic, b"near").data == b"NEAR"
        with pytest.raises(RequestFailed, match="ValueError: bad"):
            asker.request(topic, b"bad")
        pending = [asker.begin_request(topic, b"x%d" % n) for n in range(500)]
        assert [each.result(TIMEOUT_S).data for each in pending] == [b"X%d" % n for n in range(500)]
        large = bytes(range(97, 107)) * 20_000
        assert asker.request(topic, large).data == large.upper()
        assert [each.data for each in asker.request_many(topic, b"all")] == [b"ALL"]

    def refused() -> bool:
        try:
            asker.request(topic, b"hello")
        except ResponderLost:  # the end of the responder is on its way to the asker
            return False
        except NoResponders:
            return True
        raise AssertionError("nobody is there to reply")

    eventually(refused, "the asker to know that the responder is gone")


def test_a_large_reply_moves_to_a_larger_ring_and_its_responder_is_not_lost(
    node: EmbeddedLink, asker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client may look between the events of the two rings."""
    link, topic = asker.link, "orders.large"
    with local(node) as near, Serving(near, topic):
        assert asker.request(topic, b"small").data == b"SMALL"
        monkeypatch.setattr(
            link, "take_events", lambda: [link._events.popleft()] if link._events else []
        )
        large = b"large" * 200_000
        assert asker.request(topic, large, timeout=TIMEOUT_S).data == large.upper()


def test_rights(node: EmbeddedLink, gateway: Gateway, asker: Any) -> None:
    with pytest.raises(AuthError, match=r"lacks the right subscribe on orders\.a"):
        asker.responder("orders.a")
    with pytest.raises(AuthError, match="lacks the right publish on secret"):
        asker.request("secret", b"")
    with remote(gateway.url, "watcher", token=WATCHER) as watcher:
        with pytest.raises(AuthError, match=r"lacks the right publish on orders\.a"):
            watcher.responder("orders.a")
        with pytest.raises(AuthError, match=r"lacks the right publish on orders\.a"):
            watcher.request("orders.a", b"")
        for prefix in (REPLIES, RESPONDERS):
            with pytest.raises(AuthError, match=r"lacks the right publish on orders\.a"):
                watcher.subscribe(prefix + "orders.a")
    assert gateway.counts["denied"] >= 5


def test_replies_are_read_by_their_requester_alone(
    node: EmbeddedLink, gateway: Gateway, asker: Any
) -> None:
    with (
        local(node) as near,
        near.responder("orders.b") as responder,
        remote(gateway.url, "spy", token=ASKER) as spy,
        spy.subscribe(REPLIES + "orders.b") as replies,
    ):
        pending = asker.begin_request("orders.b", b"")
        responder.next(TIMEOUT_S).respond(b"private")
        assert pending.result(TIMEOUT_S).data == b"private"
        mine = spy.begin_request("orders.b", b"")
        responder.next(TIMEOUT_S).respond(b"of the spy")
        assert mine.result(TIMEOUT_S).data == b"of the spy"
        assert len(replies.poll()) == 0


def ends(publisher: Any, eventually: Eventually) -> str:
    """Why the gateway ended a publication."""

    def ended() -> bool:
        publisher.connection.pump()
        return bool(publisher.closed)

    eventually(ended, "the end of the publication")
    with pytest.raises(TidecastError) as caught:
        publisher.publish(b"")
    return str(caught.value)


def test_a_request_with_a_forged_return_address_is_left_out(
    node: EmbeddedLink, gateway: Gateway, asker: Any
) -> None:
    with local(node) as near, near.responder("orders.c") as responder:
        pending = near.begin_request("orders.c", b"")
        to = responder.next(TIMEOUT_S)._answering.to
        tail = wire.home_tail(to.token, to.node, to.subscriber)
        address = to.number.to_bytes(8, "little") + tail
        publisher = asker.publisher("orders.c")
        meta = wire.request_lead(responder.subscriber_id) + address
        denied = gateway.counts["denied"]
        publisher.attempt(Outgoing(b"forged", meta, wire.PLAIN_FLAGS, to.node, True))
        until_event(near, AccessDenied)
        assert gateway.counts["denied"] == denied + 1
        pending.cancel()
        asked = asker.begin_request("orders.c", b"own")
        assert responder.next(TIMEOUT_S).data == b"own"
        asked.cancel()


@pytest.mark.parametrize("name", ["tidecast-reply", "tidecast-for"])
def test_forged_headers_are_refused(
    node: EmbeddedLink, asker: Any, eventually: Eventually, name: str
) -> None:
    publisher = asker.publisher("orders.d")
    meta, flags = metadata.encode(None, {name: b"x" * 16}, None, 1, of_engine=True)
    publisher.attempt(Outgoing(b"", meta, flags, node.node_id, True))
    assert "are the engine's own" in ends(publisher, eventually)


@pytest.mark.parametrize("how", ["to all nodes", "to all subscriptions"])
def test_a_reply_to_all_is_refused(
    node: EmbeddedLink, worker: tidecast.sync.Connection, eventually: Eventually, how: str
) -> None:
    publisher = worker.publisher(REPLIES + "orders.e")
    meta, flags = wire.reply_meta(wire.Return(1, 2, node.node_id, 3), None, None)
    if how == "to all nodes":
        publisher.attempt(Outgoing(b"", meta, flags, 0, True))
    else:
        publisher.attempt(Outgoing(b"", b"", 0, node.node_id, True))
    assert "one subscription of one node" in ends(publisher, eventually)


def test_a_responder_goes_on_after_its_connection_broke(
    node: EmbeddedLink, worker: Any, eventually: Eventually
) -> None:
    with local(node) as near, Serving(worker, "orders.f"):
        assert near.request("orders.f", b"a").data == b"A"
        worker.link._hang_up()
        until_event(worker, GatewayBack)

        def answered() -> bool:
            try:
                return near.request("orders.f", b"b", timeout=TIMEOUT_S).data == b"B"
            except NoResponders:
                return False  # it has yet to announce itself again

        eventually(answered, "the responder to be found again")


def test_a_requester_goes_on_after_its_connection_broke(node: EmbeddedLink, asker: Any) -> None:
    with local(node) as near, near.responder("orders.g") as responder:
        pending = asker.begin_request("orders.g", b"")
        request = responder.next(TIMEOUT_S)
        asker.link._hang_up()
        with pytest.raises(ConnectionLost, match="the gateway is lost"):
            pending.result(TIMEOUT_S)
        request.respond(b"late")
        until_event(asker, GatewayBack)
        again = asker.begin_request("orders.g", b"again")
        responder.next(TIMEOUT_S).respond(b"here")
        assert again.result(TIMEOUT_S).data == b"here"


def test_a_remote_responder_that_leaves_fails_its_requests(
    node: EmbeddedLink, gateway: Gateway
) -> None:
    with local(node) as near:
        worker = remote(gateway.url, "leaves", token=WORKER)
        responder = worker.responder("orders.h")
        pending = near.begin_request("orders.h", b"")
        responder.next(TIMEOUT_S)
        worker.close()
        with pytest.raises(ResponderLost):
            pending.result(TIMEOUT_S)


def test_what_is_published_beside_requests_survives_their_session(
    node: EmbeddedLink, gateway: Gateway
) -> None:
    """The next session may not send its predecessor's requests: their replies go elsewhere."""
    proxy = Proxy(gateway.port)
    service = "orders.cut"
    with (
        local(node) as near,
        Serving(near, service),
        near.subscribe(service) as all_,
        remote(proxy.url, "asker", token=ASKER) as asker,
    ):
        assert asker.request(service, b"one", timeout=TIMEOUT_S).data == b"ONE"
        proxy.hold()
        asker.publish(service, b"before")
        pending = asker.begin_request(service, b"never", timeout=TIMEOUT_S)
        asker.publish(service, b"behind")
        proxy.cut()
        gateway.stop()
        again = make_gateway(node, find_key=node.node.keys.find)
        try:
            proxy.target = ("127.0.0.1", again.port)
            proxy.resume()
            until_event(asker, GatewayBack)
            with pytest.raises(ConnectionLost):
                pending.result(timeout=TIMEOUT_S)
            assert asker.request(service, b"two", timeout=TIMEOUT_S).data == b"TWO"
            found = [bytes(all_.next(timeout=TIMEOUT_S).data) for _ in range(2)]
            assert found == [b"before", b"behind"]
        finally:
            again.stop()
            proxy.close()
