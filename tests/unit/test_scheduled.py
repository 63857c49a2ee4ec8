"""Records with a delivery time: held back, passed by others, bounded, in the puller and clients."""

# ruff: noqa: SIM117 - who connects, and then what is done with it

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.clients import nothing_comes
from tests.support.gateways import TIMEOUT_S, make_gateway, remote
from tests.support.pulling import S_NS, Got, Rig, drain, fill, payloads, rig
from tests.support.scheduling import EPOCH_NS, Put, opened, put, timed

import tidecast
import tidecast.sync
import tidecast.testing
from tidecast.agents.puller.entries import hurry_timers, pause_cursor, seek_cursor
from tidecast.buffers import member_ring
from tidecast.client.core import metadata
from tidecast.errors import ConfigError, PayloadTooLarge
from tidecast.layout import member as lay
from tidecast.layout.header_names import DELIVER_AT
from tidecast.queues.cache import cursors
from tidecast.queues.cache.window import WINDOW_MAX, WINDOW_MIN
from tidecast.telemetry.queues import Times, samples

YEAR_2100_NS = 4_102_444_800 * S_NS
"""Fixed: the name of a test must be the same in each worker."""


@pytest.mark.parametrize("more", [0, 3, 14, 15, 40])
def test_a_record_is_delivered_at_its_time_and_not_before(more: int) -> None:
    with timed() as r:
        q, m = r.queue(), r.member()
        cursor = r.cursor(q, m)
        put(r, q, Put(b"later", 10.0, more=more), Put(b"past", -5.0), Put(b"now"))
        r.run()
        assert payloads(m.take()) == [b"past", b"now"]
        record = r.cursor_record(cursor)
        assert (record["scheduled"], record["again_n"], record["out"]) == (1, 1, 2)
        r.run(9_900_000_000)
        assert m.take() == []
        r.run(100_000_000)
        [got] = m.take()
        assert (got.payload, got.attempts, got.token) == (b"later", 1, 0)
        record = r.cursor_record(cursor)
        assert (record["scheduled"], record["again_n"], record["redelivered"]) == (0, 0, 0)


def test_the_position_stays_before_it_and_acks_of_others_do_not_settle_it() -> None:
    with timed() as r:
        q, m = r.queue(), r.member()
        cursor = r.cursor(q, m)
        put(r, q, Put(b"a"), Put(b"later", 10.0), Put(b"b"))
        r.run()
        got = m.take()
        m._put(lay.ACK, cursor, 0, 3)  # a range that covers it
        r.run()
        assert r.position(cursor) == (1, 3)
        r.run(10 * S_NS)
        [late] = m.take()
        m.ack(late)
        r.run()
        assert r.position(cursor) == (3, 3)
        assert len(got) == 2


def test_a_clock_that_is_set_back_delays_it_and_one_set_ahead_hastens_it() -> None:
    shift = 0
    made: list[Rig] = []
    with rig(wall_ns=lambda: EPOCH_NS + shift + made[0].now) as r:
        made.append(r)
        q, m = r.queue(), r.member()
        r.cursor(q, m)
        put(r, q, Put(b"later", 100.0))
        r.run()
        shift = -50 * S_NS
        r.run(110 * S_NS)
        assert m.take() == []
        shift = 0
        r.run(10 * S_NS)
        assert payloads(m.take()) == [b"later"]


def test_a_key_waits_for_no_scheduled_record_of_it_until_that_is_due() -> None:
    with timed() as r:
        q, m = r.queue(), r.member(in_flight_max=1)
        r.cursor(q, m)
        put(r, q, Put(b"later", 10.0, b"k"), Put(b"1", None, b"k"), Put(b"2", None, b"k"))
        r.run()
        first = m.take()
        assert payloads(first) == [b"1"]
        r.run(10 * S_NS)  # due, and no credit: the key waits for it now
        m.ack_all(first)
        r.run()
        late = m.take()
        assert payloads(late) == [b"later"]
        m.ack_all(late)
        r.run()
        assert payloads(m.take()) == [b"2"]


def test_a_key_waits_for_a_record_that_is_due_and_has_to_be_read_first() -> None:
    with timed(block_bytes=1 << 13) as r:
        q, m = r.queue(blocks_max=2), r.member(in_flight_max=1)
        r.cursor(q, m)
        put(r, q, Put(b"later", 10.0, b"k"))
        fill(r, q, 200)
        put(r, q, Put(b"x"), Put(b"1", None, b"k"))
        r.run()
        while (one := m.take()[0]).payload != b"x":
            m.ack(one)
            r.run()
        blocks = r.puller.state.held[q, : r.puller.state.queues[q]["blocks"]]
        assert all(r.puller.state.blocks[b]["first"] > 0 for b in blocks)
        r.sources[0].delay_ns = S_NS
        r.now += 10 * S_NS
        hurry_timers(r.puller.words)
        r.puller.work(r.now)
        m.ack(one)
        for _ in range(20):
            r.puller.work(r.now)
        assert m.take() == []
        r.run(S_NS)
        [late] = m.take()
        assert late.payload == b"later"
        r.sources[0].delay_ns = 0
        m.ack(late)
        r.run()
        assert payloads(m.take()) == [b"1"]


def test_nak_timeout_and_dead_letters_count_from_its_delivery() -> None:
    with timed() as r:
        q, m = r.queue(), r.member()
        r.cursor(q, m, deliveries_max=2)
        put(r, q, Put(b"later", 10.0))
        r.run(10 * S_NS)
        r.run(10 * S_NS)
        [one] = m.take()
        m.nak(one, 5 * S_NS)
        r.run()
        assert m.take() == []
        r.run(5 * S_NS)
        [two] = m.take()
        assert (one.attempts, two.attempts) == (1, 2)
        m.nak(two)
        r.run()
        assert [dead.attempts for dead in r.seen.deaths] == [2]


def test_seek_and_pause() -> None:
    with timed() as r:
        q, m = r.queue(), r.member()
        cursor = r.cursor(q, m)
        put(r, q, Put(b"later", 10.0, b"k"), Put(b"now", None, b"k"))
        r.run()
        m.take()
        seek_cursor(r.puller.words, cursor, 0)
        assert r.cursor_record(cursor)["scheduled"] == 0
        r.run()
        assert payloads(m.take()) == [b"now"]
        assert r.cursor_record(cursor)["scheduled"] == 1
        pause_cursor(r.puller.words, cursor, 1)
        r.run(20 * S_NS)
        assert m.take() == []
        pause_cursor(r.puller.words, cursor, 0)
        r.run()
        assert payloads(m.take()) == [b"later"]


def test_many_records_pass_one_that_waits() -> None:
    with timed() as r:
        q, m = r.queue(), r.member()
        cursor = r.cursor(q, m)
        put(r, q, Put(b"later", 10.0))
        for k in range(60):
            put(r, q, *[Put(b"%d" % (100 * k + i)) for i in range(100)])
            r.run()
            got = m.take()
            assert len(got) == 100
            m.ack_all(got)
        r.run()
        record = r.cursor_record(cursor)
        assert record["window_mask"] + 1 == WINDOW_MIN, "what is settled takes no room for long"
        assert r.position(cursor) == (0, 6001)
        r.run(10 * S_NS)
        assert payloads(m.take()) == [b"later"]


def test_what_waits_is_bounded_by_the_window() -> None:
    with timed() as r:
        q, m = r.queue(), r.member()
        cursor = r.cursor(q, m)
        for _ in range(WINDOW_MAX // 8192 + 1):
            put(r, q, *[Put(b"", 10.0)] * 8192)
        put(r, q, Put(b"now"))
        r.run()
        record = r.cursor_record(cursor)
        assert cursors.REASONS[record["reason"]] == "window is full"
        assert record["scheduled"] == WINDOW_MAX
        assert m.take() == []
        got: list[Got] = []
        r.run(10 * S_NS)
        while some := m.take():
            got += some
            m.ack_all(some)
            r.run()
        assert len(got) == WINDOW_MAX + 8192 + 1
        assert r.position(cursor) == (len(got), len(got))


def test_many_times_cost_few_looks_and_are_met_within_milliseconds() -> None:
    with timed() as r:
        q, m = r.queue(), r.member(in_flight_max=WINDOW_MAX, deliveries_bytes=1 << 23)
        cursor = r.cursor(q, m)
        n, ms = 100_000, 1_000_000
        for k in range(0, n, 5000):
            put(r, q, *[Put(b"", 1.0 + i / n) for i in range(k, k + 5000)])
        r.run()
        begun, looks, left = r.now, 0, n
        while left > n // 2:
            r.now += ms // 2
            r.puller.work(r.now)
            now_left = int(r.cursor_record(cursor)["scheduled"])
            looks += now_left < left
            left = now_left
            due = n * (r.now - begun - S_NS) // S_NS
            assert n - left >= due - 5 * n // 1000, "later than 5 ms"
        assert 50 < looks < 160, "a walk over 100,000 entries at most each 3 ms"


def test_others_pass_a_window_that_is_nearly_full_of_records_that_wait() -> None:
    with timed() as r:
        q, m = r.queue(), r.member()
        cursor = r.cursor(q, m)
        left = WINDOW_MAX - WINDOW_MAX // 16
        for n in range(0, left, 8192):
            put(r, q, *[Put(b"", 10.0)] * min(8192, left - n))
        r.run()
        assert r.cursor_record(cursor)["scheduled"] == left
        for _ in range(40):
            put(r, q, *[Put(b"now")] * 400)
            r.run()
            got = m.take()
            assert len(got) == 400
            m.ack_all(got)


def test_records_that_are_gone_before_their_time_are_reported() -> None:
    with timed(block_bytes=1 << 13) as r:
        q, m = r.queue(blocks_max=2, segment_bytes=1 << 16), r.member()
        cursor = r.cursor(q, m)
        put(r, q, Put(b"a", 10.0), Put(b"b", 10.0), Put(b"c"), Put(b"d", 10.0))
        r.run()
        [c] = m.take()
        m.nak(c, 5 * S_NS)
        fill(r, q, 2000)
        taken = len(drain(r, m))
        assert r.logs[0].retain(bytes_max=100_000)
        blocks = r.puller.state.held[q, : r.puller.state.queues[q]["blocks"]]
        assert all(r.puller.state.blocks[b]["first"] > 3 for b in blocks)
        r.run(20 * S_NS)
        assert m.take() == []
        assert (taken, r.seen.gaps) == (2000, [(cursor, 0, 4)])
        assert r.position(cursor) == (2004, 2004)
        assert r.cursor_record(cursor)["scheduled"] == 0


@pytest.mark.parametrize("due", [b"9999", 1 << 63, (1 << 64) - 1, 5, -5, True])
def test_what_only_looks_like_a_time_holds_nothing_back(due: Any) -> None:
    with timed() as r:
        q, m = r.queue(), r.member()
        r.cursor(q, m)
        builder = r._builder
        for headers in ({DELIVER_AT: due}, {"a": 1, DELIVER_AT: EPOCH_NS * 2}):
            builder.clear()
            builder.begin()
            builder.add(b"x", key=None, headers=msgspec.msgpack.encode(headers), key_hash=0)
            builder.seal(r.logs[q].next_token)
            r.logs[q].append(builder.buffer, builder.used)
        member_ring.wake_queue(r.wakes, r.bells, q)
        r.run()
        assert payloads(m.take()) == [b"x", b"x"]


def test_a_cursor_of_one_stream_holds_its_own() -> None:
    with timed() as r:
        q, m = r.queue(), r.member()
        r.cursor(q, m, key_pattern="k")
        put(r, q, Put(b"later", 10.0, b"k"), Put(b"other", None, b"x"), Put(b"1", None, b"k"))
        r.run()
        put(r, q, *[Put(b"%d" % i, None, b"k") for i in range(2, 30)])
        r.run()
        assert payloads(m.take()) == [b"%d" % i for i in range(1, 30)]
        r.run(10 * S_NS)
        assert payloads(m.take()) == [b"later"]


RECORDS = st.lists(
    st.tuples(st.none() | st.integers(-2, 12), st.sampled_from([None, b"a", b"b", b"c"])),
    max_size=40,
)
STEPS = st.lists(st.tuples(RECORDS, st.integers(0, 3), st.integers(0, 60)), max_size=12)


@settings(max_examples=60, deadline=None)
@given(STEPS, st.integers(1, 2), st.sampled_from([200, 1000]))
def test_random_times_against_a_model(steps: Any, members: int, in_flight_max: int) -> None:
    """Not before its time; at its time if there is credit; once; keys in order without times."""
    with timed() as r:
        q = r.queue()
        all_members = [r.member(in_flight_max=in_flight_max) for _ in range(members)]
        r.cursor(q, *all_members)
        due: dict[int, int] = {}
        keys: dict[int, bytes | None] = {}
        seen: dict[int, int] = {}
        plain: list[int] = []
        token = 0

        def take(acked: int) -> None:
            for m in all_members:
                got = m.take()
                for one in got:
                    assert one.token not in seen
                    assert r.now >= due.get(one.token, 0)
                    seen[one.token] = r.now
                    if one.token not in due:
                        plain.append(one.token)
                m.ack_all(got[:acked])
            if in_flight_max > 12 * 40:  # there is credit for all
                late = [t for t in range(token) if t not in seen and due.get(t, 0) <= r.now]
                assert not late, "each is taken at its time"

        def advance(wait_s: int, acked: int) -> None:
            """Stop at each delivery time on the way."""
            end = r.now + wait_s * S_NS
            for when in [*sorted({t for t in due.values() if r.now < t < end}), end]:
                r.run(when - r.now)
                take(acked)

        for records, wait_s, acked in steps:
            for in_s, key in records:
                if in_s is not None and in_s > 0:
                    due[token] = r.now + in_s * S_NS
                keys[token] = key
                token += 1
            if records:
                put(r, q, *[Put(b"", in_s, key) for in_s, key in records])
            advance(wait_s, acked)
        for _ in range(16):
            advance(1, 1000)
            for m in all_members:
                for cursor in m.words:
                    m._put(lay.ACK, cursor, 0, token)
        assert sorted(seen) == list(range(token))
        for key in (b"a", b"b", b"c"):
            mine = [one for one in plain if keys[one] == key]
            assert mine == sorted(mine)


# --- clients ----------------------------------------------------------------------------------


def test_a_client_schedules_and_tests_in_virtual_time() -> None:
    with tidecast.testing.Network() as network:
        client = network.node("a", durable=["orders"], topics=["live"]).connect()
        consumer = client.consumer("orders", "billing")
        client.publish("orders", b"in", key="k", headers={"n": 1}, deliver_in=10)
        client.publish("orders", b"now", headers={"n": 2}, ack="durable")
        one = consumer.next(timeout=1.0)
        assert (bytes(one.data), one.deliver_at) == (b"now", None)
        one.ack()
        network.advance(8.5)
        assert len(consumer.fetch(1, max_wait=0.2)) == 0
        info = consumer.info()
        assert (info["lag"], info["lag_s"], info["cursors"][0]["scheduled"]) == (1, 0.0, 1)
        [row] = samples(network.find("a").engine, Times())["durable_subscriptions"]
        assert (row["lag_messages"], row["lag_s"], row["scheduled"]) == (1, 0.0, 1)
        assert row["cursors"]["orders:0"]["scheduled"] == 1
        network.advance(2.0)
        two = consumer.next(timeout=1.0)
        assert (bytes(two.data), two.key, two.headers) == (b"in", b"k", {"n": 1})
        assert two.attempts == 1
        assert two.deliver_at is not None
        two.ack()
        network.advance(0.3)
        assert consumer.info()["lag"] == 0


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"deliver_in": -1}, "deliver_in: -1: allowed are 0 to 31,536,000 s"),
        ({"deliver_in": True}, "deliver_in: True"),
        ({"deliver_in": float("nan")}, "deliver_in: nan"),
        ({"deliver_at": -1}, "deliver_at: -1: allowed are a datetime with a time zone"),
        ({"deliver_at": datetime(2030, 1, 1)}, "with a time zone"),  # noqa: DTZ001
        ({"deliver_at": 1 << 62}, "deliver_at: 4611686018427387904: it is"),
        ({"deliver_at": 5, "deliver_in": 5}, "give one of them"),
    ],
)
def test_what_is_no_delivery_time_is_refused(options: dict[str, Any], text: str) -> None:
    with tidecast.testing.connect(durable=["orders"], real_time=False) as client:
        with pytest.raises(ConfigError, match=text.replace("(", r"\(")):
            client.publish("orders", b"x", **options)
        assert client.kept_publisher("orders").position == 0


def test_a_live_topic_has_no_delivery_times() -> None:
    with tidecast.testing.connect(real_time=False) as client:
        for options in ({"deliver_in": 1}, {"deliver_at": datetime.now(UTC)}):
            [field] = options
            with pytest.raises(ConfigError, match=f"{field}: topic t is live"):
                client.publish("t", b"x", **options)  # type: ignore[arg-type]
            with pytest.raises(ConfigError, match=f"{field}: topic t is live"):
                client.publish_batch("t", [b"x"], **options)  # type: ignore[arg-type]


def test_a_column_of_delivery_times() -> None:
    with tidecast.testing.Network() as network:
        client = network.node("a", durable=["orders"]).connect()
        consumer = client.consumer("orders", "billing")
        now = network.wall_ns()
        client.publish_batch(
            "orders",
            [b"a", b"b", b"c"],
            headers=[{"n": 1}, None, {f"h{k}": k for k in range(15)}],
            deliver_at=[now + 5 * S_NS, None, now + 9 * S_NS],
        ).check()
        frame = pa.record_batch(
            {
                "payload": [b"d", b"e"],
                "deliver_at": pa.array([now + S_NS, None], pa.timestamp("ns")),
            }
        )
        client.publish_batch("orders", frame).check()
        client.publish_batch("orders", [b"f"], deliver_in=7).check()
        client.publish_batch(
            "orders", [b"g"], deliver_at=datetime.now(UTC) - timedelta(days=1), ack="durable"
        ).check()
        got: list[tuple[bytes, dict[str, Any]]] = []
        for _ in range(11):
            batch = consumer.fetch(10, max_wait=0.01)
            got += [(bytes(one.data), one.headers) for one in batch]
            batch.ack()
            network.advance(1.0)
        assert [data for data, _ in got] == [b"b", b"e", b"g", b"d", b"a", b"f", b"c"]
        assert dict(got)[b"a"] == {"n": 1}
        assert dict(got)[b"c"] == {f"h{k}": k for k in range(15)}
        for times, text in (
            ([now, -1], r"deliver_at\[1\]"),
            (np.array([now, now + 400 * 86_400 * S_NS]), r"deliver_at\[1\]"),
            ([now], "1 items for 2"),
        ):
            with pytest.raises(ConfigError, match=text):
                client.publish_batch("orders", [b"x", b"y"], deliver_at=times)


def test_a_column_of_times_soon_after_1970() -> None:
    """They take as many bytes as others: nothing that the memory held before is among them."""
    with tidecast.testing.connect(durable=["orders"], real_time=False) as client:
        consumer, times = client.consumer("orders", "x"), [0, 5, 127, 128, 1 << 40]
        for _ in range(20):
            client.publish_batch("orders", [b""] * 5, deliver_at=times, ack="durable").check()
            found: list[int | None] = []
            while len(found) < 5:
                batch = consumer.fetch(5, max_wait=1.0)
                assert batch, f"{found}: some wait for another time"
                found += [one.deliver_at for one in batch]
                batch.ack()
            assert found == times


def test_record_batches_carry_delivery_times_in_a_column() -> None:
    with tidecast.testing.Network() as network:
        client = network.node("a", durable=["orders", "copies"], topics=["live"]).connect()
        consumer, copies = client.consumer("orders", "x"), client.consumer("copies", "x")
        now = network.wall_ns()
        many = {f"h{k}": str(k).encode() for k in range(15)}
        times = [now + S_NS, None, now + 2 * S_NS, now + 3 * S_NS]
        headers = [many, {"n": b"1"}, None, {"n": b"2"}]
        client.publish_batch(
            "orders", [b"a", b"b", b"c", b"d"], headers=headers, deliver_at=times, ack="durable"
        ).check()
        for form in ("map", "raw"):
            table = client.read("orders").to_table(headers=form)
            assert table["deliver_at"].cast(pa.int64()).to_pylist() == times
            client.publish_batch("copies", table, ack="durable").check()
            with pytest.raises(ConfigError, match="deliver_at: topic live is live"):
                client.publish_batch("live", table)
        copied = client.read("copies").to_table()["headers"].to_pylist()
        assert [dict(shown or []) for shown in copied] == 2 * [one or {} for one in headers]
        assert len(copies.fetch(10, max_wait=0.1)) == 2
        network.advance(10.0)
        batch = consumer.fetch(10, max_wait=1.0)
        frame = batch.to_record_batch()
        assert sorted(frame["deliver_at"].cast(pa.int64()).to_pylist(), key=str) == sorted(
            times, key=str
        )
        assert {bytes(one.data): one.headers for one in batch} == {
            data.encode(): one or {} for data, one in zip("abcd", headers, strict=True)
        }
        assert len(copies.fetch(10, max_wait=1.0)) == 6
        with client.subscribe("live") as live:
            client.publish_batch("live", frame.drop_columns("deliver_at")).check()
            plain = next(live.batches()).to_record_batch()
            assert plain["deliver_at"].null_count == 4
            client.publish_batch("live", plain).check()


def test_subscribers_of_the_channel_get_it_at_once_and_without_the_header() -> None:
    with tidecast.testing.Network() as network:
        client = network.node("a", durable=["orders"]).connect()
        with client.subscribe("orders") as sub:
            client.publish("orders", b"x", headers={"n": 1}, deliver_in=10)
            message = next(iter(sub))
            assert (bytes(message.data), message.headers) == (b"x", {"n": 1})


def test_headers_that_a_packet_takes_only_without_a_time() -> None:
    with tidecast.testing.connect(durable=["orders"], real_time=False) as client:
        wide = {"n": bytes(1330)}
        client.publish("orders", b"x", headers=wide)
        with pytest.raises(PayloadTooLarge, match="key and headers have 13"):
            client.publish("orders", b"x", headers=wide, deliver_in=1)
        found = client.publish_batch("orders", [b"x", b"y"], headers=[wide, None], deliver_in=1)
        assert [one.index for one in found.refused] == [0]


# --- embedded, restarted, far -------------------------------------------------------------------


def test_asyncio_and_a_restart(tmp_path: Path) -> None:
    async def first() -> None:
        async with tidecast.connect(link=opened(tmp_path)) as client:
            async with client.consumer("orders", "billing") as consumer:
                await client.publish("orders", b"later", deliver_in=3600)
                await client.publish("orders", b"soon", deliver_in=1.0)
                await client.publish_batch(
                    "orders", [b"now"] * 300, deliver_at=datetime.now(UTC), ack="durable"
                )
                taken = 0
                while taken < 301:
                    batch = await consumer.fetch(300, max_wait=TIMEOUT_S)
                    now_ns = time.time_ns()
                    assert all(0 < (one.deliver_at or 0) <= now_ns for one in batch)
                    assert {bytes(one.data) for one in batch} <= {b"now", b"soon"}
                    taken += len(batch)
                    await batch.ack()

    asyncio.run(first())
    with tidecast.sync.connect(link=opened(tmp_path)) as client:
        consumer = client.consumer("orders", "billing")
        client.publish("orders", b"new", ack="durable")
        message = consumer.next(timeout=TIMEOUT_S)
        assert bytes(message.data) == b"new"
        message.ack()
        assert nothing_comes(consumer)
        assert consumer.info()["cursors"][0]["scheduled"] == 1


def test_a_dead_letter_keeps_no_delivery_time(tmp_path: Path) -> None:
    with tidecast.sync.connect(link=opened(tmp_path)) as client:
        for name in ("dead", "others"):
            client.topics.ensure(name, mode="durable")
        consumer = client.consumer("orders", "x", dead_letter="dead")
        others = client.consumer("others", "x")
        for _ in range(2):
            client.publish("orders", b"x", headers={"n": 1}, deliver_in=0.1, ack="durable")
        for _ in range(2):
            message = consumer.next(timeout=TIMEOUT_S)
            assert message.deliver_at is not None
            message.term("no")
        letters = client.consumer("dead", "x")
        for _ in range(2):
            letter = letters.next(timeout=TIMEOUT_S)
            assert (letter.deliver_at, letter.headers["n"]) == (None, 1)
        assert consumer.redrive(limit=1)["records"] == 1
        again = consumer.next(timeout=TIMEOUT_S)
        assert (again.deliver_at, again.headers["n"]) == (None, 1)
        assert consumer.redrive(to="others")["records"] == 1
        assert others.next(timeout=TIMEOUT_S).headers == {"n": 1}


def test_through_a_gateway(tmp_path: Path) -> None:
    node = opened(tmp_path)
    gateway = make_gateway(node)
    try:
        with remote(gateway.url) as client:
            consumer = client.consumer("orders", "billing")
            client.publish("orders", b"soon", key="k", deliver_in=1.0)
            client.publish("orders", b"now", ack="durable")
            due: dict[bytes, int | None] = {}
            for _ in range(2):
                message = consumer.next(timeout=TIMEOUT_S)
                assert message.deliver_at is None or message.deliver_at <= time.time_ns()
                assert message.headers == {}
                due[bytes(message.data)] = message.deliver_at
            assert due.keys() == {b"now", b"soon"}
            assert due[b"now"] is None
            assert due[b"soon"] is not None
            with pytest.raises(ConfigError, match="deliver_in"):
                client.publish("orders", b"x", deliver_in=-1)
    finally:
        gateway.stop()
        node.close()


@pytest.mark.parametrize(
    ("due", "text"),
    [
        (YEAR_2100_NS, "deliver_at: .* days ahead: at most 365"),
        (-1, "deliver_at: message 0 of a batch: -1"),
        ("tomorrow", "deliver_at: message 0 of a batch: 'tomorrow'"),
    ],
)
def test_a_gateway_refuses_times_that_no_client_writes(
    tmp_path: Path, due: Any, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = opened(tmp_path)
    gateway = make_gateway(node)
    try:
        with remote(gateway.url) as client:
            monkeypatch.setattr(metadata, "check_headers", lambda *_, **__: None)
            with pytest.raises(ConfigError, match=text):
                client.publish("orders", b"x", headers={DELIVER_AT: due}, ack="durable")
    finally:
        gateway.stop()
        node.close()
