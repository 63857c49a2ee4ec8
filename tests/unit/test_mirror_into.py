"""A mirror whose source has records that cannot be held: they are reported, or it ends there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.support.punched import Punched, PunchedReceiver

from tidecast.errors import PayloadTooLarge
from tidecast.mirror.into import Copier
from tidecast.mirror.plan import Placing, Route
from tidecast.mirror.progress import Event, Progress
from tidecast.queues.adapter import unpack


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
