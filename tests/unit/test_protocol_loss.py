"""The gap table: what is missing, when to ask for it, how it fills."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tidecast.native.jit import kernel
from tidecast.protocol import loss


@kernel
def opened(gaps, n, first, end, due_ns):  # type: ignore[no-untyped-def]
    return loss.open_gap(gaps, n, first, end, due_ns)


@kernel
def filled(gaps, n, seq):  # type: ignore[no-untyped-def]
    i = loss.find_gap(gaps, n, seq)
    return n if i < 0 else loss.fill_gap(gaps, n, i, seq)


@kernel
def found(gaps, n, seq):  # type: ignore[no-untyped-def]
    return loss.find_gap(gaps, n, seq)


@kernel
def dropped(gaps, n, seq):  # type: ignore[no-untyped-def]
    return loss.drop_before(gaps, n, seq)


@kernel
def taken(gaps, n, now_ns, retry_ns, seed, ranges, ranges_max, overtaken_ns=0):  # type: ignore[no-untyped-def]
    return loss.take_due(gaps, n, now_ns, retry_ns, overtaken_ns, seed, ranges, ranges_max)


@kernel
def delay(base_ns, tries, jitter):  # type: ignore[no-untyped-def]
    return loss.retry_delay_ns(base_ns, tries, jitter)


@kernel
def earliest(gaps, n, none):  # type: ignore[no-untyped-def]
    return loss.next_due(gaps, n, none)


class Table:
    def __init__(self) -> None:
        self.gaps = np.zeros(loss.GAPS_MAX, dtype=loss.GAP)
        self.n = 0
        self.seed = np.full(1, 12345, dtype=np.int64)

    def open(self, first: int, end: int, due_ns: int = 0) -> int:
        n = int(opened(self.gaps, self.n, first, end, due_ns))
        if n >= 0:
            self.n = n
        return n

    def fill(self, seq: int) -> int:
        n = int(filled(self.gaps, self.n, seq))
        if n >= 0:
            self.n = n
        return n

    def take(self, now_ns: int, ranges_max: int = 42, retry_ns: int = 1000) -> list[list[int]]:
        ranges = np.zeros((64, 2), dtype=np.int64)
        count = taken(self.gaps, self.n, now_ns, retry_ns, self.seed, ranges, ranges_max)
        return ranges[:count].tolist()  # type: ignore[no-any-return]

    @property
    def missing(self) -> list[tuple[int, int]]:
        return [(int(g["first"]), int(g["end"])) for g in self.gaps[: self.n]]


def test_gaps_fill_from_either_end_and_split_in_the_middle() -> None:
    table = Table()
    table.open(10, 20)
    table.fill(10)
    table.fill(19)
    assert table.missing == [(11, 19)]
    table.fill(14)
    assert table.missing == [(11, 14), (15, 19)]
    for seq in (11, 13, 12):
        table.fill(seq)
    assert table.missing == [(15, 19)]
    assert table.fill(30) == 1, "what is not missing changes nothing"


def test_a_split_keeps_the_timer_and_the_tries() -> None:
    table = Table()
    table.open(10, 20, due_ns=5)
    assert table.take(10) == [[10, 10]]
    table.fill(15)
    [left, right] = table.gaps[: table.n]
    assert left["tries"] == right["tries"] == 1
    assert left["due_ns"] == right["due_ns"] > 10


def test_all_due_gaps_are_asked_for_at_once_and_no_others() -> None:
    table = Table()
    table.open(1, 2, due_ns=100)
    table.open(5, 9, due_ns=200)
    table.open(12, 13, due_ns=100)
    assert table.take(99) == []
    assert table.take(100) == [[1, 1], [12, 1]]
    assert table.take(150) == [], "each waits for its own repair"
    assert table.take(200) == [[5, 4]]
    assert 200 < earliest(table.gaps, table.n, 1 << 62) < 10_000
    assert earliest(table.gaps, 0, 7) == 7


def test_more_than_fit_a_packet_wait_for_the_next() -> None:
    table = Table()
    for i in range(100):
        table.open(2 * i, 2 * i + 1)
    first = table.take(0)
    second = table.take(0)
    third = table.take(0)
    assert [len(first), len(second), len(third)] == [42, 42, 16]
    assert [r[0] for r in first + second + third] == [2 * i for i in range(100)]


def test_gaps_that_were_asked_for_together_are_asked_for_together_again() -> None:
    table = Table()
    for i in range(20):
        table.open(2 * i, 2 * i + 1)
    now_ns = 0
    for _ in range(4):
        assert len(table.take(now_ns)) == 20
        now_ns = int(table.gaps[0]["due_ns"])
        assert {int(due) for due in table.gaps["due_ns"][:20]} == {now_ns}


def test_repeats_back_off_and_stay_bounded() -> None:
    jitters = range(0, loss.JITTER_STEPS + 1, 32)
    delays = [[int(delay(1000, tries, jitter)) for jitter in jitters] for tries in range(20)]
    for tries, values in enumerate(delays):
        base = 1000 << min(tries, loss.BACKOFF_DOUBLINGS_MAX)
        assert base <= min(values)
        assert max(values) <= base + base // 4
        assert len(set(values)) > 5, "random, so that receivers do not ask in chorus"
    worst = int(delay(10**12, 50, loss.JITTER_STEPS))
    assert worst <= loss.RETRY_NS_MAX * 5 // 4


def test_a_full_table_says_so_and_stays_sound() -> None:
    table = Table()
    for i in range(loss.GAPS_MAX):
        assert table.open(4 * i, 4 * i + 3) == i + 1
    before = table.missing
    assert table.open(1 << 20, (1 << 20) + 1) == -1
    assert table.fill(5) == -1, "no room to split"
    assert table.missing == before
    assert table.fill(4) == loss.GAPS_MAX


def test_what_lies_before_is_forgotten() -> None:
    table = Table()
    for first, end in ((1, 3), (5, 9), (20, 21)):
        table.open(first, end)
    table.n = int(dropped(table.gaps, table.n, 7))
    assert table.missing == [(7, 9), (20, 21)]
    table.n = int(dropped(table.gaps, table.n, 100))
    assert table.missing == []


@pytest.mark.parametrize("seed", range(5))
def test_it_is_a_set_of_numbers(seed: int) -> None:
    rng = random.Random(seed)
    table, model, top = Table(), set[int](), 0
    for _ in range(400):
        if rng.random() < 0.3:
            first = top + rng.randrange(5)
            top = first + 1 + rng.randrange(6)
            if table.open(first, top) >= 0:
                model |= set(range(first, top))
        elif top:
            seq = rng.randrange(max(0, top - 60), top)
            before = int(found(table.gaps, table.n, seq))
            assert (before >= 0) == (seq in model)
            if table.fill(seq) >= 0:
                model.discard(seq)
        assert {s for a, b in table.missing for s in range(a, b)} == model
        assert table.missing == sorted(table.missing)


# --- before the first NAK -------------------------------------------------------------------------

GRACE_NS, ROUND_TRIP_NS = 50_000, 200_000


@kernel
def first_delays(group, round_trip_ns, draws):  # type: ignore[no-untyped-def]
    for i in range(draws.size):
        draws[i] = loss.first_delay_ns(GRACE_NS, group, round_trip_ns, draws[i])


def delays_of(group: int, round_trip_ns: int = ROUND_TRIP_NS, n: int = 0) -> np.ndarray:
    rng = np.random.default_rng(group)
    draws = rng.integers(0, loss.BACKOFF_STEPS, n or group)
    first_delays(group, round_trip_ns, draws)
    return draws


@pytest.mark.parametrize("group", [0, 1])
def test_an_only_receiver_waits_for_reordering_alone(group: int) -> None:
    assert set(delays_of(group, n=10)) == {GRACE_NS}


@pytest.mark.parametrize("group", [2, loss.FEW_RECEIVERS])
def test_few_receivers_wait_as_long_as_they_are_many(group: int) -> None:
    found = delays_of(group, n=1000)
    assert GRACE_NS <= found.min() < found.max() <= GRACE_NS * (group + 1)
    assert abs(found.mean() - GRACE_NS * (1 + group / 2)) < GRACE_NS * group / 20


@pytest.mark.parametrize("group", [loss.FEW_RECEIVERS + 1, 1000, 10_000, 128 << 20])
@pytest.mark.parametrize("round_trip_ns", [0, ROUND_TRIP_NS, 10**12])
def test_a_delay_is_bounded_whatever_a_setup_says(group: int, round_trip_ns: int) -> None:
    draws = np.array([0, 1, loss.BACKOFF_STEPS - 1], dtype=np.int64)
    first_delays(group, round_trip_ns, draws)
    longest = max(8 * round_trip_ns, 16 * GRACE_NS)
    assert draws[0] == GRACE_NS
    assert GRACE_NS < draws[1] < draws[2] <= GRACE_NS + min(longest, loss.BACKOFF_NS_MAX)


@pytest.mark.parametrize("group", [100, 1000, 10_000])
def test_of_a_group_of_any_size_few_ask_before_the_first_repair_has_come(group: int) -> None:
    asked, first = [], []
    for seed in range(30):
        draws = np.random.default_rng(seed).integers(0, loss.BACKOFF_STEPS, group)
        first_delays(group, ROUND_TRIP_NS, draws)
        asked.append(int((draws < draws.min() + ROUND_TRIP_NS).sum()))
        first.append(int(draws.min()))
    assert np.mean(asked) <= 8
    assert np.mean(first) < 3 * ROUND_TRIP_NS
