"""Decides the offset at which each queue of a mirror begins, and the queue of each record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tidecast.errors import ConfigError, Conflict
from tidecast.mirror.runs import Placed
from tidecast.mirror.state import Saved
from tidecast.queues.mapper import hash_of, table_of

_SHIFT = 16


class Ends(Protocol):
    """The ends of one queue of a source."""

    def earliest(self) -> int:
        """See `Receiver.earliest`."""

    def latest(self) -> int:
        """See `Receiver.latest`."""


@dataclass(frozen=True)
class Placing:
    """How records are placed into ``queues`` queues: by the queue of the source, or by key."""

    place: str
    queues: int

    def fixed(self, source: int) -> int | None:
        """The queue of all records of a source's queue; None: their keys decide."""
        if self.queues == 1:
            return 0
        return source if self.place == "queue" else None

    def queue_of(self, source: int, placed: Placed) -> int:
        """The queue of a record. Records without a key stay together."""
        fixed = self.fixed(source)
        if fixed is not None:
            return fixed
        key = placed[1].key
        if key is None:
            return source % self.queues
        return int(_tables(self.queues)[hash_of(key) >> _SHIFT])


_made: dict[int, Any] = {}


def _tables(queues: int) -> Any:
    if queues not in _made:
        _made[queues] = table_of(queues)
    return _made[queues]


def placing(place: str, sources: int, queues: int) -> Placing:
    """The placing of records. Raises ConfigError when the queues cannot match the source's."""
    if place == "queue" and sources != queues:
        raise ConfigError(
            f"place: queue: the source has {sources} queues and the topic {queues}: give the topic "
            "as many (tidecast topic edit NAME --queues), or place records by key"
        )
    if place == "auto":
        place = "queue" if sources == queues else "key"
    return Placing(place, queues)


@dataclass
class Route:
    """One queue of the source: its position, where the mirror began, its marks in the topic."""

    source: int
    position: int
    began: int
    marks: list[int]


@dataclass(frozen=True)
class Plan:
    """Routes and placing. ``repairs``: this plan only completes an earlier placing."""

    routes: list[Route]
    placing: Placing
    repairs: bool


def plan_of(
    ends: Sequence[Ends],
    marks: Sequence[Sequence[int]],
    now: Placing,
    saved: Saved | None,
    start: str,
    topic: str,
) -> Plan:
    """A route for each queue of the source. Raises Conflict when the topic forgot the mirror."""
    old = now if saved is None else Placing(saved.place, saved.queues)
    found, repairs = list[Route](), False
    for source, (end, row) in enumerate(zip(ends, marks, strict=True)):
        mark = max(row, default=0)
        began = None if saved is None else saved.starts.get(source)
        if began is None:
            is_new = saved is None and start == "latest" and not mark
            began = end.latest() if is_new else end.earliest()
        durable = began if saved is None else saved.durable.get(source, began)
        if not mark and durable > began:
            raise Conflict(
                f"topic {topic}: it knows nothing of this mirror, which has copied queue {source} "
                f"up to offset {durable}: was it recreated? Use another name to copy it again"
            )
        position = max(began, durable)
        if old.fixed(source) is not None:
            position = max(began, mark)
        repairs = repairs or (old != now and mark > position)
        found.append(Route(source, position, began, list(row)))
    return Plan(found, old if repairs else now, repairs)
