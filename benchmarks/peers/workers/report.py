"""Common to all Python workers: JSON lines out, a closed standard input as stop sign."""

import ctypes
import json
import os
import sys
from collections.abc import Sequence

CYCLE = 4096  # sequence numbers before the publishers start again


def cycle_of_messages(message_bytes: int) -> list[bytes]:
    """CYCLE messages that start with their sequence number."""
    padding = bytes(message_bytes - 8)
    return [number.to_bytes(8, "little") + padding for number in range(CYCLE)]


def say(**fields: object) -> None:
    """One JSON line for the parent."""
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


def ready() -> None:
    say(event="ready")


def result(**fields: object) -> None:
    say(event="result", **fields)


def pin(core: int | None) -> None:
    """Pins the calling thread to `core`, if there is such a core."""
    if core is not None and core in os.sched_getaffinity(0):
        os.sched_setaffinity(0, {core})


def until_stopped(stop: ctypes.c_int32) -> None:
    """Sets `stop` once the parent closes standard input, or dies."""
    os.read(sys.stdin.fileno(), 1)
    stop.value = 1


def percentiles(rtt_ns: Sequence[int]) -> dict[str, float]:
    """Round-trip percentiles in microseconds; nothing for nothing."""
    if not rtt_ns:
        return {}
    ordered = sorted(rtt_ns)
    last = len(ordered) - 1

    def at(share: float) -> float:
        return round(ordered[min(last, int(len(ordered) * share))] / 1e3, 3)

    return {
        "rtt_mean_us": round(sum(ordered) / len(ordered) / 1e3, 3),
        "rtt_p50_us": at(0.5),
        "rtt_p90_us": at(0.9),
        "rtt_p99_us": at(0.99),
        "rtt_p999_us": at(0.999),
        "rtt_p9999_us": at(0.9999),
        "rtt_max_us": round(ordered[-1] / 1e3, 3),
    }
