"""The node's own thread: jobs one after another, the node's lock held, and a tick between them.

An unexpected failure of a job ends neither the thread nor the jobs behind it: it is
logged with its traceback, reported (`EngineFault`), counted and recorded; the conductor continues.
A failure that repeats is reported each `REPORT_AGAIN_S`, and slows the conductor down. A failure in
the thread of another agent is reported here, too; after `STUCK_FAULTS` in a row ``on_stuck`` ends
the dependents of that agent.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from tidecast.agents.guard import STUCK_FAULTS

TICK_S = 0.1
RAN_S_MAX = 1.0
"""Between two looks the conductor has run for this long at most; else its process did not run."""
REPORT_AGAIN_S = 10.0
REPEATED_PAUSE_S = 0.01
BACKLOG_MAX = 1000
"""With more jobs than that waiting a failure that repeats does not slow the conductor down."""
KINDS_MAX = 256
CONDUCTOR = "conductor"

_log = logging.getLogger("tidecast.node")


@dataclass(frozen=True, slots=True)
class Fault:
    """An exception that no code expected. ``number``: how many there were."""

    agent: str
    problem: Exception
    number: int
    in_a_row: int
    is_repeated: bool
    """A failure of the same kind was reported a short time ago."""


class Conductor:
    """See module. Inline: no thread, and an exception is raised to the caller.

    ``lock``: the node's, held while a job runs. ``report`` is called with it held.
    """

    def __init__(
        self,
        lock: threading.RLock,
        clock_ns: Callable[[], int],
        *,
        inline: bool,
        report: Callable[[Fault], None],
    ) -> None:
        self._lock, self._clock_ns, self._inline, self._report = lock, clock_ns, inline, report
        self._tick: Callable[[], None] = _nothing
        self._on_stuck: Callable[[str, Exception], None] = lambda _agent, _problem: None
        self.faults = 0
        self._inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._ended = False
        self._reported_s: dict[tuple[str, str, str, int], float] = {}
        self._unreported = 0
        self._repeated = False
        self._pause = threading.Event()

    def serve(self, tick: Callable[[], None], on_stuck: Callable[[str, Exception], None]) -> None:
        """Set the tick between two jobs, and the function that ends dependents of a stuck agent."""
        self._tick, self._on_stuck = tick, on_stuck

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._run, name="tidecast-node", daemon=True)
        self._thread.start()

    def catch_up(self) -> None:
        """Run the jobs that were posted so far in this thread, which starts the node."""
        for _ in range(self._inbox.qsize()):
            job = self._inbox.get()
            if job is not None:
                with self._lock:
                    self.attempt(job)

    def stop(self) -> None:
        """Run the posted jobs, then end. Idempotent."""
        if self._thread is not None:
            self._inbox.put(None)
            self._thread.join(5.0)
            self._thread = None
        self._ended = True

    @property
    def alive(self) -> bool:
        """The thread runs."""
        return self._thread is not None and self._thread.is_alive()

    def post(self, job: Callable[[], None]) -> None:
        """Do a job soon, with the lock held; inline, or after `stop`, now.

        Agents start before the conductor: their jobs wait for it, because the thread that starts
        the node changes the same state and does not hold the lock.
        """
        if self._inline or self._ended:
            with self._lock:
                self.attempt(job)
        else:
            self._inbox.put(job)

    def _run(self) -> None:
        while True:
            try:
                job = self._inbox.get(timeout=TICK_S)
            except queue.Empty:
                job = _nothing
            if job is None:
                return
            with self._lock:
                self.attempt(job)
                self.attempt(self._tick)
            if self._repeated and self._inbox.qsize() < BACKLOG_MAX:
                self._pause.wait(REPEATED_PAUSE_S)
            self._repeated = False

    def attempt(self, job: Callable[..., Any], *args: Any) -> None:
        """Do a job or a part of one. With the lock held."""
        if self._inline:
            job(*args)
            return
        try:
            job(*args)
        except Exception as problem:  # noqa: BLE001  (reported; other jobs continue)
            self.failed(problem)

    def agent_failed(self, agent: str, problem: Exception, in_a_row: int) -> None:
        """See `guard.OnFault`."""
        self._inbox.put(partial(self.failed, problem, agent, in_a_row))

    def failed(self, problem: Exception, agent: str = CONDUCTOR, in_a_row: int = 1) -> None:
        """Report an exception that no code expected. With the lock held. Raises it when inline."""
        if self._inline:
            raise problem
        self.faults += 1
        if in_a_row == STUCK_FAULTS:
            self._on_stuck(agent, problem)
        kind, now_s = (agent, *_kind(problem)), self._clock_ns() / 1e9
        is_repeated = now_s < self._reported_s.get(kind, 0.0)
        if is_repeated:
            self._unreported += 1
            self._repeated = self._repeated or agent == CONDUCTOR  # the others slow down themselves
        else:
            while len(self._reported_s) >= KINDS_MAX:
                del self._reported_s[next(iter(self._reported_s))]
            self._reported_s[kind] = now_s + REPORT_AGAIN_S
            unreported, self._unreported = self._unreported, 0
            _log.error(
                "the engine's %s failed; it resumes (%d more such failures were not logged). This "
                "is a fault of Tidecast: please report it",
                agent,
                unreported,
                exc_info=problem,
            )
        self._report(Fault(agent, problem, self.faults, in_a_row, is_repeated))


def _kind(problem: Exception) -> tuple[str, str, int]:
    """The same for failures of one cause: the error, and its place."""
    trace = problem.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return type(problem).__name__, "", 0
    return type(problem).__name__, trace.tb_frame.f_code.co_filename, trace.tb_lineno


def _nothing() -> None:
    """No job came."""
