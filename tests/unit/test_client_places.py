"""A session that comes back in another ring: nothing twice, and what is missing is a gap."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tidecast.buffers import reader
from tidecast.buffers.ring_file import add_consumer, create_ring
from tidecast.client.core.image import Image, ReadPosition
from tidecast.client.remote.rings import with_local_ids
from tidecast.events import ImageAvailable, PublicationEnded
from tidecast.layout import ring as lay


def image(directory: Path, name: str, *, first: int, slots: int = 64, **options: Any) -> Image:
    path = directory / name
    mapped = create_ring(
        path, kind=lay.KIND_IMAGE, slots=slots, slot_bytes=1400, session=7, topic=1, node=2,
        channel=1, flow=lay.FLOW_MIN, has_network=False, incarnation=1, first=first,
        **{"reliability": lay.UNORDERED} | options,
    )  # fmt: skip
    entry = add_consumer(
        mapped.array, position=first, client=1, doorbell=1, subscription=1, tethered=True
    )
    event = ImageAvailable(
        subscription_id=1, image_id=1, ring_path=str(path), consumer=entry, topic="t", node="a",
        session=7,
    )  # fmt: skip
    return Image(event, 1, None)


def read_ahead(image: Image) -> set[int]:
    """The packets that are marked as read, seen from where the reader is."""
    at, slots = int(image.port[reader.R_SEQ]), int(image.port[reader.R_SLOTS])
    bits = np.unpackbits(image._seen, bitorder="little")
    return {seq for seq in range(at, at + slots) if bits[seq % slots]}


@pytest.mark.parametrize("slots", [64, 128, 256])
def test_what_was_read_behind_a_hole_stays_read_in_rings_of_any_size(
    tmp_path: Path, slots: int
) -> None:
    old = image(tmp_path, "old", first=100, slots=128)
    ahead = {101, 126, 127, 128, 163}
    for seq in ahead:
        old._seen[(seq % 128) >> 3] |= 1 << (seq & 7)
    assert read_ahead(old) == ahead
    place = old.position()
    assert place is not None
    new = image(tmp_path, "new", first=90, slots=slots)
    assert new.resume_from(place) is None
    assert (int(new.port[reader.R_SEQ]), read_ahead(new)) == (100, ahead)


def test_a_ring_that_begins_later_is_a_gap(tmp_path: Path) -> None:
    new = image(tmp_path, "new", first=120, reliability=lay.RELIABLE)
    gap = new.resume_from(ReadPosition(100, 32, None, None))
    assert gap is not None
    assert (gap.first, gap.end, gap.session, gap.reason) == (100, 120, 7, "reconnect")
    counts = new.counts()
    assert (counts["gaps"], counts["lost_packets"]) == (1, 20)
    assert int(new.port[reader.R_SEQ]) == 120


def test_a_ring_that_is_closed_has_no_place(tmp_path: Path) -> None:
    old = image(tmp_path, "old", first=1)
    old.close()
    assert old.position() is None


def test_the_end_of_a_publication_finds_the_publisher_that_was_reopened() -> None:
    """A gateway's new session has another number than the publisher's first."""
    out: Any = SimpleNamespace(node_session=5, session=9)
    ended = PublicationEnded(topic="t", session=5, code="closed", reason="deleted")
    [found] = [with_local_ids(ended, [out])]
    assert isinstance(found, PublicationEnded)
    assert found.session == 9
