"""The puller: blocks on demand, cursors, windows, member rings, on real logs and a moved clock."""

from __future__ import annotations

import numpy as np
import pytest
from tests.support.pulling import S_NS, CountingSource, Got, drain, fill, payloads, rig

from tidecast.agents.puller import state as puller_tables
from tidecast.agents.puller.entries import (
    complete_dead,
    drop_member,
    drop_queue_blocks,
    pause_cursor,
    seek_cursor,
)
from tidecast.agents.puller.runtime import PATIENCE_NS_MAX
from tidecast.layout import member as lay
from tidecast.queues.cache import cursors
from tidecast.queues.cache.window import WINDOW_MIN


def test_all_records_come_in_order_once_and_are_settled() -> None:
    with rig() as r:
        q, m = r.queue(), r.member()
        cursor = r.cursor(q, m)
        bodies = fill(r, q, 5000)
        got = drain(r, m)
        assert payloads(got) == bodies
        assert [one.token for one in got] == list(range(5000))
        assert r.position(cursor) == (5000, 5000)
        record = r.cursor_record(cursor)
        assert (record["delivered"], record["settled"], record["out"]) == (5000, 5000, 0)
        assert r.sources[0].bytes == r.logs[0].bytes - 64 * len(r.logs[0].segments)


def test_a3_an_empty_queue_is_no_error_and_asks_for_nothing_more() -> None:
    with rig() as r:
        q, m = r.queue(), r.member()
        cursor = r.cursor(q, m)
        r.run()
        reads = r.sources[0].reads
        assert m.take() == []
        for _ in range(10):
            r.run(S_NS)
        assert r.sources[0].reads == reads
        assert cursors.REASONS[r.cursor_record(cursor)["reason"]] == "caught up"
        r.put(q, b"now")
        r.run()
        assert payloads(m.take()) == [b"now"]


def test_nothing_is_fetched_without_a_member_without_credit_or_while_paused() -> None:
    with rig() as r:
        q = r.queue()
        cursor = r.cursor(q)
        fill(r, q, 20_000)
        r.run()
        assert r.sources[0].reads == 0, "no member"
        m = r.member(in_flight_max=10)
        pause_cursor(r.puller.words, cursor, 1)
        r.share(cursor, m)
        r.run()
        assert r.sources[0].reads == 0, "paused"
        pause_cursor(r.puller.words, cursor, 0)
        r.run()
        assert r.sources[0].reads == 1
        assert len(m.take()) == 10
        for _ in range(5):
            r.run(S_NS)
        assert r.sources[0].reads == 1, "no credit"


def test_pause_keeps_what_was_fetched() -> None:
    with rig() as r:
        q, m = r.queue(), r.member(in_flight_max=100)
        cursor = r.cursor(q, m)
        bodies = fill(r, q, 1000)
        r.run()
        got = m.take()
        seen = payloads(got)
        for _ in range(9):
            pause_cursor(r.puller.words, cursor, 1)
            r.run()
            m.ack_all(got)
            r.run()
            assert m.take() == [], "paused"
            pause_cursor(r.puller.words, cursor, 0)
            r.run()
            got = m.take()
            seen += payloads(got)
        assert r.sources[0].reads == 1
        assert seen == bodies


def test_in_flight_stays_below_its_limits_with_hysteresis() -> None:
    with rig() as r:
        q, m = r.queue(), r.member(in_flight_max=80, in_flight_bytes_max=1 << 20)
        r.cursor(q, m)
        fill(r, q, 1000)
        r.run()
        got = m.take()
        assert len(got) == 80
        m.ack_all(got[:5])
        r.run()
        assert m.take() == [], "not yet below the low mark"
        m.ack_all(got[5:10])
        r.run()
        assert len(m.take()) == 10


def test_bytes_in_flight_are_bounded_but_one_record_always_passes() -> None:
    with rig() as r:
        q, m = r.queue(), r.member(in_flight_bytes_max=1000)
        r.cursor(q, m)
        r.put(q, *(bytes(300) for _ in range(10)))
        r.put(q, bytes(5000))
        r.run()
        got = m.take()
        assert len(got) == 3
        sizes = []
        while got:
            sizes += [len(one.payload) for one in got]
            m.ack_all(got)
            r.run()
            got = m.take()
        assert sizes == [300] * 10 + [5000]


def test_nak_comes_back_after_its_delay_with_its_attempts() -> None:
    with rig() as r:
        q, m = r.queue(), r.member()
        cursor = r.cursor(q, m)
        r.put(q, b"a", b"b", b"c")
        r.run()
        a, b, c = m.take()
        m.nak(b, 5 * S_NS)
        m.ack_all([a])
        m.ack_all([c])
        r.run()
        assert r.position(cursor) == (1, 3), "the watermark stays at what is not settled"
        r.run(4 * S_NS)
        assert m.take() == []
        r.run(2 * S_NS)
        (again,) = m.take()
        assert (again.payload, again.token, again.attempts) == (b"b", 1, 2)
        m.ack_all([again])
        r.run()
        assert r.position(cursor) == (3, 3)


def test_a_naked_key_holds_back_its_later_records_and_no_others() -> None:
    with rig() as r:
        q, m = r.queue(), r.member(in_flight_max=1)
        r.cursor(q, m)
        r.put(q, (b"x", b"x1"), (b"x", b"x2"), (b"y", b"y1"), (b"x", b"x3"), (b"y", b"y2"), b"z")
        r.run()
        (x1,) = m.take()
        m.nak(x1, S_NS)
        order = []
        for _ in range(3):
            r.run()
            (one,) = m.take()
            order.append(one.payload)
            m.ack(one)
        assert order == [b"y1", b"y2", b"z"], "no x before x1"
        r.run(2 * S_NS)
        for _ in range(3):
            r.run()
            (one,) = m.take()
            order.append(one.payload)
            m.ack(one)
        assert order[3:] == [b"x1", b"x2", b"x3"]


def test_ack_wait_runs_from_when_the_member_took_it() -> None:
    with rig() as r:
        q, m = r.queue(), r.member()
        cursor = r.cursor(q, m, ack_wait_ns=10 * S_NS)
        r.put(q, *(b"%d" % i for i in range(30)))
        r.run()
        slow = []
        for _ in range(30):  # 30 records, 1 s each: none may time out
            (one,) = m.take(1)
            r.run(S_NS)
            slow.append(one)
            m.ack(one)
        r.run()
        assert [one.attempts for one in slow] == [1] * 30
        assert r.cursor_record(cursor)["timeouts"] == 0
        assert r.position(cursor) == (30, 30)


def test_what_is_taken_and_not_acked_times_out_and_extend_prevents_it() -> None:
    with rig() as r:
        q, m, other = r.queue(), r.member(), r.member()
        cursor = r.cursor(q, m, ack_wait_ns=10 * S_NS)
        r.put(q, b"a", b"b")
        r.run()
        a, b = m.take()
        for _ in range(3):
            r.run(8 * S_NS)
            m.extend(b)
            r.run()
        assert r.cursor_record(cursor)["timeouts"] == 1, "a alone"
        (again,) = m.take()
        assert (again.payload, again.attempts) == (b"a", 2)
        m.ack(a)  # late, of the first delivery: the work is done all the same
        m.ack(b)
        r.run()
        assert r.position(cursor) == (2, 2)
        assert other.take() == []


def test_a_stuck_member_that_takes_nothing_times_out_without_spending_attempts() -> None:
    with rig() as r:
        q, stuck, fresh = r.queue(), r.member(), r.member()
        cursor = r.cursor(q, stuck, ack_wait_ns=10 * S_NS, deliveries_max=1)
        r.put(q, b"a", b"b")
        r.run()
        r.share(cursor, fresh)
        r.run(9 * S_NS)
        assert fresh.take() == []
        r.run(2 * S_NS)
        assert [(one.payload, one.attempts) for one in fresh.take()] == [(b"a", 1), (b"b", 1)]
        assert r.seen.deaths == []


def test_too_many_attempts_end_in_the_dead_letter_topic_one_poison_of_100() -> None:
    with rig() as r:
        q, m = r.queue(), r.member()
        cursor = r.cursor(q, m, deliveries_max=3)
        fill(r, q, 100)
        good: list[int] = []
        for _ in range(10):
            r.run()
            for one in m.take():
                if one.token == 33:
                    m.nak(one)
                else:
                    good.append(one.token)
                    m.ack(one)
        assert sorted(good) == [i for i in range(100) if i != 33]
        assert [(d.token, d.attempts, d.cause) for d in r.seen.deaths] == [
            (33, 3, puller_tables.DEAD_ATTEMPTS)
        ]
        assert r.position(cursor) == (100, 100)
        assert bytes(r.puller.record(q, 33)).endswith(b"00000033" + bytes(92))


def test_term_is_dead_at_once_with_its_reason_and_is_announced_until_settled() -> None:
    with rig() as r:
        q, m = r.queue(), r.member()
        cursor = r.cursor(q, m)
        r.put(q, b"a", b"b")
        r.run()
        a, b = m.take()
        r.seen.settles = False
        m.term(a, "no such customer")
        r.run()
        generation = r.cursor_record(cursor)["generation"]
        assert not complete_dead(r.puller.words, cursor, generation, b.token), (
            "it is no dead letter"
        )
        assert not complete_dead(r.puller.words, cursor, generation + 1, a.token), "before a seek"
        m.ack(b)
        r.run()
        assert [(d.token, d.cause, d.reason) for d in r.seen.deaths] == [
            (0, puller_tables.DEAD_TERM, "no such customer")
        ]
        assert r.position(cursor)[0] == 0, "not settled before it is stored"
        r.seen.settles = True
        r.run(2 * S_NS)
        assert [d.reason for d in r.seen.deaths] == ["no such customer", ""], "said once"
        assert r.position(cursor) == (2, 2)


def test_a_member_that_dies_leaves_its_records_to_others_in_key_order() -> None:
    with rig() as r:
        q, a, b = r.queue(), r.member(), r.member()
        cursor = r.cursor(q, a)
        fill(r, q, 100, keys=7)
        r.run()
        taken = a.take(40)
        a.ack_all(taken[:10])
        r.run()
        drop_member(r.puller.words, a.number, r.now)
        r.share(cursor, b)
        got = drain(r, b)
        assert [one.token for one in got] == list(range(10, 100))
        assert {one.attempts for one in got if one.token < 40} == {2}
        assert {one.attempts for one in got if one.token >= 40} == {1}, "never taken: no attempt"
        assert r.position(cursor) == (100, 100)


def test_members_share_a_queue_by_key_and_a_share_moves_when_it_is_settled() -> None:
    with rig() as r:
        q, a = r.queue(), r.member()
        cursor = r.cursor(q, a)
        fill(r, q, 64, keys=16)
        r.run()
        held = a.take()
        b = r.member()
        r.share(cursor, a, b)
        fill(r, q, 64, keys=16)
        r.run()
        assert b.take() == [], "every key still has records at a"
        a.ack_all(held)
        r.run()
        got_a, got_b = a.take(), b.take()
        assert len(got_a) + len(got_b) == 64
        assert not {one.key for one in got_a} & {one.key for one in got_b}
        assert got_b
        for got in (got_a, got_b):
            for key in {one.key for one in got}:
                tokens = [one.token for one in got if one.key == key]
                assert tokens == sorted(tokens)
        a.ack_all(got_a)
        b.ack_all(got_b)
        r.run()
        assert r.position(cursor) == (128, 128)


def test_r5_a_slow_member_does_not_stop_the_others_keys() -> None:
    with rig() as r:
        q, slow, fast = r.queue(), r.member(in_flight_max=4), r.member()
        cursor = r.cursor(q, slow, fast)
        fill(r, q, 2000, keys=50)
        got = []
        for _ in range(60):
            r.run()
            fresh = fast.take()
            fast.ack_all(fresh)
            got += fresh
        keys = {one.key for one in got}
        assert len(got) == sum(1 for i in range(2000) if b"k%d" % (i % 50) in keys)
        assert len(got) > 500
        rest = drain(r, slow)
        assert len(rest) + len(got) == 2000, "the slow one receives all of its own"
        assert r.position(cursor) == (2000, 2000)


def test_records_larger_than_half_the_ring_come_in_fragments() -> None:
    with rig(block_bytes=1 << 16) as r:
        q, m = r.queue(), r.member(deliveries_bytes=1 << 16)
        cursor = r.cursor(q, m)
        rng = np.random.default_rng(5)
        bodies = [
            rng.integers(0, 256, n, dtype=np.uint8).tobytes()
            for n in (10, 200_000, 33_000, 7, 32_700, 1_000_003, 50)
        ]
        for body in bodies:
            r.put(q, body)
        got: list[Got] = []
        for _ in range(200):
            r.run()
            fresh = m.take()
            m.ack_all(fresh)
            got += fresh
        assert payloads(got) == bodies
        assert r.position(cursor) == (7, 7)
        fill(r, q, 5000)
        drain(r, m)
        assert r.puller.oversized == 0, "C3: memory of an oversized record is given back"


def test_seek_back_and_forth_and_stale_acks_are_ignored() -> None:
    with rig() as r:
        q, m = r.queue(), r.member()
        cursor = r.cursor(q, m)
        fill(r, q, 50)
        r.run()
        first = m.take()
        seek_cursor(r.puller.words, cursor, 20)
        m.ack_all(first)
        r.run()
        assert r.position(cursor) == (20, 50), "acks of deliveries before the seek count no more"
        assert r.puller.state.members[m.number]["stale"] == 1
        again = m.take()
        assert [one.token for one in again] == list(range(20, 50))
        m.ack_all(again)
        r.run()
        assert r.position(cursor) == (50, 50)


def test_a_seek_takes_back_what_lies_in_the_rings_of_all_members() -> None:
    with rig() as r:
        q, first, second = r.queue(), r.member(), r.member()
        cursor = r.cursor(q, first, second)
        for i in range(200):
            r.put(q, (b"k%d" % i, b"%03d" % i))
        r.run()
        assert len(first.take(limit=5)) == 5
        out = int(r.puller.state.cursors[cursor]["out"])
        assert seek_cursor(r.puller.words, cursor, 190) == out == 200
        assert first.take() == [], "not even the rest of the frame that it was amid"
        assert second.take() == []
        r.run()
        seen = first.take() + second.take()
        assert sorted(one.token for one in seen) == list(range(190, 200))


def test_a_seek_amid_a_large_record_and_with_a_full_ring() -> None:
    with rig(block_bytes=1 << 16) as r:
        q, m = r.queue(), r.member(deliveries_bytes=1 << 16, in_flight_max=10_000)
        cursor, other = r.cursor(q, m), r.queue()
        r.put(q, bytes(200_000))
        r.run()
        assert m.take() == [], "its first fragments alone"
        seek_cursor(r.puller.words, cursor, 1)
        fill(r, q, 3000)
        r.run()
        seek_cursor(r.puller.words, cursor, 1)  # nothing of a full ring was looked at
        r.cursor(other, m)
        r.put(other, b"of another queue")
        got = drain(r, m)
        assert [one.token for one in got if one.payload != b"of another queue"] == [*range(1, 3001)]
        assert len(got) == 3001


def test_the_window_grows_and_then_holds_the_cursor_back() -> None:
    with rig() as r:
        q, m = r.queue(), r.member(in_flight_max=100_000, deliveries_bytes=1 << 22)
        cursor = r.cursor(q, m)
        fill(r, q, 4 * WINDOW_MIN, size=20, batch=256)
        r.run()
        got = m.take()
        assert len(got) == 4 * WINDOW_MIN
        m.ack_all(got[1:])
        r.run()
        assert r.position(cursor)[0] == 0
        m.ack(got[0])
        r.run()
        assert r.position(cursor) == (4 * WINDOW_MIN, 4 * WINDOW_MIN)


def test_a_saved_position_is_taken_up_settled_ranges_and_attempts_included() -> None:
    with rig() as r:
        q, m = r.queue(), r.member()
        fill(r, q, 20)
        rows = np.array([(7, 10, -1), (12, 13, 2), (15, 16, -1)], dtype=np.int64)
        cursor = r.cursor(q, m, token=5, restored=rows)
        r.run()
        got = m.take()
        assert [one.token for one in got] == [5, 6, 10, 11, 12, 13, 14, 16, 17, 18, 19]
        assert {one.token: one.attempts for one in got}[12] == 3
        m.ack_all(got)
        r.run()
        assert r.position(cursor) == (20, 20)


@pytest.mark.parametrize("batch", [50, 1000], ids=["small batches", "larger than a block"])
def test_what_retention_took_is_a_gap_and_said(batch: int) -> None:
    with rig(block_bytes=1 << 14) as r:
        q, m = r.queue(segment_bytes=1 << 16), r.member()
        cursor = r.cursor(q, m)
        fill(r, q, 3000, batch=batch)
        r.logs[q].retain(bytes_max=1 << 16)
        earliest = r.logs[q].earliest_token
        assert earliest > 0
        got = drain(r, m)
        assert got[0].token == earliest
        assert r.seen.gaps == [(cursor, 0, earliest)]
        assert r.position(cursor) == (3000, 3000)


@pytest.mark.parametrize("here", [False, True])
def test_what_cannot_be_read_holds_up_nobody_who_is_elsewhere(here: bool) -> None:
    with rig(block_bytes=1 << 14, reads_here=here) as r:
        q, behind, before = r.queue(segment_bytes=1 << 30), r.member(0), r.member(1)
        first = r.cursor(q, before, sub=1)
        fill(r, q, 100, batch=10)
        assert len(drain(r, before)) == 100
        (log,) = r.directory.rglob("*.log")
        raw = log.read_bytes()
        at = len(raw) // 2
        log.write_bytes(raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :])
        drop_queue_blocks(r.puller.words, q)
        cursor = r.cursor(q, behind)
        r.run()
        bad = drain(r, behind)
        stands_at = r.position(cursor)[1]
        assert 0 < len(bad) == stands_at < 100
        assert len(r.seen.damages) == 1
        assert r.puller._patience_ns() == PATIENCE_NS_MAX, "its thread rests meanwhile"
        fill(r, q, 400)
        assert len(drain(r, before)) == 400, "without waiting for the next try"
        assert r.position(first) == (500, 500)
        for _ in range(2):
            r.run(2 * S_NS)  # the file has grown, so it is read once more
        source = r.puller.sources[q]
        assert isinstance(source, CountingSource)
        reads = source.reads
        for _ in range(5):
            r.run(2 * S_NS)
        assert source.reads == reads, "nothing of the file has changed"
        r.puller.read_again(q)
        r.run(2 * S_NS)
        assert source.reads == reads + 1
        assert len(r.seen.damages) == 1, "it is reported once"
        log.write_bytes(raw + log.read_bytes()[len(raw) :])
        r.run(2 * S_NS)
        assert len(drain(r, behind)) == 500 - stands_at


def test_a_seek_leaves_what_cannot_be_read_behind() -> None:
    with rig() as r:
        q, m = r.queue(), r.member()
        r.put(q, b"damaged")
        r.put(q, b"sound")
        (log,) = r.directory.rglob("*.log")
        log.write_bytes(log.read_bytes().replace(b"damaged", b"dAmaged"))
        cursor = r.cursor(q, m)
        assert drain(r, m) == []
        seek_cursor(r.puller.words, cursor, 1)
        r.run(2 * S_NS)
        assert payloads(drain(r, m)) == [b"sound"]


def test_a_hostile_member_is_reported_and_nothing_else_happens() -> None:
    with rig() as r:
        q, m = r.queue(), r.member()
        r.cursor(q, m)
        r.put(q, b"a")
        r.run()
        m.file.array[lay.MEM_ACKED_AT : lay.MEM_ACKED_AT + 8].view(np.int64)[0] = 1 << 40
        m.take()
        r.run()
        assert r.seen.hostiles == [m.number]


def test_a_member_joins_a_late_cursor_and_gets_everything_from_the_start() -> None:
    with rig() as r:
        q = r.queue()
        cursor = r.cursor(q)
        bodies = fill(r, q, 300)
        r.run()
        m = r.member()
        r.share(cursor, m)
        assert payloads(drain(r, m)) == bodies


@pytest.mark.parametrize("limit", [1, 3, 64])
def test_any_take_size_yields_the_same(limit: int) -> None:
    with rig() as r:
        q, m = r.queue(), r.member()
        r.cursor(q, m)
        bodies = fill(r, q, 200)
        got: list[Got] = []
        while len(got) < 200:
            r.run()
            fresh = m.take(limit)
            m.ack_all(fresh)
            got += fresh
        assert payloads(got) == bodies


def test_blocks_are_fetched_in_the_cycle_and_the_shell_sees_only_what_is_special() -> None:
    with rig(reads_here=True, block_bytes=1 << 14) as r:
        q, m = r.queue(blocks_max=3), r.member(in_flight_max=4000)
        cursor = r.cursor(q, m)
        bodies = fill(r, q, 2000) + fill(r, q, 3, size=20_000, batch=1) + fill(r, q, 500)
        assert payloads(drain(r, m)) == bodies
        assert r.position(cursor) == (2503, 2503)
        queue = r.puller.state.queues[q]
        reads = r.sources[0].reads
        assert 6 <= reads <= 12  # the large ones, and making room
        assert queue["fetches"] > 20
        assert queue["fetched_records"] == 2503
        assert queue["evicted"] > 0
        assert queue["blocks"] <= 3
        assert r.puller.state.spare_n[0] == r.puller.blocks_max - queue["blocks"]
        r.put(q, b"more")
        assert payloads(drain(r, m)) == [b"more"]
        assert r.sources[0].reads == reads


def test_what_retention_deleted_is_told_also_when_the_cycle_reads() -> None:
    with rig(reads_here=True) as r:
        q, m = r.queue(segment_bytes=1 << 16), r.member()
        fill(r, q, 2000)
        gone = r.logs[0].retain(bytes_max=100_000)
        cursor = r.cursor(q, m)
        first = r.logs[0].earliest_token
        assert gone
        assert r.run() >= 0
        assert [one.token for one in drain(r, m)] == list(range(first, 2000))
        assert r.seen.gaps == [(cursor, 0, first)]


def test_a_record_comes_again_although_its_block_is_gone_and_the_queue_rests() -> None:
    with rig(block_bytes=1 << 13) as r:
        q, m = r.queue(blocks_max=2), r.member(in_flight_max=4000)
        cursor = r.cursor(q, m)
        bodies = fill(r, q, 1000)
        r.run()
        first, *others = m.take()
        m.nak(first, S_NS)
        m.ack_all(others)
        rest = drain(r, m)
        assert len(others) + len(rest) == len(bodies) - 1
        blocks = r.puller.state.held[q, : r.puller.state.queues[q]["blocks"]]
        assert all(r.puller.state.blocks[b]["first"] > 0 for b in blocks)  # its block is gone
        r.run(2 * S_NS)
        assert payloads(m.take()) == bodies[:1]
        assert r.cursor_record(cursor)["redelivered"] == 1


def test_an_ack_settles_what_it_names_and_no_more() -> None:
    with rig() as r:
        q, m = r.queue(), r.member()
        cursor = r.cursor(q, m)
        r.put(q, *(b"%d" % i for i in range(6)))
        r.run()
        got = m.take()
        m.ack(got[1])
        m.ack_all(got[3:5])
        r.run()
        record = r.cursor_record(cursor)
        assert (record["settled"], record["out"]) == (3, 3)
        assert r.position(cursor) == (0, 6)
        drop_member(r.puller.words, m.number, r.now)
        other = r.member()
        r.share(cursor, other)
        r.run()
        left = other.take()
        assert payloads(left) == [b"0", b"2", b"5"]
        other.ack_all(left[:2])
        r.run()
        assert r.position(cursor) == (5, 6), "the last one alone holds it back"


@pytest.mark.parametrize("what", ["nak", "give_back", "extend", "term"])
def test_a_member_refuses_no_record_of_another(what: str) -> None:
    with rig() as r:
        q, a, b = r.queue(), r.member(), r.member()
        cursor = r.cursor(q, a, b, ack_wait_ns=S_NS)
        r.put(q, *((b"key %d" % i, b"%d" % i) for i in range(20)))
        r.run()
        mine, theirs = a.take(), b.take()
        assert mine
        assert theirs
        for one in mine:
            getattr(b, what)(one)
        r.run()
        record = r.cursor_record(cursor)
        assert (record["out"], record["again_n"], record["naks"]) == (20, 0, 0)
        assert not r.seen.deaths
        assert r.puller.state.members[b.number]["late"] == len(mine)
        a.ack_all(mine)
        b.ack_all(theirs)
        r.run(5 * S_NS)
        assert r.cursor_record(cursor)["settled"] == 20
        assert a.take() == b.take() == []


@pytest.mark.parametrize("most", [1, 2, 5])
def test_the_last_delivery_is_the_one_that_was_promised(most: int) -> None:
    with rig() as r:
        q, m = r.queue(), r.member()
        r.cursor(q, m, deliveries_max=most)
        r.put(q, b"poison", b"fine")
        attempts = []
        for _ in range(most + 3):
            r.run()
            for one in m.take():
                if one.payload == b"poison":
                    attempts.append(one.attempts)
                    m.nak(one)
                else:
                    m.ack(one)
        assert attempts == list(range(1, most + 1))
        assert [dead.attempts for dead in r.seen.deaths] == [most]
