"""A mirror whose source has records that cannot be held: they are reported, or it ends there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.support.punched import Punched, PunchedReceiver

from tidecast.errors import PayloadTooLarge
from tidecast.layout import segment as lay
from tidecast.mirror.inbound import Copier
from tidecast.mirror.plan import Placing, Route
from tidecast.mirror.progress import Event, Progress
from tidecast.mirror.target import LOCAL_BYTES_MAX, REMOTE_BYTES_MAX
from tidecast.queues.adapter import Record, pack, unpack


class Topic:
    """A durable topic of one queue."""

    topic, bytes_max = "orders", 1 << 20

    def __init__(self) -> None:
        self.payloads: list[bytes] = []

    def append(self, source: int, queue: int, after: int, run: bytes) -> dict[str, Any]:
        """See `Target.append`."""
        assert (source, queue) == (0, 0)
        found = [record.payload for _, record in unpack(np.frombuffer(run, dtype=np.uint8))]
        self.payloads += found
        mark = int(found[-1]) + 1
        assert mark > after
        return {"held": False, "mark": mark, "end": mark, "queues": 1}


def copier(queue: Punched, topic: Any, events: list[Event], on_gap: str) -> Copier:
    progress = Progress(None, events.append, patience_s=1.0)
    route = Route(source=0, position=0, began=0, marks=[0])
    receiver = PunchedReceiver(queue)
    return Copier(
        route,
        Placing("queue", 1),
        receiver,
        topic,
        progress,
        on_gap=on_gap,
        until=queue.end,
    )


def copy_all(one: Copier) -> None:
    while not one.copy_one():
        pass


def source() -> Punched:
    queue = Punched()
    queue.add(0, 3)
    queue.leave_out()
    queue.add(0, 2)
    queue.leave_out(2)
    return queue


def test_records_that_cannot_be_held_are_reported_and_counted() -> None:
    queue, topic, events = source(), Topic(), list[Event]()
    one = copier(queue, topic, events, "report")
    copy_all(one)
    assert topic.payloads == [b"0", b"1", b"2", b"4", b"5"]
    assert one.position == queue.end == 8
    assert [(e.event, e.about["first"], e.about["end"], e.about["records"]) for e in events] == [
        ("RecordsLeftOut", 3, 4, 1),
        ("RecordsLeftOut", 6, 8, 2),
    ]
    assert "offset 3" in events[0].text
    assert "70000 bytes" in events[0].text
    assert "headers too large" in events[0].text
    counts = one._progress.counts
    assert (counts.records, counts.left_out, counts.gone) == (5, 3, 0)


def test_a_mirror_that_must_not_lose_any_ends_before_such_a_record() -> None:
    queue, topic, events = source(), Topic(), list[Event]()
    for _ in range(2):  # also when it is started again
        one = copier(queue, topic, events, "stop")
        one.route.marks[0] = one.position = len(topic.payloads)
        with pytest.raises(
            PayloadTooLarge, match=r"offset 3 .*cannot be copied: headers too large"
        ):
            copy_all(one)
        assert one.position == 3
        assert topic.payloads == [b"0", b"1", b"2"]
    assert not events


# --- records above the limit of an append ---------------------------------------------------------

LIMIT = 4096


class SmallTopic:
    """A durable topic of two queues; keys decide, and runs are small."""

    topic = "orders"

    def __init__(self, bytes_max: int = LIMIT) -> None:
        self.bytes_max = bytes_max
        self.sizes: list[list[int]] = [[], []]

    def append(self, source: int, queue: int, after: int, run: bytes) -> dict[str, Any]:
        """See `Target.append`."""
        assert (source, len(run) <= self.bytes_max) == (0, True)
        rows = unpack(np.frombuffer(run, dtype=np.uint8))
        self.sizes[queue] += [len(record.payload) for _, record in rows]
        last = int.from_bytes(run[lay.BATCH_BASE_SEQ_AT :][:8], "little") + rows[-1][0] - rows[0][0]
        assert last > after
        return {"held": False, "mark": last, "end": len(self.sizes[queue]), "queues": 2}


def sized(*sizes: int, key: bytes | None = b"k") -> Punched:
    """One batch of records of these sizes."""
    queue = Punched()
    queue.batches.append((0, len(sizes), pack([Record(bytes(n), key) for n in sizes])))
    queue.end = len(sizes)
    return queue


def fitting(limit: int, key: bytes = b"k") -> int:
    """Bytes of the payload of the largest record that one run holds."""
    empty = pack([Record(b"", key)]).size
    size = next(
        n for n in range(limit - empty, 0, -1) if pack([Record(bytes(n), key)]).size <= limit
    )
    assert pack([Record(bytes(size + 8), key)]).size > limit
    return size


@pytest.mark.parametrize("place", ["queue", "key"])
def test_a_record_above_the_limit_is_a_hole_that_is_reported(place: str) -> None:
    most = fitting(LIMIT)
    queue, topic, events = (
        sized(10, most, most + 8, 20, 9000, 30, 1 << 20),
        SmallTopic(),
        list[Event](),
    )
    one = copier(queue, topic, events, "report")
    if place == "key":
        one._placing = Placing("key", 2)
        one.route.marks.append(0)
    copy_all(one)
    assert sorted(topic.sizes, key=len) == [[], [10, most, 20, 30]]
    assert one.position == queue.end == 7
    assert [(e.event, e.about["first"], e.about["end"], e.about["records"]) for e in events] == [
        ("RecordsLeftOut", at, at + 1, 1) for at in (2, 4, 6)
    ]
    for event in events:
        assert event.about["queue"] == 0
        assert event.about["bytes"] > LIMIT - lay.BATCH_HEADER_BYTES
        limit = LIMIT - lay.BATCH_HEADER_BYTES
        assert event.about["reason"] == (
            f"a record of {event.about['bytes']} bytes: a mirror appends {limit} at most"
        )
    counts = one._progress.counts
    assert (counts.records, counts.left_out, counts.repeated) == (4, 3, 0)
    one.note_durable([9, 9])
    assert one.durable == 7


def test_a_mirror_that_must_not_lose_any_names_the_record_and_the_remedy() -> None:
    queue, topic, events = sized(10, 9000, 20), SmallTopic(), list[Event]()
    for _ in range(2):  # also when it is started again
        one = copier(queue, topic, events, "stop")
        one.route.marks[0] = one.position = len(topic.sizes[0])
        with pytest.raises(PayloadTooLarge) as caught:
            copy_all(one)
        text = str(caught.value)
        assert "queue 0 of the source: offset 1 (1 records, 90" in text
        assert f"a mirror appends {LIMIT - lay.BATCH_HEADER_BYTES} at most" in text
        assert "pass the record with --on-gap report" in text
        assert "without --server" in text
        assert topic.sizes[0] == [10]
        assert one.position == 1
        one.note_durable([0, 0])
        assert one.durable < 1 or one.route.marks[0] == 1
    assert not events


def test_only_a_mirror_over_a_gateway_has_a_larger_limit_elsewhere() -> None:
    for bytes_max, has_more in ((REMOTE_BYTES_MAX, True), (LOCAL_BYTES_MAX, False)):
        one = copier(sized(bytes_max), SmallTopic(bytes_max), [], "stop")
        with pytest.raises(PayloadTooLarge) as caught:
            copy_all(one)
        assert ("without --server" in str(caught.value)) == has_more


# --- a rate ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["queue", "key"])
def test_a_mirror_with_a_rate_copies_few_records_at_once(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One large run comes in parts of a fifth of a second, and the position follows each part."""
    topic = SmallTopic(REMOTE_BYTES_MAX)
    queue, events, taken = sized(*[1] * 500), list[Event](), list[tuple[int, int]]()
    progress = Progress(150.0, events.append, patience_s=1.0)
    route = Route(source=0, position=0, began=0, marks=[0, 0])
    one = Copier(
        route,
        Placing(place, 1 if place == "queue" else 2),
        PunchedReceiver(queue),
        topic,  # type: ignore[arg-type]
        progress,
        on_gap="report",
        until=queue.end,
    )
    monkeypatch.setattr(progress, "take", lambda records: taken.append((records, one.position)))
    copy_all(one)
    assert taken == [(min(30, 500 - first), first) for first in range(0, 500, 30)]
    assert (one.position, progress.counts.records, sum(map(len, topic.sizes))) == (500, 500, 500)
    one.note_durable([500, 500])
    assert one.durable == 500
