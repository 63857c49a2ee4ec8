"""The node's own thread: jobs one after another, the node's lock held, and a tick between them.

A job that fails in a way nobody foresaw ends neither the thread nor what waits behind it: it is
logged with its traceback, told (`EngineFault`), counted and recorded, and the conductor goes on.
One that fails again and again is told each `TOLD_AGAIN_S`, and slows the conductor down. What fails
in the thread of another agent is told here, too; once it has failed `STUCK_FAULTS` times in a row,
who depends on it is told to go.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from tidecast import events as ev
from tidecast.agents.guard import STUCK_FAULTS
from tidecast.layout import recorder as rec
from tidecast.layout.counters import NodeCounter
from tidecast.node.live.publication_close import end_dependents

if TYPE_CHECKING:
    from tidecast.node.node import Node

TICK_S = 0.1
RAN_S_MAX = 1.0
"""Between two looks the conductor has run for this long at most; else its process did not run."""
TOLD_AGAIN_S = 10.0
REPEATED_PAUSE_S = 0.01
BACKLOG_MAX = 1000
"""With more jobs than that waiting a failure that repeats does not slow the conductor down."""
KINDS_MAX = 256
CONDUCTOR = "conductor"

_log = logging.getLogger("tidecast.node")


class Conductor:
    """See module. Inline: no thread, and what fails is the caller's."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.faults = 0
        self._inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._told_s: dict[tuple[str, str, str, int], float] = {}
        self._untold = 0
        self._repeated = False
        self._pause = threading.Event()

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._run, name="tidecast-node", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Do what was posted, then end. Idempotent."""
        if self._thread is not None:
            self._inbox.put(None)
            self._thread.join(5.0)
            self._thread = None

    @property
    def alive(self) -> bool:
        """The thread runs."""
        return self._thread is not None and self._thread.is_alive()

    def post(self, job: Callable[[], None]) -> None:
        """Do a job soon, with the lock held; now without a thread."""
        if self._thread is None:
            with self._node.lock:
                self.attempt(job)
        else:
            self._inbox.put(job)

    def _run(self) -> None:
        node = self._node
        while True:
            try:
                job = self._inbox.get(timeout=TICK_S)
            except queue.Empty:
                job = _nothing
            if job is None:
                return
            with node.lock:
                self.attempt(job)
                self.attempt(node.tick)
            if self._repeated and self._inbox.qsize() < BACKLOG_MAX:
                self._pause.wait(REPEATED_PAUSE_S)
            self._repeated = False

    def attempt(self, job: Callable[..., Any], *args: Any) -> None:
        """Do a job or a part of one. With the lock held."""
        if self._node.inline:
            job(*args)
            return
        try:
            job(*args)
        except Exception as problem:  # noqa: BLE001  (told; the others' jobs go on)
            self.failed(problem)

    def agent_failed(self, agent: str, problem: Exception, in_a_row: int) -> None:
        """See `guard.OnFault`."""
        self._inbox.put(partial(self.failed, problem, agent, in_a_row))

    def failed(self, problem: Exception, agent: str = CONDUCTOR, in_a_row: int = 1) -> None:
        """Tell of what nobody foresaw. With the lock held. Raises it when inline."""
        node = self._node
        if node.inline:
            raise problem
        self.faults += 1
        node.counters.values[node.node_row, NodeCounter.ENGINE_FAULTS] += 1
        if in_a_row == STUCK_FAULTS:
            end_dependents(node, agent, problem)
        kind, now_s = (agent, *_kind(problem)), node.clock_ns() / 1e9
        if now_s < self._told_s.get(kind, 0.0):
            self._untold += 1
            self._repeated = self._repeated or agent == CONDUCTOR  # the others slow down themselves
            return
        while len(self._told_s) >= KINDS_MAX:
            del self._told_s[next(iter(self._told_s))]
        self._told_s[kind] = now_s + TOLD_AGAIN_S
        untold, self._untold = self._untold, 0
        _log.error(
            "the engine's %s failed; it goes on (%d more such failures were not logged). This is "
            "a fault of Tidecast: please report it", agent, untold, exc_info=problem,
        )  # fmt: skip
        name = agent.partition("-")[0]
        number = rec.AGENT_NAMES.index(name) if name in rec.AGENT_NAMES else len(rec.AGENT_NAMES)
        node.note(rec.ALERT, rec.Code.ENGINE_FAULT, 0, number, self.faults, in_a_row)
        node.tell_all(
            ev.EngineFault(
                node=node.name, agent=agent, problem=f"{type(problem).__name__}: {problem}",
                faults=self.faults,
            )
        )  # fmt: skip


def _kind(problem: Exception) -> tuple[str, str, int]:
    """Failures of one cause: what was raised, and where."""
    trace = problem.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return type(problem).__name__, "", 0
    return type(problem).__name__, trace.tb_frame.f_code.co_filename, trace.tb_lineno


def _nothing() -> None:
    """No job came."""
