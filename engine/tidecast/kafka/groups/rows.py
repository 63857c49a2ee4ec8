"""Groups as operators see them: state, members, offsets, lag in records and in seconds.

Rows are made outside of the loop's thread. Groups that change meanwhile are read as they are at
some moment: a `Stored` is replaced, never changed, and the members of a group are copied in one
step.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tidecast.access import covers
from tidecast.errors import CorruptLog, NotFound, StorageError
from tidecast.kafka.groups.coordinator import Group, Member
from tidecast.kafka.wire import BadRequest, Reader, parse, reader_of
from tidecast.layout import segment as seg
from tidecast.log.queue_log import QueueLog
from tidecast.log.reading.range_scan import Selector, Wanted

if TYPE_CHECKING:
    from tidecast.kafka.groups.service import Offset, Stored
    from tidecast.node.node import Node

Json = dict[str, Any]
Place = tuple[str, int]
QUEUES_SHOWN_MAX, MEMBERS_SHOWN_MAX, TOPICS_SHOWN_MAX = 1000, 1024, 64
ASSIGNED_MAX = 20_000
"""Queues of all members of a group, as the members report them."""
AGES_READ_MAX, AGES_KEPT_MAX = 64, 10_000
"""Times of records that one listing reads from logs, and that are remembered."""
BLOCK_BYTES = 64 << 10
_ASSIGNMENT = parse("""
    version: int16
    topics: [
      topic: string
      partitions: []int32
    ]
""")
_read_assignment = reader_of(_ASSIGNMENT, 0, flexible=False)
"""The beginning of a consumer's assignment, in all versions of Kafka's consumers."""


class QueueOffset(NamedTuple):
    """An offset of a group, or a queue that a member has, and its log as it is now."""

    topic: str
    queue: int
    committed: int | None
    metadata: str
    earliest: int | None
    end: int | None

    @property
    def lag(self) -> int | None:
        """Records that are there and not committed; None: nothing is committed, or no log here."""
        if self.committed is None or self.end is None or self.earliest is None:
            return None
        return max(0, self.end - max(self.committed, self.earliest))


class Ages:
    """When the oldest records that groups have to read were published. Any thread."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._known: dict[tuple[str, int, int], int] = {}
        self._lock = threading.Lock()

    def age_s(self, place: QueueOffset, now_ns: int, reads: list[int]) -> float | None:
        """Seconds since; 0.0 without lag. ``reads``: how many records may still be read."""
        if place.lag is None:
            return None
        if place.lag == 0:
            return 0.0
        assert place.committed is not None
        assert place.earliest is not None
        token = max(place.committed, place.earliest)
        mark = (place.topic, place.queue, token)
        stamp = self._known.get(mark)
        if stamp is None and reads[0] > 0:
            reads[0] -= 1
            stamp = self._read(place.topic, place.queue, token)
            if stamp is not None:
                with self._lock:
                    self._known[mark] = stamp
                    while len(self._known) > AGES_KEPT_MAX:
                        self._known.pop(next(iter(self._known)))
        return None if stamp is None else max(0.0, (now_ns - stamp) / 1e9)

    def _read(self, topic: str, queue: int, token: int) -> int | None:
        found = self._node.durable.topics.get(topic)
        if found is None or not 0 <= queue < len(found.logs):
            return None
        try:
            return time_of(found.logs[queue], token)
        except (CorruptLog, StorageError, NotFound, ValueError, OSError):
            return None


def time_of(log: QueueLog, token: int) -> int | None:
    """When a record, or the next behind it, was published: ns since 1970. None: there is none."""
    buffer = np.empty(BLOCK_BYTES, dtype=np.uint8)
    reader = log.reader()
    try:
        try:
            n = reader.read_block(token, buffer)
        except ValueError:  # one batch is longer
            buffer = np.empty(reader.need, dtype=np.uint8)
            n = reader.read_block(token, buffer)
        selector = Selector(Wanted(token, log.next_token), holes=True)
        if n == 0 or selector.select(buffer, n, -1) <= 0:
            return None
        at = int(selector.rows[0, 0]) + seg.REC_TIME_AT
        stamp: Any = buffer[at : at + 8].view("<i8")
        return int(stamp[0])
    finally:
        reader.close()


class GroupRows:
    """Rows of groups. ``groups()``: with members; ``stored()``: with offsets."""

    def __init__(
        self,
        node: Node,
        groups: Callable[[], dict[str, Group]],
        stored: Callable[[], dict[str, Stored]],
    ) -> None:
        self._node, self._groups, self._stored = node, groups, stored
        self._ages = Ages(node)

    def names(self) -> list[str]:
        """All groups, by name."""
        return sorted({*list(self._groups()), *list(self._stored())})

    def topics_of(self, name: str) -> set[str]:
        """The topics of which a group has offsets, or to which its members subscribe."""
        stored, group = self._stored().get(name), self._groups().get(name)
        subscribed = frozenset[str]() if group is None else group.subscribed() or frozenset()
        return {*subscribed, *(() if stored is None else stored.offsets)}

    def row(self, name: str, within: Sequence[str] | None, reads: list[int]) -> Json | None:
        """A group's sums. ``within``: patterns of topics that count; None: all.

        None: there is no such group, or none of its topics counts.
        """
        stored, group = self._stored().get(name), self._groups().get(name)
        if stored is None and group is None:
            return None
        topics = sorted(each for each in self.topics_of(name) if _counts(each, within))
        if within is not None and not topics:
            return None
        places = [self._place(*each) for each in _offsets(stored) if _counts(each[0], within)]
        lags = [each.lag for each in places if each.lag is not None]
        now_ns = time.time_ns()
        worst = sorted(places, key=lambda each: -(each.lag or 0))
        ages = [self._ages.age_s(each, now_ns, reads) for each in worst]
        known = [each for each in ages if each is not None]
        shown = group or Group(name, kind="consumer")
        return {
            "name": name,
            "state": shown.state.value,
            "kind": shown.kind,
            "protocol": shown.protocol,
            "generation": shown.generation,
            "members": len(shown.members),
            "topics": topics[:TOPICS_SHOWN_MAX],
            "topics_total": len(topics),
            "queues": len(places),
            "lag": sum(lags) if lags else None,
            "lag_s": max(known) if known else None,
            "committed_at": None if stored is None else stored.at,
        }

    def detail(self, name: str, within: Sequence[str] | None) -> Json | None:
        """A group with its members and each of its queues, the furthest behind first."""
        reads = [AGES_READ_MAX]
        row = self.row(name, within, reads)
        if row is None:
            return None
        group = self._groups().get(name)
        members = [] if group is None else list(group.members.values())
        assigned = _assigned(group, members)
        holders = {place: each for each, places in assigned.items() for place in places}
        rows = {each[:2]: each for each in _offsets(self._stored().get(name))}
        wanted = [each for each in {**rows, **holders} if _counts(each[0], within)]
        places = [self._place(*rows.get(each, (*each, None, ""))) for each in wanted]
        places.sort(key=lambda each: (-(each.lag or 0), each.topic, each.queue))
        now_ns = time.time_ns()
        shown = places[:QUEUES_SHOWN_MAX]
        return row | {
            "offsets": [
                {
                    **each._asdict(),
                    "lag": each.lag,
                    "lag_s": self._ages.age_s(each, now_ns, reads),
                    "member": holders.get((each.topic, each.queue), ""),
                }
                for each in shown
            ],
            "offsets_left_out": len(places) - len(shown),
            "consumers": [
                {
                    "id": each.id,
                    "instance": each.instance or "",
                    "client_id": each.client,
                    "address": each.host,
                    "leader": group is not None and each.id == group.leader,
                    "assigned": [
                        f"{topic}:{queue}"
                        for topic, queue in assigned[each.id][:QUEUES_SHOWN_MAX]
                        if _counts(topic, within)
                    ],
                }
                for each in members[:MEMBERS_SHOWN_MAX]
            ],
        }

    def _place(self, topic: str, queue: int, offset: Offset | None, metadata: str) -> QueueOffset:
        found = self._node.durable.topics.get(topic)
        here = found is not None and 0 <= queue < len(found.logs)
        log = found.logs[queue] if found is not None and here else None
        committed = None if offset is None else offset.offset
        if log is None:
            return QueueOffset(topic, queue, committed, metadata, None, None)
        return QueueOffset(topic, queue, committed, metadata, log.earliest_token, log.durable_token)


def _offsets(stored: Stored | None) -> list[tuple[str, int, Offset | None, str]]:
    if stored is None:
        return []
    return [
        (topic, queue, offset, offset.metadata)
        for topic, rows in stored.offsets.items()
        for queue, offset in rows.items()
    ]


def _counts(topic: str, within: Sequence[str] | None) -> bool:
    return within is None or any(covers(pattern, topic) for pattern in within)


def _assigned(group: Group | None, members: list[Member]) -> dict[str, list[Place]]:
    """The queues of each member, `ASSIGNED_MAX` in all."""
    found: dict[str, list[Place]] = {}
    room = ASSIGNED_MAX
    for each in members:
        found[each.id] = assignment_of(group, each)[:room] if room > 0 else []
        room -= len(found[each.id])
    return found


def assignment_of(group: Group | None, member: Member) -> list[Place]:
    """The queues that a member of a consumer group has; none where it does not say so."""
    if group is None or group.kind != "consumer" or not member.assignment:
        return []
    try:
        found = _read_assignment(Reader(member.assignment))
    except BadRequest:
        return []
    return [(each["topic"], queue) for each in found["topics"] for queue in each["partitions"]]
