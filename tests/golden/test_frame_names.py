"""Names of fields as they lie in frames and files: the code may name them otherwise."""

from __future__ import annotations

import msgspec

from tidecast.api.link import ConsumerGrant
from tidecast.client.remote.frames import ConsumerOpened
from tidecast.queues.subscription_store import SavedCursor, SavedSubscription


def test_cursors_have_the_name_of_version_1_in_frames_and_files() -> None:
    grant = ConsumerGrant(
        consumer_id=1, member=2, ring_path="r", wakes_path="w", pattern="t", name="n",
        ack_wait_s=30.0, max_deliver=5, dead_letter="", cursors=[(1 << 32, "t", 0)],
    )  # fmt: skip
    opened = ConsumerOpened(
        deliveries_bytes=1,
        acks_bytes=1,
        ack_wait_s=30.0,
        max_deliver=5,
        dead_letter="",
        cursors=[(1 << 32, "t", 0)],
    )
    saved = SavedSubscription(
        pattern="t", name="n", created_ns=1, cursors=[SavedCursor("t", 0, 7, [(9, 10)], [(8, 2)])]
    )
    row = [1 << 32, "t", 0]
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(grant))["lanes"] == [row]
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(opened))["lanes"] == [row]
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(saved))["lanes"] == [
        ["t", 0, 7, [[9, 10]], [[8, 2]]]
    ]
