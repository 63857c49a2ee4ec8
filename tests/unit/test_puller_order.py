"""Order of a key after a refusal: nothing of it is sent while its member has more to give back."""

from __future__ import annotations

import random

import pytest
from tests.support.pulling import S_NS, Got, Rig, TestMember, drain, payloads, rig

from tidecast.agents.puller.entries import drop_member, seek_cursor
from tidecast.queues.cache.window import RECALLED, WINDOW_MIN

K = b"key"


def three(r: Rig, **cursor: int) -> tuple[int, int, TestMember, list[Got]]:
    """A queue and a cursor with one member, which has taken a, b and c of one key."""
    q, m = r.queue(), r.member(in_flight_max=5000)
    made = r.cursor(q, m, **cursor)
    r.put(q, (K, b"a"), (K, b"b"), (K, b"c"))
    r.run()
    return q, made, m, m.take()


def more(r: Rig, q: int) -> None:
    r.put(q, (K, b"d"), (b"other", b"x"))
    r.run()


@pytest.mark.parametrize("refuse", ["nak", "give_back"])
def test_a_newer_record_waits_for_all_that_comes_back(refuse: str) -> None:
    with rig() as r:
        q, _, m, (a, b, c) = three(r)
        m.nak(a) if refuse == "nak" else m.give_back(a)
        r.run()
        more(r, q)
        assert payloads(m.take()) == [b"x"], "other keys go on"
        m.give_back(b)
        r.run()
        assert m.take() == []
        m.give_back(c)
        r.run()
        got = m.take()
        assert payloads(got) == [b"a", b"b", b"c", b"d"]
        assert [one.attempts for one in got] == [2 if refuse == "nak" else 1, 1, 1, 1]


def test_what_is_acked_instead_need_not_come_back() -> None:
    with rig() as r:
        q, cursor, m, (a, b, c) = three(r)
        m.nak(a, S_NS)
        m.ack(b, c)
        r.run()
        more(r, q)
        assert payloads(m.take()) == [b"x"], "the delay"
        r.run(S_NS)
        assert payloads(m.take()) == [b"a", b"d"]
        assert r.cursor_record(cursor)["recalled"] == 0


@pytest.mark.parametrize("end", ["dead", "acked"])
def test_the_rest_comes_back_though_the_refused_record_is_settled(end: str) -> None:
    with rig() as r:
        q, _, m, (a, b, c) = three(r, deliveries_max=1 if end == "dead" else 5)
        m.nak(a, S_NS)
        if end == "acked":
            m.ack(a)
        r.run()
        more(r, q)
        assert payloads(m.take()) == [b"x"]
        m.give_back(b)
        m.give_back(c)
        r.run()
        assert payloads(m.take()) == [b"b", b"c", b"d"]


def test_a_second_refusal_recalls_again() -> None:
    with rig() as r:
        q, _, m, got = three(r)
        for _ in range(3):
            m.nak(got[0])
            r.run()
            assert m.take() == []
            for one in got[1:]:
                m.give_back(one)
            r.run()
            got = m.take()
            assert payloads(got) == [b"a", b"b", b"c"]
        m.ack_all(got)
        more(r, q)
        assert payloads(m.take()) == [b"d", b"x"]


def test_it_outlives_a_larger_window_and_a_full_table_of_keys() -> None:
    with rig() as r:
        q, cursor, m, (a, b, c) = three(r)
        m.nak(a)
        r.run()
        more(r, q)
        taken = m.take()
        for first in range(0, 8 * WINDOW_MIN, WINDOW_MIN):
            r.put(q, *((b"key %d" % i, b"y") for i in range(first, first + WINDOW_MIN)))
            r.run()
            fresh = m.take()
            assert len(fresh) == WINDOW_MIN
            if first < 4 * WINDOW_MIN:
                taken += fresh  # the window grows
            else:
                m.ack_all(fresh)  # keys that no longer matter fill the table
        assert b"d" not in payloads(taken)
        assert r.cursor_record(cursor)["window_mask"] + 1 > WINDOW_MIN
        assert r.cursor_record(cursor)["recalled"] == 1
        m.give_back(b)
        m.give_back(c)
        r.run()
        assert payloads(m.take()) == [b"a", b"b", b"c", b"d"]


def test_counting_ends_when_nothing_needs_it() -> None:
    with rig() as r:
        q, cursor, m, (a, b, c) = three(r)
        assert r.cursor_record(cursor)["counting"] == 0
        m.nak(a)
        m.give_back(b)
        m.give_back(c)
        r.run()
        assert r.cursor_record(cursor)["counting"] > 0
        m.ack_all(m.take())
        for _ in range(2 * WINDOW_MIN):
            r.put(q, (K, b"z"))
        drain(r, m)
        record = r.cursor_record(cursor)
        assert (record["counting"], record["recalled"], record["again_n"]) == (0, 0, 0)


def test_a_member_that_leaves_or_a_seek_ends_a_recall() -> None:
    with rig() as r:
        q, cursor, m, (a, *_) = three(r)
        m.nak(a)
        r.run()
        more(r, q)
        other = r.member()
        drop_member(r.puller.words, m.number, r.now)
        r.share(cursor, other)
        r.run()
        got = other.take()
        assert [one.payload for one in got if one.key == K] == [b"a", b"b", b"c", b"d"]
        other.nak(got[0])
        r.run()
        seek_cursor(r.puller.words, cursor, 0)
        assert r.cursor_record(cursor)["recalled"] == 0
        r.run()
        assert payloads(other.take()) == [b"a", b"b", b"c", b"d", b"x"]


def test_counts_of_keys_stay_those_of_the_window() -> None:
    """Thousands of random refusals; then nothing is held, and nothing was lost or left over."""
    chance = random.Random(5)
    with rig() as r:
        q, members = r.queue(), [r.member(in_flight_max=300) for _ in range(2)]
        cursor = r.cursor(q, *members)
        left: dict[bytes, bool] = {}
        for first in range(0, 3000, 100):
            r.put(q, *((b"k%d" % (i % 37), b"%d" % i) for i in range(first, first + 100)))
            left |= {b"%d" % i: True for i in range(first, first + 100)}
        for _ in range(4000):
            r.run(chance.choice((0, S_NS // 100)))
            for m in members:
                for one in m.take(chance.choice((1, 7, 300))):
                    what = chance.random()
                    if what < 0.1:
                        m.give_back(one)
                    elif what < 0.15:
                        m.nak(one, chance.choice((0, S_NS // 50)))
                    else:
                        m.ack(one)
                        del left[one.payload]
            if not left:
                break
        r.run(S_NS)
        record = r.cursor_record(cursor)
        assert not left
        assert (record["out"], record["again_n"], record["recalled"]) == (0, 0, 0)
        keys = r.puller._windows[cursor][1].view("uint32").reshape(-1, 4)
        assert not (keys[:, 2] != 0).any(), "entries that wait"
        assert not (keys[:, 3] & RECALLED).any()
