"""Gaps of subscriptions through a gateway: each is reported once, whenever publishers are heard."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tidecast.api.link import SubscriptionOptions
from tidecast.client.remote import frames
from tidecast.client.remote.arrivals import RETURN_S, Arrivals, Subscribed
from tidecast.client.remote.rings import Incoming, RingDirectory
from tidecast.config.internal import REPLIES
from tidecast.events import ImageAvailable, ImageGone
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
