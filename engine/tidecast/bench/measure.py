"""Shared by all benches: workers in processes of their own, percentiles, the result line."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tidecast.errors import TidecastError, Timeout

WORKER_TIMEOUT_S = 150.0
"""Longest silence of a worker that measures."""
READY_S = 900.0
"""Longest start of a worker: it compiles its loops once, beside the load of others."""
END_S = 5.0


class Deadline:
    """The end of a bench: no worker waits longer than that."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self._end_s = seconds, time.monotonic() + seconds

    @property
    def left_s(self) -> float:
        """Seconds until then, 0 after it."""
        return max(self._end_s - time.monotonic(), 0.0)


class Worker:
    """A bench role in a process of its own: reports ready, measures on request, gives a result.

    A role that is a generator measures again and again, until `stop`.
    """

    def __init__(
        self, role: str, core: int | None = None, *, prefix: tuple[str, ...] = (), **config: Any
    ) -> None:
        self.role = role
        command = [*prefix, sys.executable, "-m", "tidecast.bench.workers.process", role]
        command.append(json.dumps({"core": core, **config}))
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def wait_ready(self, within_s: float = READY_S) -> None:
        """Until the worker has set up (and compiled) everything. Raises Timeout."""
        self._line("ready", within_s)

    def go(self) -> None:
        """Start measuring."""
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def result(self, within_s: float = WORKER_TIMEOUT_S) -> dict[str, Any]:
        """The worker's figures. Raises Timeout."""
        found: dict[str, Any] = json.loads(self._line("{", within_s))
        return found

    def _line(self, start: str, within_s: float) -> str:
        end_s = time.monotonic() + within_s
        while True:
            try:
                line = self._lines.get(timeout=max(end_s - time.monotonic(), 0.0))
            except queue.Empty:
                raise Timeout(
                    f"bench worker {self.role} said nothing for {within_s:.0f} s"
                ) from None
            if not line:
                raise TidecastError(
                    f"bench worker {self.role} ended early (exit {self.process.wait(5)})"
                )
            if line.startswith(start):
                return line

    def stop(self) -> None:
        """End the process: it stops at the end of its input, else it is made to."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):  # it has ended
            self.process.stdin.close()
        for end in (self.process.terminate, self.process.kill, self.process.wait):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(END_S)
                return
            end()


@contextlib.contextmanager
def workers(*all_of_them: Worker) -> Iterator[tuple[Worker, ...]]:
    """Run workers; whatever happens, none is left behind."""
    try:
        for each in all_of_them:
            each.wait_ready()
        yield all_of_them
    finally:
        for each in all_of_them:
            each.stop()


def run_together(*all_of_them: Worker) -> list[dict[str, Any]]:
    """Start measuring in all, in order, and gather the results."""
    with workers(*all_of_them) as ready:
        for each in ready:
            each.go()
        return [each.result() for each in ready]


def one_turn(deadline: Deadline, *kept: Worker) -> list[dict[str, Any]]:
    """As `run_together`, of workers that stay for the next turn. Raises Timeout."""
    for each in kept:
        each.go()
    found = [each.result(min(deadline.left_s, WORKER_TIMEOUT_S)) for each in kept]
    for each in kept:
        each.wait_ready(deadline.left_s)
    return found


def turns_within(deadline: Deadline, turns: int) -> Iterator[int]:
    """Numbers of turns from 0 on: the first, and each that ends in time if it takes as long."""
    longest_s = 0.0
    for turn in range(turns):
        left_s = deadline.left_s
        if longest_s > left_s:
            return
        yield turn
        longest_s = max(longest_s, left_s - deadline.left_s)


def ready() -> None:
    """Report that everything is set up, and wait for the parent's go; end with its end."""
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    if not sys.stdin.readline():
        raise SystemExit(0)


def percentiles_us(samples_ns: np.ndarray, prefix: str = "rtt") -> dict[str, float]:
    """p50, p90, p99, p99.9, p99.99 and the maximum, in microseconds."""
    found = {}
    for name, q in (("p50", 50), ("p90", 90), ("p99", 99), ("p999", 99.9), ("p9999", 99.99)):
        found[f"{prefix}_{name}_us"] = round(float(np.percentile(samples_ns, q)) / 1000, 3)
    found[f"{prefix}_max_us"] = round(float(samples_ns.max()) / 1000, 3)
    return found


def histogram_us(samples_ns: np.ndarray) -> list[list[float]]:
    """[upper end in microseconds, samples] of each bucket that has some; 20 buckets a decade."""
    edges = np.logspace(2, 11, 181)
    counts, _ = np.histogram(samples_ns, edges)
    ends = (edges[1:] / 1000).round(3)
    return [[float(e), int(n)] for e, n in zip(ends, counts, strict=True) if n]


def other_load() -> float:
    """Processes that want a core just now: above 0.3 the figures are too low."""
    return round(os.getloadavg()[0], 2)


@dataclass
class Result:
    """One bench's outcome in the shape of the contract."""

    bench: str
    config: dict[str, Any]
    metrics: dict[str, Any] = field(default_factory=dict)
    floor: dict[str, Any] = field(default_factory=dict)
    ratio: dict[str, Any] = field(default_factory=dict)
    peers: dict[str, Any] = field(default_factory=dict)
    histograms: dict[str, Any] = field(default_factory=dict)

    def compare(self, name: str, short: str | None = None) -> None:
        """Ratio = ours / floor of the figure ``name``."""
        ours, theirs = self.metrics.get(name), self.floor.get(name)
        if ours is not None and theirs:
            self.ratio[short or name] = round(ours / theirs, 4)

    def as_dict(self) -> dict[str, Any]:
        """The JSON object."""
        outcome = {
            "bench": self.bench,
            "config": self.config,
            "metrics": self.metrics,
            "floor": self.floor,
            "ratio": self.ratio,
            "peers": self.peers,
        }
        return outcome | ({"histograms_us": self.histograms} if self.histograms else {})


def machine() -> dict[str, Any]:
    """The machine of the figures."""
    return {
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load": other_load(),
    }


def wait_until(condition: Any, timeout_s: float, what: str) -> None:
    """Poll a condition with short naps. Raises Timeout."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise Timeout(f"{what}: not within {timeout_s:g} s")
        time.sleep(0.002)
