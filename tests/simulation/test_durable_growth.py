"""More queues while a topic runs."""

from __future__ import annotations

import errno
from typing import Any

import pytest
from tests.support.durable import Platform, platform, rows_of

from tidecast.errors import StorageError
from tidecast.protocol import dedup


def payloads(one: Platform) -> list[bytes]:
    return [row[3] for row in rows_of(one.topic)]


def test_a_growth_that_the_disk_refuses_changes_nothing_and_comes_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with platform(queues=2) as one:
        publisher = one.publisher(producer="p")

        def publish(first: int, end: int, via: Any = publisher) -> None:
            for i in range(first, end):
                via.publish(b"%d" % i, key=b"k%d" % (i % 50))
            one.run()

        def refused(*_: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        publish(0, 100)
        with monkeypatch.context() as disk:
            disk.setattr("tidecast.node.durable.topic.write_atomically", refused)
            with pytest.raises(StorageError, match="No space left"):
                one.node.edit_topic("orders", {"queues": 5})
            publish(100, 200)
            assert (len(one.topic.logs), one.topic.map.queues) == (2, 2)
            assert one.topic.producers.known[dedup.producer_id("p")].last_seq == 200
        one.node.edit_topic("orders", {"queues": 5})
        assert [log.queue for log in one.topic.logs] == [0, 1, 2, 3, 4]
        publish(0, 300, one.publisher(producer="p", first_seq=1))
        assert sorted(int(p) for p in payloads(one)) == list(range(300))
        assert one.counters()["duplicates"] == 200


def test_growth_keeps_key_order_and_knows_what_was_sent() -> None:
    with platform(queues=2) as one:
        publisher = one.publisher(producer="p")
        for i in range(200):
            publisher.publish(b"%d" % i, key=b"k%d" % (i % 50))
        one.run()
        one.node.edit_topic("orders", {"queues": 5})
        again = one.publisher(producer="p", first_seq=1)
        for i in range(300):
            again.publish(b"%d" % i, key=b"k%d" % (i % 50))
        one.run()
        assert sorted(int(p) for p in payloads(one)) == list(range(300))
        assert one.counters()["duplicates"] == 200
        assert one.topic.map.epoch == 1
        assert sum(one.topic.map.growths[0].cuts) == 200
        one.crash()
        one.restart()
        last = one.publisher(producer="p", first_seq=1)
        for i in range(300):
            last.publish(b"%d" % i, key=b"k%d" % (i % 50))
        one.run()
        assert len(rows_of(one.topic)) == 300
