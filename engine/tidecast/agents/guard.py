"""Unforeseen failures in an agent's thread are reported, and the agent continues.

So does Aeron's AgentRunner. A cycle that failed is not repeated: the next one continues with
the state as it is. A cycle that fails again and again is tried more and more slowly, so that
commands (a stop, the removal of its cause) still reach the agent.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

OnFault = Callable[[str, Exception, int], None]
"""(agent, what was raised, failures in a row). From the agent's thread: it must not wait."""
PAUSE_S_FIRST, PAUSE_S_MAX = 0.01, 1.0
STUCK_FAULTS = 8
"""So many failures in a row, some two seconds, and all that depends on the agent is closed."""


class Guard:
    """Of one agent; used by its thread alone."""

    def __init__(self, agent: str, on_fault: OnFault) -> None:
        self._agent, self._on_fault = agent, on_fault
        self._in_a_row = 0
        self._pause = threading.Event()

    def round(self, *steps: Callable[[], object]) -> None:
        """Do each of ``steps``, whatever becomes of the others."""
        problems: list[Exception] = []
        for step in steps:
            try:
                step()
            except Exception as raised:  # noqa: BLE001  (told)
                problems.append(raised)
        if not problems:
            self._in_a_row = 0
            return
        self._in_a_row += 1
        for problem in problems:
            self._on_fault(self._agent, problem, self._in_a_row)
        self._pause.wait(min(PAUSE_S_FIRST * 2 ** (self._in_a_row - 1), PAUSE_S_MAX))
