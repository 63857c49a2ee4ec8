"""pyzmq: PUSH/PULL throughput and PAIR ping-pong between two Python processes."""

import json
import socket
from typing import Any

from benchmarks.peers import layout
from benchmarks.peers.errors import BenchUnknown
from benchmarks.peers.process import Stage, Worker, cores, free_port, rates, round_trips

DEFAULTS: dict[str, Any] = {
    "message_bytes": 70,
    "channel": "tcp",
    "high_water_mark": 100_000,
    "spin": True,
    "pin": False,
    "seconds": 3.0,
    "warmup_s": 1.0,
    "rounds": 50_000,
    "warmup_rounds": 2_000,
    "timeout_s": 30.0,
}

_CHANNELS = ({"channel": "tcp"}, {"channel": "ipc"})
CASES: dict[str, tuple[dict[str, Any], ...]] = {
    "throughput": _CHANNELS,
    "python": _CHANNELS,
    "latency": _CHANNELS,
    "request": _CHANNELS,
}


def address(stage: Stage, kind: str) -> str:
    if kind == "tcp":
        return f"tcp://127.0.0.1:{free_port(socket.SOCK_STREAM)}"
    if kind == "ipc":
        return f"ipc://{stage.scratch}/zmq"
    raise BenchUnknown(f"no channel {kind!r}: tcp or ipc")


def run(bench: str, config: dict[str, Any]) -> dict[str, float]:
    """One run; the metrics."""
    with Stage(config["timeout_s"]) as stage:
        channel = address(stage, config["channel"])
        keys = ("message_bytes", "high_water_mark", "spin", "seconds", "warmup_s")

        def start(role: str, core: int | None, bind: bool) -> Worker:
            given = {
                **{key: config[key] for key in (*keys, "rounds", "warmup_rounds")},
                "channel": channel,
                "bind": bind,
                "role": role,
                "core": core if config["pin"] else None,
                "deadline_s": stage.timeout_s,
            }
            worker = str(layout.WORKERS / "zmq_worker.py")
            command = (str(layout.VENV_PYTHON), worker, json.dumps(given))
            return stage.start_ready(role, command)

        core, other_core = cores(2)
        if bench in ("latency", "request"):
            near, far = ("ping", "pong") if bench == "latency" else ("ask", "reply")
            start(far, other_core, True)
            return round_trips(stage.result(start(near, core, False)))
        subscriber = start("sub", other_core, True)
        start("pub", core, False)
        return rates([stage.result(subscriber)])
