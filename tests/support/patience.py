"""Time limits that count progress: seconds of a fair share of the processors.

A test that waits for another process waits longer beside other load. Each interval between two
looks counts by the share of the processors that a runnable task got in it: with 20 runnable tasks
on two cores a second counts 0.1 s. On a quiet machine the limit is one by the wall clock.
"""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from tidecast.events import Event

E = TypeVar("E", bound=Event)

_LOADAVG = Path("/proc/loadavg")
_CORES = len(os.sched_getaffinity(0))


def _runnable() -> int:
    """Tasks of this machine that run or wait for a processor now: the fourth field of loadavg."""
    return int(_LOADAVG.read_text().split()[3].split("/")[0])


def machine_share() -> float:
    """The share of a processor that a runnable task gets now."""
    return min(1.0, _CORES / max(1, _runnable()))


class Patience:
    """A limit of ``timeout_s`` seconds of progress. Ask `over` at least every few milliseconds.

    ``clock``, ``runnable``, ``cores``: the clock in seconds and the load, for tests.
    """

    def __init__(
        self,
        timeout_s: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        runnable: Callable[[], int] = _runnable,
        cores: int = _CORES,
    ) -> None:
        self.left_s = timeout_s
        self._clock, self._runnable, self._cores = clock, runnable, cores
        self._looked_s = clock()

    def over(self) -> bool:
        """The limit has passed."""
        now_s = self._clock()
        share = min(1.0, self._cores / max(1, self._runnable()))
        self.left_s -= (now_s - self._looked_s) * share
        self._looked_s = now_s
        return self.left_s <= 0


def wait_ended(process: subprocess.Popen[str], timeout_s: float) -> int:
    """Wait for the end of a process; its exit code. Raises TimeoutExpired."""
    patience = Patience(timeout_s)
    while True:
        try:
            return process.wait(0.05)
        except subprocess.TimeoutExpired:
            if patience.over():
                raise


def run(command: Sequence[str], timeout_s: float, **options: Any) -> tuple[int, str]:
    """Run a command to its end; its exit code, and the text that it wrote. Raises TimeoutExpired.

    ``options``: of `subprocess.Popen`.
    """
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    patience = Patience(timeout_s)
    with subprocess.Popen(command, **pipes, **options) as process:
        while True:
            try:
                text, _ = process.communicate(timeout=0.05)
            except subprocess.TimeoutExpired as problem:
                if patience.over():
                    process.kill()
                    raise subprocess.TimeoutExpired(command, timeout_s, problem.output) from None
            else:
                return process.returncode, text


def wait_until(condition: Any, timeout_s: float, what: str) -> None:
    """Wait for a condition that offers no event. Raises AssertionError, naming it."""
    patience, pause = Patience(timeout_s), threading.Event()
    while not condition():
        assert not patience.over(), f"{what}: not within {timeout_s:g} s"
        pause.wait(0.002)


def next_event(client: Any, kind: type[E], timeout_s: float = 30.0) -> E:
    """The next event of a kind that a client is told; others are skipped."""
    patience = Patience(timeout_s)
    while not patience.over():
        for event in client.events(timeout=0.05):
            if isinstance(event, kind):
                return event
    raise AssertionError(f"no {kind.__name__} within {timeout_s:g} s")
