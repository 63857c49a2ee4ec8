"""A command for an agent's thread, between two duty cycles: done once, or never."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


class PendingCommand:
    """A command that runs in the agent's thread; the caller waits for `done`, or gives up.

    A command that was given up never runs: the memory that it would use may be unmapped by then.
    """

    __slots__ = ("_begun", "_command", "_given_up", "_lock", "_problem", "_result", "done")

    def __init__(self, command: Callable[[], Any]) -> None:
        self._command = command
        self._lock = threading.Lock()
        self._begun = self._given_up = False
        self._result: Any = None
        self._problem: BaseException | None = None
        self.done = threading.Event()

    def __call__(self) -> None:
        """In the agent's thread. Raises nothing."""
        with self._lock:
            if self._given_up:
                return
            self._begun = True
        try:
            self._result = self._command()
        except BaseException as problem:  # noqa: BLE001 - raised at the caller
            self._problem = problem
        self.done.set()

    def give_up(self) -> bool:
        """It shall not run any more. False: it has begun."""
        with self._lock:
            self._given_up = not self._begun
            return self._given_up

    def outcome(self) -> Any:
        """The value that it returned. Raises its exception."""
        if self._problem is not None:
            raise self._problem
        return self._result
