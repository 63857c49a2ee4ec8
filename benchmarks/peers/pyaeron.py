"""pyaeron: Aeron's C client from Python, message by message. It has no batch call."""

import json
from typing import Any

from benchmarks.peers import aeron, aeron_channels, layout
from benchmarks.peers.process import Stage, Worker, cores, rates, round_trips

DEFAULTS: dict[str, Any] = {
    **aeron_channels.DEFAULTS,
    "packet_bytes": 8192,
    "seconds": 3.0,
    "warmup_rounds": 2_000,
    "driver_idle": "backoff",
    "give_way": True,
    "handler": "nothing",
}

CASES: dict[str, tuple[dict[str, Any], ...]] = {
    "throughput": tuple(
        {"channel": channel, "packet_bytes": size}
        for channel in ("multicast", "unicast")
        for size in (1400, 8192, 65500)
    ),
    "python": tuple(
        {"channel": channel, "handler": handler}
        for channel in ("ipc", "unicast")
        for handler in ("nothing", "bytes")
    ),
    "latency": (
        {"channel": "ipc", "give_way": False},
        {"channel": "unicast", "packet_bytes": 1400, "driver_idle": "yield"},
    ),
    "ipc": (
        {"measure": "throughput", "channel": "ipc", "message_bytes": 64},
        {"measure": "latency", "channel": "ipc", "message_bytes": 64, "give_way": False},
    ),
}


def start(
    stage: Stage, config: dict[str, Any], role: str, core: int | None, **channels: str
) -> Worker:
    keys = ("message_bytes", "seconds", "rounds", "warmup_rounds", "give_way", "handler")
    given = {
        **{key: config[key] for key in keys},
        **channels,
        "warmup_s": config["warmup_s"],
        "environment": {},
        "dir": str(stage.scratch / "driver0"),
        "role": role,
        "deadline_s": stage.timeout_s,
        "core": core,
    }
    worker = str(layout.WORKERS / "pyaeron_worker.py")
    command = (str(layout.VENV_PYTHON), worker, json.dumps(given))
    return stage.start_ready(role, command, core)


def run(bench: str, config: dict[str, Any]) -> dict[str, float]:
    """One run: two Python processes beside one C media driver in a third; the metrics."""
    latency = aeron_channels.measures_latency(bench, config)
    with Stage(config["timeout_s"]) as stage:
        cast = aeron.Cast(stage, config)
        threading = "shared" if config["threading"] == "inline" else config["threading"]
        core, other_core = cores(2)
        channels = {"channel": cast.channel, "back_channel": cast.back_channel}
        if latency and config["channel"] != "ipc":
            # the driver, on the path here, has one core; ping and pong share the other
            cast.start("driver", other_core, threading=threading)
            other_core = core
        else:
            cast.start("driver", None, threading=threading)
        if latency:
            start(stage, config, "pong", other_core, **channels)
            return round_trips(stage.result(start(stage, config, "ping", core, **channels)))
        subscriber = start(stage, config, "sub", other_core, **channels)
        start(stage, config, "pub", core, **channels)
        return rates([stage.result(subscriber)])
