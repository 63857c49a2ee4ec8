"""Bench processes: started, heard, pinned and ended by their ids; scratch space and ports.

A worker writes JSON lines: {"event": "ready"}, {"event": "pin"} (a JVM's hot thread wants its
core) and at last {"event": "result", ...}. Closing its standard input asks it to end.
"""

import json
import os
import queue
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from benchmarks.peers.errors import PeerFailed, PeerTimeout

HOT_THREAD = "bench-hot"
STOP_SECONDS = 2.0
STDERR_LINES_MAX = 6
SHARED_MEMORY = Path("/dev/shm")


def cores(count: int) -> list[int | None]:
    """A core a process, round robin; no pinning on a single core."""
    usable = sorted(os.sched_getaffinity(0))
    if len(usable) < 2:
        return [None] * count
    return [usable[index % len(usable)] for index in range(count)]


def free_port(kind: int = socket.SOCK_DGRAM) -> int:
    """A loopback port that is free now."""
    with socket.socket(socket.AF_INET, kind) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def cpu_seconds() -> tuple[float, float, float]:
    """Now, and the processor time used so far by the whole machine and by our own runs."""
    with Path("/proc/stat").open() as stat:
        user, nice, system, _idle, _wait, irq, softirq = stat.readline().split()[1:8]
    ticks = sum(int(value) for value in (user, nice, system, irq, softirq))
    own = os.times()
    ours = own.user + own.system + own.children_user + own.children_system
    return time.monotonic(), ticks / os.sysconf("SC_CLK_TCK"), ours


def others_cpus(before: tuple[float, float, float], after: tuple[float, float, float]) -> float:
    """Cores that the rest of the machine kept busy between two readings of `cpu_seconds`."""
    elapsed, machine, ours = (late - early for early, late in zip(before, after, strict=True))
    return round(max(0.0, machine - ours) / max(elapsed, 1e-9), 2)


class Worker:
    """One process of a bench, in a process group of its own."""

    def __init__(
        self, name: str, command: Sequence[str], core: int | None, log: Path, listens: bool
    ) -> None:
        self.name = name
        self.core = core
        self.log = log
        with log.open("wb") as errors:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if listens else errors,
                stderr=errors,
                start_new_session=True,
            )
        self._events: queue.Queue[dict[str, Any] | None] = queue.Queue()
        if listens:
            threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            try:
                event = json.loads(line)
            except ValueError:
                continue  # a peer's own greeting
            if isinstance(event, dict) and "event" in event:
                if event["event"] != "result":
                    self.pin()
                self._events.put(event)
        self._events.put(None)

    def pin(self) -> None:
        """Pins the thread that asked for it, by its name (Python and C workers pin themselves)."""
        if self.core is None:
            return
        with suppress(OSError):
            for task in Path(f"/proc/{self.process.pid}/task").iterdir():
                if (task / "comm").read_text().strip() == HOT_THREAD:
                    os.sched_setaffinity(int(task.name), {self.core})

    def wait_for(self, event: str, deadline: float) -> dict[str, Any]:
        """The next such event; raises PeerTimeout, or PeerFailed if the process ended before."""
        while True:
            try:
                got = self._events.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise PeerTimeout(f"{self.name}: no {event} in time") from None
            if got is None:
                raise PeerFailed(f"{self.name} ended without {event}: {self.last_words()}")
            if got["event"] == event:
                return got

    def last_words(self) -> str:
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return " | ".join(lines[-STDERR_LINES_MAX:])

    def ask_to_stop(self) -> None:
        if self.process.stdin and not self.process.stdin.closed:
            with suppress(OSError):
                self.process.stdin.close()

    def end(self) -> None:
        """Ends the process and what it started: asked, then told, then killed."""
        self.ask_to_stop()
        for stop in (None, signal.SIGTERM, signal.SIGKILL):
            if stop is not None:
                with suppress(ProcessLookupError):
                    os.killpg(self.process.pid, stop)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(STOP_SECONDS)
                return


class Stage:
    """The processes and the scratch directory of one run; everything ends and goes at exit."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self.deadline = time.monotonic() + timeout_s
        self.workers: list[Worker] = []

    def __enter__(self) -> Self:
        base = SHARED_MEMORY if SHARED_MEMORY.is_dir() else None
        self.scratch = Path(tempfile.mkdtemp(prefix="aeron-bench-peer-", dir=base))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            for worker in self.workers:
                worker.ask_to_stop()
            for worker in self.workers:
                worker.end()
        finally:
            shutil.rmtree(self.scratch, ignore_errors=True)

    def start(
        self, name: str, command: Sequence[str], core: int | None = None, listens: bool = True
    ) -> Worker:
        worker = Worker(name, command, core, self.scratch / f"{name}.err", listens)
        self.workers.append(worker)
        return worker

    def start_ready(self, name: str, command: Sequence[str], core: int | None = None) -> Worker:
        worker = self.start(name, command, core)
        worker.wait_for("ready", self.deadline)
        return worker

    def result(self, worker: Worker) -> dict[str, Any]:
        return worker.wait_for("result", self.deadline)


def rates(results: Sequence[dict[str, Any]]) -> dict[str, float]:
    """The subscribers' own windows as metrics: the mean a subscriber, and the slowest."""
    each: list[float] = []
    for result in results:
        if not result["received"]:
            raise PeerFailed("a subscriber received nothing in its window")
        fresh = result["received"] - result["duplicated"]
        each.append(fresh * 1e9 / result["elapsed_ns"])
    metrics: dict[str, float] = {
        "msgs_per_s": round(sum(each) / len(each)),
        "lost": sum(result["lost"] for result in results),
        "duplicated": sum(result["duplicated"] for result in results),
    }
    if len(each) > 1:
        metrics["slowest_msgs_per_s"] = round(min(each))
    if any("dropped" in result for result in results):
        metrics["dropped"] = sum(result["dropped"] for result in results)
    return metrics


def round_trips(result: dict[str, Any]) -> dict[str, float]:
    """A ping's result as metrics."""
    if not result.get("rounds_done"):
        raise PeerFailed("no round trip was measured")
    metrics = {key: value for key, value in result.items() if key.startswith("rtt_")}
    return {"rounds": result["rounds_done"], **metrics}
