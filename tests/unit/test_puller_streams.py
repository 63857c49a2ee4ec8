"""Cursors that follow one stream, and cursors with a compiled filter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.support.pulling import S_NS, drain, payloads, rig

from tidecast.agents.puller.entries import pause_cursor, seek_cursor
from tidecast.buffers.member_ring import RUN_COUNT
from tidecast.errors import ConfigError
from tidecast.native.predicates import Predicate, digest_of
from tidecast.queues.cache import cursors as cursor_table
from tidecast.queues.cache.window import WINDOW_MIN, WINDOW_SMALL
from tidecast.queues.mapper import hash_of


def test_a_record_wakes_only_the_cursors_of_its_stream_and_the_others_move_on() -> None:
    with rig(reads_here=True) as r:
        q, m = r.queue(), r.member(in_flight_max=4000)
        cursors = [r.cursor(q, m, key_pattern=f"k{i}") for i in range(40)]
        everything = r.cursor(q, r.member(1, in_flight_max=4000), sub=1)
        r.run()
        assert r.puller.state.queues[q]["followers"] == 40
        for round_ in range(3):
            r.put(q, *((b"k%d" % i, b"%d" % i) for i in (7, 9, 7)))
            r.put(q, *[(b"other", b"")] * 500)
            r.run()
            got = m.take()
            wanted = [(cursors[7], b"7"), (cursors[7], b"7"), (cursors[9], b"9")]
            assert sorted((one.cursor, one.payload) for one in got) == sorted(wanted)
            m.ack_all(got)
            r.run()
            assert r.puller.state.queues[q]["followers"] == 40
            assert [r.cursor_record(cursor)["next"] for cursor in cursors[20:]] == [
                0
            ] * 20  # not touched
            assert r.cursor_record(everything)["next"] == (round_ + 1) * 503
        assert {r.position(cursor) for cursor in cursors} == {(1509, 1509)}


def test_what_a_record_touches_does_not_grow_with_the_number_of_streams() -> None:
    few, many = (cursors_touched(streams) for streams in (20, 2000))
    assert few[:2] == [10, 10], "those of the records' ten streams, by deliveries and by acks"
    assert many[:2] == few[:2]
    assert max(few[2], many[2]) <= 4, "cursors that one record is shown to"


def cursors_touched(streams: int) -> list[int]:
    """How many cursors 50 records of ten streams change; and their acks; the longest chain."""
    with rig(reads_here=True) as r:
        q, m = r.queue(), r.member(in_flight_max=4000)
        for i in range(streams):
            r.cursor(q, m, key_pattern=f"k{i}")
        r.run()
        puller, found = r.puller.state, []
        before = puller.cursors.tobytes()
        r.put(q, *((b"k%d" % (i % 10), b"x") for i in range(50)))
        for acks in (False, True):
            if acks:
                m.ack_all(m.take())
            r.run()
            after = puller.cursors.tobytes()
            pairs = (
                np.frombuffer(raw, np.uint8).reshape(-1, cursor_table.CURSOR_BYTES)
                for raw in (before, after)
            )
            found.append(int((next(pairs) != next(pairs)).any(axis=1).sum()))
            before = after
        longest = 0
        for i in range(10):
            bucket = int(cursor_table.stream_chain(q, hash_of(b"k%d" % i)))
            cursor, n = int(puller.chains[bucket]), 0
            while cursor >= 0:
                cursor, n = (
                    int(puller.links[cursor, cursor_table.FOR_QUEUE, cursor_table.NEXT]),
                    n + 1,
                )
            longest = max(longest, n)
        return [*found, longest]


@pytest.mark.parametrize("seed", range(3))
def test_c1_cursors_of_streams_get_all_of_their_own_whatever_happens(seed: int) -> None:
    rng = np.random.default_rng(seed)
    with rig(reads_here=seed % 2 == 0, block_bytes=1 << 13) as r:
        q = r.queue(blocks_max=3, segment_bytes=1 << 17)
        members = [r.member(i, in_flight_max=50) for i in range(6)]
        cursors = [
            r.cursor(q, m, sub=i, key_pattern=f"k{i}", deliveries_max=0)
            for i, m in enumerate(members)
        ]
        sent: list[int] = []
        seen: list[set[int]] = [set() for _ in cursors]
        for _ in range(150):
            what = rng.integers(0, 10)
            i = int(rng.integers(0, 6))
            if what < 5:
                keys = rng.integers(0, rng.choice((2, 30)), int(rng.integers(1, 60))).tolist()
                sent += keys
                r.put(q, *((b"k%d" % k, bytes(40)) for k in keys))
            elif what == 5:
                pause_cursor(r.puller.words, cursors[i], int(rng.integers(0, 2)))
            elif what == 6 and sent:
                seek_cursor(r.puller.words, cursors[i], int(rng.integers(0, len(sent))))
                members[i].take()  # what was on its way is stale now
                seek_cursor(r.puller.words, cursors[i], 0)
                seen[i].clear()
            r.run(int(rng.integers(0, 3)) * S_NS)
            for k, m in enumerate(members):
                got = m.take(int(rng.integers(1, 60)))
                assert all(one.key == b"k%d" % k for one in got)
                if got and rng.integers(0, 4) == 0:
                    m.nak(got[0], S_NS)
                    got = got[1:]
                for one in got:
                    seen[k].add(one.token)
                    m.ack(one)
        for cursor in cursors:
            pause_cursor(r.puller.words, cursor, 0)
        r.run(40 * S_NS)
        for _ in range(100):
            for k, m in enumerate(members):
                got = m.take()
                seen[k] |= {one.token for one in got}
                m.ack(*got)
            r.run(2 * S_NS)
        for k in range(6):
            assert seen[k] == {token for token, key in enumerate(sent) if key == k}
            assert r.position(cursors[k]) == (len(sent), len(sent))


def test_records_of_a_stream_that_lie_together_are_one_frame_and_a_small_window_grows() -> None:
    with rig(reads_here=True) as r:
        q, m = r.queue(), r.member(in_flight_max=4000)
        cursor = r.cursor(q, m, key_pattern="mine")
        r.run()
        r.put(q, *[(b"mine", b"%d" % i) for i in range(5)], (b"other", b""), (b"mine", b"5"))
        r.run()
        got = m.take()
        assert payloads(got) == [b"%d" % i for i in range(6)]
        assert m.runs[:2, RUN_COUNT].tolist() == [5, 1]
        assert r.cursor_record(cursor)["window_mask"] == WINDOW_SMALL - 1
        m.ack_all(got)
        r.run()
        assert (r.cursor_record(cursor)["w_first"], r.cursor_record(cursor)["w_next"]) == (0, 0)
        r.put(q, *[(b"mine", b"%d" % i) for i in range(300)])
        r.run()
        more = drain(r, m)
        assert payloads(more) == [b"%d" % i for i in range(300)]
        assert r.cursor_record(cursor)["window_mask"] >= WINDOW_MIN - 1
        assert r.position(cursor) == (307, 307)


@pytest.mark.parametrize("length", [1, 63, 64, 200])
def test_keys_of_any_length_are_followed(length: int) -> None:
    """A short key lies beside its cursor, a longer one elsewhere."""
    key = b"k" * length
    with rig(reads_here=True) as r:
        q, m = r.queue(), r.member()
        r.cursor(q, m, key_pattern=key.decode())
        r.cursor(q, m, key_pattern="x" * length)
        r.put(q, (key, b"1"), (key + b"k", b"2"), (key[:-1], b"3"), (key, b"4"))
        assert payloads(drain(r, m)) == [b"1", b"4"]


def test_a_compiled_filter_chooses_records_and_what_raises_is_delivered() -> None:
    def odd_or_short(key: Any, value: Any, timestamp: int) -> bool:
        return bool(value[2] % 2 == 1 and len(key) == 2 and timestamp >= 0)

    with rig() as r:
        q, m = r.queue(), r.member()
        cursor = r.cursor(q, m, predicate=Predicate(odd_or_short))
        bodies = [b"ab%c" % i for i in range(10)] + [b"xy"]  # the last one is too short
        r.put(q, *((b"kk", body) for body in bodies), b"ab\1")
        assert payloads(drain(r, m)) == [*bodies[1::2][:5], b"xy"]
        record = r.cursor_record(cursor)
        assert (record["filtered"], record["filter_errors"]) == (6, 1)
        assert r.position(cursor) == (12, 12)


def test_filters_are_told_apart_by_what_they_do() -> None:
    def made(limit: int) -> Any:
        return lambda key, value, timestamp: len(value) > limit

    assert digest_of(made(1)) == digest_of(made(1)) != digest_of(made(2))
    with pytest.raises(ConfigError, match="where"):
        Predicate(lambda key: True)
    with pytest.raises(ConfigError, match="compile"):
        Predicate(lambda key, value, timestamp: value.nothing())
