"""Aeron's JVM client and media driver (aeron-all), driven by java/AeronBench.java."""

from typing import Any

from benchmarks.peers import aeron_channels, jvm, layout
from benchmarks.peers.process import Stage, Worker, cores, rates, round_trips

DEFAULTS = {**aeron_channels.DEFAULTS, "warmup_s": 2.0, "warmup_rounds": 20_000}
CASES = aeron_channels.CASES


def properties(config: dict[str, Any]) -> dict[str, object]:
    """The driver's and the client's system properties."""
    settings: dict[str, object] = {
        "aeron.mtu.length": aeron_channels.mtu_bytes(config),
        "aeron.socket.so_rcvbuf": aeron_channels.SOCKET_BYTES,
        "aeron.socket.so_sndbuf": aeron_channels.SOCKET_BYTES,
        "aeron.rcv.initial.window.length": config["window_bytes"],
        "aeron.pre.touch.mapped.memory": "true",
        "agrona.disable.bounds.checks": "true",
    }
    if config["loss_percent"]:
        settings |= {
            "aeron.ReceiveChannelEndpoint.supplier": (
                "io.aeron.driver.ext.DebugReceiveChannelEndpointSupplier"
            ),
            "aeron.debug.receive.data.loss.rate": config["loss_percent"] / 100,
            "aeron.debug.receive.data.loss.seed": aeron_channels.SEED,
        }
    return settings


class Cast:
    """Starts the processes of one run."""

    def __init__(self, stage: Stage, config: dict[str, Any]) -> None:
        self.stage, self.config = stage, config
        self.channel = aeron_channels.channel(config)
        self.back_channel = aeron_channels.channel(config)

    def start(self, role: str, core: int | None, number: int = 0, **other: Any) -> Worker:
        name = f"{role}{number}"
        arguments = {
            **{key: self.config[key] for key in ("message_bytes", "threading", "seconds")},
            **{key: self.config[key] for key in ("rounds", "warmup_rounds", "warmup_s")},
            "dir": self.stage.scratch / name,
            "channel": self.channel,
            "back_channel": self.back_channel,
            "role": role,
            "embedded": 1,
            "batch": aeron_channels.batch(self.config),
            "give_way": int(aeron_channels.crowded(self.config)),
            "deadline_s": self.stage.timeout_s,
            **other,
        }
        command = jvm.command("AeronBench", (layout.AERON_JAR,), properties(self.config), arguments)
        return self.stage.start_ready(name, command, core)


def throughput(stage: Stage, config: dict[str, Any]) -> dict[str, float]:
    cast = Cast(stage, config)
    count = config["subscribers"]
    publisher_core, *subscriber_cores = aeron_channels.own_cores(config)
    other: dict[str, Any] = {}
    publisher_other: dict[str, Any] = {}
    if (
        config["channel"] == "ipc"
    ):  # the subscriber's process has the driver, in a thread that idles
        other = {"threading": "shared"}
        publisher_other = {"embedded": 0, "dir": stage.scratch / "sub0"}
    subscribers = [
        cast.start("sub", subscriber_cores[number], number, **other) for number in range(count)
    ]
    cast.start("pub", publisher_core, **publisher_other)
    return rates([stage.result(subscriber) for subscriber in subscribers])


def latency(stage: Stage, config: dict[str, Any]) -> dict[str, float]:
    cast = Cast(stage, config)
    ping_core, pong_core = cores(2)
    if config["channel"] == "ipc":
        cast.start("pong", pong_core, threading="shared")
        ping = cast.start("ping", ping_core, embedded=0, dir=stage.scratch / "pong0")
    else:
        cast.start("pong", pong_core)
        ping = cast.start("ping", ping_core)
    return round_trips(stage.result(ping))


def run(bench: str, config: dict[str, Any]) -> dict[str, float]:
    """One run; the metrics."""
    measures_latency = aeron_channels.measures_latency(bench, config)
    with Stage(config["timeout_s"]) as stage:
        return (latency if measures_latency else throughput)(stage, config)
