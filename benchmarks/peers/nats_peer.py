"""NATS core from Python: nats-py in two processes beside one nats-server, message by message."""

import json
import socket
import time
from typing import Any

from benchmarks.peers import layout
from benchmarks.peers.errors import PeerTimeout
from benchmarks.peers.process import Stage, Worker, free_port, rates, round_trips

CONNECT_PAUSE_SECONDS = 0.02

DEFAULTS: dict[str, Any] = {
    "message_bytes": 70,
    "flush_every": 2_048,
    "loop": "uvloop",
    "seconds": 3.0,
    "warmup_s": 1.0,
    "rounds": 50_000,
    "warmup_rounds": 500,
    "timeout_s": 30.0,
}

CASES: dict[str, tuple[dict[str, Any], ...]] = {
    "throughput": ({"loop": "uvloop"},),
    "python": ({"loop": "uvloop"}, {"loop": "asyncio"}),
    "latency": ({"loop": "uvloop"},),
    "request": ({"loop": "uvloop"}, {"loop": "asyncio"}),
}


def start_server(stage: Stage, *options: str) -> str:
    """A nats-server of this run's own on a loopback port; its address."""
    port = free_port(socket.SOCK_STREAM)
    arguments = ("--addr", "127.0.0.1", "--port", str(port), *options)
    server = stage.start("nats-server", (str(layout.NATS_SERVER), *arguments), listens=False)
    while server.process.poll() is None and time.monotonic() < stage.deadline:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(CONNECT_PAUSE_SECONDS)
        else:
            return f"nats://127.0.0.1:{port}"
    raise PeerTimeout(f"nats-server does not answer: {server.last_words()}")


def run(bench: str, config: dict[str, Any]) -> dict[str, float]:
    """One run; the metrics."""
    with Stage(config["timeout_s"]) as stage:
        channel = start_server(stage)

        def start(role: str) -> Worker:
            keys = ("message_bytes", "flush_every", "loop", "seconds", "warmup_s", "rounds")
            given = {
                **{key: config[key] for key in (*keys, "warmup_rounds")},
                "channel": channel,
                "role": role,
                "core": None,  # three processes on two cores: the scheduler does better
                "deadline_s": stage.timeout_s,
            }
            worker = str(layout.WORKERS / "nats_worker.py")
            command = (str(layout.VENV_PYTHON), worker, json.dumps(given))
            return stage.start_ready(role, command)

        if bench in ("latency", "request"):
            near, far = ("ping", "pong") if bench == "latency" else ("ask", "reply")
            start(far)
            return round_trips(stage.result(start(near)))
        subscriber = start("sub")
        start("pub")
        return rates([stage.result(subscriber)])
