"""State of durable subscriptions on a node: their cursors and members, and the owners."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tidecast.agents.puller.runtime import Puller
from tidecast.buffers.member_ring import MemberFile
from tidecast.config.topology import TopicConfig
from tidecast.errors import Conflict, ConnectionLost
from tidecast.events import RecordsGone
from tidecast.log.queue_log import QueueLog
from tidecast.node.context import NodeContext
from tidecast.node.durable.leases import Leases
from tidecast.node.durable.sources import SourceRegistry
from tidecast.queues.adapter import Adapter
from tidecast.queues.attached import AdapterSource, AttachedQueue
from tidecast.queues.cache.cursors import FETCHING, NOBODY, PAUSED, REASONS, SHARES
from tidecast.queues.mapper import QueueMap
from tidecast.queues.sources import LogSource
from tidecast.queues.subscription_store import Deleted, SavedSubscription, SubscriptionStore

PAUSED_SUBSCRIPTION, PAUSED_QUEUE, PAUSED_TOPIC, PAUSED_GROWTH = 1, 2, 4, 8
GONE_KEPT_MAX = 64
PAUSED_BY = {
    PAUSED_SUBSCRIPTION: "subscription",
    PAUSED_QUEUE: "queue",
    PAUSED_TOPIC: "topic",
    PAUSED_GROWTH: "growth of the queues",
}


@dataclass(slots=True)
class QueueState:
    """A queue of a durable topic at the puller."""

    topic: str
    queue: int
    log: QueueLog | AttachedQueue
    source: LogSource | AdapterSource
    row: int
    paused: bool = False
    unreadable: set[int] = field(default_factory=set)
    """Tokens of which the last read failed."""

    def set_paused(self, paused: bool) -> bool:
        """Pause or resume it; its state before."""
        before, self.paused = self.paused, paused
        return before

    def note_unreadable(self, token: int) -> None:
        """A read of it failed."""
        self.unreadable.add(token)

    def note_readable(self, token: int) -> None:
        """A read succeeded where one had failed."""
        self.unreadable.discard(token)


@dataclass(slots=True)
class TopicState:
    """A durable topic at the puller."""

    config: TopicConfig
    map: QueueMap
    queues: list[QueueState] = field(default_factory=list)
    paused: bool = False
    store: SubscriptionStore | None = None
    """Positions in queues that engines share; None: with all others of this engine."""
    owned: Callable[[], bool] = lambda: True
    directory: Path | None = None
    """Of the queues; None: pauses are not kept."""

    def configure(self, config: TopicConfig, queue_map: QueueMap) -> None:
        """The topic's settings, or its queues, have changed."""
        self.config, self.map = config, queue_map

    def set_paused(self, paused: bool) -> bool:
        """Pause or resume all queues; the state before."""
        before, self.paused = self.paused, paused
        return before


@dataclass(slots=True)
class CursorState:
    """A subscription's cursor in one queue."""

    number: int
    word: int
    here: QueueState
    owners: list[int] = field(default_factory=lambda: [NOBODY] * SHARES)

    def set_word(self, word: int) -> None:
        """It was moved: frames name it by another word."""
        self.word = word

    def set_owners(self, owners: list[int]) -> None:
        """Which member has which share of its keys."""
        self.owners = owners


@dataclass(slots=True)
class MemberState:
    """One consumer of a client."""

    id: int
    number: int
    client: int
    file: MemberFile


@dataclass(slots=True)
class SubscriptionState:
    """A durable subscription: its saved state, its cursors by (topic, queue), its members."""

    number: int
    saved: SavedSubscription
    cursors: dict[tuple[str, int], CursorState] = field(default_factory=dict)
    members: dict[int, MemberState] = field(default_factory=dict)
    gone: deque[RecordsGone] = field(default_factory=lambda: deque(maxlen=GONE_KEPT_MAX))
    """Records that retention deleted before their delivery; reported to later members, too."""

    def replace(self, saved: SavedSubscription) -> None:
        """Its queues came here, with its state as their owner stored it."""
        self.saved = saved

    @property
    def key(self) -> tuple[str, str]:
        """(pattern, name)."""
        return self.saved.pattern, self.saved.name

    @property
    def ack_wait_ns(self) -> int:
        """How long a member may work at a record."""
        return int(self.saved.ack_wait_s * 1e9)


@dataclass(frozen=True, slots=True)
class Waiting:
    """An adapter that is not attached yet: its system is away. ``detail``: the newest failure."""

    adapter: str
    detail: str
    since_ns: int
    """Since 1970."""


class ConsumersState:
    """Topics, subscriptions and members of a node, and the parts of the node that they need."""

    def __init__(self, ctx: NodeContext, durable: SourceRegistry, leases: Leases) -> None:
        self.ctx, self.durable, self.leases = ctx, durable, leases
        self.lock = threading.RLock()
        self.store = SubscriptionStore(ctx.data_dir / "subscriptions")
        self.deleted = Deleted(leases.directory / "subscriptions-deleted")
        """By any engine that shares our queues."""
        self.topics: dict[str, TopicState] = {}
        self.subscriptions: dict[tuple[str, str], SubscriptionState] = {}
        self.unsound: dict[tuple[str, str], Path] = {}
        """Files of subscriptions that are not sound, by pattern and name."""
        self.adapters: dict[str, Adapter] = {}
        """Adapters that keep the queues of a topic, by topic. Changed under the lock."""
        self.waiting: dict[str, Waiting] = {}
        """Adapters that wait for their system, by topic. Changed under the lock."""
        self.puller: Puller | None = None
        self._numbers = itertools.count()

    def arriving(self, subscription: SubscriptionState) -> int:
        """Messages that publishers on other nodes hold for a subscription's topics."""
        topics = {topic for topic, _ in subscription.cursors}
        return sum(self.durable.arriving(topic) for topic in topics)

    def set_puller(self, puller: Puller | None) -> None:
        """The puller has started, or has stopped (None)."""
        self.puller = puller

    def new(self, saved: SavedSubscription) -> SubscriptionState:
        """A subscription without cursors. With the lock held."""
        subscription = SubscriptionState(next(self._numbers), saved)
        self.subscriptions[subscription.key] = subscription
        return subscription

    def dead_open(self, saved: SavedSubscription) -> int:
        """Dead letters not sent again: not more than retention has left in their topic."""
        here = self.topics.get(saved.dead_letter)
        if here is None or not here.queues:
            return saved.dead_open  # another engine stores them
        kept = sum(one.log.next_token - one.log.earliest_token for one in here.queues)
        return min(saved.dead_open, kept)

    def check_writable(self, topic: str) -> None:
        """Raise Conflict for a topic that an adapter keeps."""
        adapter, waiting = self.adapters.get(topic), self.waiting.get(topic)
        if adapter is None and waiting is None:
            return
        name = adapter.name if adapter is not None else waiting.adapter if waiting else ""
        raise Conflict(
            f"topic {topic}: its queues are those of adapter {name}: it can be "
            "consumed here, not published to"
        )

    def check_open(self, topic: str) -> None:
        """Raise ConnectionLost for a topic whose adapter waits for its system."""
        waiting = self.waiting.get(topic)
        if waiting is not None:
            raise ConnectionLost(
                f"topic {topic}: adapter {waiting.adapter} waits for its system, and tries again: "
                f"{waiting.detail}"
            )


def reason_of(cursor: CursorState, record: Any) -> str:
    """Why a cursor does not flow; ``record``: of the puller."""
    if record["paused"]:
        return REASONS[PAUSED]
    reason = int(record["reason"])
    if reason == FETCHING and int(record["next"]) in cursor.here.unreadable:
        return "the log cannot be read"
    return REASONS[reason]


def shares_of(
    cursors: Sequence[tuple[str, int]], members: Sequence[int], before: dict[tuple[str, int], int]
) -> dict[tuple[str, int], list[int]]:
    """The member of each share of the keys of each cursor: `cursors.SHARES` members a cursor.

    No more members than cursors: each cursor has one owner, the one ``before`` it as far as the
    counts stay even. More: each cursor is shared out among its members by key.
    """
    if not members:
        return {cursor: [NOBODY] * SHARES for cursor in cursors}
    if len(members) > len(cursors):
        of_cursor = {cursor: members[i :: len(cursors)] for i, cursor in enumerate(cursors)}
        return {
            cursor: [owners[k % len(owners)] for k in range(SHARES)]
            for cursor, owners in of_cursor.items()
        }
    least, more = divmod(len(cursors), len(members))
    count = dict.fromkeys(members, 0)
    owner: dict[tuple[str, int], int] = {}
    full = 0
    for cursor in cursors:
        one = before.get(cursor, NOBODY)
        if one in count and (count[one] < least or (count[one] == least and full < more)):
            full += count[one] == least
            count[one] += 1
            owner[cursor] = one
    for cursor in cursors:
        if cursor not in owner:
            one = min(members, key=lambda member: (count[member], member))
            count[one] += 1
            owner[cursor] = one
    return {cursor: [owner[cursor]] * SHARES for cursor in cursors}


def restored_rows(acked: list[tuple[int, int]], attempts: list[tuple[int, int]]) -> np.ndarray:
    """`CursorState` rows for the puller: int64[n, 3] of first, end, attempts (-1: settled)."""
    rows = [(first, end, -1) for first, end in acked]
    rows += [(token, token + 1, n) for token, n in attempts]
    return np.array(sorted(rows), dtype=np.int64).reshape(-1, 3)
