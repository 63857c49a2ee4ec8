"""The gateway and its remote clients, in one process: tokens, limits, cuts, slow clients."""

# ruff: noqa: SIM117 - who connects, and then what is done with it

from __future__ import annotations

import logging.config
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.conftest import Eventually
from tests.support.gateways import TIMEOUT_S, TOKEN, local, make_gateway, remote, until_event
from tests.support.hearing import LIMIT_S, HearingClock
from tests.support.proxy import Proxy
from websockets.exceptions import (
    ConnectionClosed,
    ConnectionClosedError,
    InvalidHandshake,
    InvalidMessage,
    InvalidStatus,
)
from websockets.sync.client import connect as connect_websocket
from websockets.typing import Origin

import tidecast
import tidecast.sync
from tidecast.agents import warmup
from tidecast.api import progress
from tidecast.api.frames.common import Failure, Goodbye
from tidecast.api.link import PublicationOptions, SubscriptionOptions
from tidecast.client.remote import dial
from tidecast.client.remote import frames as remote_frames
from tidecast.client.remote import link as remote_link
from tidecast.client.remote.arrivals import Arrivals, Subscribed
from tidecast.config.topology import topology_from
from tidecast.embedded import EmbeddedLink
from tidecast.errors import AuthError, ConfigError, EngineNotRunning, PayloadTooLarge
from tidecast.events import Gap, GatewayBack, GatewayLost
from tidecast.gateway.server import TOKEN_NAME, Gateway, address_of, token_of
from tidecast.gateway.session import RemoteSession
from tidecast.layout import ring as ring_layout
from tidecast.node.live import topics

TOPICS = [
    {"name": "small", "transport": "ipc", "history_bytes": "64KiB"},
    {"name": "rate", "transport": "ipc", "history_bytes": "64KiB", "flow": "rate"},
]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedLink]:
    settings = {"transports": [{"name": "ipc", "kind": "ipc"}], "topics": TOPICS}
    link = EmbeddedLink.open(
        topology_from(settings), data_dir=tmp_path_factory.mktemp("node"), name="host"
    )
    yield link
    link.close()


@pytest.fixture
def gateway(node: EmbeddedLink) -> Iterator[Gateway]:
    made = make_gateway(node)
    yield made
    made.stop()


@pytest.fixture
def proxy(gateway: Gateway) -> Iterator[Proxy]:
    made = Proxy(gateway.port)
    yield made
    made.close()


def payloads(subscription: Any, n: int) -> list[bytes]:
    return [bytes(subscription.next(timeout=TIMEOUT_S).data) for _ in range(n)]


# --- the same API ------------------------------------------------------------------------------
def test_messages_cross_with_all_their_fields(node: EmbeddedLink, gateway: Gateway) -> None:
    with remote(gateway.url) as far, local(node) as near:
        with near.subscribe("md.*") as here, far.subscribe("md.>") as there:
            far.publish("md.eu", b"out", key=b"k", headers={"n": 1}, timestamp=7)
            far.publish("md.eu", b"", subscriber=there.subscriber_id)
            first = here.next(timeout=TIMEOUT_S)
            assert (bytes(first.data), first.key, first.headers) == (b"out", b"k", {"n": 1})
            assert (first.timestamp, first.topic) == (7, "md.eu")
            near.publish("md.us", b"in", key="x")
            assert bytes(here.next(timeout=TIMEOUT_S).data) == b"in", "the other was not for it"
            found = [there.next(timeout=TIMEOUT_S).copy() for _ in range(3)]
            assert sorted(bytes(m.data) for m in found) == [b"", b"in", b"out"]
            assert {m.node for m in found} == {node.node_name}
            assert far.stats()["gateway"]["messages_in"] == 2


def test_batches_keep_order_and_arrive_once(gateway: Gateway) -> None:
    with remote(gateway.url) as far, far.subscribe("many") as there:
        sent = [b"%d" % i + bytes(i % 50) for i in range(20_000)]
        with far.publisher("many") as publisher:
            publisher.publish_batch(sent).check()
            assert payloads(there, len(sent)) == sent


def test_long_messages_and_the_limit(gateway: Gateway) -> None:
    with remote(gateway.url) as far, far.subscribe("long") as there:
        with far.publisher("long", channel="large") as publisher:
            sent = [bytes([i]) * n for i, n in enumerate((3_000_000, 10, 6_000_000, 700_000))]
            for each in sent:
                publisher.publish(each, headers={"i": 1})
            assert payloads(there, 4) == sent


def test_a_message_as_long_as_a_gateway_takes(gateway: Gateway) -> None:
    """Batches too: the ring of 1,400-byte packets that holds it would take more."""
    longest = remote_frames.MESSAGE_BYTES_MAX
    with remote(gateway.url) as far, far.subscribe("long") as there:
        with far.publisher("long", channel="large") as publisher:
            publisher.publish(bytes(longest))
            for wrong in (
                lambda: publisher.publish(bytes(longest + 1)),
                lambda: publisher.publish(bytes(longest), key="k"),
                lambda: publisher.publish_batch([b"1", bytes(longest + 1)]).check(),
            ):
                with pytest.raises(PayloadTooLarge, match=f"the limit is {longest}: a gateway"):
                    wrong()
            assert len(there.next(timeout=TIMEOUT_S).data) == longest


def test_asyncio_too(gateway: Gateway) -> None:
    import asyncio

    async def go() -> bytes:
        async with tidecast.connect(gateway.url, token=TOKEN) as far:
            async with far.subscribe("aio") as there:
                await far.publish("aio", b"x")
                return bytes((await there.next(timeout=TIMEOUT_S)).data)

    assert asyncio.run(go()) == b"x"


def test_what_was_published_is_there_when_close_returns(node: EmbeddedLink, proxy: Proxy) -> None:
    with local(node) as near, near.subscribe("closing") as here:
        with remote(proxy.url) as far:
            far.publish_batch("closing", [b"%d" % i for i in range(5000)]).check()
        assert payloads(here, 5000) == [b"%d" % i for i in range(5000)]


def test_errors_of_the_node_come_back_typed(gateway: Gateway) -> None:
    with remote(gateway.url) as far:
        with pytest.raises(ConfigError, match="topic"):
            far.publisher("not a name!")
        assert far.health().healthy


# --- who may come in ---------------------------------------------------------------------------
@pytest.mark.parametrize("token", [None, "", "wrong", TOKEN + "x", TOKEN[:-1]])
def test_wrong_tokens(gateway: Gateway, token: str | None, monkeypatch: Any) -> None:
    monkeypatch.delenv("TIDECAST_TOKEN", raising=False)
    with pytest.raises(AuthError, match="refuses the token") as refused:
        tidecast.sync.connect(gateway.url, token=token)
    assert TOKEN not in str(refused.value)
    assert gateway.counts["refused"] == 1


def test_browsers_and_other_paths_are_refused(gateway: Gateway) -> None:
    uri = f"ws://{gateway.host}:{gateway.port}"
    headers = {"Authorization": f"Bearer {TOKEN}"}
    with pytest.raises(InvalidStatus) as other:
        connect_websocket(uri + "/", additional_headers=headers, proxy=None)
    assert other.value.response.status_code == 404
    with pytest.raises(InvalidStatus) as page:
        connect_websocket(
            uri + remote_frames.PATH,
            additional_headers=headers,
            proxy=None,
            origin=Origin("https://page.example"),
        )
    assert page.value.response.status_code == 403


def test_tokens_are_never_logged(gateway: Gateway, caplog: pytest.LogCaptureFixture) -> None:
    # A program may configure logging so: this call enables all disabled loggers.
    logging.config.dictConfig({"version": 1, "disable_existing_loggers": False})
    caplog.set_level(0)
    with remote(gateway.url):
        pass
    with pytest.raises(AuthError):
        tidecast.sync.connect(gateway.url, token="hunter2-hunter2-hunter2")
    shown = [r.getMessage() for r in caplog.records]
    assert shown, "nothing was logged"
    assert TOKEN not in "".join(shown)
    assert "hunter2" not in "".join(shown)


def test_the_token_file_is_ours_alone(tmp_path: Path) -> None:
    token = token_of(tmp_path)
    path = tmp_path / TOKEN_NAME
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert token_of(tmp_path) == token
    assert len(token) >= 40
    path.chmod(0o640)
    with pytest.raises(ConfigError, match="chmod 600"):
        token_of(tmp_path)
    path.chmod(0o600)
    path.write_text("short\n")
    with pytest.raises(ConfigError, match="at least 16"):
        token_of(tmp_path)


def test_addresses() -> None:
    assert address_of("0.0.0.0:1") == ("0.0.0.0", 1)
    assert address_of(":7400") == ("127.0.0.1", 7400)
    assert address_of("[::1]:7") == ("::1", 7)
    for bad in ("host", "host:", "host:x", "host:70000", ""):
        with pytest.raises(ConfigError, match="gateway"):
            address_of(bad)
    for bad in ("tidecast://h:x", "tidecast://user:pw@h:1", "tidecast://h:1/path"):
        with pytest.raises(ConfigError) as refused:
            tidecast.sync.connect(bad)
        assert "pw" not in str(refused.value)


def test_a_port_that_is_taken_and_one_where_nobody_listens(
    node: EmbeddedLink, gateway: Gateway
) -> None:
    with pytest.raises(ConfigError, match="choose another"):
        Gateway(lambda name: node, TOKEN, port=gateway.port).start()  # type: ignore[arg-type,return-value]
    with pytest.raises(EngineNotRunning, match="no gateway at"):
        tidecast.sync.connect("tidecast://127.0.0.1:1")


# --- clients that do not behave ----------------------------------------------------------------
def raw_client(gateway: Gateway) -> Any:
    socket = connect_websocket(
        f"ws://{gateway.host}:{gateway.port}{remote_frames.PATH}",
        proxy=None,
        compression=None,
        additional_headers={"Authorization": f"Bearer {TOKEN}"},
        max_size=None,
    ).__enter__()
    socket.send(remote_frames.encode(remote_frames.Hello(name="raw")))
    assert isinstance(remote_frames.from_gateway(socket.recv())[0], remote_frames.Welcome)
    return socket


def goodbye(socket: Any) -> str:
    """The last frame of the gateway, or the way the connection ends."""
    try:
        while True:
            frame, _ = remote_frames.from_gateway(socket.recv(TIMEOUT_S))
            if isinstance(frame, Goodbye):
                return frame.reason
    except ConnectionClosed as problem:
        return str(problem)


def test_a_call_waits_while_the_engine_behind_the_gateway_compiles(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, done = threading.Event(), threading.Event()

    def compile_slowly(**_: Any) -> None:
        begun.set()
        assert done.wait(60.0)

    def reason() -> str:
        return "it compiles kernels" if begun.is_set() else ""

    monkeypatch.setattr(topics, "warm_up", compile_slowly)
    monkeypatch.setattr(warmup, "news", reason)
    monkeypatch.setattr(progress, "NEWS_S", 0.05)
    monkeypatch.setattr(remote_link, "REQUEST_TIMEOUT_S", LIMIT_S)
    with remote(gateway.url) as far:
        link: Any = far.link
        clock = HearingClock(link._calls)
        made: list[Any] = []
        thread = threading.Thread(
            target=lambda: made.append(far.topics.ensure("slow.orders", mode="durable"))
        )
        thread.start()
        assert begun.wait(30.0)
        clock.wait()
        done.set()
        thread.join(30.0)
        assert [each.mode for each in made] == ["durable"]
        far.topics.delete("slow.orders")


OPEN = remote_frames.OpenPublication(id=1, number=1, topic="raw", options=PublicationOptions())


@pytest.mark.parametrize(
    ("frames", "reason"),
    [
        (["text"], "text"),
        ([b"\xff\xff\xff\x7fxx"], "header of"),
        ([remote_frames.encode(remote_frames.Hello(name="again"))], "second Hello"),
        (
            [remote_frames.encode(remote_frames.Publish(number=9, batch=1, n=1)) + b"\1\0\0\0x"],
            "not open",
        ),
        (
            [
                remote_frames.encode(OPEN),
                remote_frames.encode(remote_frames.Publish(number=1, batch=2, n=1)) + b"\1\0\0\0x",
            ],
            "due is",
        ),
        (
            [
                remote_frames.encode(OPEN),
                remote_frames.encode(remote_frames.Publish(number=1, batch=1, n=3)) + b"\1\0\0\0x",
            ],
            "batch",
        ),
        ([bytes(remote_frames.FRAME_BYTES_MAX + 1)], "1009"),
    ],
    ids=["text", "length", "hello", "unopened", "hole", "body", "oversized"],
)
def test_malformed_frames_end_the_connection(
    gateway: Gateway, frames: list[Any], reason: str
) -> None:
    socket = raw_client(gateway)
    try:
        for each in frames:
            socket.send(each)
    except ConnectionClosed:
        pass
    assert reason in goodbye(socket)
    with remote(gateway.url) as far:
        assert far.health().healthy, "others are served on"


def test_a_client_that_ignores_its_window_is_cut_off(node: EmbeddedLink, gateway: Gateway) -> None:
    with local(node) as near, near.subscribe("small"):  # reads nothing: the topic is full soon
        socket = raw_client(gateway)
        open_small = remote_frames.OpenPublication(
            id=1, number=1, topic="small", options=PublicationOptions()
        )
        socket.send(remote_frames.encode(open_small))
        body = (1_000).to_bytes(4, "little") * 60 + bytes(60_000)
        try:
            for i in range(1, 100):
                socket.send(
                    remote_frames.encode(remote_frames.Publish(number=1, batch=i, n=60)) + body
                )
        except ConnectionClosed:
            pass
        assert "window" in goodbye(socket)


def test_a_batch_that_is_sent_twice_counts_once(node: EmbeddedLink, gateway: Gateway) -> None:
    with local(node) as near, near.subscribe("raw") as here:
        socket = raw_client(gateway)
        socket.send(remote_frames.encode(OPEN))
        one = remote_frames.encode(remote_frames.Publish(number=1, batch=1, n=1)) + b"\1\0\0\0a"
        two = remote_frames.encode(remote_frames.Publish(number=1, batch=2, n=1)) + b"\1\0\0\0b"
        for each in (one, one, two, one, two):
            socket.send(each)
        assert payloads(here, 2) == [b"a", b"b"]
        with pytest.raises(tidecast.Timeout):
            here.next(timeout=0.1)
        socket.close()


def test_no_more_clients_than_allowed(node: EmbeddedLink) -> None:
    gateway = make_gateway(node, clients_max=1)
    try:
        with remote(gateway.url), pytest.raises(tidecast.TidecastError, match="at most 1"):
            remote(gateway.url)
        with remote(gateway.url):
            pass
    finally:
        gateway.stop()


# --- slow clients ------------------------------------------------------------------------------
def test_a_slow_client_slows_the_publisher_and_loses_nothing(
    node: EmbeddedLink, gateway: Gateway
) -> None:
    with remote(gateway.url) as far, local(node) as near, far.subscribe("small") as there:
        sent: list[bytes] = []
        stop = threading.Event()
        publisher = near.publisher("small", on_full="error")

        def fill() -> None:
            while not stop.is_set() and len(sent) < 100_000:
                payload = b"%06d" % len(sent) + bytes(994)
                if publisher.publish_batch([payload]).ok:
                    sent.append(payload)
                else:
                    full.set()
                    stop.wait(0.01)

        full = threading.Event()
        writer = threading.Thread(target=fill)
        writer.start()
        assert full.wait(TIMEOUT_S), "a reader that does not read must be felt"
        # Rings, credit, what waits: all of it together is bounded.
        held = len(sent) * 1000
        assert held < 8 * remote_frames.CREDIT_BYTES
        stop.set()
        writer.join()
        assert payloads(there, len(sent)) == sent
        publisher.close()


def test_a_slow_client_of_a_rate_topic_gets_a_typed_gap(
    node: EmbeddedLink, gateway: Gateway
) -> None:
    with remote(gateway.url) as far, local(node) as near:
        with far.subscribe("rate", tethered=False, on_gap="event") as there:
            with near.publisher("rate") as publisher:
                for i in range(5_000):
                    publisher.publish_batch([b"%06d" % i + bytes(994)]).check()
                publisher.publish(b"end", flush=True)
                found = [0]
                while (last := bytes(there.next(timeout=TIMEOUT_S).data)) != b"end":
                    found.append(int(last[:6]))
            assert found == sorted(found)
            assert len(found) < 5_000
            gap = until_event(far, Gap)
            assert gap.end > gap.first
            assert gap.topic == "rate"


# --- broken connections ------------------------------------------------------------------------
def test_publishing_goes_on_over_cuts_and_nothing_is_lost_or_doubled(
    node: EmbeddedLink, proxy: Proxy
) -> None:
    with local(node) as near, near.subscribe("cuts") as here, remote(proxy.url) as far:
        sent = [b"%d" % i + bytes(200) for i in range(12_000)]
        with far.publisher("cuts") as publisher:
            for i in range(0, len(sent), 3000):
                proxy.cut_after(100_000 + i * 50)
                publisher.publish_batch(sent[i : i + 3000], timeout=TIMEOUT_S).check()
                assert payloads(here, 3000) == sent[i : i + 3000]
            assert proxy.connections >= 4
        with pytest.raises(tidecast.Timeout):
            here.next(timeout=0.1)


def test_a_client_that_reconnects_takes_over_from_its_dead_connection(
    node: EmbeddedLink, proxy: Proxy
) -> None:
    with local(node) as near, near.subscribe("dead") as here, remote(proxy.url) as far:
        with far.publisher("dead") as publisher:
            publisher.publish(b"1")
            assert payloads(here, 1) == [b"1"]
            proxy.abandon()
            assert until_event(far, GatewayBack).resumed
            publisher.publish(b"2")
            assert payloads(here, 1) == [b"2"]


def test_a_subscription_resumes_where_it_was(node: EmbeddedLink, proxy: Proxy) -> None:
    with local(node) as near, near.publisher("missed") as publisher, remote(proxy.url) as far:
        with far.subscribe("missed") as there:
            publisher.publish(b"1", flush=True)
            assert payloads(there, 1) == [b"1"]
            proxy.refuses = True
            proxy.cut()
            assert until_event(far, GatewayLost)
            assert (far.health().healthy, far.health().status) == (False, "reconnecting")
            missed = [b"%d" % i + bytes(1000) for i in range(10)]
            publisher.publish_batch(missed, flush=True).check()
            with near.publisher("missed") as other:
                other.publish(b"of another", flush=True)
                proxy.refuses = False
                assert until_event(far, GatewayBack).resumed
                publisher.publish(b"2", flush=True)
                found = payloads(there, 12)
            assert [each for each in found if each != b"of another"] == [*missed, b"2"]


def test_a_gateway_that_does_not_resume_is_not_asked_to(
    node: EmbeddedLink, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gateway of version 0.1.0 knows no places."""
    asked: list[remote_frames.OpenSubscription] = []
    welcome, opening = RemoteSession.welcome, Arrivals.opening

    def old_welcome(self: RemoteSession, **options: Any) -> remote_frames.Welcome:
        return msgspec.structs.replace(welcome(self, **options), resumes=False)

    def noted(self: Arrivals, each: Any, question: int) -> remote_frames.OpenSubscription:
        asked.append(opening(self, each, question))
        return asked[-1]

    monkeypatch.setattr(RemoteSession, "welcome", old_welcome)
    monkeypatch.setattr(Arrivals, "opening", noted)
    with local(node) as near, near.publisher("missed") as publisher, remote(proxy.url) as far:
        with far.subscribe("missed", on_gap="event") as there:
            publisher.publish(b"1", flush=True)
            assert payloads(there, 1) == [b"1"]
            proxy.cut()
            assert until_event(far, GatewayBack)
            publisher.publish(b"2", flush=True)
            assert payloads(there, 1) == [b"2"]
    assert [(each.places, each.options.age_s) for each in asked[-2:]] == [({}, 0.0)] * 2


def test_what_no_ring_holds_when_a_subscription_resumes_is_a_typed_gap(
    node: EmbeddedLink, proxy: Proxy
) -> None:
    with (
        local(node) as near,
        remote(proxy.url) as far,
        near.publisher("lapped", history_bytes=64 << 10) as publisher,
        far.subscribe("lapped", on_gap="event") as there,
    ):
        publisher.publish(b"1", flush=True)
        assert payloads(there, 1) == [b"1"]
        proxy.refuses = True
        proxy.cut()
        assert until_event(far, GatewayLost)
        publisher.publish_batch([b"%03d" % i + bytes(1000) for i in range(200)]).check()
        publisher.flush()
        proxy.refuses = False
        assert until_event(far, GatewayBack).resumed
        found = [bytes(there.next(timeout=TIMEOUT_S).data)]
        while int(found[-1][:3]) < 199:
            found.append(bytes(there.next(timeout=TIMEOUT_S).data))
        numbers = [int(each[:3]) for each in found]
        assert numbers == list(range(numbers[0], 200))
        gap = until_event(far, Gap)
        assert gap.reason == "reconnect"
        assert gap.end - gap.first == numbers[0] > 100, "a message a packet"


@pytest.mark.parametrize("options", [{}, {"tethered": False}, {"start": "earliest"}])
def test_a_stream_over_many_cuts_arrives_once_and_in_order(
    node: EmbeddedLink, proxy: Proxy, options: Any
) -> None:
    """Cuts come amid batches of several frames, too."""
    with local(node) as near, near.publisher("stream") as publisher, remote(proxy.url) as far:
        with far.subscribe("stream", **options) as there:
            sent = [b"%d" % i + bytes(200 + i % 7) for i in range(2_000)]
            sent[700] += bytes(300_000)
            for cut_at in (100_000, 280_000, 330_000, 400_000, 600_000):
                before = proxy.connections
                proxy.cut_after(cut_at, answers=True)
                publisher.publish_batch(sent, flush=True, timeout=TIMEOUT_S).check()
                assert payloads(there, len(sent)) == sent
                assert proxy.connections > before


def test_a_stale_position_is_refused_by_its_range(gateway: Gateway, node: EmbeddedLink) -> None:
    """Whatever a client names, it reads messages of the topic, and the gateway lives."""
    with local(node) as near, near.publisher("named") as publisher, remote(gateway.url) as far:
        publisher.publish_batch([b"%d" % i for i in range(50)], flush=True).check()
        link: Any = far.link
        for number, place in enumerate(
            [(0, 31, b""), (0, 1 << 16, b""), (1 << 59, 40, b"\xff"), (0, 45, b"\xff" * 64)]
        ):
            link._ask(
                lambda n, number=number, place=place: remote_frames.OpenSubscription(
                    id=n,
                    number=1000 + number,
                    pattern="named",
                    options=SubscriptionOptions(),
                    credit=1 << 20,
                    places={publisher.session: place},
                ),
                remote_frames.SubscriptionOpened,
            )
        with far.subscribe("named") as there:
            publisher.publish(b"end", flush=True)
            assert payloads(there, 1) == [b"end"]


@pytest.mark.parametrize("amid", [1, 5])
def test_a_place_within_a_message_is_counted_and_the_message_comes_whole(
    node: EmbeddedLink, gateway: Gateway, monkeypatch: pytest.MonkeyPatch, amid: int
) -> None:
    """Bytes of a message that look like one are not taken for one."""
    proxy = Proxy(gateway.port)
    opening = Subscribed.opening

    def forged(self: Subscribed, *given: Any, **named: Any) -> remote_frames.OpenSubscription:
        self.asked = {s: (seq, at - amid, b"") for s, (seq, at, _) in self.asked.items()}
        return opening(self, *given, **named)

    payload = b"1" + (1 | 3 << 24).to_bytes(4, "little") + b"x"
    with local(node) as near, near.publisher("amid") as publisher, remote(proxy.url) as far:
        with far.subscribe("amid") as there:
            publisher.publish(payload, flush=True)
            assert payloads(there, 1) == [payload]
            monkeypatch.setattr(Subscribed, "opening", forged)
            proxy.cut()
            assert until_event(far, GatewayBack)
            publisher.publish(b"2", flush=True)
            assert payloads(there, 2) == [payload, b"2"]
        assert gateway.counts["bad_places"] == 1
    proxy.close()


def test_too_many_packets_read_ahead_are_refused(gateway: Gateway) -> None:
    bits = bytes(ring_layout.SLOTS_MAX // 8)
    places = dict.fromkeys((1, 2, 3), (0, 32, bits))
    with remote(gateway.url) as far:
        link: Any = far.link
        with pytest.raises(ConfigError, match=r"places: 393216 bytes .* allowed 0 to 262144"):
            link._ask(
                lambda n: remote_frames.OpenSubscription(
                    id=n,
                    number=1000,
                    pattern="ahead",
                    options=SubscriptionOptions(),
                    credit=1 << 20,
                    places=places,
                ),
                remote_frames.SubscriptionOpened,
            )
        far.subscribe("ahead").open()


def test_a_cut_while_nothing_was_published_is_no_gap(node: EmbeddedLink, proxy: Proxy) -> None:
    with local(node) as near, near.publisher("calm") as publisher, remote(proxy.url) as far:
        with far.subscribe("calm") as there:
            publisher.publish(b"1", flush=True)
            assert payloads(there, 1) == [b"1"]
            proxy.cut()
            until_event(far, GatewayBack)
            publisher.publish(b"2", flush=True)
            assert payloads(there, 1) == [b"2"], "a gap would have been raised"


def test_a_silent_network_only_delays(node: EmbeddedLink, proxy: Proxy) -> None:
    with local(node) as near, near.subscribe("silent") as here, remote(proxy.url) as far:
        with far.publisher("silent") as publisher:
            proxy.hold()
            publisher.publish_batch([b"%d" % i for i in range(1000)]).check()
            proxy.resume()
            assert payloads(here, 1000) == [b"%d" % i for i in range(1000)]


@pytest.mark.parametrize(
    "problem",
    [
        ConnectionClosedError(None, None),
        InvalidMessage("no HTTP"),
        InvalidHandshake("no"),
        ConnectionResetError(),
        TimeoutError(),
        EOFError(),
    ],
    ids=lambda problem: type(problem).__name__,
)
def test_a_peer_that_goes_amid_the_handshake_is_tried_again(
    problem: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection that was cut during the handshake once ended the reader: it was never back."""

    def refuse(*_: Any, **__: Any) -> None:
        raise problem

    monkeypatch.setattr(dial, "connect", refuse)
    with pytest.raises(EngineNotRunning) as refused:
        dial.dial("host:1", "", "", "", "", tls=False)
    assert refused.value.retryable


def test_a_session_that_is_not_resumed_in_time_ends(
    node: EmbeddedLink, eventually: Eventually
) -> None:
    gateway = make_gateway(node, resume_s=0.05)
    proxy = Proxy(gateway.port)
    try:
        with remote(proxy.url) as far, far.publisher("late") as publisher:
            publisher.publish(b"1", flush=True)
            proxy.refuses = True
            proxy.cut()
            eventually(lambda: gateway.counts["expired"] == 1, "the session's end")
            eventually(lambda: not gateway.stats()["sessions"], "nothing left of it")
            proxy.refuses = False
            assert not until_event(far, GatewayBack).resumed
            with local(node) as near, near.subscribe("late") as here:
                publisher.publish(b"2", flush=True)
                while (found := payloads(here, 1)) == [b"1"]:
                    pass  # it was not confirmed before the cut
                assert found == [b"2"]
    finally:
        proxy.close()
        gateway.stop()


def test_rings_of_killed_clients_are_swept() -> None:
    from tidecast.client.remote.rings import make_directory

    left, lock = make_directory()
    import os

    os.close(lock)  # its process is dead
    second, lock = make_directory()
    assert not left.exists()
    third, other = make_directory()
    assert second.exists(), "this one lives"
    for each in (lock, other):
        os.close(each)
    for directory in (second, third):
        directory.rmdir()


def test_subscribing_options_travel(gateway: Gateway) -> None:
    with remote(gateway.url) as far, far.publisher("old") as publisher:
        publisher.publish(b"before", flush=True)
        publisher.flush()
        far.stats()
        with far.subscribe("old", start=tidecast.Earliest()) as there:
            assert payloads(there, 1) == [b"before"]
    assert SubscriptionOptions(start="earliest").start == "earliest"


class Gate(threading.Event):
    """Lets its waiters pass when as many wait as it expects."""

    def __init__(self, waiters: int) -> None:
        super().__init__()
        self._all = threading.Barrier(waiters)

    def wait(self, timeout: float | None = None) -> bool:
        self._all.wait(TIMEOUT_S)
        return super().wait(timeout)


def test_two_threads_close_a_publication_that_the_gateway_ended(gateway: Gateway) -> None:
    """Before, the second read a ring that the first had freed: the process ended by a signal."""
    with remote(gateway.url) as far:
        link: Any = far.link
        grant = link.open_publication("ended", PublicationOptions())
        [out] = [each for each in link._out.values() if each.number == grant.publication_id]
        out.done = Gate(2)
        link._take(
            remote_frames.Ended(
                number=grant.publication_id,
                publication=True,
                failure=Failure(code="closed", message="its topic was deleted"),
            ),
            memoryview(b""),
        )
        raised: list[Exception] = []

        def close() -> None:
            try:
                link.close_publication(grant.publication_id)
            except tidecast.TidecastError as problem:
                raised.append(problem)

        closers = [threading.Thread(target=close) for _ in range(2)]
        for each in closers:
            each.start()
        for each in closers:
            each.join(TIMEOUT_S)
            assert not each.is_alive()
        assert [str(each).rpartition(": ")[2] for each in raised] == ["its topic was deleted"] * 2
        assert out.freed
        assert grant.publication_id not in link._out
        assert not Path(grant.ring_path).exists()
        out.durable(1, 0)
        assert out.give_up(engine_lives=True) == (0, 0), "a ring that is freed is not read"
        far.publish("ended", b"the link lives", flush=True)
        assert far.status == "connected"
