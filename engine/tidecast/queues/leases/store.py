"""Leases: at most one node appends to a queue, whatever the network, clocks and processes do.

A *lease* of a queue has an owner, an end in time, and an *owner epoch* that grows with every grant.
Two nets hold together:

1. **Time.** An owner stops by its own clock before the lease can end at the store: its term counts
   from when it *sent* the request that was granted, less a margin for clocks that run at different
   speeds. So an owner that looks at `LeaseKeeper.epoch_to_append` before it appends never meets
   another.
2. **Epoch.** A process that sleeps between that look and the append is caught by the log: whoever
   starts on a queue first writes its epoch there, and an append with a lower one is refused.

A queue is handed over in the order flush -> release -> acquire: the agent stops and flushes while
the lease is still renewed, and only then gives it back. (Orleans releases before its agent has
stopped; then two read one queue.)

`LeaseKeeper` is the owner's side as a state machine without I/O: `poll` says what to send and what
the agents must do, `reply` takes what came back. Requests and replies are plain structures, so they
may travel; `LeaseTable` is the store in memory, and another store is an object with its `handle`,
made atomic, and with a clock of its own.

An owner's name stands for one process at a time: a node's does, as its data directory is locked. So
a node that was killed and starts again takes its own leases over at once, with higher epochs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from random import Random
from typing import Protocol

import msgspec

from tidecast.queues.leases.balancer import targets

EPOCH_MAX = (1 << 32) - 1
"""The log keeps an owner epoch in four bytes."""


@dataclass(frozen=True, slots=True)
class Terms:
    """Times of leases. ``request_ns``: when an unanswered request is sent again."""

    lease_ns: int = 60_000_000_000
    renew_ns: int = 20_000_000_000
    acquire_ns: int = 30_000_000_000
    request_ns: int = 5_000_000_000
    margin_percent: int = 10

    @property
    def own_ns(self) -> int:
        """How long an owner trusts a grant, from when it sent the request."""
        return self.lease_ns * (100 - self.margin_percent) // 100


# --- what travels -------------------------------------------------------------------------------
class Acquire(msgspec.Struct, frozen=True, tag=True):
    """Ask for a queue. ``above``: the epoch its log has; the grant's is higher."""

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


class Release(msgspec.Struct, frozen=True, tag=True):
    """Give a lease back. What was released, or lost long ago, may be released again."""

    serial: int
    queue: str
    owner: str
    epoch: int


class ListLeases(msgspec.Struct, frozen=True, tag=True):
    """Ask who holds what."""

    serial: int


class Granted(msgspec.Struct, frozen=True, tag=True):
    """The lease is the asker's, for the time it asked, counted from now at the store."""

    epoch: int


class Refused(msgspec.Struct, frozen=True, tag=True):
    """It is another's, or has ended. ``owner`` "": nobody's."""

    owner: str
    epoch: int


class Released(msgspec.Struct, frozen=True, tag=True):
    """It is nobody's, or at least not the asker's."""


class Listing(msgspec.Struct, frozen=True, tag=True):
    """Leases that have not ended: queue -> owner."""

    owners: dict[str, str]


Request = Acquire | Renew | Release | ListLeases
Reply = Granted | Refused | Released | Listing


class LeaseStore(Protocol):
    """Where leases are kept. Each call is atomic, and durable before it is answered.

    ``now_ns`` is the store's clock, never an owner's; it must not go back.
    """

    def handle(self, request: Request, now_ns: int) -> Reply:
        """Answer one request."""


@dataclass(slots=True)
class Lease:
    """Of one queue. ``owner`` "": nobody's; ``ends_ns`` by the store's clock."""

    owner: str = ""
    epoch: int = 0
    ends_ns: int = 0


@dataclass(slots=True)
class LeaseTable:
    """The store in memory. Epochs start anew with it, which `Acquire.above` makes good."""

    leases: dict[str, Lease] = field(default_factory=dict)

    def put(self, queue: str, owner: str, epoch: int, ends_ns: int) -> None:
        """A lease as it was kept elsewhere."""
        self.leases[queue] = Lease(owner, epoch, ends_ns)

    def items(self) -> Iterable[tuple[str, Lease]]:
        """All leases that there ever were."""
        return self.leases.items()

    def handle(self, request: Request, now_ns: int) -> Reply:
        """Answer one request."""
        if isinstance(request, ListLeases):
            held = {q: e.owner for q, e in self.leases.items() if e.owner and now_ns < e.ends_ns}
            return Listing(held)
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


# --- the owner's side ---------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Start:
    """The queue is ours: write ``epoch`` to its log, then start its agent."""

    queue: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Flush:
    """The queue goes to another: stop its agent, flush, then call `LeaseKeeper.flushed`."""

    queue: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Fence:
    """The queue was lost: stop its agent now.

    What is not durable yet is the next owner's to get again from its producers.
    """

    queue: str
    epoch: int
    reason: str


Order = Start | Flush | Fence


class _At(Enum):
    FREE, ACQUIRING, HELD, FLUSHING, RELEASING = range(5)


@dataclass(slots=True)
class _Queue:
    name: str
    at: _At = _At.FREE
    epoch: int = 0
    above: int = 0
    until_ns: int = 0
    started: int = 0
    renew_ns: int = 0
    asked: Request | None = None
    asked_ns: int = 0


class LeaseKeeper:
    """Acquires, renews and hands over the leases of one node. No I/O, no clock of its own.

    ``now_ns`` is the node's monotonic clock. ``chance`` spreads which free queues it tries first.
    """

    def __init__(
        self, owner: str, queues: Iterable[str], terms: Terms, chance: Random, now_ns: int
    ) -> None:
        self.owner = owner
        self.terms = terms
        self._chance = chance
        self._queues = {name: _Queue(name) for name in queues}
        self._nodes: tuple[str, ...] = (owner,)
        self._closing = False
        self._serial = 0
        self._starts = 0
        self._list_ns = now_ns
        self._listing: ListLeases | None = None
        self._listing_ns = 0
        self._orders: list[Order] = []
        self._plan: frozenset[str] | None = None

    def nodes(self, nodes: Sequence[str], now_ns: int) -> None:
        """The nodes that share the queues now."""
        if tuple(sorted(nodes)) != self._nodes:
            self._nodes = tuple(sorted(nodes))
            self._list_ns = now_ns

    @property
    def queues(self) -> list[str]:
        """All that there are."""
        return list(self._queues)

    def plan(self, queues: Iterable[str] | None, now_ns: int) -> None:
        """Hold these queues and no others (see `balancer.BALANCERS`); None: an equal share."""
        wanted = None if queues is None else frozenset(queues)
        if wanted != self._plan:
            self._plan, self._list_ns = wanted, now_ns

    def remove(self, queue: str) -> None:
        """A queue less: its topic was deleted. Its lease, if held, ends by itself."""
        self._queues.pop(queue, None)

    def add(self, queue: str, now_ns: int) -> None:
        """A queue more: its topic has grown."""
        self._queues.setdefault(queue, _Queue(queue))
        self._list_ns = now_ns

    def log_epoch(self, queue: str, epoch: int) -> None:
        """The epoch found in the queue's log: the next grant is above it."""
        entry = self._queues[queue]
        entry.above = max(entry.above, epoch)

    def epoch_to_append(self, queue: str, now_ns: int) -> int:
        """The epoch to append with, or 0: not ours, or no longer surely so."""
        entry = self._queues[queue]
        owned = entry.at in (_At.HELD, _At.FLUSHING) and now_ns < entry.until_ns
        return entry.epoch if owned else 0

    @property
    def held(self) -> list[str]:
        """Queues whose agent runs here."""
        return [e.name for e in self._queues.values() if e.at in (_At.HELD, _At.FLUSHING)]

    @property
    def target(self) -> int:
        """How many it should hold."""
        if self._closing:
            return 0
        if self._plan is not None:
            return len(self._plan)
        return targets(len(self._queues), self._nodes).get(self.owner, 0)

    def _may_hold(self, queue: str) -> bool:
        return not self._closing and (self._plan is None or queue in self._plan)

    def shutdown(self) -> None:
        """Hand everything over; done when `idle`."""
        self._closing = True

    @property
    def idle(self) -> bool:
        """Does it hold or want nothing?"""
        return all(entry.at is _At.FREE for entry in self._queues.values())

    def flushed(self, queue: str) -> None:
        """The agent has stopped, and what it had is durable: the lease may go."""
        entry = self._queues[queue]
        if entry.at is _At.FLUSHING:
            entry.at, entry.asked = _At.RELEASING, None

    def fenced(self, queue: str, epoch: int) -> None:
        """The log refused an append: it has met ``epoch``, higher than ours."""
        self.log_epoch(queue, epoch)
        self._lose(self._queues[queue], "the log has a newer owner")

    def poll(self, now_ns: int) -> tuple[list[Request], list[Order]]:
        """What to send and what to do, now. Call it every second, and after every `reply`."""
        send: list[Request] = []
        for entry in self._queues.values():
            if entry.at is not _At.FREE and now_ns >= entry.until_ns:
                self._lose(entry, "the lease ran out")
        self._give(self.target)
        self._want(now_ns, send)
        for entry in self._queues.values():
            request = self._due(entry, now_ns)
            if request is not None:
                entry.asked, entry.asked_ns = request, now_ns
                send.append(request)
        orders, self._orders = self._orders, []
        return send, orders

    def unanswered(self, request: Request, now_ns: int) -> None:
        """The store is away, so nobody else is granted anything there: keep what is held.

        Only for an owner that its log fences by epoch, whatever the time is: the store may be away
        for this node alone.
        """
        if isinstance(request, Renew) and request.queue in self._queues:
            entry = self._queues[request.queue]
            if entry.at in (_At.HELD, _At.FLUSHING):
                entry.until_ns = max(entry.until_ns, now_ns + self.terms.own_ns)

    def reply(self, request: Request, reply: Reply, now_ns: int) -> None:
        """Take the answer to ``request``. Late and repeated ones do nothing."""
        if not isinstance(request, ListLeases) and request.queue not in self._queues:
            return
        if isinstance(request, ListLeases):
            if request == self._listing and isinstance(reply, Listing):
                self._listing, self._list_ns = None, now_ns + self.terms.acquire_ns
                self._choose(reply, now_ns)
            return
        entry = self._queues[request.queue]
        if entry.asked != request:
            return
        sent_ns, entry.asked = entry.asked_ns, None
        if isinstance(request, Release):
            entry.at = _At.FREE
        elif isinstance(reply, Granted):
            self._granted(entry, request, reply.epoch, sent_ns)
        elif isinstance(request, Acquire):
            entry.at = _At.FREE
        else:
            self._lose(entry, "the store has another owner")

    def _granted(self, entry: _Queue, request: Request, epoch: int, sent_ns: int) -> None:
        entry.until_ns = sent_ns + self.terms.own_ns
        entry.renew_ns = sent_ns + self.terms.renew_ns
        if isinstance(request, Acquire):
            self._starts += 1
            entry.at, entry.epoch, entry.started = _At.HELD, epoch, self._starts
            entry.above = max(entry.above, epoch)
            self._orders.append(Start(entry.name, epoch))

    def _lose(self, entry: _Queue, reason: str) -> None:
        if entry.at in (_At.HELD, _At.FLUSHING):
            self._orders.append(Fence(entry.name, entry.epoch, reason))
        entry.at, entry.asked = _At.FREE, None

    def _give(self, target: int) -> None:
        """Begin to hand over what is above the target, oldest first."""
        held = [e for e in self._queues.values() if e.at is _At.HELD]
        held.sort(key=lambda e: (self._may_hold(e.name), e.started))
        surplus = max(len(held) - target, sum(not self._may_hold(e.name) for e in held))
        for entry in held[: max(0, surplus)]:
            entry.at = _At.FLUSHING
            self._orders.append(Flush(entry.name, entry.epoch))

    def _want(self, now_ns: int, send: list[Request]) -> None:
        """Ask who holds what, when it is time or the last question was lost."""
        lost = self._listing is not None and now_ns >= self._listing_ns + self.terms.request_ns
        due = self._listing is None and now_ns >= self._list_ns
        if not self._closing and (lost or due):
            self._listing, self._listing_ns = ListLeases(self._next()), now_ns
            send.append(self._listing)

    def _choose(self, listing: Listing, now_ns: int) -> None:
        """Try for free queues up to the target, in an order of chance."""
        busy = sum(e.at in (_At.HELD, _At.ACQUIRING) for e in self._queues.values())
        free = [
            e
            for e in self._queues.values()
            if e.at is _At.FREE
            and self._may_hold(e.name)
            and listing.owners.get(e.name, self.owner) == self.owner
        ]
        self._chance.shuffle(free)
        for entry in free[: max(0, self.target - busy)]:
            entry.at, entry.until_ns = _At.ACQUIRING, now_ns + self.terms.lease_ns

    def _due(self, entry: _Queue, now_ns: int) -> Request | None:
        waiting = entry.asked is not None and now_ns < entry.asked_ns + self.terms.request_ns
        if waiting:
            return None
        head = (self._next(), entry.name, self.owner)
        match entry.at:
            case _At.ACQUIRING:
                return Acquire(*head, self.terms.lease_ns, entry.above)
            case _At.HELD | _At.FLUSHING if now_ns >= entry.renew_ns:
                return Renew(*head, self.terms.lease_ns, entry.epoch)
            case _At.RELEASING:
                return Release(*head, entry.epoch)
        return None

    def _next(self) -> int:
        self._serial += 1
        return self._serial
