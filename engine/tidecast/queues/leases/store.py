"""Leases: at most one node appends to a queue, whatever the network, clocks and processes do.

A *lease* of a queue has an owner, an end in time, and an *owner epoch* that grows with every grant.
Two mechanisms ensure it together:

1. **Time.** An owner stops by its own clock before the lease can end at the store: its term counts
   from when it *sent* the request that was granted, less a margin for clocks that run at different
   speeds. So an owner that checks `LeaseKeeper.epoch_to_append` before it appends never appends
   beside another owner.
2. **Epoch.** A process may sleep between that check and the append. Then the log refuses: each new
   owner of a queue first writes its epoch there, and the log refuses appends with a lower epoch.

A queue is handed over in the order flush -> release -> acquire: the agent stops and flushes while
the lease is still renewed, and only then gives it back. (Orleans releases before its agent has
stopped; then two read one queue.)

`keeper.LeaseKeeper` is the owner's side. Requests and replies are plain structures, so they may
travel; `LeaseTable` is the store in memory, and another store is an object with its `handle`, made
atomic, and with a clock of its own.

An owner's name stands for one process at a time: a node's does, as its data directory is locked. So
a node that was killed and starts again takes its own leases over at once, with higher epochs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

EPOCH_MAX = (1 << 32) - 1
"""The log keeps an owner epoch in four bytes."""
BATCH_MAX = 1000
"""Requests in one `Batch`."""
REASON_MAX = 200
"""Characters of the reason of a `Release`."""


# --- requests and replies -------------------------------------------------------------------------
class Acquire(msgspec.Struct, frozen=True, tag=True):
    """Ask for a queue. ``above``: the epoch in its log; the granted epoch is higher."""

    serial: int
    queue: str
    owner: str
    lease_ns: int
    above: int = 0


class Renew(msgspec.Struct, frozen=True, tag=True):
    """Ask for another term of a lease held."""

    serial: int
    queue: str
    owner: str
    lease_ns: int
    epoch: int


class Release(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Give a lease back. A lease that was released or lost before may be released again.

    ``reason``: why, for people; at most `REASON_MAX` characters. Stores may ignore it.
    """

    serial: int
    queue: str
    owner: str
    epoch: int
    reason: str = ""


class ListLeases(msgspec.Struct, frozen=True, tag=True):
    """Ask for the owners of all leases."""

    serial: int


Single = Acquire | Renew | Release


class Batch(msgspec.Struct, frozen=True, tag=True):
    """Requests of one owner in one step of the store, each answered as if it came alone.

    ``requests``: at most `BATCH_MAX`. When a batch gets no reply, none of its requests has a reply.
    """

    serial: int
    requests: list[Single]


class Granted(msgspec.Struct, frozen=True, tag=True):
    """The caller has the lease, for the time it asked, counted from now at the store."""

    epoch: int


class Refused(msgspec.Struct, frozen=True, tag=True):
    """Another node has the lease, or it has ended. ``owner`` "": no node has it."""

    owner: str
    epoch: int


class Released(msgspec.Struct, frozen=True, tag=True):
    """The caller does not have the lease now."""


class Listing(msgspec.Struct, frozen=True, tag=True):
    """Leases that have not ended: queue -> owner."""

    owners: dict[str, str]


Answer = Granted | Refused | Released


class Answers(msgspec.Struct, frozen=True, tag=True):
    """To a `Batch`, in the order of its requests."""

    replies: list[Answer]


Request = Acquire | Renew | Release | ListLeases | Batch
Reply = Granted | Refused | Released | Listing | Answers


class LeaseStore(Protocol):
    """Where leases are kept. Each call is atomic, and durable before it is answered.

    ``now_ns`` is the store's clock, never an owner's; it must not go back.
    """

    @property
    def batch_max(self) -> int:
        """Requests that a `Batch` may have; 1: the store takes no batch."""

    def handle(self, request: Request, now_ns: int) -> Reply:
        """Answer one request."""


@dataclass(slots=True)
class Lease:
    """The lease of one queue. ``owner`` "": it is free; ``ends_ns`` by the store's clock."""

    owner: str = ""
    epoch: int = 0
    ends_ns: int = 0


@dataclass(slots=True)
class LeaseTable:
    """The store in memory. A new store begins with epoch 1; `Acquire.above` corrects that."""

    leases: dict[str, Lease] = field(default_factory=dict)
    batch_max: int = BATCH_MAX

    def put(self, queue: str, owner: str, epoch: int, ends_ns: int) -> None:
        """Restore a lease from its saved form."""
        self.leases[queue] = Lease(owner, epoch, ends_ns)

    def items(self) -> Iterable[tuple[str, Lease]]:
        """All leases, also ended ones: queue and lease."""
        return self.leases.items()

    def handle(self, request: Request, now_ns: int) -> Reply:
        """Answer one request."""
        if isinstance(request, ListLeases):
            held = {q: e.owner for q, e in self.leases.items() if e.owner and now_ns < e.ends_ns}
            return Listing(held)
        if isinstance(request, Batch):
            return Answers([self._answer(each, now_ns) for each in request.requests])
        return self._answer(request, now_ns)

    def _answer(self, request: Single, now_ns: int) -> Answer:
        lease = self.leases.setdefault(request.queue, Lease())
        free = not lease.owner or now_ns >= lease.ends_ns
        mine = lease.owner == request.owner
        match request:
            case Acquire():
                if not (free or mine) or max(lease.epoch, request.above) >= EPOCH_MAX:
                    return Refused(lease.owner, lease.epoch)
                lease.owner = request.owner
                lease.epoch = max(lease.epoch, request.above) + 1
            case Renew():
                if free or not mine or lease.epoch != request.epoch:
                    return Refused("" if free else lease.owner, lease.epoch)
            case Release():
                if mine and lease.epoch == request.epoch:
                    lease.owner = ""
                return Released()
        lease.ends_ns = now_ns + request.lease_ns
        return Granted(lease.epoch)
