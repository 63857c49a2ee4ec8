"""Redis Streams from Python: redis-py beside one redis-server with an append-only file."""

import json
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.peers import layout
from benchmarks.peers.errors import PeerTimeout
from benchmarks.peers.process import Stage, rates

CONNECT_PAUSE_SECONDS = 0.02

DEFAULTS: dict[str, Any] = {
    "message_bytes": 100,
    "appendfsync": "everysec",
    "pipelined": 2000,
    "batch": 1000,
    "messages": 200_000,
    "seconds": 4.0,
    "warmup_s": 0.5,
    "timeout_s": 60.0,
}

CASES: dict[str, tuple[dict[str, Any], ...]] = {
    "durable": ({"appendfsync": "everysec"}, {"appendfsync": "always"}),
    "consume": ({"appendfsync": "everysec"},),
}


def start_server(stage: Stage, folder: Path, appendfsync: str) -> str:
    """A redis-server of this run's own on a unix socket; its path."""
    socket = folder / "redis.sock"
    options = {
        "port": "0",
        "unixsocket": str(socket),
        "dir": str(folder),
        "save": "",
        "appendonly": "yes",
        "appendfsync": appendfsync,
        "auto-aof-rewrite-percentage": "0",
    }
    arguments = [word for name, value in options.items() for word in (f"--{name}", value)]
    server = stage.start("redis-server", (str(layout.redis_server()), *arguments), listens=False)
    while server.process.poll() is None and time.monotonic() < stage.deadline:
        if socket.exists():
            return str(socket)
        time.sleep(CONNECT_PAUSE_SECONDS)
    raise PeerTimeout(f"redis-server does not answer: {server.last_words()}")


def run(bench: str, config: dict[str, Any]) -> dict[str, float]:
    """One run; the metrics."""
    with Stage(config["timeout_s"]) as stage:
        folder = Path(tempfile.mkdtemp(prefix="tidecast-peer-"))  # on the disk, as our own logs
        try:
            channel = start_server(stage, folder, config["appendfsync"])
            role = "publish" if bench == "durable" else "consume"
            given = json.dumps({**config, "channel": channel, "role": role})
            worker = str(layout.WORKERS / "redis_worker.py")
            started = stage.start_ready(role, (str(layout.VENV_PYTHON), worker, given))
            found = rates([stage.result(started)])
            for process in stage.workers:
                process.end()
            return found
        finally:
            shutil.rmtree(folder, ignore_errors=True)
