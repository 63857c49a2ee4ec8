"""Workers of the floor benches: raw sockets and raw memory."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from tidecast.bench.loops import floor
from tidecast.bench.measure import ready
from tidecast.errors import Timeout
from tidecast.native.handles import State
from tidecast.native.mapped import MappedFile
from tidecast.transport.sockets import TransportSockets, open_multicast
from tidecast.transport.wire_io import KIND_UDP, receive_io, send_io

GROUP = "239.255.84.99"
MEMORY_BYTES = 4 << 20
SEGMENT_BYTES_MAX = 65_507
QUIET_NS = 2_000_000_000
"""A receiver of raw packets ends after so long without one."""
SILENCE_NS = 10_000_000_000
"""A loop over plain memory ends after so long without the other process."""
_SCRATCH = (np.zeros(64, dtype=np.uint8), np.zeros(3, dtype=np.int64))


def _open(
    port: int, packet_bytes: int, interface: str = "127.0.0.1"
) -> tuple[TransportSockets, State, State]:
    sockets = open_multicast(
        name="floor",
        group=GROUP,
        port=port,
        interface=interface,
        ttl=0 if interface == "127.0.0.1" else 1,
        buffer_bytes=4 << 20,
        gro=True,
    )
    targets = [list(t) for t in sockets.targets]
    tx = send_io(KIND_UDP, sockets.send.fileno(), targets, packet_bytes, True)
    return sockets, tx, receive_io(KIND_UDP, sockets.receive[1].fileno())


def flood(
    port: int, packet_bytes: int, duration_s: float, interface: str = "127.0.0.1"
) -> dict[str, Any]:
    """Send raw packets as fast as the kernel takes them."""
    sockets, tx, _ = _open(port, packet_bytes, interface)
    for one in sockets.receive:
        one.close()
    packets = MEMORY_BYTES // packet_bytes
    memory = np.ones(packets * packet_bytes, dtype=np.uint8)
    scratch = np.zeros(64, dtype=np.uint8)
    run = max(1, min(64, SEGMENT_BYTES_MAX // packet_bytes))
    floor.flood(tx.words, memory, packet_bytes, packets, run, 0, scratch)
    ready()
    began_s = time.process_time()
    sent = floor.flood(tx.words, memory, packet_bytes, packets, run, int(duration_s * 1e9), scratch)
    return {"packets_sent": int(sent), "cpu_s": time.process_time() - began_s}


def soak(
    port: int, packet_bytes: int, duration_s: float, interface: str = "127.0.0.1"
) -> dict[str, Any]:
    """Receive raw packets."""
    _sockets, _, rx = _open(port, packet_bytes, interface)
    scratch, counts = np.zeros(64, dtype=np.uint8), np.zeros(3, dtype=np.int64)
    floor.soak.compile(
        tuple(__import__("numba").typeof(a) for a in (rx.words, 0, 0, scratch, counts))
    )
    ready()
    floor.soak(rx.words, int(duration_s * 1e9), QUIET_NS, scratch, counts)
    packets, n_bytes, elapsed_ns = (int(c) for c in counts)
    return {"packets": packets, "bytes": n_bytes, "elapsed_s": elapsed_ns / 1e9}


def send_paced(
    port: int, packet_bytes: int, calls: int, packets: int, elapsed_s: float
) -> dict[str, Any]:
    """Send raw packets in as many system calls and as much time as a publisher did: CPU time."""
    sockets, tx, _ = _open(port, packet_bytes)
    for one in sockets.receive:
        one.close()
    memory = np.ones((packets // calls + 2) * packet_bytes, dtype=np.uint8)
    scratch = np.zeros(64, dtype=np.uint8)
    floor.send_paced(tx.words, memory, packet_bytes, 1, 1, 0, scratch)
    ready()
    cpu = time.process_time()
    interval_ns = int(elapsed_s / calls * 1e9)
    sent = floor.send_paced(tx.words, memory, packet_bytes, calls, packets, interval_ns, scratch)
    return {"packets_sent": int(sent), "cpu_s": time.process_time() - cpu}


def soak_many(port: int, packet_bytes: int, sockets: int, duration_s: float) -> dict[str, Any]:
    """Receive raw packets on so many sockets of one group, each in a thread of its own."""
    opened = [_open(port, packet_bytes) for _ in range(sockets)]
    counts = [np.zeros(3, dtype=np.int64) for _ in opened]
    types = tuple(__import__("numba").typeof(a) for a in (opened[0][2].words, 0, 0, *_SCRATCH))
    floor.soak.compile(types)
    threads = [
        threading.Thread(
            target=floor.soak,
            args=(rx.words, int(duration_s * 1e9), QUIET_NS, np.zeros(64, np.uint8), count),
        )
        for (_, _, rx), count in zip(opened, counts, strict=True)
    ]
    ready()
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    return {"packets": [int(each[0]) for each in counts]}


def ping(port: int, message_bytes: int, rounds: int, save: str) -> dict[str, Any]:
    """Raw ping; the samples are saved as an array."""
    _a, tx, _ = _open(port, 1400)
    _b, _, rx = _open(port + 10, 1400)
    packet = np.zeros(1400, dtype=np.uint8)
    packet[10] = message_bytes
    scratch, samples = np.zeros(64, dtype=np.uint8), np.zeros(rounds, dtype=np.int64)
    floor.ping(tx.words, rx.words, packet, message_bytes, 0, samples, scratch)
    ready()
    lost = floor.ping(tx.words, rx.words, packet, message_bytes, rounds, samples, scratch)
    np.save(save, samples)
    return {"lost": int(lost)}


def pong(port: int, message_bytes: int, rounds: int) -> dict[str, Any]:
    """The other side of `ping`."""
    _a, _, rx = _open(port, 1400)
    _b, tx, _ = _open(port + 10, 1400)
    packet = np.zeros(1400, dtype=np.uint8)
    packet[10] = message_bytes
    scratch = np.zeros(64, dtype=np.uint8)
    floor.pong(tx.words, rx.words, packet, message_bytes, 0, scratch)
    ready()
    return {"rounds": int(floor.pong(tx.words, rx.words, packet, message_bytes, rounds, scratch))}


def _together(outcome: int) -> int:
    """The outcome of a loop with another process. Raises Timeout: that one is gone."""
    if outcome == floor.ALONE:
        raise Timeout(f"the other process of this bench did nothing for {SILENCE_NS // 10**9} s")
    return outcome


def memory_write(path: str, message_bytes: int, duration_s: float) -> dict[str, Any]:
    """Write messages into plain shared memory. Raises Timeout."""
    shared = MappedFile.open(Path(path))
    source = np.ones(message_bytes, dtype=np.uint8)
    scratch = np.zeros(64, dtype=np.uint8)
    trial = np.zeros(1 << 20, dtype=np.uint8)
    floor.memory_write(trial, 4096, source, message_bytes, 0, SILENCE_NS, scratch)
    ready()
    n = floor.memory_write(
        shared.array, 32768, source, message_bytes, int(duration_s * 1e9), SILENCE_NS, scratch
    )
    return {"messages": _together(int(n))}


def memory_read(path: str, message_bytes: int) -> dict[str, Any]:
    """Read messages out of plain shared memory. Raises Timeout."""
    shared = MappedFile.open(Path(path))
    scratch, counts = np.zeros(64, dtype=np.uint8), np.zeros(3, dtype=np.int64)
    trial = np.zeros(1 << 20, dtype=np.uint8)
    trial[floor.MEMORY_STOP_AT] = 1
    floor.memory_read(trial, 4096, message_bytes, counts, SILENCE_NS, scratch)
    ready()
    _together(
        int(floor.memory_read(shared.array, 32768, message_bytes, counts, SILENCE_NS, scratch))
    )
    return {"messages": int(counts[0]), "elapsed_s": int(counts[2]) / 1e9}


def memory_ping(path: str, rounds: int, save: str) -> dict[str, Any]:
    """Ping over two words of shared memory. Raises Timeout."""
    shared = MappedFile.open(Path(path))
    scratch, samples = np.zeros(64, dtype=np.uint8), np.zeros(rounds, dtype=np.int64)
    floor.memory_ping(shared.array, 0, samples, SILENCE_NS, scratch)
    ready()
    _together(int(floor.memory_ping(shared.array, rounds, samples, SILENCE_NS, scratch)))
    np.save(save, samples)
    return {"rounds": rounds}


def memory_pong(path: str, rounds: int) -> dict[str, Any]:
    """The other side of `memory_ping`. Raises Timeout."""
    shared, scratch = MappedFile.open(Path(path)), np.zeros(64, dtype=np.uint8)
    floor.memory_pong(shared.array, 0, SILENCE_NS, scratch)
    ready()
    return {"rounds": _together(int(floor.memory_pong(shared.array, rounds, SILENCE_NS, scratch)))}
