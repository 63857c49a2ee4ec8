"""Queues with holes in their tokens, against a model: each record once, in order, none wrong."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.pulling import S_NS, Got, Rig, TestMember, rig
from tests.support.punched import KEYS, Punched, PunchedSource

from tidecast.agents.puller import entries
from tidecast.buffers import member_ring
from tidecast.queues.cache import blocks

_HOLE = st.one_of(
    st.integers(0, 3),
    st.integers(0, 40),
    st.sampled_from([blocks.HOLES_MAX - 1, blocks.HOLES_MAX, blocks.HOLES_MAX + 1, 1 << 40]),
)
_BATCHES = st.lists(st.tuples(_HOLE, st.integers(0, 12)), min_size=1, max_size=12)
_STREAM = b"k1"


def grown(r: Rig, q: int, queue: Punched, hole: int, records: int) -> None:
    queue.add(hole, records)
    member_ring.wake_queue(r.wakes, r.bells, q)


def taken(r: Rig, m: TestMember) -> list[Got]:
    """All messages that arrive until no more come; none is acked."""
    found: list[Got] = []
    while True:
        r.run()
        got = m.take()
        for one in got:
            assert one.payload == b"%d" % one.token, "another record's place"
            assert one.key == b"k%d" % (one.token % KEYS)
        if not got:
            return found
        found += got


@given(
    begun=_BATCHES,
    more=_BATCHES,
    blocks_max=st.integers(2, 4),
    block_bytes=st.sampled_from([1 << 10, 1 << 12, 1 << 16]),
    data=st.data(),
)
@settings(max_examples=60)
def test_each_record_comes_once_whatever_holes_there_are(
    begun: list[tuple[int, int]],
    more: list[tuple[int, int]],
    blocks_max: int,
    block_bytes: int,
    data: st.DataObject,
) -> None:
    queue = Punched()
    for hole, records in begun:
        queue.add(hole, records)
    with rig(block_bytes=block_bytes, blocks_max=16) as r:
        source = PunchedSource(queue)
        q = r.puller.add_queue(source, blocks_max)
        every, one, slow = r.member(0), r.member(1), r.member(2, in_flight_max=3)
        cursors = [
            r.cursor(q, every, sub=0),
            r.cursor(q, one, sub=1, key_pattern=_STREAM.decode()),
            r.cursor(q, slow, sub=2),
        ]
        found: list[Got] = []
        streams: list[Got] = []
        slowly: list[Got] = []
        for hole, records in [*more, (0, 0)]:
            got = taken(r, every)
            nak: bool = data.draw(st.booleans())
            if got and nak:
                again = data.draw(st.sampled_from(got))
                every.nak(again)
                every.ack_all([x for x in got if x is not again])
                r.run(S_NS)
                back = taken(r, every)
                assert [x.token for x in back] == [again.token]
                every.ack_all(back)
            else:
                every.ack_all(got)
            found += got
            streams += (some := taken(r, one))
            one.ack_all(some)
            slowly += (few := slow.take())
            slow.ack_all(few)
            grown(r, q, queue, hole, records)
        for m, kept in ((every, found), (one, streams), (slow, slowly)):
            while got := taken(r, m):
                m.ack_all(got)
                kept.extend(got)
        r.run()
        tokens = queue.tokens()
        assert [x.token for x in found] == tokens
        assert [x.token for x in slowly] == tokens
        assert [x.token for x in streams] == [t for t in tokens if b"k%d" % (t % KEYS) == _STREAM]
        assert [r.position(cursor) for cursor in cursors] == [(queue.end, queue.end)] * 3
        assert not r.seen.gaps
        assert not r.seen.damages
        if tokens:
            seek = data.draw(st.integers(0, queue.end))
            entries.seek_cursor(r.puller.words, cursors[0], seek)
            assert [x.token for x in taken(r, every)] == [t for t in tokens if t >= seek]


@given(begun=_BATCHES, data=st.data())
@settings(max_examples=40)
def test_what_compaction_takes_from_those_that_wait_is_told_and_settled(
    begun: list[tuple[int, int]], data: st.DataObject
) -> None:
    queue = Punched()
    for hole, records in begun:
        queue.add(hole, records)
    tokens = queue.tokens()
    gone = data.draw(st.sets(st.sampled_from(tokens))) if tokens else set()
    with rig(block_bytes=1 << 10, blocks_max=8) as r:
        q, m = r.puller.add_queue(PunchedSource(queue), 2), r.member()
        cursor = r.cursor(q, m)
        got = taken(r, m)
        queue.compact(gone)
        entries.drop_queue_blocks(r.puller.words, q)
        for each in got:
            m.nak(each)
        back = taken(r, m)
        assert sorted(x.token for x in back) == sorted(set(tokens) - gone)
        m.ack_all(sorted(back, key=lambda x: x.token))
        r.run()
        assert r.position(cursor) == (queue.end, queue.end)
        told = [(of, token) for of, first, end in r.seen.gaps for token in range(first, end)]
        assert sorted(told) == [(cursor, token) for token in sorted(gone)]


def test_what_retention_takes_is_a_gap_and_holes_are_none() -> None:
    queue = Punched()
    for hole in (0, 5, 7, 20_000, 0, 3):
        queue.add(hole, 10)
    with rig(block_bytes=1 << 10) as r:
        q, m = r.puller.add_queue(PunchedSource(queue), 2), r.member(in_flight_max=10)
        cursor = r.cursor(q, m)
        r.run()
        first = m.take()
        tokens = queue.tokens()
        assert [x.token for x in first] == tokens[:10]
        queue.retain(tokens[25])
        m.ack_all(first)
        entries.drop_queue_blocks(r.puller.words, q)
        found: list[Got] = []
        while got := taken(r, m):
            m.ack_all(got)
            found += got
        assert [x.token for x in found] == tokens[25:]
        assert r.seen.gaps == [(cursor, tokens[10], tokens[25])]


def test_one_fetch_serves_slow_and_fast_cursors_across_holes() -> None:
    queue = Punched()
    for hole in (4, 0, 1, 100_000, 2, 1):
        queue.add(hole, 5)
    with rig(block_bytes=1 << 12) as r:
        source = PunchedSource(queue)
        q = r.puller.add_queue(source, 8)
        fast, slow = r.member(0), r.member(1, in_flight_max=1)
        r.cursor(q, fast, sub=0)
        r.cursor(q, slow, sub=1)
        fast.ack_all(taken(r, fast))
        reads = source.reads
        tokens: list[int] = []
        while got := taken(r, slow):
            slow.ack_all(got)
            tokens += [x.token for x in got]
        assert tokens == queue.tokens()
        assert source.reads == reads, "the slow one read again what the fast one had read"
