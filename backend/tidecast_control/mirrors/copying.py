"""One mirror on this service: its process, restarted with back-off, and its figures."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import msgspec

from tidecast.api.connecting import Backoff
from tidecast_control.kit.models import storable, utc_now
from tidecast_control.kit.process import Tail, error_of, signal_group
from tidecast_control.mirrors.models import MirrorStateRow
from tidecast_control.mirrors.schemas import MirrorProgress

COMMAND = (sys.executable, "-P", "-m", "tidecast.mirror.job")
RETRY_S_MIN, RETRY_S_MAX = 1.0, 60.0
TERMINATE_S = 12.0
QUIET_S = 15.0
"""An error is over when records come, or after so long without one more attempt."""
SAMPLES, EVENTS_MAX = 600, 20
TEXT_CHARS_MAX, LINE_BYTES_MAX, ERRORS_BYTES_MAX = 1000, 8 << 20, 4096
RATE_SAMPLES = 5
COUNTS = ("records", "bytes", "repeated", "gone", "left_out", "retries")
AWAY = ("SourceAway", "EngineAway", "TargetAway")


class Copy:
    """Keeps the process of a mirror running while `run` runs. ``job``: its first line of input."""

    def __init__(
        self,
        job: bytes,
        before: MirrorStateRow,
        *,
        command: Sequence[str] = COMMAND,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """``before``: its figures so far."""
        self.job = job
        self._command, self._clock_s = command, clock_s
        self.figures: dict[str, Any] = {
            name: getattr(before, name)
            for name in (*COUNTS, "failures", "lag", "queues", "events", "error", "error_at")
        }
        self.figures |= {"state": "starting", "rate": 0.0, "started_at": None, "retry_at": None}
        self._totals = {name: int(getattr(before, name)) for name in COUNTS}
        self._samples: deque[tuple[float, float, int, int]] = deque(maxlen=SAMPLES)
        """(time, rate, lag, records) of each second."""
        self._retry = asyncio.Event()
        self._tried_s = self._retries = 0.0
        self._backoff = Backoff(RETRY_S_MIN, RETRY_S_MAX)
        self.process: asyncio.subprocess.Process | None = None

    async def run(self) -> None:
        """Run until cancelled; then end the process."""
        try:
            while True:
                self._retry.clear()
                await self._once()
                wait_s = self._backoff.next_s()
                self.figures["failures"] += 1
                self.figures |= {"state": "waiting", "rate": 0.0, "started_at": None}
                self.figures["retry_at"] = utc_now() + timedelta(seconds=wait_s)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):
                        await self._retry.wait()
        finally:
            await self._end()

    def retry(self) -> None:
        """Do not wait any longer after an error."""
        self._backoff.clear()
        self._retry.set()

    def progress(self, mirror: str) -> MirrorProgress:
        """The samples."""
        rows = list(self._samples)
        return MirrorProgress(
            mirror=mirror,
            at_s=[row[0] for row in rows],
            rate=[row[1] for row in rows],
            lag=[row[2] for row in rows],
        )

    # --- the process ------------------------------------------------------------------------------

    async def _once(self) -> None:
        self.figures |= {"state": "starting", "retry_at": None}
        self._totals = {name: int(self.figures[name]) for name in COUNTS}
        try:
            process = self.process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
                limit=LINE_BYTES_MAX,
            )
        except OSError as problem:
            self._fail(f"it does not start: {problem}")
            return
        assert process.stdin is not None
        errors = Tail(ERRORS_BYTES_MAX)
        reading = asyncio.create_task(errors.read(process.stderr))
        failed = False
        try:
            with contextlib.suppress(ConnectionError):
                process.stdin.write(self.job)
                await process.stdin.drain()
            failed = await self._read(process)
            await process.wait()
        finally:
            if process.returncode is None:
                await self._end()
            await reading
        if not failed:
            self._fail(error_of(process.returncode, errors.text))

    async def _read(self, process: asyncio.subprocess.Process) -> bool:
        """Take its output until it ends. True: it gave the reason of its end."""
        assert process.stdout is not None
        failed = False
        while True:
            try:
                line = await process.stdout.readline()
            except ValueError:  # longer than LINE_BYTES_MAX
                continue
            if not line:
                return failed
            try:
                said = msgspec.json.decode(line, type=dict[str, Any])
                failed |= self._take(said)
            except (msgspec.MsgspecError, KeyError, TypeError, ValueError):
                continue

    async def _end(self) -> None:
        """Close its input, so that it writes its position and ends; else kill it."""
        process, self.process = self.process, None
        if process is None or process.returncode is not None:
            return
        assert process.stdin is not None
        process.stdin.close()
        try:
            async with asyncio.timeout(TERMINATE_S):
                await self._read(process)  # it counts records until its end
                await process.wait()
        except TimeoutError:
            signal_group(process.pid, signal.SIGKILL)
            await process.wait()

    # --- its output -------------------------------------------------------------------------------

    def _take(self, said: dict[str, Any]) -> bool:
        """Take an object of its output. True: it is the reason of its end."""
        event = str(said["event"])
        if event == "progress":
            self._progress(said)
            return False
        if event == "failed":
            self._fail(str(said["text"]))
            return True
        text = storable(str(said["text"])[:TEXT_CHARS_MAX])
        row = {"at": utc_now().isoformat(), "event": storable(event[:50]), "text": text}
        self.figures["events"] = [*self.figures["events"], row][-EVENTS_MAX:]
        if event in AWAY:
            self.figures |= {"error": text, "error_at": utc_now()}
        return False

    def _progress(self, said: dict[str, Any]) -> None:
        counts = {name: self._totals[name] + int(said[name]) for name in COUNTS}
        moved = counts["records"] + counts["repeated"] > self._done()
        now_s, at_s = self._clock_s(), time.time()
        if counts["retries"] != self._retries:
            self._retries, self._tried_s = counts["retries"], now_s
        self.figures |= counts
        self.figures |= {"queues": said["queues"], "lag": int(said["lag"])}
        if self.figures["state"] != "running":
            self.figures |= {"state": "running", "started_at": utc_now()}
        if said["queues"] and (moved or now_s - self._tried_s > QUIET_S):
            self.figures["error"] = ""
            self._backoff.clear()
        self._samples.append((at_s, self._rate(at_s), self.figures["lag"], counts["records"]))
        self.figures["rate"] = self._samples[-1][1]

    def _done(self) -> int:
        return int(self.figures["records"]) + int(self.figures["repeated"])

    def _rate(self, at_s: float) -> float:
        """Records a second over the last seconds."""
        recent = [row for row in self._samples if at_s - row[0] < RATE_SAMPLES + 1]
        if not recent:
            return 0.0
        first, records = recent[0], self.figures["records"]
        past_s = at_s - first[0]
        return round(max(0, records - first[3]) / past_s, 1) if past_s > 0 else 0.0

    def _fail(self, why: str) -> None:
        self.figures |= {
            "error": storable(why[:TEXT_CHARS_MAX]),
            "error_at": utc_now(),
            "rate": 0.0,
        }
