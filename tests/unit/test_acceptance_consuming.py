"""Acceptance tests of flow control and of pulling agents, by their ids; see tests/README.md.

F: the rules of consumer flow control. BM: its benchmarks, small. A, C, R: agents, caches, resuming.
What other files prove already is not repeated here: the table in tests/README.md says where.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

import numpy as np
import pytest
from tests.conftest import Eventually
from tests.support.pulling import S_NS, Got, Rig, drain, fill, payloads, rig

from tidecast.agents.puller.entries import pause_cursor
from tidecast.log.queue_log import QueueLog
from tidecast.queues.cache import cursors as cursor_table


def blocks_used(r: Rig) -> int:
    """Blocks that hold, or held, something: what the cache costs."""
    return int(r.puller.blocks_max - r.puller.state.spare_n[0])


def amplification(r: Rig) -> float:
    """Bytes fetched by bytes that lie in the logs."""
    fetched = sum(source.bytes for source in r.sources)
    return fetched / sum(log.bytes - 64 * len(log.segments) for log in r.logs)


# --- flow control ------------------------------------------------------------------------------
def test_f1_one_fetch_at_a_time_and_none_for_what_is_buffered() -> None:
    with rig() as r:
        q, m = r.queue(delay_ns=S_NS), r.member(in_flight_max=100)
        r.cursor(q, m)
        bodies = fill(r, q, 1000)
        for _ in range(20):
            r.puller.work(r.now)
            assert r.sources[0].reads <= 1, "one is on its way"
        late = r.member(1, in_flight_max=100)
        r.cursor(q, late, sub=1)
        for _ in range(20):
            r.puller.work(r.now)
            assert r.sources[0].reads <= 1, "it is on its way for both"
        r.now += 2 * S_NS
        assert payloads(drain(r, m, patience=20)) == bodies
        assert payloads(drain(r, late, patience=20)) == bodies
        assert r.sources[0].reads == 1, "all of it was buffered by the first"


def turn(r: Rig, advance_ns: int = 0) -> None:
    """Some cycles; does not wait for answers of sources."""
    r.now += advance_ns
    for _ in range(20):
        r.puller.work(r.now)


def test_a_flowing_cursor_does_not_wait_for_its_next_block() -> None:
    """Behind a round trip the next blocks are asked for early: one wait, for the first."""
    with rig(block_bytes=64 << 10) as r:
        q, m = r.queue(blocks_max=4, delay_ns=S_NS), r.member(in_flight_max=20)
        cursor = r.cursor(q, m)
        bodies = fill(r, q, 4000)
        got: list[Got] = []
        waits = 0
        while len(got) < len(bodies):
            turn(r)
            fresh = m.take()
            m.ack_all(fresh)
            got += fresh
            starved = not fresh and r.cursor_record(cursor)["reason"] == cursor_table.FETCHING
            waits += starved
            r.now += S_NS + 1 if starved else S_NS // 8
        assert payloads(got) == bodies
        assert waits == 1
        assert amplification(r) == 1.0
        assert blocks_used(r) <= 4


def test_what_is_read_ahead_takes_no_block_from_who_rests() -> None:
    with rig(block_bytes=64 << 10) as r:
        q = r.queue(blocks_max=2, delay_ns=S_NS)
        slow, fast = r.member(sub=0, in_flight_max=1), r.member(sub=1, in_flight_max=100)
        resting = r.cursor(q, slow, sub=0)
        bodies = fill(r, q, 2000)
        turn(r)
        turn(r, 2 * S_NS)
        assert len(slow.take()) == 1
        pause_cursor(r.puller.words, resting, 1)
        turn(r)
        r.cursor(q, fast, sub=1)
        got: list[Got] = []
        for _ in range(4):  # all within the first block
            turn(r, 2 * S_NS)
            fresh = fast.take()
            fast.ack_all(fresh)
            got += fresh
        assert payloads(got) == bodies[: len(got)]
        assert got
        assert int(r.puller.state.queues[q]["spilled"]) == 0


def test_a_queue_that_grows_while_it_is_read_is_read_again() -> None:
    """The answer tells where the queue ended when it was asked, not where it ends."""
    with rig() as r:
        q, m = r.queue(delay_ns=S_NS), r.member()
        r.cursor(q, m)
        first = fill(r, q, 10)
        turn(r)  # asked
        more = fill(r, q, 10)
        turn(r)
        for _ in range(3):
            turn(r, 2 * S_NS)
        assert payloads(m.take()) == first + more


def test_f3_f8_with_everything_buffered_and_paused_it_neither_spins_nor_hangs() -> None:
    with rig() as r:
        m = r.member(in_flight_max=1)
        cursors = [r.cursor(r.queue(), m) for _ in range(10)]
        for q in range(10):
            fill(r, q, 20)
        got = []
        for _ in range(10):  # one poll each: every queue is fetched
            r.run()
            fresh = m.take()
            m.ack_all(fresh)
            got += fresh
        for cursor in cursors:
            pause_cursor(r.puller.words, cursor, 1)
        r.run()
        m.ack_all(m.take())
        r.run()
        reads = sum(source.reads for source in r.sources)
        for _ in range(20):
            assert r.puller.work(r.now) == 0, "nothing can move: nothing is done"
        assert sum(source.reads for source in r.sources) == reads
        for cursor in cursors:
            pause_cursor(r.puller.words, cursor, 0)
        assert drain(r, m), "and it goes on"
        assert [r.position(cursor) for cursor in cursors] == [(20, 20)] * 10


def test_f6_a_pause_outlives_a_change_of_members_and_says_so() -> None:
    with rig() as r:
        q, a = r.queue(), r.member()
        cursor = r.cursor(q, a)
        fill(r, q, 10)
        pause_cursor(r.puller.words, cursor, 1)
        b = r.member()
        r.share(cursor, a, b)
        r.run()
        assert a.take() == b.take() == []
        assert r.cursor_record(cursor)["paused"] == 1
        pause_cursor(r.puller.words, cursor, 0)
        assert len(drain(r, a, b)) == 10


def test_f7_memory_is_bounded_by_blocks_not_by_what_is_paused() -> None:
    with rig() as r:
        m = r.member()
        cursors = [r.cursor(r.queue(blocks_max=2), m) for _ in range(20)]
        for q in range(20):
            fill(r, q, 200, size=2000)
        r.run()
        for cursor in cursors:
            pause_cursor(r.puller.words, cursor, 1)
        for q in range(20):
            fill(r, q, 200, size=2000)
        r.run()
        assert blocks_used(r) <= 2 * 20
        for cursor in cursors:
            pause_cursor(r.puller.words, cursor, 0)
        assert len(drain(r, m)) == 8000
        assert blocks_used(r) <= 2 * 20
        assert amplification(r) <= 1.005


def test_f9_what_waits_costs_nothing() -> None:
    """A ready set: cursors without anything to do are not looked at."""
    with rig() as r:
        m = r.member()
        busy = r.queue()
        cursor = r.cursor(busy, m)
        idle = [r.cursor(r.queue(), r.member(), sub=1 + k) for k in range(100)]
        for k, waiting in enumerate(idle):
            r.put(1 + k, b"paused")
            pause_cursor(r.puller.words, waiting, 1)
        r.run()
        for waiting in idle:
            r.cursor_record(waiting)["reason"] = 99  # a look would say why it waits
        fill(r, busy, 500)
        assert len(drain(r, m)) == 500
        assert r.position(cursor) == (500, 500)
        assert {int(r.cursor_record(waiting)["reason"]) for waiting in idle} == {99}
        assert sum(source.reads for source in r.sources[1:]) == 0


def test_commits_never_go_back_whatever_the_order_of_acks() -> None:
    with rig() as r:
        q, m = r.queue(), r.member(in_flight_max=200)
        cursor = r.cursor(q, m)
        fill(r, q, 200)
        r.run()
        got = m.take()
        marks = [0]
        for i in np.random.default_rng(1).permutation(200):
            m.ack(got[int(i)])
            r.run()
            marks.append(r.position(cursor)[0])
        assert all(a <= b for a, b in pairwise(marks))
        assert marks[-1] == 200
        m.ack(got[3])  # an old one, late
        r.run()
        assert r.position(cursor)[0] == 200


def test_bm1_nine_of_ten_paused_at_each_poll_of_one_record() -> None:
    with rig() as r:
        rng = np.random.default_rng(2)
        m = r.member(in_flight_max=1)
        cursors = [r.cursor(r.queue(), m) for _ in range(10)]
        for q in range(10):
            fill(r, q, 30)
        polled = 0
        for _ in range(3000):
            kept = int(rng.integers(10))
            for k, cursor in enumerate(cursors):
                pause_cursor(r.puller.words, cursor, int(k != kept))
            r.run()
            got = m.take()
            m.ack_all(got)
            polled += len(got)
            if polled == 300:
                break
        assert polled == 300
        assert amplification(r) == 1.0
        assert sum(source.reads for source in r.sources) == 10


@pytest.mark.parametrize("paused", range(10))
def test_bm1_whatever_part_is_paused_nothing_is_fetched_twice(paused: int) -> None:
    with rig() as r:
        rng = np.random.default_rng(paused)
        m = r.member(in_flight_max=1)
        cursors = [r.cursor(r.queue(), m) for _ in range(10)]
        for q in range(10):
            fill(r, q, 3)
        polled = 0
        for _ in range(1000):
            chosen = set(rng.permutation(10)[:paused].tolist())
            for k, cursor in enumerate(cursors):
                pause_cursor(r.puller.words, cursor, int(k in chosen))
            r.run()
            got = m.take()
            m.ack_all(got)
            polled += len(got)
            if polled == 30:
                break
        assert (polled, amplification(r)) == (30, 1.0)
        assert sum(source.reads for source in r.sources) == 10


def test_bm2_amplification_with_a_hundred_queues() -> None:
    with rig() as r:
        m = r.member(in_flight_max=500)
        for q in range(100):
            r.cursor(r.queue(blocks_max=2), m)
            fill(r, q, 20, size=5000, batch=10)
        assert len(drain(r, m)) == 2000
        assert amplification(r) <= 1.005


def test_bm3_one_stuck_beside_thirty_healthy() -> None:
    with rig() as r:
        q = r.queue(blocks_max=4)
        healthy = [r.member(sub=k) for k in range(30)]
        stuck = r.member(sub=30, in_flight_max=10)
        for k, m in enumerate([*healthy, stuck]):
            r.cursor(q, m, sub=k)
        bodies: list[bytes] = []
        held: list[Got] = []
        rounds = []
        for _ in range(4):  # round after round, while one settles nothing
            bodies += fill(r, q, 600, size=1000)
            rounds.append(len(drain(r, *healthy)))
            held += stuck.take()
        assert rounds == [30 * 600] * 4, "the healthy miss nothing"
        assert reasons(r) == {*[cursor_table.CAUGHT_UP] * 30, cursor_table.NO_CREDIT}, (
            "and the pressure shows"
        )
        assert len(held) == 10
        assert amplification(r) <= 1.02, "they share what was fetched"
        assert blocks_used(r) <= 4
        stuck.ack_all(held)
        rest = drain(r, stuck)
        assert payloads([*held, *rest]) == bodies, "once freed, it gets all of it, in order"
        assert reasons(r) == {cursor_table.CAUGHT_UP}, "and the pressure is gone"


def reasons(r: Rig) -> set[int]:
    """Why the cursors rest."""
    cursors = r.puller.state.cursors
    return set(cursors["reason"][cursors["active"] == 1].tolist())


# --- agents ------------------------------------------------------------------------------------
def test_a1_a_subscription_without_members_delays_no_other() -> None:
    with rig() as r:
        q, m = r.queue(), r.member(sub=1)
        cold = r.cursor(q, sub=0)
        r.cursor(q, m, sub=1)
        bodies = fill(r, q, 300)
        assert payloads(drain(r, m)) == bodies
        late = r.member(sub=0)
        r.share(cold, late)
        assert payloads(drain(r, late)) == bodies, "and itself loses nothing"


def test_a2_nothing_is_read_once_it_stops_and_stopping_is_idempotent(
    eventually: Eventually,
) -> None:
    with rig() as r:
        q, m = r.queue(), r.member()
        r.cursor(q, m)
        r.puller.start()
        fill(r, q, 10)
        eventually(lambda: r.sources[0].reads > 0, "read by its thread")
        r.puller.stop()
        reads = r.sources[0].reads
        fill(r, q, 10)  # wakes whoever is there
        r.puller.stop()
        assert r.sources[0].reads == reads
        r.run()
        assert r.sources[0].reads > reads, "there was something to read"


def test_a5_streams_leave_nothing_behind() -> None:
    """Ten thousand keys that were settled cost no memory: state is of what is outstanding."""
    with rig() as r:
        q, m = r.queue(), r.member()
        cursor = r.cursor(q, m)
        fill(r, q, 10_000, keys=10_000, size=20, batch=500)
        assert len(drain(r, m)) == 10_000
        record = r.cursor_record(cursor)
        assert (record["out"], record["again_n"]) == (0, 0)
        assert record["w_first"] == record["w_next"], "its window is empty"


def test_a7_an_idle_cursor_gets_the_new_record_after_its_blocks_are_gone() -> None:
    with rig() as r:
        q, idle, busy = r.queue(blocks_max=2), r.member(sub=0), r.member(sub=1)
        cursor = r.cursor(q, idle, sub=0)
        r.cursor(q, busy, sub=1)
        fill(r, q, 10)
        assert len(drain(r, idle, busy)) == 20
        pause_cursor(r.puller.words, cursor, 1)
        fill(r, q, 6000, size=1000)
        assert len(drain(r, busy)) == 6000, "the blocks went round"
        pause_cursor(r.puller.words, cursor, 0)
        assert [one.token for one in drain(r, idle)] == list(range(10, 6010))
        token = r.put(q, b"new")
        assert [one.token for one in drain(r, idle, busy)] == [token, token]


# --- caches ------------------------------------------------------------------------------------
def test_c1_interleaved_streams_come_whole_over_many_fills() -> None:
    with rig() as r:
        q, members = r.queue(blocks_max=2), [r.member() for _ in range(3)]
        r.cursor(q, *members)
        for cycle in range(5):
            fill(r, q, 2000, size=500, keys=17)
            by_key: dict[bytes | None, list[int]] = defaultdict(list)
            for one in drain(r, *members):
                by_key[one.key].append(one.token)
            assert len(by_key) == 17
            assert all(tokens == sorted(tokens) for tokens in by_key.values())
            assert sorted(t for ts in by_key.values() for t in ts) == list(
                range(cycle * 2000, (cycle + 1) * 2000)
            )


def test_c3_oversized_records_leak_no_block() -> None:
    with rig() as r:
        q, m = r.queue(blocks_max=3), r.member()
        cursor = r.cursor(q, m)
        sizes = [100, 900_000, 10, 2_000_000, 300_000] * 3
        for i, n in enumerate(sizes):
            r.put(q, b"%d" % i + bytes(n))
        got = drain(r, m, patience=40)  # a large record is no message before its last fragment
        assert [len(one.payload.rstrip(b"\0")) for one in got] == [
            len(b"%d" % i) for i in range(15)
        ]
        assert blocks_used(r) <= 3
        assert r.position(cursor) == (15, 15)


def test_c4_c8_blocks_that_went_are_read_again_and_nothing_is_missed() -> None:
    with rig() as r:
        q = r.queue(blocks_max=2)
        members = [r.member(sub=k, in_flight_max=50) for k in range(3)]
        for k, m in enumerate(members):
            r.cursor(q, m, sub=k)
        bodies = fill(r, q, 6000, size=1000)
        seen: list[list[bytes]] = [[], [], []]
        for turn in range(4000):  # each at a pace of its own, so that they lie far apart
            r.run()
            for k, m in enumerate(members):
                if turn % (1 + 2 * k) == 0:
                    got = m.take()
                    m.ack_all(got)
                    seen[k] += payloads(got)
            if all(len(each) == 6000 for each in seen):
                break
        assert seen == [bodies] * 3
        assert not r.seen.gaps


def test_c6_a_cursor_never_goes_back_by_itself() -> None:
    with rig() as r:
        q, m = r.queue(), r.member(in_flight_max=20)
        cursor = r.cursor(q, m)
        tokens = [0]
        for _ in range(30):
            fill(r, q, 10, batch=10)
            r.run()
            got = m.take()
            if got:
                m.nak(got[0])
                m.ack_all(got[1:])
            r.run()
            tokens.append(r.position(cursor)[1])
        assert all(a <= b for a, b in pairwise(tokens))
        drain(r, m)
        assert r.position(cursor) == (300, 300)


def test_c7_tokens_beyond_32_bits_keep_their_order() -> None:
    with rig() as r:
        base = (1 << 33) - 60
        directory = r.directory / "q0"
        directory.mkdir()
        QueueLog(directory, "t", 0, 1 << 20, "none", 0)._make_segment(base, 0)
        q, m = r.queue(), r.member()
        assert r.logs[0].next_token == base
        cursor = r.cursor(q, m, token=base)
        bodies = fill(r, q, 200, keys=5)
        got = drain(r, m)
        assert [one.token for one in got] == list(range(base, base + 200))
        assert payloads(got) == bodies
        assert r.position(cursor) == (base + 200, base + 200)


# --- resuming ----------------------------------------------------------------------------------
@pytest.mark.parametrize("at", [0, 1, 499, 999, 1000])
def test_r1_r2_r4_resuming_anywhere_even_where_blocks_are_gone(at: int) -> None:
    with rig() as r:
        q, first = r.queue(blocks_max=1), r.member(sub=0)
        r.cursor(q, first, sub=0)
        fill(r, q, 1000, size=2000)
        assert len(drain(r, first)) == 1000
        r.now += 3600 * S_NS
        late = r.member(sub=1)
        cursor = r.cursor(q, late, sub=1, token=at)
        assert [one.token for one in drain(r, late)] == list(range(at, 1000))
        assert r.position(cursor) == (1000, 1000)


def test_recovery_transient_faults_at_the_first_the_33rd_and_the_last() -> None:
    with rig() as r:
        q, m = r.queue(), r.member()
        cursor = r.cursor(q, m)
        bodies = fill(r, q, 100, keys=4)
        failed: set[int] = set()
        done: list[bytes] = []
        for _ in range(20):
            r.run(S_NS)
            for one in m.take():
                if one.token in (0, 32, 99) and one.token not in failed:
                    failed.add(one.token)
                    m.nak(one)
                else:
                    done.append(one.payload)
                    m.ack(one)
        assert failed == {0, 32, 99}
        assert sorted(set(done)) == bodies
        assert len(done) == 100, "exactly once: what waits behind a refused one was not handed out"
        assert r.position(cursor) == (100, 100)


def test_a_member_busy_for_many_ack_waits_finds_what_it_never_took_once() -> None:
    with rig() as r:
        q, m, other = r.queue(), r.member(), r.member()
        cursor = r.cursor(q, m, ack_wait_ns=10 * S_NS)
        fill(r, q, 20, keys=3)
        r.run()
        for _ in range(8):
            r.run(15 * S_NS)
        got = m.take()
        assert [(one.token, one.attempts) for one in got] == [(i, 1) for i in range(20)]
        assert r.cursor_record(cursor)["timeouts"] == 0
        r.run(11 * S_NS)  # here it is noticed that they were taken
        r.run(11 * S_NS)
        assert [(one.token, one.attempts) for one in m.take()] == [(i, 2) for i in range(20)]
        assert other.take() == []


@pytest.mark.parametrize("in_flight", [10, 200])
def test_no_queue_starves_beside_a_full_one(in_flight: int) -> None:
    """A queue with much gets no more of a member's credit than a queue with little."""
    with rig() as r:
        m = r.member(in_flight_max=in_flight)
        full = r.cursor(r.queue(), m)
        for q in range(1, 4):
            r.cursor(r.queue(), m)
            fill(r, q, 100)
        fill(r, 0, 5000)
        cursors = [one.cursor for one in drain(r, m)]
        last = max(i for i, cursor in enumerate(cursors) if cursor != full)
        assert cursors[:last].count(full) < 1000
        assert len(cursors) == 5300


@pytest.mark.parametrize(("queues", "members"), [(1, 1), (1, 5), (5, 1), (4, 3)])
def test_topology_of_producers_and_consumers(queues: int, members: int) -> None:
    with rig() as r:
        sharing = [r.member() for _ in range(members)]
        cursors = [r.cursor(r.queue(), *sharing) for _ in range(queues)]
        for q in range(queues):
            fill(r, q, 200, keys=9)
        got = drain(r, *sharing)
        assert sorted((one.cursor, one.token) for one in got) == [
            (cursor, token) for cursor in sorted(cursors) for token in range(200)
        ]


def test_multiplicity_parallel_subscriptions_added_and_removed() -> None:
    with rig() as r:
        q, a = r.queue(), r.member(sub=0)
        r.cursor(q, a, sub=0)
        bodies = fill(r, q, 100)
        assert payloads(drain(r, a)) == bodies
        b = r.member(sub=1)
        cursor = r.cursor(q, b, sub=1)
        assert payloads(drain(r, b)) == bodies
        pause_cursor(r.puller.words, cursor, 1)
        more = fill(r, q, 50)
        assert payloads(drain(r, a)) == more
        pause_cursor(r.puller.words, cursor, 0)
        assert payloads(drain(r, b)) == more
        assert cursor_table.REASONS[r.cursor_record(cursor)["reason"]] == "caught up"
        r.puller.remove_cursor(cursor)
        last = fill(r, q, 30)
        assert payloads(drain(r, a)) == last
        assert drain(r, b) == [], "one that is removed gets nothing"
        r.cursor(q, b, sub=1)
        assert payloads(drain(r, b)) == bodies + more + last, "and made anew, all of it"
        assert drain(r, a) == []
