"""The node's records of clients, publications, subscriptions, images and peers."""

from __future__ import annotations

import contextlib
from collections import deque
from dataclasses import dataclass, field

import numpy as np

from tidecast.api.link import Continued, SubscriptionOptions
from tidecast.buffers.ring_file import RingInfo, describe
from tidecast.config.topology import TopicConfig
from tidecast.errors import SharedMemoryError
from tidecast.events import Event
from tidecast.layout.ring import HEAD_AT
from tidecast.native.mapped import MappedFile
from tidecast.node.live.transports import TransportRuntime
from tidecast.protocol.tables.reading import table_reader
from tidecast.protocol.tables.writing import table_writer

ARCHIVER_SUBSCRIPTION = 0
"""Subscription id of the archiver's consumer entries; others begin at 1."""
EVENTS_KEPT_MAX = 10_000
RESUME_KEPT_MAX = 131_072
"""Of 16 subscriptions with as many sessions as a subscription may ask for."""


class ResumePositions:
    """The packets where subscriptions begin in the next images of sessions."""

    def __init__(self) -> None:
        self._seqs: dict[tuple[int, int], int] = {}
        """By session and subscription, the position that was kept last at the end."""
        self._sessions: dict[int, set[int]] = {}
        """By subscription."""

    def __len__(self) -> int:
        return len(self._seqs)

    def keep(self, session: int, subscription_id: int, seq: int) -> None:
        """Remember a position; beyond RESUME_KEPT_MAX the oldest is forgotten."""
        self.pop(session, subscription_id)
        while len(self._seqs) >= RESUME_KEPT_MAX:
            self.pop(*next(iter(self._seqs)))
        self._seqs[session, subscription_id] = seq
        self._sessions.setdefault(subscription_id, set()).add(session)

    def get(self, session: int, subscription_id: int) -> int | None:
        """A position; None: none is known."""
        return self._seqs.get((session, subscription_id))

    def pop(self, session: int, subscription_id: int) -> int | None:
        """A position, which is forgotten; None: none is known."""
        seq = self._seqs.pop((session, subscription_id), None)
        if seq is not None:
            sessions = self._sessions[subscription_id]
            sessions.discard(session)
            if not sessions:
                del self._sessions[subscription_id]
        return seq

    def forget(self, subscription_id: int) -> None:
        """A subscription has ended."""
        for session in self._sessions.pop(subscription_id, ()):
            del self._seqs[session, subscription_id]


OWN = "-own"
"""Ends the name of a ring's file if the engine itself publishes: see `segment.REC_ENGINE`."""


def is_own(mapped: MappedFile) -> bool:
    """Does, or did, the engine itself publish into a ring? No client names the ring's file."""
    return mapped.path.name.endswith(OWN)


@dataclass(slots=True)
class Client:
    """An attached client."""

    id: int
    name: str
    doorbell: int
    of_engine: bool = False
    outlives: bool = False
    """It runs in a process of its own, and looks for the next engine when this one ends."""
    events: deque[Event] = field(default_factory=lambda: deque(maxlen=EVENTS_KEPT_MAX))
    publications: set[int] = field(default_factory=set)
    subscriptions: set[int] = field(default_factory=set)

    def take_events(self) -> list[Event]:
        """Events since the call before."""
        taken = []
        with contextlib.suppress(IndexError):
            while True:
                taken.append(self.events.popleft())
        return taken


class OwnRing:
    """A ring that this node made and clients map: they may write anything into it.

    The constants of its header are kept here, so that a client that writes into them harms only
    its own messages.
    """

    mapped: MappedFile
    constant: bytes

    def about(self) -> RingInfo:
        """`describe` with the geometry that the ring was made with."""
        try:
            return describe(self.mapped.array)
        except SharedMemoryError:
            self.mapped.array[: len(self.constant)] = np.frombuffer(self.constant, dtype=np.uint8)
            return describe(self.mapped.array)


def _constant(mapped: MappedFile) -> bytes:
    return bytes(mapped.array[:HEAD_AT])


@dataclass(slots=True)
class Held:
    """An entry that holds a continued publication's writer back; see `node.live.continuation`."""

    entry: int
    until_s: float
    missing: int
    """Subscriptions that have yet to come back."""

    def rejoin(self) -> None:
        """A subscription is back."""
        self.missing -= 1


@dataclass(slots=True)
class Publication(OwnRing):
    """A local publication: its ring, and its place at the sender (-1: no network)."""

    id: int
    client: int
    topic: TopicConfig
    session: int
    mapped: MappedFile
    runtime: TransportRuntime | None
    slot: int = -1
    row: int = -1
    resent: np.ndarray | None = None
    table: np.ndarray | None = None
    """Of keys and headers that repeat; None: its packets are sent in full."""
    closing: bool = False
    drained: bool = False
    closed_s: float = 0.0
    ending_s: float = 0.0
    """Its topic is gone: when it is closed if its writer has not done that; 0: it is not."""
    released: bool = False
    """Its writer knows of the end, or is gone itself."""
    readers: dict[int, int] = field(default_factory=dict)
    """Subscription id -> consumer entry."""
    watch: dict[int, tuple[int, float]] = field(default_factory=dict)
    constant: bytes = b""
    source: int = -1
    """Row at the archiver while it still reads this ring (durable topics)."""
    remote: int = -1
    """Durable, and another node keeps it: entry in the ring that its ACKs move; else -1."""
    began_ns: int = 0
    """When it was made."""
    leftover: bool = False
    """Of a dead engine: sent on until it is acked."""
    continues: Continued | None = None
    """A live session that began at an earlier engine."""
    begun: bool = True
    """Not yet: its client copies the old ring."""
    left: bool = False
    """The engine stops, and its client keeps it."""
    kept: bool = False
    """The engine stops, and a client of the gateway keeps the unsent messages."""
    held: Held | None = None

    def __post_init__(self) -> None:
        self.constant = _constant(self.mapped)

    def continue_session(self, given: Continued) -> None:
        """It continues a session of an earlier engine: its client copies the old ring first."""
        self.continues, self.begun = given, False
        self.began_ns -= int(given.age_s * 1e9)

    def begin(self) -> None:
        """The client has copied the old ring."""
        self.begun = True

    def place(self, row: int, slot: int, resent: np.ndarray) -> None:
        """The sender has it, at ``slot``; ``row`` of the counters."""
        self.row, self.slot, self.resent = row, slot, resent

    def use_table(self, number: int) -> None:
        """Keys and headers that repeat may be sent by a table, whose first number this is."""
        self.table = table_writer(number)

    def displace(self) -> None:
        """The sender has it no more."""
        self.row = self.slot = -1

    def await_acks(self, entry: int) -> None:
        """Another node keeps its topic: ACKs move the consumer entry."""
        self.remote = entry

    def take_entry(self) -> int:
        """Its topic is kept here now: the entry that ACKs moved, for the archiver."""
        entry, self.remote = self.remote, -1
        return entry

    def archive(self, source: int) -> None:
        """The archiver reads it as its ``source``; -1: no more."""
        self.source = source

    def fix_constant(self) -> None:
        """The constant part of the ring's header was changed by the node."""
        self.constant = _constant(self.mapped)

    def close(self, now_s: float) -> None:
        """It ends: the messages of its ring are sent and read."""
        self.closing, self.closed_s = True, now_s

    def await_close(self, until_s: float) -> None:
        """Its topic is gone: its writer closes it until then."""
        self.ending_s = until_s

    def postpone(self, now_s: float) -> None:
        """It is not acked: patience with its readers begins again."""
        self.closed_s = now_s

    def orphan(self, now_s: float) -> None:
        """Its engine is dead: it is sent until it is acked."""
        self.closing, self.closed_s, self.leftover = True, now_s, True

    def adopt(self) -> None:
        """An orphaned ring is acked: from now on it ends as any publication."""
        self.leftover = False

    def set_drained(self, drained: bool) -> None:
        """All receivers know of its end; False: a new receiver has yet to learn of it."""
        self.drained = drained

    def release(self) -> None:
        """Its writer knows of the end, or is gone itself."""
        self.released = True

    def leave_open(self) -> None:
        """The engine stops, and the client keeps it."""
        self.left = True

    def keep(self) -> None:
        """The engine stops, and a client of the gateway sends the unsent messages again."""
        self.kept = True

    def hold(self, held: Held | None) -> None:
        """Hold its writer back until its local readers are back; None: no more."""
        self.held = held

    def configure(self, topic: TopicConfig) -> None:
        """Its topic's settings have changed."""
        self.topic = topic


@dataclass(slots=True)
class Subscription:
    """A subscription of a client, to one or more topics."""

    id: int
    client: int
    pattern: str
    options: SubscriptionOptions
    created_ns: int
    notified: bool = False
    """Its topic is gone, and its client was notified."""

    def is_first_notice(self) -> bool:
        """Its client was not notified of its end yet; from now on it was."""
        first, self.notified = not self.notified, True
        return first

    def tethered(self, topic: TopicConfig) -> bool:
        """Does it hold the publishers of a topic back?"""
        if self.options.tethered is not None:
            return self.options.tethered
        return topic.flow == "min" and topic.reliability != "unreliable"


@dataclass(slots=True)
class Image(OwnRing):
    """A remote publication as this node receives it."""

    id: int
    session: int
    mode: str
    topic: TopicConfig
    node_id: int
    node_name: str
    incarnation: int
    mapped: MappedFile
    runtime: TransportRuntime
    slot: int
    row: int
    readers: dict[int, int] = field(default_factory=dict)
    gone: str = ""
    gone_s: float = 0.0
    watch: dict[int, tuple[int, float]] = field(default_factory=dict)
    constant: bytes = b""
    live_seq: int = 0
    """The publisher's live edge when the image was made."""
    history_slots: int = 0
    """Packets that the publisher's ring holds."""
    began_ns: int = 0
    """When its publication was made."""
    silent_ns: int = 0
    """When it was heard last before its silence was reported; 0: it was not."""
    table: np.ndarray = field(default_factory=table_reader)
    """Of the publisher's keys and headers that repeat."""
    superseded_ns: int = 0
    """When its node was found to have restarted; 0: it was not, or the session continues there."""

    def __post_init__(self) -> None:
        self.constant = _constant(self.mapped)

    def place(self, slot: int) -> None:
        """The receiver has it, at ``slot``; -1: no more."""
        self.slot = slot

    def move(self, runtime: TransportRuntime, slot: int) -> None:
        """The receiver of another lane has it, at ``slot``."""
        self.runtime, self.slot = runtime, slot

    def end(self, reason: str, now_s: float) -> None:
        """No more packets come; its readers drain it."""
        self.gone, self.gone_s = reason, now_s

    def supersede(self, now_ns: int) -> None:
        """Its node has restarted; its publisher may continue the session there."""
        self.superseded_ns = now_ns

    def continue_at(self, incarnation: int) -> None:
        """Its session continues at the node's new incarnation."""
        self.incarnation, self.superseded_ns = incarnation, 0

    def report_silence(self, heard_ns: int) -> None:
        """Its silence since then was reported."""
        self.silent_ns = heard_ns


@dataclass(slots=True)
class Peer:
    """Another node, as its SETUP packets introduce it."""

    id: int
    name: str
    incarnation: int
    heard_ns: int
    hosts: dict[str, int]
    """Where it is heard from, by transport (`tidecast.node.transports.host_of`)."""

    def hear(self, now_ns: int) -> None:
        """A packet of it came."""
        self.heard_ns = now_ns
