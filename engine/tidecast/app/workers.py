"""Several processes of one app: started, watched, started again, and stopped in order."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import time
from typing import Any

import msgspec

from tidecast.app.report import State, add_totals

logger = logging.getLogger("tidecast.app")
BACKOFF_S, BACKOFF_MAX_S = 0.5, 30.0
STEADY_S = 60.0
"""A worker that ran for so long starts again at once."""
GRACE_S = 5.0
"""Beyond its drain time-out, before a worker is killed."""
WRONG = 2
"""Exit code of a worker that no other start can fix: a setting or the module is wrong."""
LAST_REPORT_S = 1.0
"""The time to read an ended process's report to its end: its children may hold the pipe."""


class Worker:
    """A process, and its successors."""

    def __init__(self, name: str, command: list[str]) -> None:
        self.name, self._command = name, command
        self.state = State(phase="starting", at=time.monotonic())
        self.process: asyncio.subprocess.Process | None = None
        self.starts = 0
        self.code: int | None = None
        self.totals: list[dict[str, Any]] = []
        """Counters of the handlers, of all its processes that have ended."""

    async def run(self, stop: asyncio.Event) -> None:
        """Start the process whenever it has ended, until ``stop``, or its command is wrong."""
        failures = 0
        while not stop.is_set():
            began = time.monotonic()
            self.code = await self._once(stop)
            add_totals(self.totals, self.state.handlers)
            self.state = State(phase="stopped", at=time.monotonic())
            if stop.is_set() or self.code == WRONG:
                return
            failures = 0 if time.monotonic() - began >= STEADY_S else failures + 1
            delay = min(BACKOFF_S * 2 ** (failures - 1), BACKOFF_MAX_S) if failures else 0.0
            logger.error(
                "worker %s ended with exit code %d; it starts again in %.1f s",
                self.name,
                self.code,
                delay,
            )
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    await stop.wait()

    async def _once(self, stop: asyncio.Event) -> int:
        read, write = os.pipe()
        try:
            self.process = await asyncio.create_subprocess_exec(
                *self._command,
                "--report-to",
                str(write),
                pass_fds=(write,),
                start_new_session=True,
            )
        finally:
            os.close(write)
        self.starts += 1
        reports = asyncio.create_task(self._read(read))
        if stop.is_set():
            self.signal(signal.SIGTERM)
        try:
            code = await self.process.wait()
            self.state.phase = "stopped"
            await asyncio.wait([reports], timeout=LAST_REPORT_S)
            return code
        finally:
            reports.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reports

    async def _read(self, descriptor: int) -> None:
        """Take the reports of the process, until it ends."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        with os.fdopen(descriptor, "rb") as pipe:
            transport, _ = await loop.connect_read_pipe(
                lambda: asyncio.StreamReaderProtocol(reader), pipe
            )
            try:
                while line := await reader.readline():
                    state = msgspec.json.decode(line, type=State)
                    state.at = time.monotonic()
                    if self.process is None or self.process.returncode is not None:
                        state.phase = "stopped"
                    self.state = state
            finally:
                transport.close()

    def signal(self, number: signal.Signals) -> None:
        """Send the process a signal, if it runs."""
        if self.process is not None and self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(number)


class Workers:
    """All processes of an app."""

    def __init__(self, count: int, arguments: list[str], drain_timeout: float) -> None:
        command = [sys.executable, "-m", "tidecast.cli", "run", *arguments]
        self.all = [Worker(str(n), command) for n in range(count)]
        self._drain_timeout = drain_timeout

    def states(self) -> dict[str, State]:
        """By name."""
        return {each.name: each.state for each in self.all}

    def totals(self) -> list[dict[str, Any]]:
        """Counters of the handlers; of a process that was killed up to its last report."""
        found: list[dict[str, Any]] = []
        for each in self.all:
            add_totals(found, each.totals)
        return found

    async def run(self, stop: asyncio.Event) -> int:
        """Run until ``stop``, or all workers have ended; the exit code."""
        tasks = [asyncio.create_task(each.run(stop)) for each in self.all]
        stopping = asyncio.create_task(self._stop(stop))
        try:
            await asyncio.gather(*tasks)
        finally:
            stopping.cancel()
            for each in self.all:
                each.signal(signal.SIGKILL)
        return max((abs(each.code or 0) for each in self.all), default=0) and 1

    async def _stop(self, stop: asyncio.Event) -> None:
        await stop.wait()
        for each in self.all:
            each.signal(signal.SIGTERM)
        await asyncio.sleep(self._drain_timeout + GRACE_S)
        for each in self.all:
            if each.process is not None and each.process.returncode is None:
                logger.error("worker %s did not stop in time: it is killed", each.name)
            each.signal(signal.SIGKILL)
