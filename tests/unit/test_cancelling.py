"""Cancelling records before their delivery time: in the puller, in the engine, in clients."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.clients import nothing_comes
from tests.support.gateways import TIMEOUT_S, make_gateway, remote
from tests.support.pulling import S_NS, Rig, TestMember, payloads
from tests.support.scheduling import EPOCH_NS, Put, opened, put, timed

import tidecast
import tidecast.sync
import tidecast.testing
from tidecast.agents.puller import cancelling
from tidecast.agents.puller.cancelling import Outcome
from tidecast.agents.puller.entries import pause_cursor, seek_cursor
from tidecast.errors import ConfigError, Conflict, NotFound, StorageError
from tidecast.layout import member as lay
from tidecast.node.consumers import storage
from tidecast.queues.cache import cursors
from tidecast.queues.cache.window import WINDOW_MAX


def cancel(r: Rig, cursor: int, due: dict[int, int], *, dry_run: bool = False) -> Outcome:
    """Cancel records by their tokens; ``due``: when each is due."""
    tokens = np.array(sorted(due), dtype=np.int64)
    times = np.array([due[token] for token in sorted(due)], dtype=np.int64)
    cancelling.check_room(r.puller, cursor, len(due))
    return cancelling.cancel(r.puller, cursor, tokens, times, dry_run=dry_run)


def in_s(r: Rig, seconds: float) -> int:
    return EPOCH_NS + r.now + round(seconds * S_NS)


def test_a_cancelled_record_is_settled_and_never_delivered() -> None:
    with timed() as r:
        q, m = r.queue(), r.member()
        cursor = r.cursor(q, m)
        put(r, q, Put(b"a", 10.0), Put(b"b", 10.0), Put(b"now"))
        r.run()
        m.ack_all(m.take())
        r.run()
        due = {0: in_s(r, 10.0)}
        assert cancel(r, cursor, due, dry_run=True) == Outcome(1, 0, 0)
        assert r.cursor_record(cursor)["scheduled"] == 2
        assert cancel(r, cursor, due) == Outcome(1, 0, 0)
        record = r.cursor_record(cursor)
        assert (record["scheduled"], record["again_n"]) == (1, 1)
        assert (record["cancelled"], record["settled"], record["dirty"]) == (1, 2, 1)
        assert r.position(cursor) == (1, 3)
        assert cancel(r, cursor, due) == Outcome(0, 0, 1), "once"
        r.run(10 * S_NS)
        got = m.take()
        assert payloads(got) == [b"b"]
        m.ack_all(got)
        r.run()
        assert r.position(cursor) == (3, 3)


def test_what_is_due_or_delivered_is_too_late() -> None:
    with timed() as r:
        q, m = r.queue(), r.member(in_flight_max=1)
        cursor = r.cursor(q, m)
        put(r, q, Put(b"a", 10.0), Put(b"b", 10.0))
        r.run()
        due = dict.fromkeys((0, 1), in_s(r, 10.0))
        r.now += 10 * S_NS  # due, and no timer was looked at
        assert cancel(r, cursor, due) == Outcome(0, 2, 0)
        r.run(S_NS)
        [a] = m.take()
        assert cancel(r, cursor, due) == Outcome(0, 2, 0), "one is out, one has no credit"
        m.nak(a, 5 * S_NS)
        r.run()
        [b] = m.take()
        assert cancel(r, cursor, due) == Outcome(0, 2, 0), "one waits to be delivered again"
        m.ack(b)
        r.run()
        assert cancel(r, cursor, due) == Outcome(0, 1, 1)
        r.run(5 * S_NS)
        assert payloads(m.take()) == [b"a"]
        assert r.cursor_record(cursor)["cancelled"] == 0


def test_records_that_the_cursor_has_yet_to_come_to() -> None:
    with timed() as r:
        q, m = r.queue(), r.member()
        cursor = r.cursor(q)  # without a member it stands still
        put(r, q, *[Put(b"%d" % k, 10.0 if k % 3 else None) for k in range(12)], Put(b"c", 2.0))
        r.run()
        due = {k: in_s(r, 10.0) for k in range(12) if k % 3}
        assert cancel(r, cursor, due, dry_run=True) == Outcome(8, 0, 0)
        assert cancel(r, cursor, {k: due[k] for k in (1, 2, 4)}) == Outcome(3, 0, 0)
        assert cancel(r, cursor, {k: due[k] for k in (2, 5, 7)}) == Outcome(2, 0, 1)
        rows = r.puller.restored_beyond(cursor, 0).tolist()
        assert rows == [[1, 3, -1], [4, 6, -1], [7, 8, -1]]
        r.now += 5 * S_NS
        assert cancel(r, cursor, {12: in_s(r, -3.0)}) == Outcome(0, 1, 0)
        r.share(cursor, m)
        r.run(S_NS)
        got = m.take()
        assert payloads(got) == [b"0", b"3", b"6", b"9", b"c"]
        r.run(10 * S_NS)
        got += m.take()
        assert payloads(got)[5:] == [b"8", b"10", b"11"]
        m.ack_all(got)
        r.run()
        assert r.position(cursor) == (13, 13)
        record = r.cursor_record(cursor)
        assert (record["cancelled"], record["settled"], record["filtered"]) == (5, 13, 5)


def test_a_record_that_was_tried_before_is_not_merged_into_what_is_cancelled() -> None:
    with timed() as r:
        q, m = r.queue(), r.member()
        cursor = r.cursor(q)
        put(r, q, Put(b"tried"), Put(b"later", 10.0), Put(b"tried, too"), Put(b"new"))
        r.run()
        rows = np.array([[0, 1, 2], [2, 3, 3]], dtype=np.int64)
        r.puller.restore(cursor, rows)
        assert cancel(r, cursor, {1: in_s(r, 10.0), 2: in_s(r, 10.0)}) == Outcome(1, 1, 0)
        assert r.puller.restored_beyond(cursor, 0).tolist() == [[0, 1, 2], [1, 2, -1], [2, 3, 3]]
        r.share(cursor, m)
        r.run(S_NS)
        assert payloads(m.take()) == [b"tried", b"tried, too", b"new"]


def test_a_cursor_keeps_few_rows_about_what_it_has_yet_to_come_to() -> None:
    with timed() as r:
        q = r.queue()
        cursor = r.cursor(q)
        r.run()
        rows = np.arange(0, 2 * WINDOW_MAX, 2, dtype=np.int64)
        r.puller.restore(cursor, np.stack([rows, rows + 1, np.full_like(rows, -1)], axis=1))
        with pytest.raises(Conflict, match=f"{WINDOW_MAX} rows"):
            cancel(r, cursor, {1: in_s(r, 10.0)})


def test_order_of_a_key_does_not_wait_for_a_cancelled_record() -> None:
    with timed() as r:
        q, m = r.queue(), r.member(in_flight_max=1)
        cursor = r.cursor(q, m)
        put(r, q, Put(b"later", 10.0, b"k"), *[Put(b"%d" % k, None, b"k") for k in range(4)])
        r.run()
        first = m.take()
        assert cancel(r, cursor, {0: in_s(r, 10.0)}).cancelled == 1
        r.run(10 * S_NS)
        m.ack_all(first)
        got = payloads(first)
        for _ in range(3):
            r.run()
            some = m.take()
            m.ack_all(some)
            got += payloads(some)
        assert got == [b"0", b"1", b"2", b"3"]


def test_a_cursor_of_one_stream_cancels_its_own() -> None:
    with timed() as r:
        q, m = r.queue(), r.member()
        cursor = r.cursor(q, m, key_pattern="k")
        put(r, q, Put(b"x", None, b"x"), Put(b"a", 10.0, b"k"), Put(b"b", 10.0, b"k"))
        r.run()
        assert cancel(r, cursor, {1: in_s(r, 10.0)}) == Outcome(1, 0, 0)
        pause_cursor(r.puller.words, cursor, 1)
        r.run()
        put(r, q, Put(b"c", 10.0, b"k"), Put(b"d", None, b"k"))
        assert cancel(r, cursor, {3: in_s(r, 10.0)}) == Outcome(1, 0, 0)
        pause_cursor(r.puller.words, cursor, 0)
        r.run()
        assert payloads(m.take()) == [b"d"]
        r.run(10 * S_NS)
        assert payloads(m.take()) == [b"b"]


def test_a_window_that_is_full_of_cancelled_records_flows_again() -> None:
    with timed() as r:
        q, m = r.queue(), r.member()
        cursor = r.cursor(q, m)
        for _ in range(WINDOW_MAX // 8192):
            put(r, q, *[Put(b"", 10.0)] * 8192)
        put(r, q, Put(b"now"))
        r.run()
        assert cursors.REASONS[r.cursor_record(cursor)["reason"]] == "window is full"
        due = dict.fromkeys(range(100, 100 + WINDOW_MAX // 32), in_s(r, 10.0))
        assert cancel(r, cursor, due).cancelled == len(due)
        r.run()
        assert payloads(m.take()) == [b"now"]


def test_a_seek_back_schedules_it_again() -> None:
    with timed() as r:
        q, m = r.queue(), r.member()
        cursor = r.cursor(q, m)
        put(r, q, Put(b"later", 10.0))
        r.run()
        cancel(r, cursor, {0: in_s(r, 10.0)})
        seek_cursor(r.puller.words, cursor, 0)
        r.run(10 * S_NS)
        assert payloads(m.take()) == [b"later"]


RECORDS = st.lists(
    st.tuples(st.none() | st.integers(1, 12), st.sampled_from([None, b"a", b"b"])), max_size=20
)
STEPS = st.lists(
    st.tuples(
        RECORDS,
        st.sampled_from(["wait", "cancel", "pause", "resume", "restart", "nak", "leave", "join"]),
        st.integers(0, 5),
        st.sets(st.integers(0, 60), max_size=12),
    ),
    max_size=16,
)


class Model:
    """A cursor under random steps: it delivers everything but what was cancelled."""

    def __init__(self, r: Rig) -> None:
        self.r, self.q = r, r.queue()
        self.members: list[TestMember] = [r.member(), r.member()]
        self.cursor = r.cursor(self.q, *self.members)
        self.due: dict[int, int] = {}
        self.keys: dict[int, bytes | None] = {}
        self.cancelled: set[int] = set()
        self.delivered: set[int] = set()
        self.acked: list[int] = []
        self.count = 0

    def append(self, records: list[tuple[int | None, bytes | None]]) -> None:
        for seconds, key in records:
            if seconds is not None:
                self.due[self.count] = in_s(self.r, seconds)
            self.keys[self.count] = key
            self.count += 1
        if records:
            put(self.r, self.q, *[Put(b"", seconds, key) for seconds, key in records])

    def take(self, *, nak: bool) -> None:
        for m in self.members:
            for one in m.take():
                assert one.token not in self.cancelled
                assert one.token not in self.acked
                assert self.r.now + EPOCH_NS >= self.due.get(one.token, 0)
                self.delivered.add(one.token)
                if nak and one.token % 3 == 0:
                    m.nak(one)
                    nak = False
                else:
                    m.ack(one)
                    self.acked.append(one.token)

    def cancel(self, chosen: set[int]) -> None:
        meant = {token: due for token, due in self.due.items() if token in chosen}
        now = EPOCH_NS + self.r.now
        early = {t for t in meant if meant[t] > now} - self.cancelled
        found = cancel(self.r, self.cursor, meant)
        assert found.cancelled == len(early)
        assert sum(found) == len(meant)
        self.cancelled |= early

    def restart(self) -> None:
        """A cursor at the saved position, as an engine that starts again makes it."""
        from tidecast.node.consumers.checks import _acked, _attempts, _look_at
        from tidecast.node.consumers.state import CursorState, QueueState, restored_rows

        r = self.r
        here: Any = QueueState("t", 0, r.logs[self.q], r.sources[self.q], self.q)
        state = _look_at(r.puller, CursorState(self.cursor, 0, here))
        for m in self.members:
            r.puller.drop_member(m.number)
        r.puller.remove_cursor(self.cursor)
        rows = restored_rows(_acked(state), _attempts(state))
        self.members = [r.member(), r.member()]
        self.cursor = r.cursor(self.q, *self.members, token=state.mark, restored=rows)


@settings(max_examples=80, deadline=None)
@given(STEPS)
def test_random_cancels_against_a_model(steps: Any) -> None:
    with timed() as r:
        world = Model(r)
        for records, step, wait_s, chosen in steps:
            world.append(records)
            if step == "cancel":
                world.cancel(chosen)
            elif step in ("pause", "resume"):
                pause_cursor(r.puller.words, world.cursor, step == "pause")
            elif step == "restart":
                r.run()
                world.take(nak=False)
                r.run()
                world.restart()
            elif step == "leave":
                r.share(world.cursor, world.members[0])
            elif step == "join":
                r.share(world.cursor, *world.members)
            r.run()
            r.run(wait_s * S_NS)
            world.take(nak=step == "nak")
            r.run()
        pause_cursor(r.puller.words, world.cursor, 0)
        r.share(world.cursor, *world.members)
        for _ in range(20):
            r.run(S_NS)
            world.take(nak=False)
            r.run()
        assert sorted({*world.acked} | world.cancelled) == list(range(world.count))
        assert not world.delivered & world.cancelled
        assert r.position(world.cursor) == (world.count, world.count)
        assert r.cursor_record(world.cursor)["scheduled"] == 0


# --- the engine and clients ---------------------------------------------------------------------


def test_clients_list_and_cancel_in_virtual_time() -> None:
    with tidecast.testing.Network() as network:
        client = network.node("a", durable=["orders"], topics=["live"]).connect()
        one, two = (client.consumer("orders", name) for name in ("one", "two"))
        other = client.consumer("orders", "eu", where='key.startswith("eu")')
        due = network.wall_ns() + 10 * S_NS
        for key in ("eu.1", "us.1", "us.2"):
            client.publish("orders", b"x", key=key, headers={"n": 1}, deliver_at=due)
        client.publish("orders", b"now", ack="durable")
        network.advance(0.5)
        rows = client.topics.scheduled("orders")
        assert [(row.offset, row.key, row.headers) for row in rows] == [
            (0, b"eu.1", {"n": 1}),
            (1, b"us.1", {"n": 1}),
            (2, b"us.2", {"n": 1}),
        ]
        assert rows[0].deliver_at_ns == due
        assert sorted(rows[0].subscriptions) == [
            ("orders", "eu"),
            ("orders", "one"),
            ("orders", "two"),
        ]
        assert [len(row.subscriptions) for row in rows] == [3, 2, 2]
        assert len(client.topics.scheduled("orders", subscription="eu")) == 1
        assert len(client.topics.scheduled("orders", limit=2)) == 2

        planned = client.topics.cancel_scheduled("orders", key="us.1", dry_run=True)
        assert (planned.records, planned.cancelled) == (1, 2)
        client.events()
        done = client.topics.cancel_scheduled("orders", key="us.1")
        assert (done.records, done.cancelled, done.too_late) == (1, 2, 0)
        told = [e for e in client.events() if isinstance(e, tidecast.events.RecordsCancelled)]
        assert sorted((e.subscription, e.records, e.queue) for e in told) == [
            ("one", 1, 0),
            ("two", 1, 0),
        ]
        done = client.topics.cancel_scheduled(
            "orders", records=[(0, 0), (0, 1)], subscription="one"
        )
        [row] = done.subscriptions
        assert (row.name, row.cancelled, row.acked) == ("one", 1, 1)
        info = client.subscriptions.get("orders", "one")
        assert (info.cancelled, info.scheduled, info.lag) == (2, 1, 2)

        network.advance(10.0)
        got = {}
        for consumer in (one, two, other):
            batch = consumer.fetch(10, max_wait=1.0)
            got[consumer.name] = sorted(m.key or b"" for m in batch)
            batch.ack()
        assert got == {"one": [b"", b"us.2"], "two": [b"", b"eu.1", b"us.2"], "eu": [b"eu.1"]}
        network.advance(0.5)
        assert [c.info()["lag"] for c in (one, two, other)] == [0, 0, 0]
        late = client.topics.cancel_scheduled("orders", records=[(0, 2)])
        assert (late.cancelled, late.too_late) == (0, 0)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "records: give records, or key and where, or everything"),
        ({"records": [(0, 0)], "key": "k"}, "records: give records"),
        ({"records": [(0, 9)]}, "offset 9 of queue 0: allowed 0 to 1"),
        ({"records": [(7, 0)]}, "queue 7: orders has queues 0 to 0"),
        ({"records": [(0, 1)]}, "offset 1 of queue 0: it has no delivery time"),
        ({"records": [(0, -1)]}, r"\[0, -1\]: allowed are pairs"),
        ({"records": [(0, 0), (0,)]}, r"\[0\]: allowed are pairs"),
        ({"records": [(0, 0)] * 10_001}, "10001: allowed at most 10000"),
        ({"key": 5}, "key: 5: allowed are text and bytes"),
        ({"where": "size >"}, "where"),
        ({"everything": True, "subscription": "no"}, "no subscription no of topic orders"),
    ],
)
def test_what_cannot_be_cancelled_changes_nothing(options: dict[str, Any], text: str) -> None:
    with tidecast.testing.connect(durable=["orders"], topics=["live"], real_time=False) as client:
        consumer = client.consumer("orders", "billing")
        client.publish("orders", b"later", deliver_in=10)
        client.publish("orders", b"now", ack="durable")
        with pytest.raises((ConfigError, NotFound), match=text):
            client.topics.cancel_scheduled("orders", **options)
        with pytest.raises(NotFound, match="live"):
            client.topics.cancel_scheduled("live", everything=True)
        assert bytes(consumer.next(timeout=1.0).data) == b"now"
        assert bytes(consumer.next(timeout=20.0).data) == b"later"


def test_more_than_a_page_of_subscriptions_without_consumers() -> None:
    with tidecast.testing.Network() as network:
        client = network.node("a", durable=["orders"]).connect()
        client.subscriptions.create("orders", "away")
        client.publish_batch("orders", [b"x"] * 12_000, keys="k", deliver_in=60).check()
        client.publish("orders", b"kept", key="k2", deliver_in=60, ack="durable")
        assert len(client.topics.scheduled("orders", limit=2500)) == 2500
        done = client.topics.cancel_scheduled("orders", key="k")
        assert (done.records, done.cancelled) == (12_000, 12_000)
        consumer = client.consumer("orders", "away")
        assert [row.key for row in client.topics.scheduled("orders")] == [b"k2"]
        assert bytes(consumer.next(timeout=100.0).data) == b"kept"


def test_positions_that_cannot_be_saved_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with tidecast.testing.connect(durable=["orders"], real_time=False) as client:
        consumer = client.consumer("orders", "billing")
        client.publish("orders", b"later", deliver_in=10, ack="durable")
        real = storage.put

        def fails(*_: Any) -> None:
            raise StorageError("full", 28)

        monkeypatch.setattr(storage, "put", fails)
        with pytest.raises(StorageError, match=r"only until the engine stops.*full"):
            client.topics.cancel_scheduled("orders", everything=True)
        monkeypatch.setattr(storage, "put", real)
        assert client.topics.cancel_scheduled("orders", records=[(0, 0)]).cancelled == 0
        assert len(consumer.fetch(1, max_wait=20.0)) == 0


def test_asyncio_and_a_restart(tmp_path: Path) -> None:
    async def first() -> None:
        async with tidecast.connect(link=opened(tmp_path)) as client:
            await client.subscriptions.create("orders", "billing")
            for key in ("a", "b"):
                await client.publish("orders", b"later", key=key, deliver_in=2, ack="durable")
            done = await client.topics.cancel_scheduled("orders", key="a")
            assert done.cancelled == 1
            assert [row.key for row in await client.topics.scheduled("orders")] == [b"b"]

    asyncio.run(first())
    with tidecast.sync.connect(link=opened(tmp_path)) as client:
        consumer = client.consumer("orders", "billing")
        message = consumer.next(timeout=TIMEOUT_S)
        assert message.key == b"b"
        message.ack()
        assert nothing_comes(consumer)
        assert consumer.info()["lag"] == 0


def test_through_a_gateway(tmp_path: Path) -> None:
    node = opened(tmp_path)
    gateway = make_gateway(node)
    try:
        with remote(gateway.url) as client:
            consumer = client.consumer("orders", "billing")
            client.publish("orders", b"later", key="k", deliver_in=60, ack="durable")
            [row] = client.topics.scheduled("orders", key="k")
            done = client.topics.cancel_scheduled("orders", records=[(row.queue, row.offset)])
            assert done.cancelled == 1
            assert client.topics.scheduled("orders") == []
            assert consumer.info()["scheduled"] == 0
    finally:
        gateway.stop()
        node.close()


def test_an_ack_of_a_range_leaves_what_was_cancelled_settled_once() -> None:
    with timed() as r:
        q, m = r.queue(), r.member()
        cursor = r.cursor(q, m)
        put(r, q, Put(b"a"), Put(b"later", 10.0), Put(b"b"))
        r.run()
        m.take()
        cancel(r, cursor, {1: in_s(r, 10.0)})
        m._put(lay.ACK, cursor, 0, 3)
        r.run()
        assert r.position(cursor) == (3, 3)
        assert r.cursor_record(cursor)["settled"] == 3
