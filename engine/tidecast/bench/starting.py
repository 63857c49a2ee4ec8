"""`bench start`: an engine's first start, which compiles every kernel, and the starts after it."""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from tidecast.bench.durable import Note
from tidecast.bench.measure import Result, machine
from tidecast.errors import TidecastError

_WARM_STARTS = 3
_START_MAX_S = 600.0


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _start(folder: Path) -> tuple[float, float]:
    """Seconds from the command to "ready", and CPU seconds of the engine and its compilers."""
    command = [sys.executable, "-m", "tidecast.cli", "engine", "--gateway", "off"]
    command += ["--data-dir", str(folder / "data")]
    environment = {**os.environ, "TIDECAST_CACHE_DIR": str(folder / "kernels")}
    cpu_s, began_s = _children_cpu_s(), time.monotonic()
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True
        ) as engine,
    ):
        limit = threading.Timer(_START_MAX_S, engine.kill)
        limit.start()
        assert engine.stdout is not None
        try:
            ready = any(line.startswith("ready") for line in engine.stdout)
            taken_s = time.monotonic() - began_s
        finally:
            limit.cancel()
            engine.terminate()
            engine.communicate()
        if not ready:
            errors.seek(0)
            raise TidecastError(f"bench start: the engine did not start: {errors.read()[-2000:]}")
    return taken_s, _children_cpu_s() - cpu_s


def start(note: Note) -> Result:
    """An engine process with an empty cache of kernels, then with the cache that it left."""
    result = Result("start", {"warm_starts": _WARM_STARTS, **machine()})
    with tempfile.TemporaryDirectory(prefix="tidecast-bench-") as folder:
        note("with an empty cache")
        cold_s, cold_cpu_s = _start(Path(folder))
        note("with a warm cache")
        warm = [_start(Path(folder)) for _ in range(_WARM_STARTS)]
    result.metrics = {
        "cold_ready_s": round(cold_s, 1),
        "cold_cpu_s": round(cold_cpu_s, 1),
        "warm_ready_s": round(statistics.median(s for s, _ in warm), 2),
        "warm_cpu_s": round(statistics.median(cpu for _, cpu in warm), 2),
    }
    return result
