"""Litmus tests of memory order: two real threads in kernels that hold no interpreter lock.

Message passing and store buffering are the two shapes that this project's rings rely on (publish by
a release store; arm and look again). Both can fail: the store-buffering test also runs without its
fence, and on a machine with store buffers and two cores that variant does show the forbidden
outcome, which proves that the test can see it.
"""

from __future__ import annotations

import os
import threading
from typing import Any

import numpy as np
import pytest

from tidecast.buffers.member_ring import set_wake
from tidecast.layout import member as lay
from tidecast.native.atomics import (
    compare_and_swap,
    exchange,
    fence_seq_cst,
    fetch_add,
    fetch_add_i32,
    fetch_and,
    fetch_or,
    load_acquire,
    load_acquire_i32,
    load_relaxed,
    pause,
    store_relaxed,
    store_release,
)
from tidecast.native.jit import kernel
from tidecast.native.lines import lined_table
from tidecast.native.memory import load_i64, store_i64

ROUNDS = 100_000
two_cores = pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="a race needs two cores")
X, Y, GO, DONE = 0, 64, 128, 192


def race(*bodies: tuple[Any, ...]) -> None:
    """Compile each, then run all at once."""
    threads = [threading.Thread(target=fn, args=arguments) for fn, *arguments in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def memory() -> np.ndarray:
    return np.zeros(512, dtype=np.uint8)


@kernel
def produce(shared, rounds):  # type: ignore[no-untyped-def]
    for i in range(1, rounds + 1):
        while load_acquire(shared, DONE) != i - 1:
            pause()
        store_i64(shared, X, i * 7)  # plain: only the release orders it
        store_i64(shared, X + 8, i * 11)
        store_release(shared, GO, i)


@kernel
def consume(shared, rounds, torn):  # type: ignore[no-untyped-def]
    for i in range(1, rounds + 1):
        while load_acquire(shared, GO) != i:
            pause()
        if load_i64(shared, X) != i * 7 or load_i64(shared, X + 8) != i * 11:
            torn[0] += 1
        store_release(shared, DONE, i)


@two_cores
@pytest.mark.same_kernels
def test_message_passing_what_was_written_before_the_release_is_seen() -> None:
    shared, torn = memory(), np.zeros(1, dtype=np.int64)
    race((produce, shared, ROUNDS), (consume, shared, ROUNDS, torn))
    assert torn[0] == 0


@kernel
def store_then_load(shared, mine, other, rounds, out, fenced):  # type: ignore[no-untyped-def]
    for i in range(1, rounds + 1):
        # meet: both start round i at about the same moment
        fetch_add(shared, GO, 1)
        while load_acquire(shared, GO) < 2 * i:
            pass
        store_relaxed(shared, mine, i)
        if fenced:
            fence_seq_cst()
        out[i - 1] = load_relaxed(shared, other)
        fetch_add(shared, DONE, 1)
        while load_acquire(shared, DONE) < 2 * i:
            pass


def both_missed(fenced: bool) -> int:
    """Rounds in which neither saw the other's store."""
    shared = memory()
    seen = [np.zeros(ROUNDS, dtype=np.int64) for _ in range(2)]
    race(
        (store_then_load, shared, X, Y, ROUNDS, seen[0], fenced),
        (store_then_load, shared, Y, X, ROUNDS, seen[1], fenced),
    )
    rounds = np.arange(1, ROUNDS + 1)
    return int(((seen[0] < rounds) & (seen[1] < rounds)).sum())


@two_cores
@pytest.mark.same_kernels
def test_store_buffering_with_a_fence_one_of_two_always_sees_the_other() -> None:
    assert both_missed(fenced=True) == 0


@two_cores
@pytest.mark.same_kernels
def test_the_harness_can_see_a_missing_fence() -> None:
    missed = 0
    for _ in range(5):
        missed += both_missed(fenced=False)
        if missed:
            return
    pytest.skip("this machine did not reorder in a million rounds")


@kernel
def write_and_wake(shared, wakes, rounds, checked, lost):  # type: ignore[no-untyped-def]
    """Bursts of a write and a wake-up each: the last one is seen two turns of the looker later."""
    value = 0
    for i in range(rounds):
        for _ in range(1 + i * 7919 % 13):
            value += 1
            store_release(shared, X, value)
            if not checked or load_relaxed(wakes, lay.WAKE_MEMBERS_AT) & 1 == 0:
                set_wake(wakes, lay.WAKE_MEMBERS_AT, 0)
        turn = load_acquire(shared, GO)
        while load_acquire(shared, Y) != value and load_acquire(shared, GO) < turn + 3:
            pause()
        if load_acquire(shared, Y) != value:
            lost[0] += 1
    store_release(shared, DONE, 1)


@kernel
def look_when_woken(shared, wakes):  # type: ignore[no-untyped-def]
    """As the puller: clear the bits, then look."""
    turn = 0
    while load_acquire(shared, DONE) == 0:
        if load_relaxed(wakes, lay.WAKE_MEMBERS_AT) != 0:
            exchange(wakes, lay.WAKE_MEMBERS_AT, 0)
            store_release(shared, Y, load_acquire(shared, X))
        turn += 1
        store_release(shared, GO, turn)
        fence_seq_cst()  # else the other side counts turns that are over


def wakes_lost(checked: bool) -> int:
    """Of ROUNDS bursts; ``checked``: a wake bit that is set is not set again."""
    shared, lost = memory(), np.zeros(1, dtype=np.int64)
    wakes = lined_table(lay.WAKES_BYTES, np.uint8)
    race((write_and_wake, shared, wakes, ROUNDS, checked, lost), (look_when_woken, shared, wakes))
    return int(lost[0])


@two_cores
@pytest.mark.same_kernels
def test_the_last_wake_up_of_a_burst_is_seen() -> None:
    assert wakes_lost(checked=False) == 0


@two_cores
@pytest.mark.same_kernels
def test_a_look_at_the_wake_bit_loses_wake_ups() -> None:
    for _ in range(20):
        if wakes_lost(checked=True) > 0:
            return
    pytest.skip("this machine showed no reordering: its cores may share one")


@kernel
def add_many(shared, n):  # type: ignore[no-untyped-def]
    for _ in range(n):
        fetch_add(shared, X, 1)
        fetch_add_i32(shared, Y, 1)


@kernel
def swap_many(shared, n):  # type: ignore[no-untyped-def]
    for _ in range(n):
        while True:
            old = load_relaxed(shared, X)
            if compare_and_swap(shared, X, old, old + 1):
                break


@kernel
def toggle_bit(shared, bit, n, lost):  # type: ignore[no-untyped-def]
    mine = 1 << bit
    for _ in range(n):
        if fetch_or(shared, X, mine) & mine != 0:
            lost[bit] += 1
        if fetch_and(shared, X, ~mine) & mine == 0:
            lost[bit] += 1


@two_cores
def test_no_update_is_lost() -> None:
    shared = memory()
    race((add_many, shared, ROUNDS), (add_many, shared, ROUNDS))
    assert shared[X : X + 8].view(np.int64)[0] == 2 * ROUNDS
    assert shared[Y : Y + 4].view(np.int32)[0] == 2 * ROUNDS
    shared = memory()
    race((swap_many, shared, ROUNDS), (swap_many, shared, ROUNDS))
    assert shared[X : X + 8].view(np.int64)[0] == 2 * ROUNDS
    shared, lost = memory(), np.zeros(64, dtype=np.int64)
    race((toggle_bit, shared, 0, ROUNDS, lost), (toggle_bit, shared, 62, ROUNDS, lost))
    assert not lost.any()
    assert shared[X : X + 8].view(np.int64)[0] == 0


@kernel
def once_each(shared, values):  # type: ignore[no-untyped-def]
    values[0] = exchange(shared, X, 5)
    values[1] = exchange(shared, X, -6)
    values[2] = fetch_add(shared, X, 10)
    values[3] = int(compare_and_swap(shared, X, 99, 1))
    values[4] = int(compare_and_swap(shared, X, 4, 1 << 62))
    values[5] = load_acquire(shared, X)
    fetch_add_i32(shared, Y, -3)
    values[6] = load_acquire_i32(shared, Y)


def test_values_and_signs() -> None:
    values = np.zeros(8, dtype=np.int64)
    once_each(memory(), values)
    assert values.tolist() == [0, 5, -6, 0, 1, 1 << 62, -3, 0]
