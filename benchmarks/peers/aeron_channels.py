"""Aeron channels, settings and usual configurations, common to the C and the JVM peer."""

import os
from typing import Any

from benchmarks.peers.errors import BenchUnknown
from benchmarks.peers.process import cores, free_port

GROUP = "239.255.42.99"  # the last byte of a data address is odd, for Aeron
SOCKET_BYTES = 4 * 1024 * 1024  # usual net.core.rmem_max of a tuned machine; the kernel caps it
WINDOW_BYTES = 512 * 1024  # best of 128 KiB to 2 MiB here
FRAME_ALIGNMENT = 32
FRAME_HEADER_BYTES = 32
PACKET_BYTES_MAX = 65_504
SEED = 20_261_121

DEFAULTS: dict[str, Any] = {
    "message_bytes": 70,
    "packet_bytes": 1408,
    "channel": "unicast",
    "subscribers": 1,
    "loss_percent": 0.0,
    "threading": "inline",
    "driver_idle": "backoff",
    "measure": "throughput",
    "window_bytes": WINDOW_BYTES,
    "batch": 0,
    "seconds": 3.0,
    "warmup_s": 1.0,
    "rounds": 50_000,
    "warmup_rounds": 10_000,
    "timeout_s": 30.0,
}

CASES: dict[str, tuple[dict[str, Any], ...]] = {
    "throughput": tuple(
        {"channel": channel, "packet_bytes": size}
        for channel in ("multicast", "unicast")
        for size in (1400, 8192, 65500)
    ),
    "latency": ({"channel": "unicast"}, {"channel": "multicast"}),
    "ipc": (
        {"measure": "throughput", "channel": "ipc", "message_bytes": 64},
        {"measure": "latency", "channel": "ipc", "message_bytes": 64},
    ),
    "loss": (
        *({"measure": "throughput", "loss_percent": loss} for loss in (0.0, 1.0, 5.0)),
        {
            "measure": "latency",
            "loss_percent": 1.0,
            "rounds": 20_000,
            "warmup_rounds": 3_000,  # every lost packet costs 100 ms and more
            "seconds": 6.0,
        },
    ),
    "fanout": tuple(
        {"channel": "multicast", "packet_bytes": size, "subscribers": count}
        for size in (1400, 8192)
        for count in (1, 2, 4)
    ),
}


def mtu_bytes(config: dict[str, Any]) -> int:
    """The largest MTU that Aeron takes and that fits the packet size."""
    size = min(config["packet_bytes"], PACKET_BYTES_MAX)
    return int(size // FRAME_ALIGNMENT * FRAME_ALIGNMENT)


def batch(config: dict[str, Any]) -> int:
    """Messages between two driver duty cycles: as configured, or eight packets, 128 to 512."""
    if config["batch"]:
        return int(config["batch"])
    framed_bytes = config["message_bytes"] + FRAME_HEADER_BYTES
    frame = -(-framed_bytes // FRAME_ALIGNMENT) * FRAME_ALIGNMENT
    return int(max(128, min(512, mtu_bytes(config) * 8 // frame)))


def channel(config: dict[str, Any]) -> str:
    """A channel URI on the loopback interface, on a port that is free now."""
    kind = config["channel"]
    if kind == "ipc":
        return "aeron:ipc"
    if kind == "unicast":
        return f"aeron:udp?endpoint=127.0.0.1:{free_port()}"
    if kind == "multicast":
        # min flow control paces the publisher by the slowest subscriber
        return f"aeron:udp?endpoint={GROUP}:{free_port()}|interface=127.0.0.1|ttl=0|fc=min"
    raise BenchUnknown(f"no channel {kind!r}: multicast, unicast or ipc")


def crowded(config: dict[str, Any]) -> bool:
    """Whether processes outnumber cores, so that who has nothing to do must give way."""
    return int(config["subscribers"]) + 1 > len(os.sched_getaffinity(0))


def own_cores(config: dict[str, Any]) -> list[int | None]:
    """A core for the publisher and one for each subscriber; none when the processes are more."""
    count = int(config["subscribers"]) + 1
    return [None] * count if crowded(config) else cores(count)


def measures_latency(bench: str, config: dict[str, Any]) -> bool:
    return bench == "latency" or config.get("measure") == "latency"
