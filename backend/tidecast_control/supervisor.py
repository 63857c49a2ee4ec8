"""The service's background tasks: each runs until the service stops, whatever fails in it.

A task that raises starts again with back-off. Its state is a check of `/health/ready` and a metric.
A task reports each turn that succeeded; a turn in which a part failed, while the rest was done, is
reported as failed and the task continues.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Protocol

import psycopg
from sqlalchemy.exc import SQLAlchemyError

from tidecast.api.connecting import Backoff

log = logging.getLogger("tidecast.control")

BACKOFF_S_MIN, BACKOFF_S_MAX = 0.25, 10.0
PROBLEM_CHARS_MAX = 300


class Turn(Protocol):
    """How a task reports its turns."""

    def done(self) -> None:
        """A turn ended. It succeeded, unless `failed` was called in it."""

    def failed(self, problem: Exception) -> None:
        """A part of this turn failed; the task continues."""


class Unsupervised:
    """For tests that run a task by itself: failures are raised."""

    def done(self) -> None:
        """Nothing."""

    def failed(self, problem: Exception) -> None:
        """Raise it."""
        raise problem


Run = Callable[[Turn], Awaitable[None]]


class Task:
    """State of one task."""

    def __init__(self, name: str, stall_s: float | None, clock_s: Callable[[], float]) -> None:
        self.name, self.stall_s = name, stall_s
        self.problem = ""
        """Of the newest turn; "" when it succeeded."""
        self.failures = self.turns = 0
        self.backoff = Backoff(BACKOFF_S_MIN, BACKOFF_S_MAX)
        self._clock_s = clock_s
        self._at_s = clock_s()
        self._failed = False

    def done(self) -> None:
        """See `Turn`."""
        self.turns += 1
        self._at_s = self._clock_s()
        if self._failed:
            self._failed = False
            return
        if self.problem:
            log.info("background task %s works again", self.name)
        self.problem = ""
        self.backoff.clear()

    def failed(self, problem: Exception) -> None:
        """See `Turn`. Logged once, until a turn succeeds or fails in another way."""
        self._failed = True
        self.note(problem)

    def note(self, problem: BaseException | None) -> None:
        """Count a failure and keep its text. None: the task ended by itself, which it never should.

        A traceback is logged for unexpected exceptions, but not for a database that is away.
        """
        self.failures += 1
        lines = str(problem).strip().splitlines() or [""]
        name = type(problem).__name__ if problem is not None else "it ended"
        text = f"{name}: {lines[0]}"[:PROBLEM_CHARS_MAX]
        if text != self.problem:
            foreseen = isinstance(problem, SQLAlchemyError | psycopg.Error | OSError)
            trace = None if foreseen else problem
            log.warning("background task %s: %s", self.name, text, exc_info=trace)
        self.problem = text

    @property
    def check(self) -> str:
        """``ok``, or the problem."""
        if self.problem:
            return self.problem
        age_s = self._clock_s() - self._at_s
        if self.stall_s is not None and age_s > self.stall_s:
            return f"no turn for {age_s:.0f} s"
        return "ok"


class Supervisor:
    """See module."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._running: list[asyncio.Task[None]] = []
        self._stopping = False
        self.tasks: dict[str, Task] = {}

    def start(self, name: str, run: Run, stall_s: float | None = 60.0) -> None:
        """Run a task from now on. ``stall_s``: without a turn for so long it is not ok."""
        task = self.tasks[name] = Task(name, stall_s, self._clock_s)
        self._running.append(asyncio.create_task(self._run(task, run), name=name))

    def checks(self) -> dict[str, str]:
        """State of each task: ``ok`` or the problem."""
        return {name: task.check for name, task in self.tasks.items()}

    async def stop(self) -> None:
        """End all, the newest first, and wait. One that fails at its end does not start again."""
        self._stopping = True
        for running in reversed(self._running):
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running
        self._running.clear()

    async def _run(self, task: Task, run: Run) -> None:
        while True:
            try:
                await run(task)
                task.note(None)
            except Exception as problem:  # noqa: BLE001 - kept, counted, shown; and begun again
                task.note(problem)
            if self._stopping:
                return
            await asyncio.sleep(task.backoff.next_s())


def every(interval_s: float, step: Callable[[Turn], Awaitable[None]]) -> Run:
    """A task that does ``step`` again and again, with a pause between."""

    async def run(turn: Turn) -> None:
        while True:
            await step(turn)
            turn.done()
            await asyncio.sleep(interval_s)

    return run
