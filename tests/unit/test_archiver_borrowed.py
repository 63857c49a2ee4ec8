"""The state of an archiver that is parked is borrowed by the thread that has a command for it."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import numpy as np
import pytest
from tests.support.patience import Patience

from tidecast.agents.archiver.cycle import borrow_archiver, give_back
from tidecast.agents.archiver.state import AWAITED, AWAKE, BORROWED, M_CYCLES, M_PARKED, PARKED
from tidecast.layout import ring as lay
from tidecast.layout.counters import COLUMNS
from tidecast.node.durable.archiver import ArchiverRuntime

PATIENCE_S = 60.0
THREADS, COMMANDS = 4, 300


def runtime(*, inline: bool = False) -> ArchiverRuntime:
    def failed(agent: str, problem: Exception, _in_a_row: int) -> None:
        raise AssertionError(agent) from problem

    return ArchiverRuntime(
        counters=np.zeros((4, COLUMNS), dtype=np.int64),
        bells=np.zeros(lay.DOORBELLS_MAX * lay.DOORBELL_BYTES, dtype=np.uint8),
        inline=inline,
        on_events=lambda _rows: None,
        sync=lambda _row: 0,
        on_fault=failed,
    )


@pytest.fixture
def made() -> Iterator[ArchiverRuntime]:
    running = runtime()
    running.start()
    yield running
    running.stop()


def state_of(running: ArchiverRuntime) -> int:
    return int(running.state.misc[M_PARKED])


def bell(running: ArchiverRuntime) -> int:
    at = lay.DOORBELL_ARCHIVER * lay.DOORBELL_BYTES
    return int(running._bells[at : at + 4].view(np.int32)[0])


def test_a_state_is_borrowed_once_and_given_back() -> None:
    still = runtime(inline=True)
    words, misc = still.state.words, still.state.misc
    assert not borrow_archiver(words), "it is awake"
    misc[M_PARKED] = PARKED
    assert borrow_archiver(words)
    assert misc[M_PARKED] == BORROWED
    assert not borrow_archiver(words)
    before = bell(still)
    give_back(words)
    assert (misc[M_PARKED], bell(still)) == (PARKED, before)
    assert borrow_archiver(words)


def test_an_archiver_that_waits_is_served_before_the_next_borrower() -> None:
    still = runtime(inline=True)
    words, misc = still.state.words, still.state.misc
    misc[M_PARKED] = AWAITED
    before = bell(still)
    assert not borrow_archiver(words)
    give_back(words)
    assert (misc[M_PARKED], bell(still)) == (AWAKE, before + 1)
    assert not borrow_archiver(words)


def test_a_command_runs_in_the_thread_that_has_it(made: ArchiverRuntime) -> None:
    patience = Patience(PATIENCE_S)
    me = threading.current_thread()
    while (
        made.on_parked_archiver(threading.current_thread) is not me
    ):  # while it is awake: in its own
        assert not patience.over()
    with pytest.raises(ZeroDivisionError):
        made.on_parked_archiver(lambda: 1 // 0)
    assert made.on_parked_archiver(lambda: made.on_archiver(lambda: 7)) == 7


def test_a_cycle_is_between_two_commands_in_the_archivers_thread(made: ArchiverRuntime) -> None:
    """Whatever rings held at the first command is in the log at the second."""
    for _ in range(20):
        first = made.on_archiver(lambda: int(made.state.misc[M_CYCLES]))
        assert made.on_archiver(lambda: int(made.state.misc[M_CYCLES])) > first


def test_the_archiver_waits_for_the_borrower_and_continues(made: ArchiverRuntime) -> None:
    patience = Patience(PATIENCE_S)

    def held() -> bool:
        if state_of(made) != BORROWED:
            return False
        made._agent._ask()  # type: ignore[union-attr]
        while state_of(made) != AWAITED:
            assert not patience.over()
        cycles = int(made.state.misc[M_CYCLES])
        made._agent._ask()  # type: ignore[union-attr]
        return int(made.state.misc[M_CYCLES]) == cycles

    while not made.on_parked_archiver(held):
        assert not patience.over()
    cycles = int(made.state.misc[M_CYCLES])
    while int(made.state.misc[M_CYCLES]) == cycles:
        assert not patience.over()


def test_commands_of_several_threads_never_run_at_once(made: ArchiverRuntime) -> None:
    inside, overlaps, done = [0], [0], [0]

    def command() -> None:
        inside[0] += 1
        os.sched_yield()  # another thread may run now
        overlaps[0] += inside[0] != 1
        done[0] += 1
        inside[0] -= 1

    def work() -> None:
        for i in range(COMMANDS):
            (made.on_parked_archiver if i % 2 else made.on_archiver)(command)

    threads = [threading.Thread(target=work) for _ in range(THREADS)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert (overlaps[0], done[0]) == (0, THREADS * COMMANDS)
