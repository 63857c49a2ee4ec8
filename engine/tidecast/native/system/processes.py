"""The end of another process of this host, awaited by a descriptor: a pid may be used again."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
import time
from collections.abc import Callable

LOOK_S = 0.02


def end_process(pid: int, runs: Callable[[], bool], timeout_s: float) -> bool:
    """Send SIGTERM to a process and wait until it has ended. False: it runs after ``timeout_s``.

    ``runs``: whether the intended process still has this pid, by a lock that it holds. A process
    releases its locks some time before it ends. Raises PermissionError.
    """
    ends_s = time.monotonic() + timeout_s
    descriptor = _descriptor_of(pid)
    try:
        if not runs():  # checked after the descriptor is open: no other process gets the signal
            return True
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
        if not _within(ends_s, lambda: not runs()):
            return False
        return descriptor < 0 or _ended_within(descriptor, ends_s)
    finally:
        if descriptor >= 0:
            os.close(descriptor)


def _descriptor_of(pid: int) -> int:
    """-1: there is no such process, or the kernel has no descriptors of processes."""
    try:
        return os.pidfd_open(pid)
    except (OSError, AttributeError):
        return -1


def _within(ends_s: float, condition: Callable[[], bool]) -> bool:
    pause = threading.Event()
    while not condition():
        if time.monotonic() > ends_s:
            return False
        pause.wait(LOOK_S)
    return True


def _ended_within(descriptor: int, ends_s: float) -> bool:
    waiting = select.poll()
    waiting.register(descriptor, select.POLLIN)
    return bool(waiting.poll(max(0.0, ends_s - time.monotonic()) * 1000))
