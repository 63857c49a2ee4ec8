"""Rate limiter, flow control, session table, random numbers: pure steps."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tidecast.layout.packet import SAMPLING_MAX
from tidecast.layout.ring import FLOW_MAX, FLOW_MIN, FLOW_RATE
from tidecast.native.jit import kernel
from tidecast.protocol import flow_control, rate_limit, session_table
from tidecast.protocol import random as rnd


@kernel
def refilled(tokens, rate, elapsed_ns, burst_min):  # type: ignore[no-untyped-def]
    return rate_limit.refill(tokens, rate, elapsed_ns, burst_min)


@kernel
def allowed(packets, n_bytes, rate_p, rate_b, size, wanted):  # type: ignore[no-untyped-def]
    return rate_limit.allowed_packets(packets, n_bytes, rate_p, rate_b, size, wanted)


@kernel
def limits(receivers, flow):  # type: ignore[no-untyped-def]
    return flow_control.limits(receivers, flow)


@kernel
def place(receivers, identity):  # type: ignore[no-untyped-def]
    return flow_control.place_for(receivers, identity)


@kernel
def note(receivers, i, consumed, contiguous, window, lost, now_ns):  # type: ignore[no-untyped-def]
    flow_control.note_status(receivers, i, consumed, contiguous, window, lost, now_ns)


@kernel
def find(table, session):  # type: ignore[no-untyped-def]
    return session_table.find_session(table, session)


@kernel
def put(table, session, value):  # type: ignore[no-untyped-def]
    return session_table.put_session(table, session, value)


@kernel
def draw(seed, limit, out):  # type: ignore[no-untyped-def]
    for i in range(out.size):
        out[i] = rnd.random_below(seed, limit)


# --- rate limiter -----------------------------------------------------------------------------


def test_idle_time_earns_one_burst_and_no_more() -> None:
    assert refilled(0.0, 10_000, 10_000_000_000, 64) == 64
    assert refilled(0.0, 1_000_000, 10_000_000_000, 64) == 2000, "2 ms worth"
    assert refilled(64.0, 10_000, 10_000_000_000, 64) == 64


def test_tokens_come_at_the_rate() -> None:
    assert refilled(0.0, 10_000, 1_000_000, 64) == pytest.approx(10)
    tokens, sent = 0.0, 0
    for _ in range(100_000):  # a second in steps of 10 us
        tokens = float(refilled(tokens, 10_000, 10_000, 64))
        n = int(allowed(tokens, 0.0, 10_000, 0, 1400, 64))
        tokens -= n
        sent += n
    assert 9_998 <= sent <= 10_000


def test_debt_of_unlimited_times_is_forgiven() -> None:
    assert refilled(-1e9, 1000, 1_000_000, 64) == pytest.approx(1)


def test_both_limits_hold_and_zero_means_none() -> None:
    assert allowed(0.0, 0.0, 0, 0, 1400, 64) == 64
    assert allowed(5.9, 0.0, 1, 0, 1400, 64) == 5
    assert allowed(100.0, 2799.0, 1, 1, 1400, 64) == 1
    assert allowed(100.0, 1399.0, 1, 1, 1400, 64) == 0
    assert allowed(-3.0, -3.0, 1, 1, 1400, 64) == 0


# --- flow control -----------------------------------------------------------------------------


def table(*entries: tuple[int, int, int]) -> np.ndarray:
    """Receivers (consumed, window, excluded)."""
    made = np.zeros(flow_control.RECEIVERS_MAX, dtype=flow_control.RECEIVER)
    for i, (consumed, window, excluded) in enumerate(entries):
        made[i * 3]["id"] = i + 1  # holes between them
        made[i * 3]["consumed"], made[i * 3]["window"] = consumed, window
        made[i * 3]["excluded"] = excluded
    return made


def test_min_follows_the_slowest_window_max_the_fastest_rate_none() -> None:
    receivers = table((100, 10, 0), (50, 100, 0), (80, 20, 0))
    assert limits(receivers, FLOW_MIN) == (100, 50)
    assert limits(receivers, FLOW_MAX) == (150, 50)
    assert limits(receivers, FLOW_RATE) == (flow_control.NO_LIMIT, 50)


def test_without_receivers_nothing_holds_back() -> None:
    for flow in (FLOW_MIN, FLOW_MAX, FLOW_RATE):
        assert limits(table(), flow) == (flow_control.NO_LIMIT, flow_control.NO_LIMIT)
        assert limits(table((5, 5, 1)), flow) == (flow_control.NO_LIMIT, flow_control.NO_LIMIT)


def test_an_excluded_receiver_counts_again_once_it_moves() -> None:
    receivers = table((5, 10, 1), (50, 10, 0))
    assert limits(receivers, FLOW_MIN) == (60, 50)
    note(receivers, 0, 5, 6, 10, 0, 77)
    assert limits(receivers, FLOW_MIN) == (60, 50), "silence is broken, but nothing consumed"
    assert receivers[0]["heard_ns"] == 77
    note(receivers, 0, 6, 6, 10, 0, 78)
    assert limits(receivers, FLOW_MIN) == (16, 6)
    assert receivers[0]["progress_ns"] == 78


def test_positions_never_go_back() -> None:
    receivers = table((50, 10, 0))
    note(receivers, 0, 60, 70, 10, 0, 1)
    note(receivers, 0, 55, 65, 8, 3, 2)
    entry = receivers[0]
    # belated, it knows an older window
    assert (entry["consumed"], entry["contiguous"], entry["window"]) == (60, 70, 10)
    note(receivers, 0, 60, 70, 8, 3, 3)
    assert entry["window"] == 8
    assert (entry["progress_ns"], entry["heard_ns"], entry["lost"]) == (1, 3, 3)


def test_places_are_found_again_and_run_out() -> None:
    receivers = table((0, 1, 0), (0, 1, 0))
    assert place(receivers, 2) == 3
    assert place(receivers, 99) == 1, "the first hole"
    receivers["id"] = np.arange(1, flow_control.RECEIVERS_MAX + 1)
    assert place(receivers, 1 << 40) == -1


# --- session table ----------------------------------------------------------------------------


def test_sessions_are_found_among_thousands_and_in_collisions() -> None:
    rng = random.Random(1)
    made = session_table.session_table()
    wanted = {rng.getrandbits(32) | 1: i for i in range(4000)}
    # the same first place: they differ by multiples of the table's size
    wanted |= {12345 + k * session_table.SESSIONS_MAX: 9000 + k for k in range(50)}
    for session, value in wanted.items():
        assert put(made, session, value)
    assert all(find(made, session) == value for session, value in wanted.items())
    assert find(made, 0xABCDEF01) == session_table.ABSENT
    again = session_table.session_table()
    for session, value in wanted.items():
        session_table.insert(again, session, value)
    assert all(find(again, session) == value for session, value in wanted.items())
    session_table.insert(again, 77, -3)
    session_table.insert(again, 77, 5)
    assert find(again, 77) == 5
    assert put(again, 77, -2)
    assert find(again, 77) == -2


@pytest.mark.parametrize("seed", range(3))
def test_a_session_that_is_removed_hides_no_other(seed: int) -> None:
    rng = random.Random(seed)
    made, kept = session_table.session_table(), dict[int, int]()
    near = [
        base + k * session_table.SESSIONS_MAX
        for base in (1, 12345, 12346, 16383)
        for k in range(30)
    ]
    for step in range(3000):
        session = rng.choice(near)
        if rng.random() < 0.5:
            session_table.insert(made, session, step)
            kept[session] = step
        else:
            session_table.remove(made, session)
            kept.pop(session, None)
        if step % 100 == 0:
            assert {s: v for s, v in made.tolist() if s} == kept
    assert all(find(made, session) == kept.get(session, session_table.ABSENT) for session in near)


def test_a_full_table_refuses_and_ends() -> None:
    made = session_table.session_table()
    made[:, 0] = 1
    assert not put(made, 2, 5)
    assert find(made, 2) == session_table.ABSENT


# --- random numbers ---------------------------------------------------------------------------


def test_random_numbers_are_even_and_repeatable() -> None:
    out, again = np.zeros(100_000, dtype=np.int64), np.zeros(100_000, dtype=np.int64)
    draw(np.full(1, 7, dtype=np.int64), 1000, out)
    draw(np.full(1, 7, dtype=np.int64), 1000, again)
    assert (out == again).all()
    assert out.min() == 0
    assert out.max() == 999
    counts = np.bincount(out, minlength=1000)
    assert counts.min() > 50
    assert counts.max() < 160
    chi2 = float(((counts - 100.0) ** 2 / 100.0).sum())
    assert 800 < chi2 < 1200, "999 degrees of freedom"
    draw(np.full(1, 8, dtype=np.int64), 1000, again)
    assert (out != again).mean() > 0.99
    serial = np.corrcoef(out[:-1], out[1:])[0, 1]
    assert abs(serial) < 0.02


# --- which receivers report -----------------------------------------------------------------------


@kernel
def halved(receivers, sampling):  # type: ignore[no-untyped-def]
    return flow_control.halve_sample(receivers, sampling)


def test_each_halving_of_the_sample_leaves_out_about_half() -> None:
    table = np.zeros(flow_control.RECEIVERS_MAX, dtype=flow_control.RECEIVER)
    rng = random.Random(1)
    table["id"] = [rng.getrandbits(62) | 1 << 61 for _ in table]
    before, sampling = len(table), 0
    for _ in range(3):
        sampling, dropped = halved(table, sampling)
        left = table["id"][table["id"] != 0]
        assert len(left) == before - dropped
        assert before / 4 < dropped < before * 3 / 4
        assert not (left & ((1 << sampling) - 1)).any()
        before = len(left)


def test_a_sample_gets_no_smaller_than_its_limit() -> None:
    table = np.zeros(flow_control.RECEIVERS_MAX, dtype=flow_control.RECEIVER)
    table["id"] = [(i + 1) << SAMPLING_MAX for i in range(len(table))]
    sampling = SAMPLING_MAX - 1
    assert halved(table, sampling) == (SAMPLING_MAX, 0)
    assert halved(table, SAMPLING_MAX) == (SAMPLING_MAX, 0)
