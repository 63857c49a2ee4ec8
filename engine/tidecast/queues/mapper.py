"""Queue mapper: key -> queue, on a ring of 65,536 slots.

A key's slot is the upper half of its hash; each slot belongs to one queue. The table for n queues
is a function of n alone, so all nodes have the same table without asking. It is built one queue
after the other: the next queue takes its equal share of slots from all present queues, and no other
slot moves. So the counts of any two queues differ by at most one slot. Growth from n to n+1 moves
S // (n+1) of S slots (no even placement moves fewer), and each of them moves into the new queue.
Points on a ring, as in Orleans, move about half of all keys at each growth; jump hashing (Lamping,
Veach 2014) moves equally few slots, but its counts are uneven over slots.

**Order by key across growth.** Records stay where they are: a key that moves has its older records
in the old queue and its newer ones in the new. A topic's `QueueMap` keeps each `Growth` with its
*cuts*, the end of each older queue at that moment, and a subscription may read a queue that a
growth made only when it has completed all older queues up to their cuts (`QueueMap.blocked_by`).
This holds from any start, after a rewind too, as only positions are compared. The price: a
subscription that lags reads new queues only after it has caught up to the growth. Members that read
several queues keep the order because *completed* records count, not delivered records.

Take the cuts only while no session has records that are appended but not yet acked: when a session
sends such records again, they may go to a new queue, which cannot recognize the duplicates.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from tidecast.errors import ConfigError
from tidecast.native.jit import held_kernel, inlined
from tidecast.native.memory import load_u8, load_u32

SLOT_BITS = 16
SLOTS = 1 << SLOT_BITS
QUEUES_MAX = 4096
"""Queues of a topic, at most: each has 16 slots at least."""
GROWTHS_MAX = 256
_SHIFT = 32 - SLOT_BITS
_STRIDE = 40503  # odd: i * stride walks all slots; near SLOTS / golden ratio, so it scatters

Table = npt.NDArray[np.uint16]
"""uint16[SLOTS]: the queue of each slot. 128 KiB; a lookup is one load."""


@inlined
def key_hash(data, at, n):
    """MurmurHash3 x86_32, seed 0, of ``data[at:at + n]``; the empty key has hash 0.

    Austin Appleby, "MurmurHash3", public domain; one of the hashes that every language has.
    """
    h = 0
    whole = n & -4
    for i in range(at, at + whole, 4):
        k = (load_u32(data, i) * 0xCC9E2D51) & 0xFFFFFFFF
        k = ((k << 15) | (k >> 17)) & 0xFFFFFFFF
        h ^= (k * 0x1B873593) & 0xFFFFFFFF
        h = ((h << 13) | (h >> 19)) & 0xFFFFFFFF
        h = (h * 5 + 0xE6546B64) & 0xFFFFFFFF
    k = 0
    for i in range(n - 1, whole - 1, -1):
        k = (k << 8) | load_u8(data, at + i)
    k = (k * 0xCC9E2D51) & 0xFFFFFFFF
    k = ((k << 15) | (k >> 17)) & 0xFFFFFFFF
    h ^= (k * 0x1B873593) & 0xFFFFFFFF
    h ^= n & 0xFFFFFFFF
    h ^= h >> 16
    h = (h * 0x85EBCA6B) & 0xFFFFFFFF
    h ^= h >> 13
    h = (h * 0xC2B2AE35) & 0xFFFFFFFF
    return h ^ (h >> 16)


@inlined
def queue_of(table, hashed):
    """The queue of a key by its hash (0 to 2^32 - 1): ``table`` is a `Table`."""
    return np.int64(table[hashed >> _SHIFT])


@held_kernel
def hash_bytes(data, at, n):
    """`key_hash` from Python: ``uint8[:]``, offset, length."""
    return key_hash(data, at, n)


@held_kernel
def grow_table(table, queues, target):
    """Turn the table of ``queues`` queues into that of ``target``, in place."""
    held = np.zeros(target, dtype=np.int64)
    give = np.zeros(target, dtype=np.int64)
    for slot in range(SLOTS):
        held[table[slot]] += 1
    for new in range(queues, target):
        share, extra = SLOTS // (new + 1), SLOTS % (new + 1)
        held[new] = share
        for queue in range(new):
            keep = share
            if held[queue] > share and extra > 0:
                extra -= 1
                keep += 1
            give[queue] = held[queue] - keep
            held[queue] = keep
        for i in range(SLOTS):
            slot = ((i + new) * _STRIDE) & (SLOTS - 1)
            queue = table[slot]
            if queue < new and give[queue] > 0:
                give[queue] -= 1
                table[slot] = new


def table_of(queues: int) -> Table:
    """The table of ``queues`` queues. Raises ConfigError outside 1 to QUEUES_MAX."""
    check_count(queues)
    table = np.zeros(SLOTS, dtype=np.uint16)
    if queues > 1:
        grow_table(table, 1, queues)
    return table


def check_count(queues: int) -> None:
    """Raise ConfigError unless a topic may have so many queues."""
    if not 1 <= queues <= QUEUES_MAX:
        raise ConfigError(f"queues: {queues}: give 1 to {QUEUES_MAX}")


def hash_of(key: bytes) -> int:
    """`key_hash` of a key, from Python."""
    data = np.frombuffer(bytearray(key or b"\0"), dtype=np.uint8)  # writable: one signature
    return int(hash_bytes(data, 0, len(key)))


class Growth(msgspec.Struct, frozen=True):
    """One growth of a topic: from ``before`` queues to ``after``, at the ``cuts``.

    ``cuts``: for each of the ``before`` queues, the token that its next record had at that moment.
    """

    before: int
    after: int
    cuts: tuple[int, ...]


class QueueMap(msgspec.Struct, frozen=True):
    """The queues of a topic through time: how many at first, and every growth since.

    Immutable; `grown` gives the next. It is stored with the topic and is the same on all nodes.
    """

    first: int
    growths: tuple[Growth, ...] = ()

    def __post_init__(self) -> None:
        check_count(self.first)
        if len(self.growths) > GROWTHS_MAX:
            raise ConfigError(f"growths: {len(self.growths)}: at most {GROWTHS_MAX}")
        count = self.first
        for growth in self.growths:
            check_count(growth.after)
            if growth.before != count or growth.after <= count or len(growth.cuts) != count:
                raise ConfigError(
                    f"growths: {growth.before} -> {growth.after} with {len(growth.cuts)} cuts: "
                    f"must lead from {count} queues to more, with a cut for each of the {count}"
                )
            count = growth.after

    @property
    def queues(self) -> int:
        """Number of queues now."""
        return self.growths[-1].after if self.growths else self.first

    @property
    def epoch(self) -> int:
        """Number of growths: a map of a higher epoch replaces a map of a lower epoch."""
        return len(self.growths)

    def table(self) -> Table:
        """The table of today's queues."""
        return table_of(self.queues)

    def grown(self, queues: int, cuts: Sequence[int]) -> QueueMap:
        """The map after a growth to ``queues``; ``cuts``: the end of each queue there is now.

        Raises ConfigError when it would shrink: records stay where they are, so a queue that no
        key leads to would still have to be read; make another topic and copy instead.
        """
        if queues <= self.queues:
            raise ConfigError(
                f"queues: {queues}: there are {self.queues}, and queues only grow; to have fewer, "
                "make another topic and copy into it"
            )
        return QueueMap(self.first, (*self.growths, Growth(self.queues, queues, tuple(cuts))))

    def blocked_by(self, queue: int, acked: Sequence[int]) -> list[int]:
        """The older queues that a subscription must complete before it may read ``queue``.

        ``acked``: for each queue, the token below which all is completed (for a queue that it has
        not begun, its start position). Empty: it may read. Queues of the first map never wait.
        """
        for growth in self.growths:
            if growth.before <= queue < growth.after:
                return [q for q, cut in enumerate(growth.cuts) if acked[q] < cut]
        return []
