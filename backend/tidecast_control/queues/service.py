"""Queues: one durable partition of a topic each."""

from __future__ import annotations

from sqlmodel import Session

from tidecast_control.kit import cursor as cursors
from tidecast_control.kit.actor import Actor
from tidecast_control.kit.problems import invalid, not_found
from tidecast_control.kit.schemas import Page
from tidecast_control.live.seen import world_of
from tidecast_control.live.world import World
from tidecast_control.queues import repository
from tidecast_control.queues.schemas import Queue


def page(session: Session, topic: str, limit: int, cursor: str | None, actor: Actor) -> Page[Queue]:
    """Queues of topics that the caller sees, by topic and number."""
    world = world_of(session)
    after_topic, after_number = "", -1
    if cursor:
        value, name = cursors.decode(cursor, "name")
        if not isinstance(value, int):
            raise invalid("query/cursor", "not a cursor of this list", "next_cursor")
        after_topic, after_number = name, value
    found: list[Queue] = []
    for name, count in _topics(session, world, topic, after_topic):
        if not actor.sees(name):
            continue
        first = after_number + 1 if name == after_topic else 0
        found += [_queue(world, name, n) for n in range(first, count)][: limit + 1 - len(found)]
        if len(found) > limit:
            break
    following = None
    if len(found) > limit:
        found = found[:limit]
        following = cursors.encode("name", found[-1].number, found[-1].topic)
    return Page(items=found, next_cursor=following)


def get(session: Session, name: str, actor: Actor) -> Queue:
    """One queue of a topic that the caller sees. Raises `not_found`."""
    topic, _, number = name.rpartition(":")
    world = world_of(session)
    for known, count in _topics(session, world, topic, ""):
        if known == topic and int(number) < count and actor.sees(topic):
            return _queue(world, topic, int(number))
    raise not_found("queue", name)


def _topics(session: Session, world: World | None, topic: str, after: str) -> list[tuple[str, int]]:
    """(name, queues) from ``after`` on: durable topics, and topics of engines' adapters."""
    known = repository.durable_topics(session, topic, after)
    names, attached = {name for name, _ in known}, dict[str, int]()
    for row in world.queues.values() if world is not None else ():
        name = row["topic"]
        if row.get("adapter") and name not in names and topic in ("", name) and name >= after:
            attached[name] = max(attached.get(name, 0), row["number"] + 1)
    return sorted([*known, *attached.items()]) if attached else known


def _queue(world: World | None, topic: str, number: int) -> Queue:
    name = f"{topic}:{number}"
    live = world.queues.get(name) if world is not None else None
    return Queue.model_validate(live or {"name": name, "topic": topic, "number": number})
