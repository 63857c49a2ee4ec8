"""The peer systems, runnable in the same minute on the same machine as Tidecast's benches.

    available()                                 -> ["aeron", "aeron-java", "fast-cast", ...]
    cases("aeron", "throughput")                -> the bench's usual configurations
    run("aeron", "throughput", packet_bytes=1400)
        -> {"peer": ..., "bench": ..., "config": {...}, "metrics": {"msgs_per_s": ...}}

`python -m benchmarks.peers BENCH [--peer NAME] [--json]` does the same from a shell. Peers are
installed by `python3 benchmarks/peers/install.py`; README.md says what each run does and how each
peer was tuned.
"""

import importlib
from types import ModuleType
from typing import Any

from benchmarks.peers import layout, process
from benchmarks.peers.errors import BenchUnknown, PeerError, PeerFailed, PeerMissing, PeerTimeout

__all__ = [
    "BENCHES",
    "PEERS",
    "BenchUnknown",
    "PeerError",
    "PeerFailed",
    "PeerMissing",
    "PeerTimeout",
    "available",
    "cases",
    "missing",
    "run",
]

BENCHES = (
    "throughput",
    "python",
    "latency",
    "request",
    "ipc",
    "loss",
    "fanout",
    "durable",
    "consume",
)
PEERS = {
    "fast-cast": "fast_cast",
    "aeron": "aeron",
    "aeron-java": "aeron_java",
    "pyaeron": "pyaeron",
    "pyzmq": "pyzmq_peer",
    "nats": "nats_peer",
    "jetstream": "jetstream_peer",
    "redis": "redis_peer",
}


def _module(peer: str) -> ModuleType:
    if peer not in PEERS:
        raise BenchUnknown(f"no peer {peer!r}; there are: {', '.join(PEERS)}")
    return importlib.import_module(f"benchmarks.peers.{PEERS[peer]}")


def missing(peer: str) -> str | None:
    """Why a peer cannot run here, or nothing."""
    return layout.missing(peer)


def available() -> list[str]:
    """The peers that are installed here."""
    return [peer for peer in PEERS if missing(peer) is None]


def cases(peer: str, bench: str) -> list[dict[str, Any]]:
    """The usual configurations of a bench for a peer; empty if the peer has no such bench."""
    if bench not in BENCHES:
        raise BenchUnknown(f"no bench {bench!r}; there are: {', '.join(BENCHES)}")
    return [dict(case) for case in _module(peer).CASES.get(bench, ())]


def run(peer: str, bench: str, **config: Any) -> dict[str, Any]:
    """Runs one configuration and returns its figures.

    Without a key, the peer's default for the bench holds (the first of `cases`). Common keys:
    `channel`, `packet_bytes`, `message_bytes`, `subscribers`, `loss_percent`, `seconds` (measured,
    after `warmup_s`), `rounds`, `warmup_rounds`, `timeout_s` (the whole run). Raises PeerMissing,
    BenchUnknown, PeerTimeout or PeerFailed; the processes have ended and the scratch files are
    gone either way.
    """
    usual = cases(peer, bench)
    module = _module(peer)
    reason = missing(peer)
    if reason:
        raise PeerMissing(f"{peer}: {reason}")
    if not usual:
        raise BenchUnknown(f"{peer} has no bench {bench!r}")
    known = {**module.DEFAULTS, **usual[0]}
    strange = sorted(set(config) - set(known))
    if strange:
        raise BenchUnknown(f"{peer} {bench}: no such config: {', '.join(strange)}")
    full = {**known, **config}
    before = process.cpu_seconds()
    metrics = module.run(bench, full)
    metrics["others_cpus"] = process.others_cpus(before, process.cpu_seconds())
    return {"peer": peer, "bench": bench, "config": full, "metrics": metrics}
