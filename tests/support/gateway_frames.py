"""One of each frame of the gateway's protocol, for golden files and property tests."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tidecast.api.frames.common import Failure, Frame, Goodbye, Reply, encode_result
from tidecast.api.link import ConsumerOptions, PublicationOptions, SubscriptionOptions
from tidecast.client.remote import frames as rf
from tidecast.events import AccessDenied

FRAMES: list[tuple[Frame, bytes]] = [
    (rf.Hello(name="far", session="s", key="k"), b""),
    (rf.OpenPublication(id=1, number=2, topic="t", options=PublicationOptions(producer="p")), b""),
    (rf.ClosePublication(id=2, number=2), b""),
    (rf.OpenSubscription(id=3, number=3, pattern="t.*", options=SubscriptionOptions(),
                         credit=1 << 20), b""),
    (rf.CloseSubscription(id=4, number=3), b""),
    (rf.Credit(number=3, n_bytes=131072), b""),
    (rf.NodeIdOf(id=5, node="host"), b""),
    (rf.Stats(id=6), b""),
    (rf.Administer(id=7, action="seek", arguments={"pattern": "t", "name": "n"}), b""),
    (rf.Bye(), b""),
    (rf.Publish(number=2, batch=1, n=2), b"\1\0\0\0\2\0\0\0abc"),
    (rf.OpenConsumer(id=8, number=4, pattern="t", name="n", options=ConsumerOptions()), b""),
    (rf.ResumeConsumer(id=9, number=4, received=96), b""),
    (rf.CloseConsumer(id=10, number=4), b""),
    (rf.Acks(number=4, taken=97, released=96, position=40), bytes(40)),
    (rf.Welcome(session="s", key="k", resumed=True, client_id=1, node_id=2, node_name="host",
                incarnation=3, accepted={2: 7}), b""),
    (Reply(id=1, failure=Failure(code="sequence_gap", message="m", number=2)), b""),
    (Reply(id=8, result=encode_result(rf.ConsumerOpened(
        deliveries_bytes=65536, acks_bytes=16384, ack_wait_s=30.0, max_deliver=5, dead_letter="",
        cursors=[(1, "t", 0)]))), b""),
    (rf.Accepted(number=2, batch=7), b""),
    (rf.Durable(number=2, seq=1 << 40, state=28), b""),
    (rf.Delivered(number=4, position=96, acks_read=40, more=True), bytes(48)),
    (rf.TakenBack(number=4, positions=[96, 1 << 20]), b""),
    (rf.ImageOpened(number=3, image=1, topic="t", node="host", session=9, reliability=0, seq=5,
                    at=32), b""),
    (rf.ImageEnded(number=3, image=1, reason="closed"), b""),
    (rf.GapReported(number=3, image=1, first=5, end=9, reason="history"), b""),
    (rf.Deliver(number=3, image=1, n=1, seq=6, at=40), b"\1\0\0\0x"),
    (rf.Ended(number=2, publication=True, failure=Failure(code="fenced", message="m")), b""),
    (
        rf.EventsReported(events=[AccessDenied(key="k", client="c", right="publish", topic="t")]),
        b"",
    ),
    (Goodbye(reason="the engine stops"), b""),
]  # fmt: skip


def frames() -> Iterator[tuple[str, bytes]]:
    """(name, bytes) of each."""
    for frame, body in FRAMES:
        yield type(frame).__name__, rf.encode(frame, np.frombuffer(body, dtype=np.uint8))
