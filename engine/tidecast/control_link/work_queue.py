"""Work of the link that may take minutes: a thread does it in the order of the messages.

A topology may wait for a compiler, or for the recovery of a large log. The link's thread continues:
it takes answers about leases, asks for the time and sends telemetry.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

Job = Callable[[], None]


class WorkQueue:
    """Runs jobs one after another, each once. From any thread."""

    def __init__(self, name: str, on_failed: Callable[[Exception], None]) -> None:
        """``on_failed``: gets the exception of a job; the jobs behind it run all the same."""
        self._on_failed = on_failed
        self._changed = threading.Condition()
        self._jobs: deque[Job] = deque()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def submit(self, job: Job) -> None:
        """Run a job behind the earlier jobs."""
        with self._changed:
            if self._stopped:
                return
            if not self._thread.is_alive():
                self._thread.start()
            self._jobs.append(job)
            self._changed.notify()

    def forget(self) -> None:
        """Drop the jobs that have not begun."""
        with self._changed:
            self._jobs.clear()

    def stop(self, timeout_s: float) -> None:
        """Drop the jobs that have not begun, and wait for the present one so long. Idempotent."""
        with self._changed:
            self._stopped = True
            self._jobs.clear()
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._jobs or self._stopped)
                if self._stopped:
                    return
                job = self._jobs.popleft()
            try:
                job()
            except Exception as problem:  # noqa: BLE001  (reported; the thread continues)
                self._on_failed(problem)
