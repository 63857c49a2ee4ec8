"""A subscription's acks, and its counts of attempts, outlive crashes of engines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.durable import Platform, platform, powered, rows_of

from tidecast.api.start import Earliest
from tidecast.client.blocking import Connection
from tidecast.client.consumer.blocking import Consumer
from tidecast.config.topology import TopicConfig
from tidecast.events import PositionsNotSaved
from tidecast.node.consumers import storage as places

N = 60
SAVED = 150
"""Cycles (of 1 ms) until the positions are saved, at the latest."""


def consumer_of(p: Platform, **options: Any) -> Consumer:
    with p.publisher() as publisher:
        for n in range(N):
            publisher.publish(b"%d" % n, key=b"k%d" % n)
        publisher.wait_durable(timeout=120.0)
    return p.connect().consumer("orders", "billing", **options)


def take(p: Platform, consumer: Consumer) -> list[Any]:
    """All that comes within a while."""
    found: list[Any] = []
    for _ in range(5):
        p.run(20)
        found += [message.copy() for message in consumer.fetch(1000, 0.0)]
    return found


def again(p: Platform, cycles: int = SAVED) -> None:
    """Time to save, then kill -9 of the engine, and the next one."""
    p.run(cycles)
    p.crash()
    p.restart()


def test_what_was_acked_before_an_earlier_crash_does_not_come_after_a_later_one() -> None:
    """A refused record keeps the watermark back all the while."""
    with platform() as p:
        consumer = consumer_of(p, max_deliver=0)
        acked = 0
        for crash in range(4):
            got = take(p, consumer)
            assert len(got) == N - acked, f"crash {crash}: {[int(m.data) for m in got]}"
            assert (got[0].data, got[0].attempts) == (b"0", crash + 1)
            got[0].nak(60.0)
            for message in got[1::2]:
                message.ack()
            acked += len(got[1::2])
            again(p)
        assert consumer.info()["cursors"][0]["position"] == 0


def test_attempts_outlive_a_crash_before_the_record_was_delivered_again() -> None:
    with platform() as p:
        consumer = consumer_of(p, max_deliver=0)
        for message in take(p, consumer):
            message.nak(60.0)
        again(p)
        consumer.close()
        with p.connect().consumer("orders", "billing", max_in_flight=1) as consumer:
            [one] = take(p, consumer)
            one.ack()
            again(p)
        with p.connect().consumer("orders", "billing") as consumer:
            assert [message.attempts for message in take(p, consumer)] == [2] * (N - 1)


def test_what_was_never_taken_was_no_attempt_though_the_engine_crashed() -> None:
    with platform() as p:
        consumer = consumer_of(p, max_deliver=2)
        p.run(50)  # it lies in the member's ring
        for _ in range(4):
            again(p)
        got = take(p, consumer)
        assert [message.attempts for message in got] == [1] * N
        again(p)
        assert [message.attempts for message in take(p, consumer)] == [2] * N


def test_a_seek_is_not_undone_by_what_an_engine_before_had_settled() -> None:
    with platform() as p:
        consumer = consumer_of(p)
        got = take(p, consumer)
        got[0].nak(60.0)
        for message in got[1:]:
            message.ack()
        again(p)
        consumer.pause()
        consumer.seek(Earliest())
        again(p)
        consumer.resume()
        assert sorted(int(message.data) for message in take(p, consumer)) == list(range(N))


@pytest.mark.parametrize("refused", [1, 5])
def test_peek_names_what_is_left_after_a_crash(refused: int) -> None:
    with platform() as p:
        consumer = consumer_of(p, max_deliver=0)
        got = take(p, consumer)
        for message in got[:refused]:
            message.nak(60.0)
        for message in got[refused:-3]:
            message.ack()
        again(p)
        take(p, consumer)
        link: Any = consumer._connection.link
        rows = link.administer("peek", {"pattern": "orders", "name": "billing", "limit": 100})
        left = [row["token"] for row in rows]
        assert left == [*range(refused), N - 3, N - 2, N - 1]


def not_saved(connection: Connection) -> list[PositionsNotSaved]:
    found = []
    while (event := connection.take_event()) is not None:
        if isinstance(event, PositionsNotSaved):
            found.append(event)
    return found


@pytest.mark.parametrize("failures", [1, 3])
def test_a_position_whose_save_failed_is_saved_though_nothing_changes(failures: int) -> None:
    """Syncs of the disk fail; then the engine is killed. A problem that lasts is reported once."""
    with powered() as p:
        consumer = consumer_of(p)
        watcher = p.connect()
        got = take(p, consumer)
        p.run(SAVED)
        syncs = 0

        def fails(path: Path) -> bool:
            nonlocal syncs
            syncs += ".sub" in path.name
            return ".sub" in path.name and syncs <= failures

        p.disk.failing = fails
        for message in got:
            message.ack()
        p.run(SAVED)
        assert syncs >= 1
        p.run((failures + 1) * SAVED)
        assert syncs == failures + 1, "saved again, and once"
        [event] = not_saved(watcher)
        assert (event.pattern, event.name) == ("orders", "billing")
        p.crash()
        p.restart()
        assert take(p, consumer) == []
        assert consumer.info()["lag"] == 0


# --- dead letters ---------------------------------------------------------------------------------


def add_dead(p: Platform) -> None:
    """A topic for dead letters, which the next engines have, too."""
    dead = TopicConfig(name="dead", mode="durable", queues=2, fsync="batch")
    p.node.create_topic(dead)
    p.topology = msgspec.structs.replace(p.topology, topics=[*p.topology.topics, dead])


def letters_of(p: Platform) -> list[bytes]:
    return sorted(row[3] for row in rows_of(p.durable.topics["dead"]))


def refuse(consumer: Consumer, messages: list[Any], p: Platform) -> None:
    for message in messages:
        message.term("no")
    p.run(20)


@pytest.mark.parametrize("crashes", [1, 3])
def test_a_crash_between_a_letter_and_the_saved_position_stores_no_second_letter(
    crashes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with platform() as p:
        add_dead(p)
        consumer = consumer_of(p, dead_letter="dead")
        first = take(p, consumer)
        refuse(consumer, first[:5], p)
        p.run(SAVED)
        with monkeypatch.context() as patched:
            patched.setattr(places, "put", lambda state, saved: None)  # the crash comes before
            refuse(consumer, first[5:20], p)
            assert len(letters_of(p)) == 20
            for _ in range(crashes):
                p.crash()
                p.restart()
        again = take(p, consumer)
        assert [m.data for m in again[:15]] == [m.data for m in first[5:20]]
        refuse(consumer, again[:15], p)
        p.run(SAVED)
        assert len(letters_of(p)) == 20
        assert letters_of(p) == sorted(m.data for m in first[:20])
        assert p.node.consumers.subscriptions["orders", "billing"].saved.dead_open == 20
        refuse(consumer, again[15:20], p)
        assert len(letters_of(p)) == 25, "others are stored"


def test_a_record_that_is_given_up_again_after_a_seek_has_another_letter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with platform() as p:
        add_dead(p)
        consumer = consumer_of(p, dead_letter="dead")
        got = take(p, consumer)
        p.run(SAVED)
        with monkeypatch.context() as patched:
            patched.setattr(places, "put", lambda state, saved: None)
            refuse(consumer, got[:5], p)
            p.crash()
            p.restart()
        consumer.seek(Earliest())
        refuse(consumer, take(p, consumer)[:5], p)
        assert len(letters_of(p)) == 10
