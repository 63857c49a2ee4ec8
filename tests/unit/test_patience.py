"""Limits of tests count seconds of progress."""

from __future__ import annotations

from tests.support.patience import Patience


class Machine:
    """A clock that a test moves, beside a load that it sets."""

    now_s = 100.0
    runnable = 1

    def patience(self, timeout_s: float) -> Patience:
        return Patience(
            timeout_s, clock=lambda: self.now_s, runnable=lambda: self.runnable, cores=2
        )


def test_on_a_quiet_machine_a_second_is_a_second() -> None:
    machine = Machine()
    patience = machine.patience(10.0)
    machine.now_s += 9.9
    assert not patience.over()
    machine.now_s += 0.2
    assert patience.over()


def test_beside_twenty_tasks_on_two_cores_a_second_counts_a_tenth() -> None:
    machine = Machine()
    machine.runnable = 20
    patience = machine.patience(10.0)
    machine.now_s += 90.0
    assert not patience.over()
    assert round(patience.left_s, 6) == 1.0
    machine.runnable = 2
    machine.now_s += 1.1
    assert patience.over()


def test_the_load_of_this_machine_is_read() -> None:
    patience = Patience(0.0)
    assert patience.over()
