"""Single acks are collected: what is sent is what was acked, and all of it is sent in time."""

from __future__ import annotations

import sys
import threading
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some
from tests.conftest import Eventually
from tests.support.clients import nothing_comes
from tests.support.patience import wait_until
from tests.unit.test_consumer import BODIES, connected, publish, take

from tidecast.buffers import member_ring
from tidecast.client.consumer.acks import Collector, runs_of
from tidecast.client.consumer.message import COLLECTED_MAX, DurableBatch, DurableMessage
from tidecast.errors import ConnectionLost, TidecastError
from tidecast.sync import Consumer


def batch_of(*runs: tuple[int, int, int]) -> DurableBatch:
    """A batch of runs (cursor, first token, records)."""
    table = np.zeros((len(runs), member_ring.RUN_FIELDS), dtype=np.int64)
    table[:, [member_ring.RUN_CURSOR, member_ring.RUN_TOKEN, member_ring.RUN_COUNT]] = runs
    table[1:, member_ring.RUN_ROW] = np.cumsum(table[:-1, member_ring.RUN_COUNT])
    made: Any = DurableBatch.__new__(DurableBatch)
    made._runs = table
    return made  # type: ignore[no-any-return]


@given(
    some.lists(
        some.tuples(some.integers(0, 1), some.integers(0, 4), some.integers(1, 3)),
        min_size=1,
        max_size=6,
    ),
    some.data(),
)
def test_runs_say_what_was_acked_one_by_one(
    runs: list[tuple[int, int, int]], data: some.DataObject
) -> None:
    batches = [batch_of(*runs), batch_of(*runs[::-1])]
    total = sum(n for _, _, n in runs)
    row = some.tuples(some.integers(0, 1), some.integers(0, total - 1))
    acks = data.draw(some.lists(row, min_size=1, max_size=40))
    grouped = [(b, list(each)) for b, each in groupby(acks, key=lambda ack: ack[0])]
    found = [
        (int(run[member_ring.RUN_CURSOR]), int(run[member_ring.RUN_TOKEN]) + i)
        for run in runs_of([(batches[b], [r for _, r in each]) for b, each in grouped])
        for i in range(int(run[member_ring.RUN_COUNT]))
    ]
    records = [
        [(cursor, first + i) for cursor, first, n in each for i in range(n)]
        for each in (runs, runs[::-1])
    ]
    assert found == [records[b][r] for b, r in acks]


def test_a_run_that_is_acked_in_order_is_one_run() -> None:
    batch = batch_of((1, 10, 100), (2, 5, 100))
    assert len(runs_of([(batch, list(range(200)))])) == 2
    [run] = runs_of([(batch_of((3, 10, 100)), list(range(40, 90)))])
    fields = [member_ring.RUN_CURSOR, member_ring.RUN_TOKEN, member_ring.RUN_COUNT]
    assert run[fields].tolist() == [3, 50, 50]


def messages_of(collector: Collector) -> list[DurableMessage]:
    """Messages of one batch, whose acks go to a collector."""
    batch = batch_of((1, 10, 2 * COLLECTED_MAX))
    batch.consumer = SimpleNamespace(collector=collector)  # type: ignore[assignment]
    batch.acked, batch.noted = [], False
    return [DurableMessage(b"", batch, row) for row in range(2 * COLLECTED_MAX)]


def test_acks_of_several_threads_are_all_sent() -> None:
    """Rows are added without a lock, while others take them."""
    sent: list[int] = []
    problems: list[TidecastError] = []
    flusher: Any = Silent()
    collector = Collector(
        lambda acks: sent.extend(row for _, rows in acks for row in rows), problems.append, flusher
    )
    messages = messages_of(collector)
    threads = [
        threading.Thread(target=lambda part: [each.ack() for each in part], args=(messages[k::4],))
        for k in range(4)
    ]
    switch = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            collector.tick()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(switch)
    assert collector.buffering or len(sent) == len(messages), "what is acked is sent, or noted"
    collector.tick()
    assert sorted(sent) == list(range(len(messages)))


class Silent:
    """A flusher that only notes who asked for it."""

    def __init__(self) -> None:
        self.asked = 0

    def add(self, each: object) -> None:
        self.asked += 1


def test_it_sends_by_count_and_by_time_and_asks_once_for_a_burst() -> None:
    sent: list[int] = []
    problems: list[TidecastError] = []
    flusher: Any = Silent()
    collector = Collector(
        lambda acks: sent.append(sum(len(rows) for _, rows in acks)), problems.append, flusher
    )
    messages = messages_of(collector)
    for message in messages[: COLLECTED_MAX + 3]:
        message.ack()
    assert sent == [COLLECTED_MAX]
    assert collector.buffering
    assert flusher.asked == 1
    assert collector.tick()
    assert sent == [COLLECTED_MAX, 3]
    assert not collector.tick(), "a whole round without acks: the flusher may sleep"
    messages[-1].ack()
    assert flusher.asked == 2


def test_what_the_flusher_cannot_send_fails_the_consumer() -> None:
    def refuse(acks: object) -> None:
        raise ConnectionLost("gone")

    problems: list[TidecastError] = []
    flusher: Any = Silent()
    collector = Collector(refuse, problems.append, flusher)
    messages_of(collector)[0].ack()
    collector.tick()
    assert [type(each) for each in problems] == [ConnectionLost]


@pytest.fixture
def consumer(tmp_path: Path) -> Any:
    with connected(tmp_path) as client:
        publish(client, *BODIES)
        yield client.consumer("orders", "billing", ack_wait=30.0)


def test_acks_go_out_by_themselves(consumer: Consumer, eventually: Eventually) -> None:
    """Nothing else is called: a handler that is busy for long must not hold back its acks."""
    for message in consumer.fetch(10):
        message.ack()
    eventually(lambda: not consumer.collector.buffering, "sent")


@pytest.mark.parametrize("how", ["close", "connection"])
def test_closing_sends_them(tmp_path: Path, how: str) -> None:
    with connected(tmp_path) as client:
        publish(client, *BODIES)
        consumer = client.consumer("orders", "billing")
        got = consumer.fetch(30, 5.0)
        for message in got:
            message.ack()
        acked = got.payloads()
        if how == "close":
            consumer.close()
            again = client.consumer("orders", "billing")
            assert sorted(acked + take(again, 30 - len(acked))) == BODIES
            assert nothing_comes(again)
    with connected(tmp_path) as client, client.consumer("orders", "billing") as consumer:
        left = 0 if how == "close" else 30 - len(acked)
        assert len(take(consumer, left)) == left
        assert nothing_comes(consumer)


def test_nothing_of_another_engine_is_acked_at_this_one(
    consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cursors and tokens of the one before would settle what nobody has seen."""
    take = member_ring.take

    def taken(*arguments: Any) -> Any:
        assert consumer._lock.locked(), "the keeper cannot give it another ring now"
        return take(*arguments)

    monkeypatch.setattr(member_ring, "take", taken)
    kept: list[Any] = []
    while len(kept) < 10:
        kept += [message.copy() for message in consumer.fetch(10, 5.0)]
    kept[0].ack()
    consumer._resume(consumer._ask())
    acked = int(consumer._state[member_ring.K_ACKED])
    for message in kept:
        message.ack()
    consumer.collector.flush()
    assert int(consumer._state[member_ring.K_ACKED]) == acked


def test_a_refusal_goes_out_behind_the_acks_before_it(consumer: Consumer) -> None:
    first: list[Any] = []
    while len(first) < 30:
        first += [message.copy() for message in consumer.fetch(30, 5.0)]
    for message in first[:-1]:
        message.ack()
    first[-1].nak()
    assert not consumer.collector.buffering
    [again] = consumer.fetch(30, 5.0)
    assert (again.data, again.attempts) == (first[-1].data, 2)


def test_a_consumer_that_closes_waits_for_acks_that_its_flusher_sends(tmp_path: Path) -> None:
    """The flusher has taken them, and is about to write them into the ring."""
    with connected(tmp_path) as client:
        publish(client, *BODIES)
        consumer = client.consumer("orders", "s")
        collector, closers = consumer.collector, list[threading.Thread]()
        send = collector._send

        def late(acks: Any) -> None:
            if acks and not closers:
                closers.append(threading.Thread(target=consumer.close))
                closers[0].start()
                closers[0].join(0.2)
            send(acks)

        collector._send = late
        batch = consumer.fetch(len(BODIES), 5.0)
        for message in batch.messages:
            message.ack()
        collector.flush()
        closers[0].join()
        found = client.subscriptions.get("orders", "s")
        assert found.lag == len(BODIES) - len(batch)


def test_a_lag_counts_acks_that_no_cycle_of_the_puller_has_read(tmp_path: Path) -> None:
    """The puller's thread is between two cycles from before the acks until the look."""
    with connected(tmp_path) as client, client.consumer("orders", "s") as consumer:
        publish(client, *BODIES)
        kept: list[Any] = []
        while len(kept) < len(BODIES):
            kept += [message.copy() for message in consumer.fetch(len(BODIES), 5.0)]
        puller, between = client.link.node.consumers.puller, threading.Event()  # type: ignore[attr-defined]

        def hold() -> None:
            between.set()
            wait_until(lambda: bool(puller._agent._commands), 5.0, "a look")

        puller.post(hold)
        assert between.wait(5.0)
        for message in kept:
            message.ack()
        assert consumer.info()["lag"] == 0
