"""Refusals by key: rows of the first keys, one row for the rest."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tidecast.buffers.counters import CountersFile
from tidecast.layout.counters import ROW_KEY, ROWS_MAX, KeyCounter
from tidecast.node.access import key_counts
from tidecast.node.access.key_counts import KEYS_COUNTED_MAX, OTHERS, KeyCounts


@pytest.fixture
def counters(tmp_path: Path) -> CountersFile:
    return CountersFile.create(tmp_path / "counters")


def rows_of(counters: CountersFile) -> dict[str, tuple[int, ...]]:
    rows = [row for row in counters.rows() if row.kind == "key"]
    return {row.name: tuple(row.values[: len(KeyCounter)].tolist()) for row in rows}


def test_a_key_has_its_own_row_from_its_first_refusal(counters: CountersFile) -> None:
    counts = KeyCounts(lambda: counters)
    assert rows_of(counters) == {}
    counts.count("shop", KeyCounter.DENIED)
    counts.count("shop", KeyCounter.DENIED)
    counts.count("desk", KeyCounter.OVER_QUOTA)
    assert rows_of(counters) == {"shop": (2, 0), "desk": (0, 1)}


def test_keys_beyond_the_limit_are_summed(counters: CountersFile) -> None:
    counts = KeyCounts(lambda: counters)
    for n in range(KEYS_COUNTED_MAX + 10):
        counts.count(f"key {n}", KeyCounter.DENIED)
    counts.count("key 0", KeyCounter.DENIED)
    found = rows_of(counters)
    assert len(found) == KEYS_COUNTED_MAX + 1
    assert (found["key 0"], found["key 255"], found[OTHERS]) == ((2, 0), (1, 0), (10, 0))


def test_a_refusal_does_not_fail_where_all_rows_are_taken(
    counters: CountersFile,
) -> None:
    for _ in range(ROWS_MAX):
        counters.allocate(ROW_KEY, "taken")
    counts = KeyCounts(lambda: counters)
    counts.count("shop", KeyCounter.DENIED)
    assert rows_of(counters) == {"taken": (0, 0)}


def test_threads_count_each_refusal(
    counters: CountersFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_counts, "KEYS_COUNTED_MAX", 2)
    counts = KeyCounts(lambda: counters)

    def refuse() -> None:
        for n in range(300):
            counts.count(f"key {n % 3}", KeyCounter.DENIED)

    threads = [threading.Thread(target=refuse) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(denied for denied, _ in rows_of(counters).values()) == 1200
    assert rows_of(counters)[OTHERS] == (400, 0)
