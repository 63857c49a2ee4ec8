"""The member's file: neither side is harmed by what the other one writes into it."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.pulling import Rig

from tidecast.buffers import member_ring
from tidecast.errors import ConfigError, SharedMemoryError
from tidecast.layout import member as lay

_FIELDS = st.sampled_from(
    [
        lay.MEM_DELIVERED_AT,
        lay.MEM_TAKEN_AT,
        lay.MEM_RELEASED_AT,
        lay.MEM_ACKED_AT,
        lay.MEM_ACKS_READ_AT,
        lay.MEM_ARMED_AT,
        lay.MEM_STATE_AT,
    ]
)
_WORDS = st.one_of(
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.integers(-64, 70_000),
    st.sampled_from([8, 40, 1 << 16]),
)


@given(data=st.data())
@settings(max_examples=80, deadline=None)
def test_a_client_survives_any_frames(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="tc-") as directory:
        file = member_ring.MemberFile.create(
            Path(directory) / "m", 1 << 16, 1 << 14, member=0, bell=0
        )
        array = file.array
        for _ in range(data.draw(st.integers(1, 4))):
            at = lay.MEMBER_HEADER_BYTES + 8 * data.draw(st.integers(0, 200))
            length = data.draw(st.sampled_from([48, 56, 72, 80, 128, 4096, 0, 12, 1 << 30]))
            kind = data.draw(st.integers(0, 5))
            count, used = (
                data.draw(st.integers(0, 5)),
                data.draw(st.sampled_from([0, 24, 30, 9999])),
            )
            head = np.array([length, kind], dtype=np.uint32).view(np.uint8)
            array[at : at + 8] = head
            array[at + 32 : at + 40] = np.array([count, used], dtype=np.uint32).view(np.uint8)
            array[at + 48 : at + 52] = np.array(
                [data.draw(st.integers(0, 80))], dtype=np.uint32
            ).view(np.uint8)
        field, word = data.draw(_FIELDS), data.draw(_WORDS)
        array[field : field + 8].view(np.int64)[0] = word
        k, rows, runs = (
            file.client_state(),
            np.zeros((64, member_ring.ROW_FIELDS), dtype=np.int64),
            np.zeros((16, member_ring.RUN_FIELDS), dtype=np.int64),
        )
        for _ in range(4):
            n, r = member_ring.take(array, k, np.zeros(8192, dtype=np.uint8), rows, runs, 64, True)
            assert member_ring.ASSEMBLED <= n <= 64
            assert 0 <= r <= 16
            for i in range(max(n, 0)):
                at, size = rows[i, member_ring.ROW_AT], rows[i, member_ring.ROW_LENGTH]
                assert at >= lay.MEMBER_HEADER_BYTES
                assert size >= 0
                assert at + size <= lay.MEMBER_HEADER_BYTES + (1 << 16)


@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_the_engine_survives_any_acks_and_goes_on_serving_others(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="tc-") as directory:
        rig = Rig(Path(directory))
        q = rig.queue()
        bad = rig.member(sub=0, deliveries_bytes=1 << 16, acks_bytes=1 << 14)
        good = rig.member(sub=1)
        cursor = rig.cursor(q, bad, sub=0)
        rig.cursor(q, good, sub=1)
        rig.put(q, *(b"%d" % i for i in range(20)))
        rig.run()
        bad.take()
        acks = lay.MEMBER_HEADER_BYTES + (1 << 16)
        at = 0
        for _ in range(data.draw(st.integers(1, 6))):
            length = data.draw(st.sampled_from([40, 48, 8, 0, 7, 1 << 14, 1 << 31]))
            frame = np.zeros(40, dtype=np.uint8)
            frame[:4].view(np.uint32)[0] = length
            frame[4:8].view(np.uint16)[:] = [
                data.draw(st.integers(0, 8)),
                data.draw(st.integers(0, 600)),
            ]
            word = rig.puller.cursor_word(cursor)
            frame[8:40].view(np.int64)[:] = [
                data.draw(st.sampled_from([word, word + 1, -1, 0, 1 << 31])),
                data.draw(_WORDS),
                data.draw(_WORDS),
                data.draw(_WORDS),
            ]
            bad.file.array[acks + at : acks + at + 40] = frame
            at += max(8, min(length, 48)) & ~7
        for field, word in (
            (lay.MEM_ACKED_AT, data.draw(st.sampled_from([at, at, 1 << 50, -8]))),
            (data.draw(_FIELDS), data.draw(_WORDS)),
        ):
            bad.file.array[field : field + 8].view(np.int64)[0] = word
        member_ring.wake_member(rig.wakes, rig.bells, bad.number)
        rig.run()
        got = good.take()
        good.ack_all(got)
        rig.run(40_000_000_000)
        rig.put(q, b"still here")
        rig.run()
        got += good.take()
        assert len(got) == 21
        good.ack_all(got)
        rig.run()
        record = rig.cursor_record(cursor)
        assert 0 <= record["out"] <= 21
        assert record["w_next"] - record["w_first"] <= record["window_mask"] + 1
        rig.close()


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"\0" * 100)
    with pytest.raises(SharedMemoryError, match="no member file"):
        member_ring.MemberFile.open(path)
    path.write_bytes(b"\1" * 8192)
    with pytest.raises(SharedMemoryError, match="not a member file"):
        member_ring.MemberFile.open(path)
    file = member_ring.MemberFile.create(tmp_path / "y", 1 << 16, 1 << 14, member=3, bell=70)
    raw = bytes(file.array[: 1 << 15])
    (tmp_path / "z").write_bytes(raw)
    with pytest.raises(SharedMemoryError, match="cut short"):
        member_ring.MemberFile.open(tmp_path / "z")
    assert member_ring.MemberFile.open(tmp_path / "y").bell == 70
    with pytest.raises(ConfigError, match="power of two"):
        member_ring.MemberFile.create(tmp_path / "w", 70_000, 1 << 14, member=3, bell=70)


@given(sizes=st.lists(st.integers(0, 3000), min_size=1, max_size=60), take=st.integers(1, 50))
@settings(max_examples=15, deadline=None)
def test_whatever_the_sizes_all_bytes_arrive(sizes: list[int], take: int) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="tc-") as directory:
        rig = Rig(Path(directory))
        q, m = rig.queue(), rig.member(deliveries_bytes=1 << 16, acks_bytes=1 << 14)
        rig.cursor(q, m)
        bodies = [bytes([i % 251]) * n for i, n in enumerate(sizes)] * 8
        for i in range(0, len(bodies), 7):
            rig.put(q, *bodies[i : i + 7])
        got = []
        empty = 0
        while empty < 3:
            rig.run()
            fresh = m.take(take)
            m.ack_all(fresh)
            empty = 0 if fresh else empty + 1
            got += [one.payload for one in fresh]
        assert got == bodies
        rig.close()
