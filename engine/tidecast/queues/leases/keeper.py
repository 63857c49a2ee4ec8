"""The owner's side of leases: acquires, renews and hands over, as a state machine without I/O.

`LeaseKeeper.poll` returns requests for the store and orders for the agents, `reply` takes the
store's replies. The table `TRANSITIONS` has the states of a queue and the events that change them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from random import Random

from tidecast.protocol.state_table import StateTable
from tidecast.queues.leases.balancer import targets
from tidecast.queues.leases.store import (
    Acquire,
    Batch,
    Granted,
    Listing,
    ListLeases,
    Release,
    Renew,
    Reply,
    Request,
    Single,
)


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
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Fence:
    """The queue was lost: stop its agent now.

    Producers send records that are not durable to the next owner again.
    """

    queue: str
    epoch: int
    reason: str


Order = Start | Flush | Fence


class State(Enum):
    """State of a queue, at one node."""

    FREE, ACQUIRING, HELD, FLUSHING, RELEASING = range(5)


class Event(Enum):
    """An event that changes a queue's state; the docs show the text."""

    CHOSEN = "it is free, and the node should hold more queues"
    GRANTED = "the store grants the lease, or renews it"
    REFUSED = "the store has another owner"
    SURPLUS = "the node holds more than its share"
    FLUSHED = "the agent has stopped, and its records are durable"
    RELEASED = "the store has taken the lease back"
    LOST = "the lease ran out, or the log or the store has a newer owner"


_OWNED = (State.HELD, State.FLUSHING)
GIVE_MAX = 32
"""Queues that are handed over at the same time: those behind them are served meanwhile."""
STOPS = "the engine stops"
HUNGRY = 4
"""A node that holds less than its share asks so many times as often for free queues."""


@dataclass(slots=True)
class _Queue:
    name: str
    at: State = State.FREE
    epoch: int = 0
    above: int = 0
    until_ns: int = 0
    started: int = 0
    renew_ns: int = 0
    asked: Single | None = None
    asked_ns: int = 0
    reason: str = ""


class LeaseKeeper:
    """Acquires, renews and hands over the leases of one node. No I/O, no clock of its own.

    ``now_ns`` is the node's monotonic clock. ``chance`` shuffles the free queues that it tries.
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
        self._movable: frozenset[str] | None = None

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

    def drain(self, movable: Collection[str] | None, now_ns: int) -> None:
        """Take no queue, and hand over ``movable``, the queues that another node takes.

        None: hold a share again.
        """
        wanted = None if movable is None else frozenset(movable)
        if (wanted is None) != (self._movable is None):
            self._list_ns = now_ns
        self._movable = wanted

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
        owned = entry.at in _OWNED and now_ns < entry.until_ns
        return entry.epoch if owned else 0

    @property
    def held(self) -> list[str]:
        """Queues whose agent runs here."""
        return [e.name for e in self._queues.values() if e.at in _OWNED]

    @property
    def target(self) -> int:
        """How many it should hold."""
        if self._closing:
            return 0
        if self._movable is not None:
            return sum(e.at is State.HELD and e.name not in self._movable for e in self._all)
        if self._plan is not None:
            return len(self._plan)
        return targets(len(self._queues), self._nodes).get(self.owner, 0)

    @property
    def _all(self) -> Collection[_Queue]:
        return self._queues.values()

    def _may_hold(self, queue: str) -> bool:
        if self._movable is not None:
            return not self._closing and queue not in self._movable
        return not self._closing and (self._plan is None or queue in self._plan)

    def shutdown(self) -> None:
        """Hand everything over; done when `idle`."""
        self._closing = True

    @property
    def idle(self) -> bool:
        """Whether it neither holds a queue nor asks for one."""
        return all(entry.at is State.FREE for entry in self._queues.values())

    def flushed(self, queue: str) -> None:
        """The agent has stopped, and its records are durable: the lease may be released."""
        self._on(self._queues[queue], Event.FLUSHED)

    def fenced(self, queue: str, epoch: int) -> None:
        """The log refused an append: it has met ``epoch``, higher than ours."""
        self.log_epoch(queue, epoch)
        self._on(self._queues[queue], Event.LOST, reason="the log has a newer owner")

    def poll(self, now_ns: int) -> tuple[list[Request], list[Order]]:
        """The requests and actions that are due. Call it every second, and after every `reply`."""
        send: list[Request] = []
        for entry in self._queues.values():
            if entry.at is not State.FREE and now_ns >= entry.until_ns:
                self._on(entry, Event.LOST, reason="the lease ran out")
        self._give(self.target)
        self._want(now_ns, send)
        renewing = any(
            entry.at in _OWNED and now_ns >= entry.renew_ns and not self._waits(entry, now_ns)
            for entry in self._queues.values()
        )
        for entry in self._queues.values():
            request = self._due(entry, now_ns, renewing=renewing)
            if request is not None:
                entry.asked, entry.asked_ns = request, now_ns
                send.append(request)
        orders, self._orders = self._orders, []
        return send, orders

    def overdue(self, now_ns: int) -> list[Renew]:
        """Requests to renew leases that ran out while it owns the queue: send them before `poll`.

        Only for an owner that its log fences by epoch, as `unanswered`. It may have slept, or
        waited for another reply. `poll` would give the queues up, and no node could take them
        while the store is away. The store refuses when another node has the lease.
        """
        found = []
        for entry in self._queues.values():
            if entry.at is State.HELD and now_ns >= entry.until_ns:
                head = (self._next(), entry.name, self.owner)
                found.append(Renew(*head, self.terms.lease_ns, entry.epoch))
                entry.asked, entry.asked_ns = found[-1], now_ns
        return found

    def unanswered(self, request: Request, now_ns: int) -> None:
        """The store is away, so it grants no lease to another node: keep the queues.

        Only for an owner that its log fences by epoch, whatever the time is: the store may be away
        for this node alone.
        """
        if isinstance(request, Renew) and request.queue in self._queues:
            entry = self._queues[request.queue]
            if entry.at in _OWNED:
                entry.until_ns = max(entry.until_ns, now_ns + self.terms.own_ns)

    def reply(self, request: Request, reply: Reply, now_ns: int) -> None:
        """Take the reply to ``request``. Late and repeated replies do nothing."""
        if isinstance(request, Batch):
            raise TypeError("the answers of a batch are taken one by one")
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
            self._on(entry, Event.RELEASED)
        elif isinstance(reply, Granted):
            entry.until_ns = sent_ns + self.terms.own_ns
            entry.renew_ns = sent_ns + self.terms.renew_ns
            self._on(entry, Event.GRANTED, epoch=reply.epoch)
        elif isinstance(request, Acquire):
            self._on(entry, Event.REFUSED)
        else:
            self._on(entry, Event.LOST, reason="the store has another owner")

    # --- transitions ------------------------------------------------------------------------------

    def _on(self, entry: _Queue, event: Event, *, epoch: int = 0, reason: str = "") -> None:
        """Run the action that `TRANSITIONS` lists; the table counts an event that it lacks."""
        after = TRANSITIONS.after(entry.at, event)
        if after is not None:
            entry.at, action = after
            action(self, entry, epoch, reason)

    def ask(self, entry: _Queue, _epoch: int, _reason: str) -> None:
        """Forget the request under way: its reply is ignored, and `poll` may ask again."""
        entry.asked = None

    def start(self, entry: _Queue, epoch: int, _reason: str) -> None:
        """Order the agent's start."""
        self._starts += 1
        entry.epoch, entry.started = epoch, self._starts
        entry.above = max(entry.above, epoch)
        self._orders.append(Start(entry.name, epoch))

    def keep(self, entry: _Queue, _epoch: int, _reason: str) -> None:
        """The agent continues."""

    def flush(self, entry: _Queue, _epoch: int, reason: str) -> None:
        """Order the agent's end."""
        entry.reason = reason
        self._orders.append(Flush(entry.name, entry.epoch, reason))

    def fence(self, entry: _Queue, _epoch: int, reason: str) -> None:
        """Order the agent's end at once."""
        self._orders.append(Fence(entry.name, entry.epoch, reason))
        entry.asked = None

    # --- polling ----------------------------------------------------------------------------------

    def _give(self, target: int) -> None:
        """Begin to hand over the queues above the target, oldest first."""
        held = [e for e in self._queues.values() if e.at is State.HELD]
        held.sort(key=lambda e: (self._may_hold(e.name), e.started))
        surplus = max(len(held) - target, sum(not self._may_hold(e.name) for e in held), 0)
        if self._closing:
            reason = STOPS
        else:
            reason = "the node is drained" if self._movable is not None else "others hold less"
            moving = sum(e.at in (State.FLUSHING, State.RELEASING) for e in self._all)
            surplus = min(surplus, max(GIVE_MAX - moving, 0))
        for entry in held[:surplus]:
            self._on(entry, Event.SURPLUS, reason=reason)

    def _want(self, now_ns: int, send: list[Request]) -> None:
        """Ask for the owners of all leases, when it is time or the last request was lost."""
        lost = self._listing is not None and now_ns >= self._listing_ns + self.terms.request_ns
        due = self._listing is None and now_ns >= self._list_ns
        if not self._closing and (lost or due):
            self._listing, self._listing_ns = ListLeases(self._next()), now_ns
            send.append(self._listing)

    def _choose(self, listing: Listing, now_ns: int) -> None:
        """Ask for free queues up to the target, in random order."""
        if self._movable is not None:
            return
        busy = sum(e.at in (State.HELD, State.ACQUIRING) for e in self._queues.values())
        free = [
            e
            for e in self._queues.values()
            if e.at is State.FREE
            and self._may_hold(e.name)
            and listing.owners.get(e.name, self.owner) == self.owner
        ]
        if busy < self.target and len(free) < self.target - busy:
            self._list_ns = now_ns + self.terms.acquire_ns // HUNGRY  # others hand queues over
        self._chance.shuffle(free)
        for entry in free[: max(0, self.target - busy)]:
            entry.until_ns = now_ns + self.terms.lease_ns
            self._on(entry, Event.CHOSEN)

    def _waits(self, entry: _Queue, now_ns: int) -> bool:
        return entry.asked is not None and now_ns < entry.asked_ns + self.terms.request_ns

    def _due(self, entry: _Queue, now_ns: int, *, renewing: bool) -> Single | None:
        """``renewing``: some lease is due, so all are renewed, and stay due at the same time."""
        if self._waits(entry, now_ns):
            return None
        head = (self._next(), entry.name, self.owner)
        match entry.at:
            case State.ACQUIRING:
                return Acquire(*head, self.terms.lease_ns, entry.above)
            case State.HELD | State.FLUSHING if renewing:
                return Renew(*head, self.terms.lease_ns, entry.epoch)
            case State.RELEASING:
                return Release(*head, entry.epoch, entry.reason)
        return None

    def _next(self) -> int:
        self._serial += 1
        return self._serial


Action = Callable[[LeaseKeeper, _Queue, int, str], None]
"""Gets the keeper, the queue, the epoch of a grant, and the reason of a loss."""
TRANSITIONS: StateTable[State, Event, Action] = StateTable(
    {
        (State.FREE, Event.CHOSEN): (State.ACQUIRING, LeaseKeeper.ask),
        (State.ACQUIRING, Event.GRANTED): (State.HELD, LeaseKeeper.start),
        (State.ACQUIRING, Event.REFUSED): (State.FREE, LeaseKeeper.ask),
        (State.ACQUIRING, Event.LOST): (State.FREE, LeaseKeeper.ask),
        (State.HELD, Event.GRANTED): (State.HELD, LeaseKeeper.keep),
        (State.HELD, Event.SURPLUS): (State.FLUSHING, LeaseKeeper.flush),
        (State.HELD, Event.LOST): (State.FREE, LeaseKeeper.fence),
        (State.FLUSHING, Event.GRANTED): (State.FLUSHING, LeaseKeeper.keep),
        (State.FLUSHING, Event.FLUSHED): (State.RELEASING, LeaseKeeper.ask),
        (State.FLUSHING, Event.LOST): (State.FREE, LeaseKeeper.fence),
        (State.RELEASING, Event.RELEASED): (State.FREE, LeaseKeeper.ask),
        (State.RELEASING, Event.LOST): (State.FREE, LeaseKeeper.ask),
    }
)
"""The diagram in docs/DURABLE.md is made from it."""
