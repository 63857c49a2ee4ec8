"""The leases of a node: it takes, renews and hands over topics with owner "*".

All queues of a topic go together, as one lease: a publisher's ring has messages for all of them in
one order, and is acked as one. The store may be slow or away: a separate thread asks it, and the
conductor acts on its answers.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import NamedTuple, Protocol

from tidecast import events
from tidecast.agents.guard import Guard
from tidecast.config.leases import SHARED
from tidecast.config.sources.storage import LOCAL, storage_name
from tidecast.config.topology import TopicConfig
from tidecast.errors import ConfigError, Fenced, TidecastError
from tidecast.layout import recorder as rec
from tidecast.layout.counters import QueueCounter as C
from tidecast.log.takeover import Owners
from tidecast.node.durable import maintenance as upkeep
from tidecast.node.durable.sources import SourceRegistry
from tidecast.queues.leases.balancer import BALANCERS
from tidecast.queues.leases.file import LeaseFile
from tidecast.queues.leases.keeper import STOPS, Fence, Flush, LeaseKeeper, Order, Start, Terms
from tidecast.queues.leases.scope import ScopedLeases
from tidecast.queues.leases.store import (
    Acquire,
    Answers,
    Batch,
    Granted,
    LeaseStore,
    Listing,
    ListLeases,
    Refused,
    Release,
    Renew,
    Reply,
    Request,
    Single,
)

PRESENCE = "@"
ROUNDS_MAX = 4
"""Rounds of requests in one step, at most: replies may lead to more requests."""
MOVES_MAX = 256
"""Number of the newest moves that are kept for display."""


class Move(NamedTuple):
    """Why a topic came to this node, or left it. ``kind``: taken, released, lost."""

    at_ns: int
    kind: str
    topic: str
    epoch: int
    reason: str


class Stay(NamedTuple):
    """A thing that a drain leaves on this node. ``kind``: topic, publication, consumer."""

    kind: str
    name: str
    reason: str


class LeasedTopics(Protocol):
    """The part of a node that opens and releases leased topics."""

    def open_topic(self, config: TopicConfig, owner: int = 0) -> None:
        """Open the logs. Raises Fenced, CorruptLog, StorageError, SharedMemoryError."""

    def release_topic(self, name: str, *, flush: bool) -> None:
        """Another engine keeps the topic from now on."""

    def take_rings(self, name: str) -> None:
        """This node owns the topic now: read the rings of its publishers."""

    def take_over(
        self, config: TopicConfig, owner: int, done: Callable[[TidecastError | None], None]
    ) -> None:
        """Rebuild the topic's log from its storage; then call ``done``. Raises ConfigError."""

    def cancel_takeover(self, name: str) -> None:
        """Give up taking the topic over."""


class Leases:
    """See module. ``store``: of the control service, if there is one. Raises ConfigError."""

    def __init__(
        self, registry: SourceRegistry, topics: LeasedTopics, store: LeaseStore | None
    ) -> None:
        self._registry, self._topics, self.ctx = registry, topics, registry.ctx
        self._settings = self.ctx.topology.node.leases
        configured = self._settings.directory
        self.directory = Path(configured) if configured else self.ctx.data_dir
        self._store = self._chosen(store, self.directory / "queues")
        lease_ns = int(self._settings.lease_s * 1e9)
        self.terms = Terms(lease_ns, lease_ns // 3, lease_ns // 4, max(lease_ns // 10, 1))
        self._keeper: LeaseKeeper | None = None
        self._lock = threading.RLock()
        self._shown_ns = self._pointed_ns = self._asked_ns = -lease_ns
        self._serial = 0
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._due_ns = 0
        self._released: list[Release] = []
        self._swept: dict[str, tuple[int, int]] = {}
        self._before: dict[str, str] = {}
        """The last owner of each topic, by the listings."""
        self._movable: frozenset[str] | None = None
        self.moves: deque[Move] = deque(maxlen=MOVES_MAX)

    def _chosen(self, service: LeaseStore | None, queues: Path) -> LeaseStore:
        asked = self._settings.store
        if asked == "service" and service is None:
            raise ConfigError(
                "node.leases.store: service: this engine has no control service: start it with "
                "--control URL (tidecast up has one), or leave store out"
            )
        if asked == "file" or service is None:
            return LeaseFile(queues)
        return ScopedLeases(service, queues, self._is_everywhere)

    def _is_everywhere(self, queue: str) -> bool:
        """Whether any engine may take a topic, whatever its directory; so is its presence."""
        if queue.startswith(PRESENCE):
            return any(
                each.owner == SHARED and self.moves_by_storage(each)
                for each in list(self.ctx.topic_by_name.values())
            )
        config = self.ctx.topic_by_name.get(queue)
        return config is not None and self.moves_by_storage(config)

    def moves_by_storage(self, config: TopicConfig) -> bool:
        """Whether the next owner of a topic rebuilds its log from its storage."""
        return config.storage != LOCAL and not self._settings.directory

    # --- topics -----------------------------------------------------------------------------------

    def add(self, config: TopicConfig) -> None:
        """A topic with owner "*" was created, or was there at the start."""
        if self.moves_by_storage(config) and isinstance(self._store, LeaseFile):
            problem = ConfigError(
                f"topic {config.name}: owner: *: its storage is "
                f"{storage_name(config.storage)}, so engines take turns by "
                "leases that all of them see: start this engine with --control URL (tidecast up "
                "has one), or set node.leases.directory to a directory that they share"
            )
            upkeep.report_broken(self._registry, config, problem)
            return
        now = self.ctx.clock_ns()
        with self._lock:
            if self._keeper is None:
                chance = Random(self.ctx.random_id(62))
                self._keeper = LeaseKeeper(self.ctx.name, [], self.terms, chance, now)
            self._keeper.add(config.name, now)
            self._keeper.log_epoch(config.name, self.owners_of(config.name).newest())
        self._show_here(config.name)
        if self.ctx.started:
            self.start()

    def _show_here(self, name: str) -> None:
        """Queues that lie elsewhere are found in this engine's directory, too, to be read."""
        link, there = self._link(name), self.directory / "queues" / name
        if self.directory != self.ctx.data_dir and not link.exists():
            with contextlib.suppress(OSError):
                link.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                link.unlink(missing_ok=True)
                link.symlink_to(there.absolute())

    def _link(self, name: str) -> Path:
        return self.ctx.data_dir / "queues" / name

    def remove(self, name: str) -> None:
        """A topic was deleted."""
        self._topics.cancel_takeover(name)
        if self.directory != self.ctx.data_dir and self._link(name).is_symlink():
            self._link(name).unlink()
        with self._lock:
            if self._keeper is not None and name in self._keeper.queues:
                epoch = self._keeper.epoch_to_append(name, self.ctx.clock_ns())
                self._keeper.remove(name)
                if epoch:  # asked for in the thread of its own: the store may be slow
                    release = Release(
                        self._next(), name, self.ctx.name, epoch, "its topic was deleted"
                    )
                    self._released.append(release)

    def owners_of(self, name: str) -> Owners:
        """The owners of a topic's queues, on disk."""
        return Owners(self.directory / "queues", name)

    # --- life -------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to ask for leases."""
        if self._keeper is None or self.ctx.inline or self._thread is not None:
            return
        self._thread = threading.Thread(target=self._loop, name="leases", daemon=True)
        self._thread.start()

    def _loop(self) -> None:
        period_s = self._settings.lease_s / 30
        guard = Guard("leases", self.ctx.conductor.agent_failed)
        while True:
            guard.round(self.step)
            if self._stop.wait(period_s):
                return

    def tick(self) -> None:
        """Begin, once the node has started; inline: a step when it is due."""
        self.start()
        now = self.ctx.clock_ns()
        if self.ctx.inline and self._keeper is not None and now >= self._due_ns:
            self._due_ns = now + self.terms.lease_ns // 30
            self.step()

    def hand_over(self, timeout_s: float) -> None:
        """Release all leases while the store can be reached; then ask for none."""
        self.stop()
        keeper, pause = self._keeper, threading.Event()
        if keeper is None:
            return
        keeper.shutdown()
        deadline = time.monotonic() + timeout_s
        while not keeper.idle and time.monotonic() < deadline:
            self.step()
            pause.wait(0.005)
        self.give_back({})

    def stop(self) -> None:
        """Ask for no more leases; held leases stay until `give_back`."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def give_back(self, held: dict[str, int]) -> None:
        """The logs are closed: release their leases (topic: epoch) at once."""
        if self._keeper is None:
            return
        for name, epoch in held.items():
            self._ask(Release(self._next(), name, self.ctx.name, epoch, STOPS))
        self._ask(Release(self._next(), PRESENCE + self.ctx.name, self.ctx.name, self._presence))

    # --- drain ------------------------------------------------------------------------------------

    @property
    def drained(self) -> bool:
        """Whether this node hands its leased topics over, and takes none."""
        return self.ctx.topology.node.drained

    def look(self) -> None:
        """`drained` has changed: ask the store at once. From any thread."""
        with self._lock:
            self._shown_ns = self.ctx.clock_ns() - self.terms.lease_ns
            if self._keeper is not None:
                self._movable = None
                self._keeper.drain(frozenset() if self.drained else None, self.ctx.clock_ns())

    def holds(self) -> dict[str, int]:
        """Topics of which this node has the lease, with their epochs."""
        return {n: t.owner for n, t in list(self._registry.topics.items()) if self._leased(n)}

    def _leased(self, name: str) -> bool:
        return self._keeper is not None and name in self._keeper.queues

    def stays(self) -> list[Stay]:
        """The leased topics that no other engine takes, with the reason."""
        movable = self._movable
        if not self.drained or movable is None:
            return []
        plan = self._settings.balancer
        reason = (
            "no engine that shares its queues, and is not drained, is up"
            if plan == "leases"
            else f"the balancer {plan} gives it to no engine that is up: check node.leases.owners"
        )
        return [Stay("topic", n, reason) for n in sorted(self.holds()) if n not in movable]

    def _moved(self, kind: str, topic: str, epoch: int, reason: str) -> None:
        self.moves.append(Move(self.ctx.wall_ns(), kind, topic, epoch, reason))

    # --- steps ------------------------------------------------------------------------------------

    def step(self) -> None:
        """Send due requests, and let the conductor act on the replies."""
        keeper = self._keeper
        if keeper is None:
            return
        self._sweep()
        self._show_epochs()
        for number in range(ROUNDS_MAX):
            with self._lock:
                overdue: list[Request] = [*keeper.overdue(self.ctx.clock_ns())]
            for request, reply in self._ask_all(overdue):
                self._take_answer(keeper, request, reply)
            with self._lock:
                requests, orders = keeper.poll(self.ctx.clock_ns())
            for order in orders:
                self.ctx.conductor.post(self._job(order))
            renewing = any(isinstance(each, Renew) for each in requests)
            own = self._own(renewing=renewing) if renewing or number == 0 else []
            if not requests and not own:
                return
            for request, reply in self._ask_all([*own, *requests]):
                self._take_answer(keeper, request, reply)

    def _take_answer(self, keeper: LeaseKeeper, request: Request, reply: Reply | None) -> None:
        now = self.ctx.clock_ns()
        if not isinstance(request, Batch | ListLeases) and request.serial < 0:
            self._take_own(request, reply)
            return
        with self._lock:
            if reply is None:
                keeper.unanswered(request, now)
            else:
                known = self._meet(keeper, reply) if isinstance(reply, Listing) else reply
                keeper.reply(request, known, now)

    def _ask_all(self, requests: list[Request]) -> Iterator[tuple[Request, Reply | None]]:
        """Ask the store, in batches: a node's renewals are one transaction, not one a topic."""
        singles: list[Single] = []
        for request in requests:
            if isinstance(request, ListLeases):
                yield request, self._ask(request)
            elif not isinstance(request, Batch):
                singles.append(request)
        while singles:
            some = singles[: max(self._store.batch_max, 1)]
            singles = singles[len(some) :]
            yield from zip(some, self._answers(some), strict=True)

    def _answers(self, requests: list[Single]) -> Sequence[Reply | None]:
        if len(requests) == 1:
            return [self._ask(requests[0])]
        reply = self._ask(Batch(self._next(), requests))
        if isinstance(reply, Answers) and len(reply.replies) == len(requests):
            return reply.replies
        return [None] * len(requests)

    def _sweep(self) -> None:
        """Remove the files of former owners, once they must have noticed the new owner."""
        for name, (epoch, due_ns) in list(self._swept.items()):
            if self.ctx.clock_ns() >= due_ns:
                del self._swept[name]
                self.owners_of(name).sweep(epoch)

    def _ask(self, request: Request) -> Reply | None:
        try:
            return self._store.handle(request, self.ctx.clock_ns())
        except TidecastError:
            self.refusals += 1
            return None

    refusals = 0
    """Requests that the store did not answer."""
    _presence = 0

    def _next(self) -> int:
        self._serial += 1
        return -self._serial

    def _own(self, *, renewing: bool) -> list[Request]:
        """Requests for the node's presence: other nodes count present nodes that are not drained.

        ``renewing``: the node's presence is renewed together with its topics.
        """
        now, name = self.ctx.clock_ns(), self.ctx.name
        found: list[Request] = list(self._released)
        self._released.clear()
        if self.drained:
            if self._presence:
                found.append(Release(self._next(), PRESENCE + name, name, self._presence))
        elif renewing or now - self._shown_ns >= self.terms.renew_ns:
            self._asked_ns = now
            lease_ns = self.terms.lease_ns
            found.append(Acquire(self._next(), PRESENCE + name, name, lease_ns))
        return found

    def _take_own(self, request: Single, reply: Reply | None) -> None:
        if reply is None or not request.queue.startswith(PRESENCE):
            return
        if isinstance(request, Acquire):
            epoch = reply.epoch if isinstance(reply, Granted | Refused) else 0
            self._shown_ns, self._presence = self._asked_ns, epoch
        else:
            self._presence = 0

    def _show_epochs(self) -> None:
        """Point the links for reading processes to the queues of this node."""
        now = self.ctx.clock_ns()
        if now - self._pointed_ns < self.terms.renew_ns:
            return
        self._pointed_ns = now
        for topic in list(self._registry.topics.values()):
            if topic.owner and topic.owned:
                with contextlib.suppress(
                    OSError
                ):  # an engine that slept may have pointed elsewhere
                    topic.owners.show(topic.owner)

    def _meet(self, keeper: LeaseKeeper, listing: Listing) -> Listing:
        """Give the keeper the present nodes, and the leases that the balancer assigns to it."""
        now, settings = self.ctx.clock_ns(), self._settings
        there = {q[1:] for q in listing.owners if q.startswith(PRESENCE)} - {self.ctx.name}
        owners = {q: o for q, o in listing.owners.items() if not q.startswith(PRESENCE)}
        self._registry.set_owners(owners)
        self._before |= {q: owner for q, owner in owners.items() if q in keeper.queues}
        names = sorted(keeper.queues)
        if self.drained:
            self._movable = self._taken_by(there, names)
            keeper.drain(self._movable, now)
            return Listing(owners)
        keeper.drain(None, now)
        there.add(self.ctx.name)
        keeper.nodes(sorted(there), now)
        if settings.balancer != "leases":
            configured = settings.owners or sorted(there)
            shares = BALANCERS[settings.balancer](len(names), configured, there)
            keeper.plan([names[i] for i in shares.get(self.ctx.name, ())], now)
        return Listing(owners)

    def _taken_by(self, others: set[str], names: list[str]) -> frozenset[str]:
        """The topics that other nodes take once this one gives them back."""
        settings = self._settings
        if not others or settings.balancer == "leases":
            return frozenset(names if others else ())
        configured = settings.owners or sorted(others)
        shares = BALANCERS[settings.balancer](len(names), configured, others)
        return frozenset(names[i] for held in shares.values() for i in held)

    # --- the conductor's part ---------------------------------------------------------------------

    def _job(self, order: Order) -> Callable[[], None]:
        match order:
            case Start(name, epoch):
                return lambda: self._take(name, epoch)
            case Flush(name, epoch, reason):
                return lambda: self._hand_over(name, epoch, reason)
            case Fence(name, epoch, reason):
                return lambda: self.lose(name, epoch, reason)

    def _take(self, name: str, epoch: int) -> None:
        config = self.ctx.topic_by_name.get(name)
        if config is None or name in self._registry.topics:
            return
        try:
            if self.moves_by_storage(config):
                self._topics.take_over(config, epoch, partial(self._taken_over, name, epoch))
            else:
                self._open(config, epoch)
        except TidecastError as problem:
            self._give_up(name, epoch, problem)

    def _taken_over(self, name: str, epoch: int, problem: TidecastError | None) -> None:
        """The topic's log was rebuilt, or not: an engine that reaches the storage takes it then."""
        config = self.ctx.topic_by_name.get(name)
        with self._lock:
            if self._keeper is None or name not in self._keeper.queues or config is None:
                return
            if self._keeper.epoch_to_append(name, self.ctx.clock_ns()) != epoch:
                return
        try:
            if problem is not None:
                raise problem
            self._open(config, epoch)
        except TidecastError as refused:
            self._give_up(name, epoch, refused)

    def _give_up(self, name: str, epoch: int, problem: TidecastError) -> None:
        newest = epoch
        if isinstance(problem, Fenced):
            newest = self.owners_of(name).newest()
        else:
            self._registry.broken[name] = problem
            self._registry.notify(
                events.DiskRefused(topic=name, queue=-1, errno=0, detail=str(problem))
            )
        with self._lock:
            if self._keeper is not None:
                self._keeper.fenced(name, newest)

    def _open(self, config: TopicConfig, epoch: int) -> None:
        """Serve a topic. Raises TidecastError."""
        name = config.name
        self._topics.open_topic(config, epoch)
        self._registry.broken.pop(name, None)
        self._swept[name] = (epoch, self.ctx.clock_ns() + self.terms.lease_ns)
        queues = self._registry.topics[name].map.queues
        self._count(name, C.TAKEN, epoch)
        self.ctx.note(rec.LOW, rec.Code.QUEUES_TAKEN, config.wire_id, queues, epoch)
        self._registry.notify(events.QueuesTaken(topic=name, queues=queues, epoch=epoch))
        self._topics.take_rings(name)
        before = self._before.get(name, "")
        after = f", node {before} had it before" if before not in ("", self.ctx.name) else ""
        self._moved("taken", name, epoch, f"its lease was free{after}")

    def _hand_over(self, name: str, epoch: int, reason: str) -> None:
        self._topics.cancel_takeover(name)
        if name in self._registry.topics:
            wire_id = self.ctx.topic_by_name[name].wire_id
            self._topics.release_topic(name, flush=True)
            self._count(name, C.HANDED_OVER, 0)
            self.ctx.note(rec.LOW, rec.Code.QUEUES_RELEASED, wire_id, epoch)
            self._registry.notify(events.QueuesReleased(topic=name, epoch=epoch))
            self._moved("released", name, epoch, reason)
        with self._lock:
            if self._keeper is not None:
                self._keeper.flushed(name)

    def lose(self, name: str, epoch: int, reason: str) -> None:
        """Another engine has the queues, or may have them: release them at once."""
        topic = self._registry.topics.get(name)
        if topic is None:
            self._topics.cancel_takeover(name)
        if topic is None or topic.owner != epoch:
            return
        newest = topic.owners.newest()
        self._topics.release_topic(name, flush=False)
        self._count(name, C.OWNER_FENCED, 0)
        wire_id = self.ctx.topic_by_name[name].wire_id
        self.ctx.note(rec.ALERT, rec.Code.OWNER_FENCED, wire_id, epoch, newest)
        self._registry.notify(
            events.QueuesLost(topic=name, epoch=epoch, newest=newest, reason=reason)
        )
        self._moved("lost", name, epoch, reason)
        with self._lock:
            if self._keeper is not None and self._keeper.epoch_to_append(name, self.ctx.clock_ns()):
                self._keeper.fenced(name, newest)

    def _count(self, name: str, counter: C, epoch: int) -> None:
        for (topic, _), row in self._registry.rows.items():
            if topic == name:
                values = self.ctx.counters.values[row]
                values[counter] += 1
                values[C.OWNER_EPOCH] = epoch
