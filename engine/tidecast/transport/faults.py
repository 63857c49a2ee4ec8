"""Fault injection under the real receive path: seeded, per transport, switchable at run time.

Each packet that arrives may be dropped, doubled, delayed, reordered or spoiled before the protocol
sees it; whole nodes may be cut off. A spoiled packet has a wrong checksum: the network card or the
kernel would drop it, so it is counted separately and dropped here.
"""

from __future__ import annotations

import numpy as np

from tidecast.layout import packet as wire
from tidecast.layout.counters import Counter
from tidecast.native.handles import Kind, State
from tidecast.native.jit import inlined
from tidecast.native.memory import copy, load_i64, load_u8, load_u16
from tidecast.protocol.random import random_below

F_ON, F_DROP, F_DUPLICATE, F_REORDER, F_CORRUPT = 0, 1, 2, 3, 4
F_DELAY_NS, F_HELD, F_SERIAL = 5, 6, 7
FAULT_FIELDS = 16
HELD_MAX, HELD_BYTES_MAX = 2048, 65_064
HELD_FIELDS = 6
REORDER_PACKETS_MAX = 3
REORDER_NS = 20_000
_MILLION = 1_000_000

DELIVER, DELIVER_TWICE, SWALLOWED = 1, 2, 0

FAULTS = Kind(
    "Faults",
    [
        ("settings", np.int64, ()),  # F_*: rates in parts per million, delay, packets held
        ("seed", np.int64, ()),  # generator state
        ("cut", np.int64, ()),  # a bit a node that is cut off
        ("held_bytes", np.uint8, (HELD_BYTES_MAX,)),  # packets held back
        ("held", np.int64, (HELD_FIELDS,)),
        # for each: due_ns, packets still to pass, length, order of arrival, source address (2)
    ],
)

_DROPPED, _BYTES = int(Counter.FAULTS_DROPPED), int(Counter.FAULTS_DROPPED_BYTES)
_DUPLICATED, _DELAYED = int(Counter.FAULTS_DUPLICATED), int(Counter.FAULTS_DELAYED)
_CORRUPTED, _CHECKSUM = int(Counter.FAULTS_CORRUPTED), int(Counter.INVALID_CHECKSUM)


def no_faults() -> State:
    """State with nothing injected. Held packets take memory only once there are some."""
    return FAULTS.make(
        settings=np.zeros(FAULT_FIELDS, dtype=np.int64),
        seed=np.full(1, 88172645463325252, dtype=np.int64),
        cut=np.zeros(1024, dtype=np.int64),
        held_bytes=np.zeros((HELD_MAX, HELD_BYTES_MAX), dtype=np.uint8),
        held=np.zeros((HELD_MAX, HELD_FIELDS), dtype=np.int64),
    )


def apply_faults(
    faults: State,
    *,
    drop: float,
    duplicate: float,
    reorder: float,
    corrupt: float,
    delay_ns: int,
    cut_nodes: list[int],
    seed: int,
) -> None:
    """Change the injected faults; the receiving agent must be between two duty cycles."""
    s = faults.settings
    s[F_DROP], s[F_DUPLICATE] = round(drop * _MILLION), round(duplicate * _MILLION)
    s[F_REORDER], s[F_CORRUPT] = round(reorder * _MILLION), round(corrupt * _MILLION)
    s[F_DELAY_NS] = delay_ns
    cut = faults.cut.view(np.uint64)
    cut[:] = 0
    for node in cut_nodes:
        cut[node >> 6] |= np.uint64(1 << (node & 63))
    faults.seed[0] = (seed * 0x9E3779B97F4A7C15 + 88172645463325252) & ((1 << 62) - 1)
    s[F_ON] = int(bool(drop or duplicate or reorder or corrupt or delay_ns or cut_nodes))


@inlined
def fault_verdict(faults, counters, row, buffer, at, n, name, now_ns):
    """DELIVER, DELIVER_TWICE or SWALLOWED (dropped, or held for later). Counts injected faults."""
    s, seed = faults.settings, faults.seed
    source = load_u16(buffer, at + wire.SOURCE_AT) if n >= wire.PACKET_HEADER_BYTES else 0
    data_bytes = 0
    kind = load_u8(buffer, at + wire.TYPE_AT) if n >= wire.PACKET_HEADER_BYTES else 0
    if kind == wire.DATA or kind == wire.COMPACT:
        data_bytes = load_u16(buffer, at + wire.LENGTH_AT)
    cut = (faults.cut[source >> 6] >> (source & 63)) & 1 != 0
    if cut or random_below(seed, _MILLION) < s[F_DROP]:
        counters[row, _DROPPED] += 1
        counters[row, _BYTES] += data_bytes
        return SWALLOWED
    if s[F_CORRUPT] > 0 and random_below(seed, _MILLION) < s[F_CORRUPT]:
        counters[row, _CORRUPTED] += 1
        counters[row, _CHECKSUM] += 1
        counters[row, _BYTES] += data_bytes
        return SWALLOWED
    reorder = s[F_REORDER] > 0 and random_below(seed, _MILLION) < s[F_REORDER]
    if (reorder or s[F_DELAY_NS] > 0) and s[F_HELD] < HELD_MAX and n <= faults.held_bytes.shape[1]:
        i = s[F_HELD]
        copy(faults.held_bytes[i], 0, buffer, at, n)
        faults.held[i, 0] = now_ns + s[F_DELAY_NS] + (REORDER_NS if reorder else 0)
        faults.held[i, 1] = 1 << 40
        if reorder and s[F_DELAY_NS] == 0:
            faults.held[i, 1] = 1 + random_below(seed, REORDER_PACKETS_MAX)
        faults.held[i, 2] = n
        faults.held[i, 3] = s[F_SERIAL]
        faults.held[i, 4], faults.held[i, 5] = load_i64(name, 0), load_i64(name, 8)
        s[F_SERIAL] += 1
        s[F_HELD] = i + 1
        counters[row, _DELAYED] += 1
        return SWALLOWED
    if s[F_DUPLICATE] > 0 and random_below(seed, _MILLION) < s[F_DUPLICATE]:
        counters[row, _DUPLICATED] += 1
        return DELIVER_TWICE
    return DELIVER


@inlined
def packet_passed(faults):
    """A packet has passed: packets held for reordering wait for one packet less."""
    for i in range(faults.settings[F_HELD]):
        faults.held[i, 1] -= 1


@inlined
def due_held(faults, now_ns):
    """Index of the held packet that is due and came first, or -1."""
    found = -1
    for i in range(faults.settings[F_HELD]):
        due = faults.held[i, 0] <= now_ns or faults.held[i, 1] <= 0
        if due and (found < 0 or faults.held[i, 3] < faults.held[found, 3]):
            found = i
    return found


@inlined
def forget_held(faults, index):
    """Remove a held packet; the last one takes its place."""
    last = faults.settings[F_HELD] - 1
    if index != last:
        copy(faults.held_bytes[index], 0, faults.held_bytes[last], 0, faults.held[last, 2])
        for k in range(6):
            faults.held[index, k] = faults.held[last, k]
    faults.settings[F_HELD] = last
