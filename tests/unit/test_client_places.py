"""A session that comes back in another ring: nothing twice, and what is missing is a gap."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import msgspec
import numpy as np
import pytest

from tidecast.api.link import RESUME_MAX, SubscriptionGrant, SubscriptionOptions
from tidecast.buffers import reader, writer
from tidecast.buffers.ring_file import add_consumer, create_ring, remove_consumer
from tidecast.buffers.writer import close_abandoned
from tidecast.client.core import subscription
from tidecast.client.core.image import Image, ReadPosition, position_of
from tidecast.client.core.subscription import SubscriptionCore
from tidecast.client.remote import frames as remote_frames
from tidecast.client.remote.rings import with_local_ids
from tidecast.events import Gap, ImageAvailable, ImageGone, PublicationEnded
from tidecast.layout import packet as wire
from tidecast.layout import ring as lay
from tidecast.native.mapped import MappedFile


def available(
    directory: Path,
    name: str,
    *,
    first: int,
    slots: int = 64,
    session: int = 7,
    made: bool = True,
    tethered: bool = True,
    **options: Any,
) -> ImageAvailable:
    path = directory / name
    mapped = (
        MappedFile.open(path)
        if not made
        else create_ring(
            path,
            slots=slots,
            slot_bytes=1400,
            session=session,
            topic=1,
            node=2,
            channel=1,
            flow=lay.FLOW_MIN,
            has_network=False,
            incarnation=1,
            first=first,
            **{"reliability": lay.UNORDERED, "kind": lay.KIND_IMAGE} | options,
        )
    )
    entry = add_consumer(
        mapped.array, position=first, client=1, doorbell=1, subscription=1, tethered=tethered
    )
    return ImageAvailable(
        subscription_id=1,
        image_id=session,
        ring_path=str(path),
        consumer=entry,
        topic="t",
        node="a",
        session=session,
    )


def image(directory: Path, name: str, *, first: int, **options: Any) -> Image:
    return Image(available(directory, name, first=first, **options), 1, None)


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
    far = image(tmp_path, "far", first=100, slots=slots)
    far.resume_at(position_of(100, 32, old.ahead()))
    assert (int(far.port[reader.R_SEQ]), read_ahead(far)) == (100, ahead)
    assert int(far.port[reader.R_AT]) == 32


@pytest.mark.parametrize("place", [(101, 40), (99, 40), (100, 31), (100, 1401), (1 << 60, 40)])
def test_a_place_of_another_process_counts_where_the_ring_begins_alone(
    tmp_path: Path, place: tuple[int, int]
) -> None:
    ring = image(tmp_path, "ring", first=100)
    ring.resume_at(position_of(*place, b"\xff"))
    assert (int(ring.port[reader.R_SEQ]), int(ring.port[reader.R_AT])) == (100, 32)
    assert read_ahead(ring) == set()


def message(payload: bytes, to: int | None) -> bytes:
    """A message as it lies in a packet."""
    lead = b"" if to is None else to.to_bytes(4, "little")
    flags = wire.WHOLE | (0 if to is None else wire.TO)
    return (len(lead + payload) | flags << 24).to_bytes(4, "little") + lead + payload


def filled(ring: Image, given: list[tuple[bytes, int | None]]) -> list[int]:
    """Append messages to packet 100, which stays open; where each ends in it."""
    bells = np.zeros(1 << 16, dtype=np.uint8)
    w, at, ends = writer.writer_state(ring._ring), 32, []
    for payload, to in given:
        source = np.frombuffer(payload + b"\0", dtype=np.uint8)
        lead = np.frombuffer((to or 0).to_bytes(4, "little"), dtype=np.uint8)
        flags = 0 if to is None else wire.TO
        n = 0 if to is None else 4
        assert writer.append(ring._ring, bells, w, source, len(payload), lead, n, flags, 0, 0) == 0
        at += len(message(payload, to))
        ends.append(at)
    return ends


FOR_OTHERS, FOR_ME = 9, 1
GIVEN: list[tuple[bytes, int | None]] = [
    (b"first", None),
    (b"....." + message(b"forged", None), None),
    (b"secret" + message(b"told", None) + message(b"too", FOR_ME), FOR_OTHERS),
    (b"mine", FOR_ME),
    (b"", None),
    (b"last", None),
]


@pytest.mark.parametrize("tethered", [True, False])
@pytest.mark.parametrize("given", [GIVEN, [each for each in GIVEN if each[1] is None]])
@pytest.mark.parametrize("limit", [1, 64])
def test_a_place_of_another_process_shows_whole_messages_alone(
    tmp_path: Path, tethered: bool, given: list[tuple[bytes, int | None]], limit: int
) -> None:
    """Whatever offset it names, also one in a message for others that looks like a message."""
    options = {"kind": lay.KIND_PUBLICATION, "reliability": lay.RELIABLE}
    ends = filled(image(tmp_path, "written", first=100, **options), given)
    begins = [32, *ends[:-1]]
    for offset in (*range(32, ends[-1] + 20), 1399, 1400):
        ring = image(tmp_path, "written", first=100, made=False, tethered=tethered, **options)
        ring.resume_at(position_of(100, offset, b""))
        found, steps = [], 0
        while not isinstance(batch := ring.take(limit), Gap) and batch is not None:
            found += [bytes(each.data) for each in batch.messages]
            assert (steps := steps + 1) < 20
        mine = [i for i, (_, to) in enumerate(given) if to != FOR_OTHERS]
        assert found == [given[i][0] for i in mine if ends[i] > offset]
        amid = [i for i in mine if begins[i] < offset < ends[i]]
        assert ring.take_misplaced() == len(amid)
        assert ring.place == (100, max(offset, ends[-1]))
        remove_consumer(ring._ring, int(ring.port[reader.R_CONSUMER]))
        ring.close()


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


# --- the sessions that a subscription asks the next engine for ------------------------------------


class Link:
    """The side of an engine: it keeps the options of the subscriptions that are opened."""

    def __init__(self) -> None:
        self.asked: list[SubscriptionOptions] = []

    def now_s(self) -> float:
        return 1.0

    def open_subscription(self, pattern: str, options: SubscriptionOptions) -> SubscriptionGrant:
        raw = msgspec.json.encode(options)
        assert len(raw) < remote_frames.HEADER_BYTES_MAX
        self.asked.append(msgspec.json.decode(raw, type=SubscriptionOptions))
        return SubscriptionGrant(subscription_id=1, subscriber_id=1, pattern=pattern)


class Reading:
    """A subscription whose rings the test makes and writes."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.link = directory, Link()
        self.rings: dict[int, tuple[MappedFile, Any]] = {}
        self.bells = np.zeros(lay.DOORBELLS_MAX * lay.DOORBELL_BYTES, dtype=np.uint8)
        connection: Any = SimpleNamespace(
            link=self.link,
            rung=False,
            reconnecting=False,
            topic_codecs=SimpleNamespace(of=lambda *_: None),
            opening=lambda: nullcontext(0),
            **dict.fromkeys(("check", "pump", "add_subscription", "release_image"), _nothing),
        )
        self.core = SubscriptionCore(connection, "t", start="latest")
        self.core._open()

    def add(self, session: int) -> None:
        path = self.directory / f"ring-{session}"
        event = available(
            self.directory,
            path.name,
            first=1,
            session=session,
            reliability=lay.RELIABLE,
            kind=lay.KIND_PUBLICATION,
        )
        mapped = MappedFile.open(path)
        self.rings[session] = mapped, writer.writer_state(mapped.array)
        self.core.notice(event)
        assert self.core.step(1) is None

    def publish(self, session: int) -> None:
        """A message that is read at once."""
        mapped, state = self.rings[session]
        payload, nothing = np.zeros(8, dtype=np.uint8), np.zeros(0, dtype=np.uint8)
        writer.append(mapped.array, self.bells, state, payload, 8, nothing, 0, 0, 0, 1)
        assert self.core.step(1) is not None

    def end(self, session: int) -> None:
        """The ring of a session ends, and it may come back."""
        gone = ImageGone(
            subscription_id=1,
            image_id=session,
            topic="t",
            node="a",
            session=session,
            reason="timeout",
        )
        self.core.notice(gone)
        close_abandoned(self.rings[session][0].array, self.bells, 64)
        assert self.core.step(1) is None

    def resumed(self) -> dict[int, int]:
        """Where the next engine is asked to begin, by session."""
        self.core.reopen()
        return self.link.asked[-1].resume


def _nothing(*_: Any) -> None: ...


def place_of(session: int) -> Any:
    """Stands for a ring of which only the position counts."""
    return SimpleNamespace(session=session, position=lambda: ReadPosition(session, 32, None, None))


@pytest.fixture
def reading(tmp_path: Path) -> Reading:
    return Reading(tmp_path)


def test_a_subscription_resumes_as_many_sessions_as_an_engine_takes(reading: Reading) -> None:
    """Of more no engine refuses it: it leaves out the sessions that it read longest ago."""
    reading.add(RESUME_MAX + 1)
    reading.publish(RESUME_MAX + 1)
    reading.core._images[:0] = [place_of(n) for n in range(1, RESUME_MAX)]
    assert set(reading.resumed()) == {*range(1, RESUME_MAX), RESUME_MAX + 1}
    reading.core._images.insert(0, place_of(RESUME_MAX))
    resumed = reading.resumed()
    assert len(resumed) == RESUME_MAX
    assert RESUME_MAX + 1 in resumed


def test_sessions_that_ended_are_kept_as_many_and_by_their_last_message(
    reading: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscription, "RESUME_MAX", 3)
    for session in (1, 2, 3, 4, 5):
        reading.add(session)
    for session in (5, 2, 1, 3, 4, 1):  # last messages: 5, 2, 3, 4, 1
        reading.publish(session)
    for session in (1, 2, 3):
        reading.end(session)
    assert set(reading.resumed()) == {1, 3, 4}
    for session in (4, 5):
        reading.end(session)
    assert set(reading.resumed()) == {1, 3, 4}
    assert set(reading.core._positions) == {1, 3, 4}


def test_many_sessions_that_ended_at_once_are_kept(reading: Reading) -> None:
    sessions = range(1, 1101)
    images = [Mock(after=None, gone="timeout", subscription_id=1, session=n) for n in sessions]
    for image in images:
        image.position.return_value = ReadPosition(image.session, 32, None, None)
        image.counts.return_value = {}
    reading.core._images += images
    reading.core._leaving += images
    assert reading.core.step(1) is None
    assert not reading.core._images
    assert set(reading.resumed()) == set(sessions)
