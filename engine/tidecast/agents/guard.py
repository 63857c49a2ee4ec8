"""Unforeseen failures in an agent's thread are reported, and the agent continues.

Aeron's AgentRunner does the same. A failed cycle is not repeated: the next cycle continues with the
present state. The pause between cycles that fail in a row grows, so that commands (a stop, the
removal of the cause) still reach the agent.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

OnFault = Callable[[str, Exception, int], None]
"""(agent, exception, failures in a row). Called in the agent's thread: it must not wait."""
PAUSE_S_FIRST, PAUSE_S_MAX = 0.01, 1.0
STUCK_FAULTS = 8
"""After so many failures in a row, some two seconds, all that depends on the agent is closed."""


class Guard:
    """Catches the failures of one agent; only the agent's thread uses it."""

    def __init__(self, agent: str, on_fault: OnFault) -> None:
        self._agent, self._on_fault = agent, on_fault
        self._in_a_row = 0
        self._pause = threading.Event()

    def round(self, *steps: Callable[[], object]) -> None:
        """Run each of ``steps``, also after another step failed."""
        problems: list[Exception] = []
        for step in steps:
            try:
                step()
            except Exception as raised:  # noqa: BLE001  (reported below)
                problems.append(raised)
        if not problems:
            self._in_a_row = 0
            return
        self._in_a_row += 1
        for problem in problems:
            self._on_fault(self._agent, problem, self._in_a_row)
        self._pause.wait(min(PAUSE_S_FIRST * 2 ** (self._in_a_row - 1), PAUSE_S_MAX))
