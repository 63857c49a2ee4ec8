"""Aeron's C client and C media driver, out of the pyaeron wheel; driven by c/aeron_bench.c."""

import json
from typing import Any

from benchmarks.peers import aeron_channels, layout
from benchmarks.peers.process import Stage, Worker, cores, rates, round_trips

DEFAULTS = aeron_channels.DEFAULTS
CASES = aeron_channels.CASES


def environment(config: dict[str, Any]) -> dict[str, str]:
    """The driver's settings."""
    settings = {
        "AERON_MTU_LENGTH": aeron_channels.mtu_bytes(config),
        "AERON_SOCKET_SO_RCVBUF": aeron_channels.SOCKET_BYTES,
        "AERON_SOCKET_SO_SNDBUF": aeron_channels.SOCKET_BYTES,
        "AERON_RCV_INITIAL_WINDOW_LENGTH": config["window_bytes"],
        # packets a system call, from 2 or 4: +5 to +25 % here
        "AERON_NETWORK_PUBLICATION_MAX_MESSAGES_PER_SEND": 16,
        "AERON_SENDER_IO_VECTOR_CAPACITY": 16,
        "AERON_RECEIVER_IO_VECTOR_CAPACITY": 16,
        "AERON_SHARED_IDLE_STRATEGY": config["driver_idle"],
    }
    if config["loss_percent"]:
        rate = config["loss_percent"] / 100
        # data, padding and setup frames; NAKs and status messages get through (mask 3: types 0 and
        # 1)
        settings |= {
            "AERON_UDP_CHANNEL_INCOMING_INTERCEPTORS": "loss",
            "AERON_UDP_CHANNEL_TRANSPORT_BINDINGS_LOSS_ARGS": (
                f"rate={rate}|seed={aeron_channels.SEED}|recv-msg-mask=0x3"
            ),
        }
    return {key: str(value) for key, value in settings.items()}


class Cast:
    """Starts the processes of one run."""

    def __init__(self, stage: Stage, config: dict[str, Any]) -> None:
        self.stage, self.config = stage, config
        self.channel = aeron_channels.channel(config)
        self.back_channel = aeron_channels.channel(config)

    def start(self, role: str, core: int | None, number: int = 0, **other: Any) -> Worker:
        name = f"{role}{number}"
        given = {
            **{key: self.config[key] for key in ("message_bytes", "threading", "seconds")},
            **{key: self.config[key] for key in ("rounds", "warmup_rounds", "warmup_s")},
            "environment": environment(self.config),
            "library": str(layout.BENCH_LIBRARY),
            "dir": str(self.stage.scratch / name),
            "channel": self.channel,
            "back_channel": self.back_channel,
            "role": role,
            "embedded": True,
            "batch": aeron_channels.batch(self.config),
            "give_way": aeron_channels.crowded(self.config),
            "deadline_s": self.stage.timeout_s,
            "core": core,
            **other,
        }
        command = (str(layout.VENV_PYTHON), str(layout.WORKERS / "aeron_c.py"), json.dumps(given))
        return self.stage.start_ready(name, command, core)


def network_throughput(stage: Stage, config: dict[str, Any]) -> dict[str, float]:
    cast = Cast(stage, config)
    count = config["subscribers"]
    publisher_core, *subscriber_cores = aeron_channels.own_cores(config)
    subscribers = [cast.start("sub", subscriber_cores[number], number) for number in range(count)]
    cast.start("pub", publisher_core)
    return rates([stage.result(subscriber) for subscriber in subscribers])


def network_latency(stage: Stage, config: dict[str, Any]) -> dict[str, float]:
    cast = Cast(stage, config)
    ping_core, pong_core = cores(2)
    cast.start("pong", pong_core)
    return round_trips(stage.result(cast.start("ping", ping_core)))


def ipc(stage: Stage, config: dict[str, Any], latency: bool) -> dict[str, float]:
    """Two processes and a driver of a third, which idles: it is not on the data path of IPC."""
    cast = Cast(stage, config)
    directory = str(stage.scratch / "driver0")
    cast.start("driver", None, threading="shared")
    core, other_core = cores(2)
    client: dict[str, Any] = {"embedded": False, "dir": directory}
    if latency:
        cast.start("pong", other_core, **client)
        return round_trips(stage.result(cast.start("ping", core, **client)))
    subscriber = cast.start("sub", other_core, **client)
    cast.start("pub", core, **client)
    return rates([stage.result(subscriber)])


def run(bench: str, config: dict[str, Any]) -> dict[str, float]:
    """One run; the metrics."""
    latency = aeron_channels.measures_latency(bench, config)
    with Stage(config["timeout_s"]) as stage:
        if config["channel"] == "ipc":
            return ipc(stage, config, latency)
        return (network_latency if latency else network_throughput)(stage, config)
