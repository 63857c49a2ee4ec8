"""Placed appends: verdicts, deduplication by queue, restarts, disks that refuse."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.durable import Platform
from tests.support.kafka import batch_of

from tidecast.errors import StorageError
from tidecast.kafka.records import Decoder
from tidecast.node.durable.placed import (
    EPOCH_SHIFT,
    WRAP,
    Outcome,
    PlacedAppends,
    Run,
    Verdict,
    new_placed_producer,
    sequence_before,
)

PID = new_placed_producer(time.time(), 7)
OLD = new_placed_producer(time.time() - 7200, 7)


class Engine:
    """An inline engine, and its placed appends."""

    def __init__(self, directory: Path) -> None:
        self.platform = Platform(directory, queues=2)
        self.attach()

    def attach(self) -> None:
        self.appends = PlacedAppends(self.platform.node.durable.registry, inline=True)
        self.appends.start()

    def restart(self) -> None:
        self.platform.crash()
        self.platform.start()
        self.attach()

    @property
    def topic(self) -> Any:
        return self.platform.node.durable.topics["orders"]

    def submit(self, n: int = 1, sequence: int = 0, **run: Any) -> list[Verdict]:
        """Hand a run over; its verdict stands in the list once there is one."""
        found: list[Verdict] = []
        values = [b"%d" % (sequence + i) for i in range(n)]
        taken = Decoder().take(memoryview(batch_of(*values)), 1)
        given = {"queue": 0, "producer": PID, "deadline_s": time.monotonic() + 60} | run
        self.appends.submit(
            Run(
                "orders",
                buffer=taken.buffer,
                n_bytes=taken.n_bytes,
                count=n,
                done=found.append,
                sequence=sequence,
                **given,
            )
        )
        return found

    def append(self, n: int = 1, sequence: int = 0, **run: Any) -> tuple[Outcome, int]:
        """The verdict of a run, when it is durable."""
        found = self.submit(n, sequence, **run)
        self.appends.work()
        self.platform.run()
        self.appends.work()
        (verdict,) = found
        return verdict.outcome, verdict.token


@pytest.fixture
def engine(short_dir: Path) -> Iterator[Engine]:
    made = Engine(short_dir)
    yield made
    made.appends.stop()
    made.platform.node.stop()


def test_runs_get_the_tokens_that_follow(engine: Engine) -> None:
    assert engine.append(3, producer=0) == (Outcome.APPENDED, 0)
    assert engine.append(2, producer=0) == (Outcome.APPENDED, 3)
    assert engine.append(2, producer=0, queue=1) == (Outcome.APPENDED, 0)
    assert engine.topic.logs[0].durable_token == 5


def test_a_verdict_waits_for_the_sync(engine: Engine) -> None:
    durable, written = engine.submit(2), engine.submit(1, 2, durable=False)
    engine.appends.work()
    assert [len(durable), len(written)] == [0, 1]
    assert engine.topic.logs[0].durable_token == 0
    engine.platform.run()
    assert [each.token for each in durable] == [0]


def test_duplicates_are_told_with_their_token(engine: Engine) -> None:
    assert engine.append(3, 0) == (Outcome.APPENDED, 0)
    assert engine.append(2, 3) == (Outcome.APPENDED, 3)
    assert engine.append(3, 0) == (Outcome.DUPLICATE, 0)
    assert engine.append(2, 3) == (Outcome.DUPLICATE, 3)
    assert engine.append(1, 5) == (Outcome.APPENDED, 5)
    assert engine.topic.logs[0].next_token == 6


def test_a_duplicate_waits_for_the_same_sync(engine: Engine) -> None:
    first, again = engine.submit(3), engine.submit(3)
    engine.appends.work()
    assert first == again == []
    engine.platform.run()
    assert (first[0].outcome, again[0].outcome) == (Outcome.APPENDED, Outcome.DUPLICATE)


def test_gaps_and_older_epochs_are_refused(engine: Engine) -> None:
    assert engine.append(1, 5)[0] is Outcome.GAP
    assert engine.append(3, 0)[0] is Outcome.APPENDED
    assert engine.append(1, 4)[0] is Outcome.GAP
    assert engine.append(2, 2)[0] is Outcome.GAP  # a part of it is new
    assert engine.append(1, 1, epoch=1)[0] is Outcome.GAP
    assert engine.append(1, 0, epoch=1) == (Outcome.APPENDED, 3)
    assert engine.append(1, 3, epoch=0)[0] is Outcome.FENCED
    assert engine.append(1, 0, queue=1) == (Outcome.APPENDED, 0)  # each queue counts by itself


def test_a_producer_that_was_forgotten_goes_on(engine: Engine) -> None:
    assert engine.append(2, 70, producer=OLD) == (Outcome.APPENDED, 0)
    assert engine.append(2, 70, producer=OLD) == (Outcome.DUPLICATE, 0)
    # What lies before was never there: to say that it is a duplicate would lose it.
    assert engine.append(2, 60, producer=OLD)[0] is Outcome.GAP
    assert engine.append(2, 72, producer=OLD) == (Outcome.APPENDED, 2)


def test_sequences_wrap(engine: Engine) -> None:
    assert engine.append(3, WRAP - 2, producer=OLD)[0] is Outcome.APPENDED
    assert engine.append(3, WRAP - 2, producer=OLD) == (Outcome.DUPLICATE, 0)
    assert engine.append(1, 1, producer=OLD) == (Outcome.APPENDED, 3)
    assert engine.append(1, 3, producer=OLD)[0] is Outcome.GAP
    assert int(engine.topic.producers.known[OLD].marks[0]) == WRAP + 2


@pytest.mark.parametrize(("count", "sequence"), [(1, 0), (WRAP, WRAP - 1), (WRAP + 5, 3)])
def test_the_number_of_a_sequence(count: int, sequence: int) -> None:
    mark = (3 << EPOCH_SHIFT) + count
    found = sequence_before(mark, sequence)
    assert found <= mark
    assert (found - (3 << EPOCH_SHIFT) - 1) % WRAP == sequence


def test_the_log_remembers_after_a_crash(engine: Engine) -> None:
    engine.append(3, 0)
    engine.append(2, 3)
    engine.append(4, 0, queue=1)
    engine.restart()
    assert engine.append(2, 3)[0] is Outcome.DUPLICATE
    assert engine.append(4, 0, queue=1)[0] is Outcome.DUPLICATE
    assert engine.append(1, 5) == (Outcome.APPENDED, 5)
    assert engine.append(1, 4, queue=1) == (Outcome.APPENDED, 4)
    assert not any(each.torn_seq for each in engine.topic.producers.known.values())


def test_queues_that_are_added_know_nothing_of_a_producer(engine: Engine) -> None:
    engine.append(3, 0)
    engine.platform.node.edit_topic("orders", {"queues": 3})
    assert engine.append(1, 0, queue=2) == (Outcome.APPENDED, 0)
    assert engine.append(1, 3) == (Outcome.APPENDED, 3)


def test_segments_roll(engine: Engine) -> None:
    engine.platform.node.edit_topic("orders", {"segment_bytes": 65_536})
    for i in range(8):
        assert engine.append(1000, 1000 * i) == (Outcome.APPENDED, 1000 * i)
    assert len(engine.topic.logs[0].segments) > 2
    engine.restart()
    assert engine.append(1000, 7000)[0] is Outcome.DUPLICATE
    assert engine.append(1000, 8000) == (Outcome.APPENDED, 8000)


def test_a_topic_that_waits_for_its_disk_holds_runs_back_in_order(engine: Engine) -> None:
    record = engine.platform.node.durable.registry.runtime.state.topics[engine.topic.slot]
    record["suspect"] = 1
    first, second = engine.submit(3, 0), engine.submit(2, 3)
    late = engine.submit(1, 5, deadline_s=0.0)
    assert engine.appends.work() == 2
    (refused,) = late
    assert isinstance(refused.error, StorageError)
    record["suspect"] = 0
    assert engine.appends.work() == 0
    engine.platform.run()
    assert (first[0].token, second[0].token) == (0, 3)


def test_a_topic_that_goes_refuses_what_waits(engine: Engine) -> None:
    waits = engine.submit(3, 0)
    engine.appends.work()
    engine.platform.node.delete_topic("orders")
    later = engine.submit(1, 3)
    engine.appends.work()
    assert [each.outcome for each in (*waits, *later)] == [Outcome.REFUSED] * 2


def test_an_engine_that_stops_refuses_what_waits(engine: Engine) -> None:
    waits = engine.submit(3, 0)
    engine.appends.stop()
    assert waits[0].outcome is Outcome.REFUSED
    with pytest.raises(StorageError):
        engine.submit(3, 0)


def test_native_publishers_and_runs_share_a_queue(engine: Engine) -> None:
    engine.append(3, 0)
    publisher = engine.platform.publisher(producer="native")
    publisher.publish_batch([b"a"] * 300)
    engine.platform.run()
    end = engine.topic.logs[0].next_token
    assert engine.append(2, 3) == (Outcome.APPENDED, end)
    publisher.publish_batch([b"b"] * 300)
    engine.platform.run()
    assert sum(log.next_token for log in engine.topic.logs) == 605
