"""Batches of records: what goes in comes out, and any bytes at all may be handed in.

The checked build runs this with every load and store verified.
"""

from __future__ import annotations

import hypothesis
import numpy as np
from hypothesis import strategies as st

from tidecast.layout import segment as lay
from tidecast.log import batch
from tidecast.log.building import BatchBuilder, check, record_table, records

OUT = record_table(64)
RECORD = st.tuples(
    st.binary(max_size=40),
    st.none() | st.binary(max_size=12),
    st.none() | st.binary(max_size=12),
    st.integers(-(1 << 62), 1 << 62),
    st.integers(0, (1 << 32) - 1),
    st.integers(1, 5),
)


def built(rows: list[tuple[bytes, bytes | None, bytes | None, int, int, int]]) -> BatchBuilder:
    builder = BatchBuilder(256)
    builder.begin(producer=7, epoch=2, base_seq=100)
    seq = 100
    for payload, key, headers, when, key_hash, step in rows:
        builder.add(payload, key=key, headers=headers, time_ns=when, key_hash=key_hash, seq=seq)
        seq += step
    builder.seal(1000, 5)
    return builder


@hypothesis.given(st.lists(RECORD, min_size=1, max_size=20))
def test_what_goes_in_comes_out(
    rows: list[tuple[bytes, bytes | None, bytes | None, int, int, int]],
) -> None:
    builder = built(rows)
    data, seq = builder.buffer, 100
    assert check(data, 0, builder.used) == builder.used
    assert records(data, 0, builder.used, OUT, 0) == len(rows)
    raw = data.tobytes()
    for i, (payload, key, headers, when, key_hash, step) in enumerate(rows):
        row = OUT[i].tolist()
        at, n = row[batch.O_PAYLOAD_AT], row[batch.O_PAYLOAD_N]
        assert raw[at : at + n] == payload
        for value, at_column, n_column in (
            (key, batch.O_KEY_AT, batch.O_KEY_N),
            (headers, batch.O_HEADERS_AT, batch.O_HEADERS_N),
        ):
            at, n = row[at_column], row[n_column]
            assert (None if at < 0 else raw[at : at + n]) == value
        assert row[batch.O_TIME :] == [when, key_hash, 1000 + i, seq]
        seq += step


@hypothesis.given(
    st.lists(RECORD, min_size=1, max_size=8),
    st.lists(st.tuples(st.integers(0, 1 << 12), st.integers(0, 255)), min_size=1, max_size=6),
    st.integers(0, 1 << 12),
)
def test_mutated_batches_are_refused_and_read_within_bounds(
    rows: list[tuple[bytes, bytes | None, bytes | None, int, int, int]],
    edits: list[tuple[int, int]],
    cut: int,
) -> None:
    builder = built(rows)
    # an array of exactly the bytes there are, so that the checked build sees any byte beyond
    data = builder.buffer[: builder.used].copy()
    for at, value in edits:
        data[at % data.size] = value
    end = min(cut, data.size)
    same = np.array_equal(data, builder.buffer[: builder.used])
    result = check(data, 0, end)
    assert (result == builder.used) == (same and end == builder.used)
    assert result == builder.used or result in batch.CAUSES
    listed = records(data, 0, end, OUT, 0)  # without its checksum: the lengths alone must do
    assert listed in batch.CAUSES or 0 < listed <= OUT.shape[0]
    if listed > 0:
        for at_column, n_column in (
            (batch.O_PAYLOAD_AT, batch.O_PAYLOAD_N),
            (batch.O_KEY_AT, batch.O_KEY_N),
            (batch.O_HEADERS_AT, batch.O_HEADERS_N),
        ):
            ends = OUT[:listed, at_column] + OUT[:listed, n_column]
            assert (ends[OUT[:listed, at_column] >= 0] <= end).all()


@hypothesis.given(st.binary(max_size=300))
def test_noise_is_no_batch(raw: bytes) -> None:
    data = np.frombuffer(raw + b"\0", dtype=np.uint8)[: len(raw)].copy()
    assert check(data, 0, data.size) in batch.CAUSES
    records(data, 0, data.size, OUT, 0)


def test_a_table_too_small_is_said() -> None:
    builder = built([(b"", None, None, 0, 0, 1)] * 65)
    assert records(builder.buffer, 0, builder.used, OUT, 0) == batch.NO_ROOM
    assert lay.BATCH_RECORDS_MAX >= 65
