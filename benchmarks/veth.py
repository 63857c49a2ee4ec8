"""Throughput over a veth pair between two network namespaces, segmentation offload off.

    python -m benchmarks.veth [--messages N] [--json]

Loopback never splits what UDP_SEGMENT bundles, so its figures flatter everybody who uses it. Here
the packets really are 1,400 bytes on the wire. Needs root, `ip` and `ethtool`; the namespaces are
made and removed by this script, and no packet leaves them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from tidecast.bench.benches import MESSAGE_BYTES, messages_a_packet
from tidecast.bench.measure import Worker, machine, run_together

PACKET_BYTES = 1400
TIMEOUT_S = 90
"""It ends by then, and its namespaces with it: each worker may be silent for longer by itself."""
NAMES = (f"tidecast-a-{os.getpid()}", f"tidecast-b-{os.getpid()}")
ADDRESSES = ("10.254.84.1", "10.254.84.2")
OFF = ("tx-udp-segmentation", "gso", "tso", "gro", "rx-udp-gro-forwarding")


def _run(*command: str, must: bool = True) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20)
    if must and done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}: {done.stderr.strip()}")


@contextlib.contextmanager
def namespaces() -> Iterator[None]:
    """Two namespaces joined by a veth pair, offload off; removed in any case."""
    for tool in ("ip", "ethtool"):
        if shutil.which(tool) is None:
            raise SystemExit(f"{tool} is missing: install iproute2 and ethtool")
    try:
        for name in NAMES:
            _run("ip", "netns", "add", name)
        a, b = (f"tc{os.getpid()}{side}" for side in "ab")
        _run(
            "ip",
            "link",
            "add",
            a,
            "netns",
            NAMES[0],
            "type",
            "veth",
            "peer",
            "name",
            b,
            "netns",
            NAMES[1],
        )
        for name, device, address in zip(NAMES, (a, b), ADDRESSES, strict=True):
            inside = ("ip", "netns", "exec", name)
            _run(*inside, "ip", "address", "add", f"{address}/24", "dev", device)
            _run(*inside, "ip", "link", "set", device, "up", "mtu", "1500")
            _run(*inside, "ip", "link", "set", "lo", "up")
            _run(*inside, "ip", "route", "add", "239.0.0.0/8", "dev", device)
            for feature in OFF:
                _run(*inside, "ethtool", "-K", device, feature, "off", must=False)
        yield
    finally:
        for name in NAMES:
            _run("ip", "netns", "delete", name, must=False)


def measure(messages: int) -> dict[str, Any]:
    """Messages a second from one namespace to the other, and the raw floor of the same path."""
    inside = [("ip", "netns", "exec", name) for name in NAMES]
    common: dict[str, Any] = {"port": 17_700, "packet_bytes": PACKET_BYTES}
    with namespaces():
        soak, _ = run_together(
            Worker("soak", 1, prefix=inside[1], interface=ADDRESSES[1], duration_s=2.0, **common),
            Worker("flood", 0, prefix=inside[0], interface=ADDRESSES[0], duration_s=2.5, **common),
        )
        received, sent = run_together(
            Worker(
                "subscribe_compiled",
                1,
                prefix=inside[1],
                node=2,
                count=messages,
                interface=ADDRESSES[1],
                **common,
            ),
            Worker(
                "publish_compiled",
                0,
                prefix=inside[0],
                node=1,
                count=messages,
                message_bytes=MESSAGE_BYTES,
                interface=ADDRESSES[0],
                **common,
            ),
        )
    per_packet = messages_a_packet(PACKET_BYTES, MESSAGE_BYTES)
    floor = round(soak["packets"] / max(soak["elapsed_s"], 1e-9) * per_packet)
    ours = round((received["received"] - received["first"]) / received["elapsed_s"])
    return {
        "bench": "veth",
        "config": {"messages": messages, **common, **machine()},
        "metrics": {
            "msgs_per_s": ours,
            "lost": received["lost"],
            "duplicated": received["duplicated"],
            "packets_resent": sent["sender"].get("packets_resent", 0),
        },
        "floor": {"msgs_per_s": floor},
        "ratio": {"msgs_per_s": round(ours / max(floor, 1), 4)},
        "peers": {},
    }


def _end(number: int, _frame: object) -> None:
    late = f"not done within {TIMEOUT_S} s" if number == signal.SIGALRM else "told to stop"
    raise SystemExit(f"veth: {late}")


def main() -> None:
    """Command line."""
    for number in (signal.SIGALRM, signal.SIGTERM):
        signal.signal(number, _end)  # so that what has to be removed is removed
    signal.alarm(TIMEOUT_S)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=10_000_000)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    outcome = measure(given.messages)
    sys.stdout.write((json.dumps(outcome) if given.json else json.dumps(outcome, indent=2)) + "\n")


if __name__ == "__main__":
    main()
