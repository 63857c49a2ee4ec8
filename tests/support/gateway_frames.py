"""One of each frame of the gateway's protocol, for golden files and property tests."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tidecast.api.frames.common import Failure, Frame, Goodbye, Reply, Working, encode_result
from tidecast.api.link import ConsumerOptions, PublicationOptions, SubscriptionOptions
from tidecast.client.remote import frames as remote_frames
from tidecast.events import AccessDenied

FRAMES: list[tuple[Frame, bytes]] = [
    (remote_frames.Hello(name="far", session="s", key="k"), b""),
    (
        remote_frames.OpenPublication(
            id=1, number=2, topic="t", options=PublicationOptions(producer="p")
        ),
        b"",
    ),
    (remote_frames.ClosePublication(id=2, number=2), b""),
    (
        remote_frames.OpenSubscription(
            id=3, number=3, pattern="t.*", options=SubscriptionOptions(), credit=1 << 20
        ),
        b"",
    ),
    (
        remote_frames.OpenSubscription(
            id=11,
            number=3,
            pattern="t.*",
            options=SubscriptionOptions(age_s=2.5),
            credit=1 << 20,
            places={9: (6, 40, b""), 10: (1 << 40, 32, b"\x06\x01")},
        ),
        b"",
    ),
    (remote_frames.CloseSubscription(id=4, number=3), b""),
    (remote_frames.Credit(number=3, n_bytes=131072), b""),
    (remote_frames.NodeIdOf(id=5, node="host"), b""),
    (remote_frames.Stats(id=6), b""),
    (remote_frames.Administer(id=7, action="seek", arguments={"pattern": "t", "name": "n"}), b""),
    (remote_frames.Bye(), b""),
    (remote_frames.Publish(number=2, batch=1, n=2), b"\1\0\0\0\2\0\0\0abc"),
    (
        remote_frames.OpenConsumer(
            id=8, number=4, pattern="t", name="n", options=ConsumerOptions()
        ),
        b"",
    ),
    (remote_frames.ResumeConsumer(id=9, number=4, received=96), b""),
    (remote_frames.CloseConsumer(id=10, number=4), b""),
    (remote_frames.Acks(number=4, taken=97, released=96, position=40), bytes(40)),
    (
        remote_frames.Welcome(
            session="s",
            key="k",
            resumed=True,
            client_id=1,
            node_id=2,
            node_name="host",
            incarnation=3,
            accepted={2: 7},
        ),
        b"",
    ),
    (Reply(id=1, failure=Failure(code="sequence_gap", message="m", number=2)), b""),
    (
        Reply(
            id=8,
            result=encode_result(
                remote_frames.ConsumerOpened(
                    deliveries_bytes=65536,
                    acks_bytes=16384,
                    ack_wait_s=30.0,
                    max_deliver=5,
                    dead_letter="",
                    cursors=[(1, "t", 0)],
                )
            ),
        ),
        b"",
    ),
    (remote_frames.Accepted(number=2, batch=7), b""),
    (remote_frames.Sent(number=2, batch=7), b""),
    (remote_frames.Durable(number=2, seq=1 << 40, state=28), b""),
    (remote_frames.Delivered(number=4, position=96, acks_read=40, more=True), bytes(48)),
    (remote_frames.TakenBack(number=4, positions=[96, 1 << 20]), b""),
    (
        remote_frames.ImageOpened(
            number=3, image=1, topic="t", node="host", session=9, reliability=0, seq=5, at=32
        ),
        b"",
    ),
    (remote_frames.ImageEnded(number=3, image=1, reason="closed"), b""),
    (remote_frames.GapReported(number=3, image=1, first=5, end=9, reason="history"), b""),
    (remote_frames.Deliver(number=3, image=1, n=1, seq=6, at=40), b"\1\0\0\0x"),
    (
        remote_frames.Deliver(number=3, image=1, n=1, seq=7, at=32, ahead=b"\x06\x01"),
        b"\1\0\0\0x",
    ),
    (
        remote_frames.Ended(
            number=2, publication=True, failure=Failure(code="fenced", message="m")
        ),
        b"",
    ),
    (
        remote_frames.EventsReported(
            events=[AccessDenied(key="k", client="c", right="publish", topic="t")]
        ),
        b"",
    ),
    (Goodbye(reason="the engine stops"), b""),
    (Working(id=7, reason="compiles kernels: puller"), b""),
]


def frames() -> Iterator[tuple[str, bytes]]:
    """(name, bytes) of each."""
    for frame, body in FRAMES:
        yield type(frame).__name__, remote_frames.encode(frame, np.frombuffer(body, dtype=np.uint8))
