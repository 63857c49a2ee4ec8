"""Arrivals of subscriptions through a gateway: gaps are reported once, images before messages."""

from __future__ import annotations

import contextlib
import itertools
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.conftest import Eventually
from tests.support.gateways import TIMEOUT_S, TOKEN, local, make_gateway
from websockets.sync.client import connect as connect_websocket

from tidecast.api.link import SubscriptionOptions
from tidecast.client.remote import frames
from tidecast.client.remote.arrivals import RETURN_S, Arrivals, Subscribed
from tidecast.client.remote.frames import BadFrame
from tidecast.client.remote.rings import Incoming, RingDirectory
from tidecast.config.internal import REPLIES
from tidecast.config.topology import topology_from
from tidecast.embedded import EmbeddedLink
from tidecast.events import ImageAvailable, ImageGone
from tidecast.gateway.server import Gateway
from tidecast.layout import packet as wire
from tidecast.layout import ring as ring_layout

HEADER = wire.PACKET_HEADER_BYTES


class _Client:
    """The arrivals of one client with one subscription, and a clock that tests move."""

    def __init__(self, tmp_path: Path, pattern: str, *, resumes: bool) -> None:
        self.now_s = 100.0
        self.pushed: list[Any] = []
        bells = np.zeros(ring_layout.DOORBELLS_MAX * ring_layout.DOORBELL_BYTES, dtype=np.uint8)
        self.arrivals = Arrivals(
            RingDirectory(tmp_path, bells, 0, 1),
            itertools.count(1),
            lambda *events: self.pushed.extend(events),
            lambda: None,
            lambda: self.now_s,
        )
        self.resumes = resumes
        self.subscribed = Subscribed(1, pattern, SubscriptionOptions(), lambda: self.now_s)
        self.arrivals.greeted(resumes=resumes)
        self.arrivals.add(self.subscribed)
        self._images = itertools.count(1)
        self._known: list[Incoming] = []

    def opened(self, seq: int, at: int = HEADER) -> None:
        """The gateway has an image of the session, which begins there."""
        number = next(self._images)
        self.arrivals.opened(
            frames.ImageOpened(
                number=1,
                image=number,
                topic="t",
                node="n",
                session=7,
                reliability=ring_layout.RELIABLE,
                seq=seq,
                at=at,
            )
        )
        incoming = self.subscribed.images[number]
        if incoming not in self._known:
            self._known.append(incoming)

    def read_to(self, seq: int) -> None:
        """All before this packet has come."""
        (incoming,) = self.subscribed.images.values()
        incoming.reach(seq, HEADER)

    def lose(self) -> None:
        """The connection breaks off, another one is there, and the subscription is opened again."""
        for each in self.arrivals.disconnected():
            self.arrivals.greeted(resumes=self.resumes)
            self.arrivals.opening(each, 5)
            self.arrivals.reopened(each)

    @property
    def gaps(self) -> list[tuple[int, int]]:
        """All that are in the rings."""
        found = [gap for incoming in self._known for gap in incoming.gaps.values()]
        return [(gap.first, gap.end) for gap in found]

    def kinds(self) -> list[type]:
        """Of the events so far."""
        return [type(each) for each in self.pushed]


@pytest.mark.parametrize("resumes", [True, False])
def test_a_publisher_that_is_heard_after_the_answer_has_one_gap(
    tmp_path: Path, resumes: bool
) -> None:
    """Before, a gateway that resumes nothing led to two: one packet at once, then the whole."""
    client = _Client(tmp_path, "t", resumes=resumes)
    client.opened(0)
    client.read_to(10)
    for outage in range(1, 4):
        client.lose()
        client.opened(10 + 20 * outage)
        client.read_to(20 + 20 * outage)
    assert client.gaps == [(10, 30), (40, 50), (60, 70)]
    assert client.kinds() == [ImageAvailable], "its ring stays"


@pytest.mark.parametrize("resumes", [True, False])
def test_a_publisher_that_comes_back_late_has_no_gap_within_another(
    tmp_path: Path, resumes: bool
) -> None:
    client = _Client(tmp_path, "t", resumes=resumes)
    client.opened(0)
    client.read_to(10)
    client.lose()
    client.now_s += RETURN_S + 1
    client.arrivals.drain()
    assert client.kinds() == [ImageAvailable, ImageGone]
    assert client.gaps == [(10, 11)], "nobody knows what it sent last"
    client.opened(30)
    assert client.gaps == [(10, 11), (11, 30)]
    client.lose()
    client.opened(33)
    assert client.gaps == [(10, 11), (11, 30), (30, 33)]


def test_replies_end_at_once_and_their_gaps_are_once_too(tmp_path: Path) -> None:
    """Requesters wait for the end of a responder."""
    client = _Client(tmp_path, REPLIES + "t", resumes=True)
    client.opened(0)
    client.read_to(10)
    client.lose()
    assert client.kinds() == [ImageAvailable, ImageGone]
    client.opened(30)
    assert client.gaps == [(10, 11), (11, 30)]


def test_messages_of_an_unknown_image_end_the_connection(tmp_path: Path) -> None:
    """They were dropped in silence, and those behind them were taken."""
    client = _Client(tmp_path, "t", resumes=True)
    client.opened(0)
    one = frames.Deliver(number=1, image=2, n=1, mixed=False, seq=1, at=HEADER)
    with pytest.raises(BadFrame, match="subscription 1: image 2 is not open"):
        client.arrivals.delivered(one, memoryview(b"\1\0\0\0a"))
    client.arrivals.remove(1)
    client.arrivals.delivered(one, memoryview(b"\1\0\0\0a"))  # closed: they were on their way


@contextlib.contextmanager
def served(node: EmbeddedLink) -> Iterator[Gateway]:
    """A gateway to a node."""
    gateway = make_gateway(node)
    yield gateway
    gateway.stop()


def slow_socket(gateway: Gateway) -> Any:
    """A raw client with a small buffer that has said Hello: what it does not read stays behind."""
    small = socket.socket()
    small.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    small.connect((gateway.host, gateway.port))
    made = connect_websocket(
        f"ws://{gateway.host}:{gateway.port}{frames.PATH}",
        sock=small,
        proxy=None,
        compression=None,
        additional_headers={"Authorization": f"Bearer {TOKEN}"},
        max_size=None,
        max_queue=1,
    ).__enter__()
    made.send(frames.encode(frames.Hello(name="slow")))
    assert isinstance(frames.from_gateway(made.recv())[0], frames.Welcome)
    return made


def test_a_slow_client_learns_of_an_image_before_its_messages(
    tmp_path: Path, eventually: Eventually
) -> None:
    """Else it would drop them: it takes them for messages of a subscription that it has closed."""
    topics = [{"name": "rate", "history_bytes": "64KiB", "flow": "rate"}]
    settings = {"transports": [{"name": "ipc", "kind": "ipc"}], "topics": topics}
    node = EmbeddedLink.open(topology_from(settings), data_dir=tmp_path, name="host")
    with (
        contextlib.closing(node),
        served(node) as gateway,
        local(node) as near,
        near.publisher("rate") as filler,
    ):
        quiet = [near.publisher(f"behind.{i}") for i in range(4)]
        quiet[-1].publish(b"mine", flush=True)
        client = slow_socket(gateway)
        [session] = gateway._sessions.values()

        def ask(number: int, pattern: str, start: str) -> None:
            frame = frames.OpenSubscription(
                id=number,
                number=number,
                pattern=pattern,
                options=SubscriptionOptions(start=start),
                credit=frames.CREDIT_BYTES_MAX,
            )
            client.send(frames.encode(frame))

        def is_held_up() -> bool:
            filler.publish_batch([bytes(1000)] * 50)
            return session._socket is not None and session._socket.paused

        ask(1, "rate", "latest")
        eventually(is_held_up, "the gateway waits for its client")
        ask(2, "behind.*", "earliest")
        eventually(lambda: 2 in session._subscriptions, "the gateway has the second subscription")
        known, bodies = set[int](), list[bytes]()
        while not bodies:
            frame, body = frames.from_gateway(client.recv(TIMEOUT_S))
            if isinstance(frame, frames.ImageOpened):
                known.add(frame.image)
            elif isinstance(frame, frames.Deliver) and frame.number == 2:
                assert frame.image in known, "its client does not know the image yet"
                bodies.append(bytes(body[4:]))
        assert bodies == [b"mine"]
        client.close()
