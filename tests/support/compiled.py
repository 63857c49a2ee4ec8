"""Kernels that tests compile: seconds in which a test waits for the compiler, not for its work.

With a warm cache only functions of users are compiled, which are never cached. Whatever else is in
the summary of a run was not in the cache: the sources changed, or `warm_up` does not know it.
"""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

import pytest

SHOWN_MAX = 10
_OUTPUT = "tidecast_compiled"
Compiled = tuple[str, float]
"""Name of a kernel, and how long it took, in s."""


def listen(found: list[Compiled]) -> None:
    """From now on, add each compilation of what the disk cache keeps; not those that it needs."""
    from numba.core import event

    of_thread = threading.local()

    class Compilations(event.Listener):  # type: ignore[misc] # without types
        def on_start(self, event: Any) -> None:
            vars(of_thread).setdefault("begun", []).append(time.perf_counter())

        def on_end(self, event: Any) -> None:
            seconds = time.perf_counter() - of_thread.begun.pop()
            dispatcher = event.data["dispatcher"]
            if not of_thread.begun and type(dispatcher._cache).__name__ == "_KernelCache":
                module = dispatcher.py_func.__module__.removeprefix("tidecast.")
                found.append((f"{module}.{dispatcher.py_func.__name__}", round(seconds, 2)))

    event.register("numba:compile", Compilations())


class Plugin:
    """Listens in each process that runs tests; tells in the summary of the run."""

    def __init__(self) -> None:
        self._here: list[Compiled] = []
        self._found: list[Compiled] = []

    @pytest.hookimpl
    def pytest_collection_finish(self) -> None:
        """Listen, where what was collected uses Numba."""
        if "numba" in sys.modules:
            listen(self._here)

    @pytest.hookimpl
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Hand over what a worker found."""
        output = getattr(session.config, "workeroutput", None)
        if output is None:
            self._found += self._here
        else:
            output[_OUTPUT] = self._here

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take over what a worker found."""
        self._found += [(name, s) for name, s in getattr(node, "workeroutput", {}).get(_OUTPUT, ())]

    @pytest.hookimpl
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Name the longest."""
        if not self._found:
            return
        total_s = sum(seconds for _, seconds in self._found)
        terminalreporter.section(f"{len(self._found)} kernels compiled by tests: {total_s:.0f} s")
        for name, seconds in sorted(self._found, key=lambda one: -one[1])[:SHOWN_MAX]:
            terminalreporter.write_line(f"{seconds:6.1f} s {name}")
