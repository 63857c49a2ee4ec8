"""Messages that wait for their delivery time, by way of the engines that keep their queues."""

from __future__ import annotations

import asyncio
import base64
import binascii
from datetime import UTC, datetime
from typing import Any

import msgspec

from tidecast_control.db import Database
from tidecast_control.kit import repository
from tidecast_control.kit.actor import Actor
from tidecast_control.kit.problems import ProblemError, invalid, not_found
from tidecast_control.kit.rights import Need
from tidecast_control.link.hub import Hub
from tidecast_control.messages.browse import Kept, keepers
from tidecast_control.messages.decode import shown_message
from tidecast_control.messages.schemas import NotSearched, ScheduledMessage, ScheduledPage


class ListPlace(msgspec.Struct, array_like=True):
    """Where the next page begins: the engine, and ``next`` of its page before."""

    chosen: tuple[str, str, str, str]
    """Topic, subscription, key, where: a cursor continues one list."""
    node: str
    after: list[tuple[int, int]] | None


def encode(place: ListPlace) -> str:
    """An opaque cursor."""
    return base64.urlsafe_b64encode(msgspec.msgpack.encode(place)).rstrip(b"=").decode()


def decode(cursor: str, chosen: tuple[str, str, str, str]) -> ListPlace:
    """The place of a cursor that `encode` made. Raises `invalid_request`."""
    try:
        padded = cursor.encode("ascii") + b"=" * (-len(cursor) % 4)
        raw = base64.b64decode(padded, altchars=b"-_", validate=True)
        place = msgspec.msgpack.decode(raw, type=ListPlace)
        for queue, token in place.after or []:
            if not (0 <= queue < 1 << 16 and 0 <= token < 1 << 63):
                raise ValueError(queue)
    except (ValueError, binascii.Error, msgspec.MsgspecError):
        raise invalid("query/cursor", "not a cursor of this list", "next_cursor") from None
    if place.chosen != chosen:
        raise invalid(
            "query/cursor", "made for another topic, subscription, key or filter", "next_cursor"
        )
    return place


async def scheduled(
    db: Database, hub: Hub, topic: str, chosen: dict[str, Any], cursor: str | None, actor: Actor
) -> ScheduledPage:
    """One page; ``chosen``: subscription, key, where, limit. Raises `not_found`, `conflict`.

    Without the right to payloads none is shown, nor searched.
    """
    actor.need_shown(topic)
    withheld = not actor.may("messages:read", Need("read_payloads", topic))
    if withheld and (chosen["key"] or chosen["where"]):
        actor.need("messages:read", Need("read_payloads", topic))
    of = topic, chosen["subscription"], chosen["key"], chosen["where"]
    place = ListPlace(of, "", None) if cursor is None else decode(cursor, of)

    def read() -> Kept:
        with db.begin() as session:
            row = repository.find(session, "topic", topic)
            if row is None:
                raise not_found("topic", topic)
            spec = row.spec
            if spec["mode"] != "durable":
                raise ProblemError("conflict", f"topic {topic} is live: it schedules nothing")
            return Kept(True, spec["owner"], spec["queues"], repository.names(session, "node"))

    asked = keepers(hub, await asyncio.to_thread(read))
    if not asked:
        raise ProblemError("no_node", "no engine is connected", None, 5.0)
    return await _page(hub, place, sorted(asked), chosen | {"topic": topic}, withheld=withheld)


async def _page(
    hub: Hub, place: ListPlace, asked: list[str], chosen: dict[str, Any], *, withheld: bool
) -> ScheduledPage:
    """Engines one after the other, until the page is full: a cursor names one place."""
    found: list[ScheduledMessage] = []
    missing: list[NotSearched] = []
    refused: list[ProblemError] = []
    if place.after is not None and place.node not in asked:
        missing.append(NotSearched(node=place.node, reason="it is not connected any more"))
    left = [name for name in asked if name >= place.node]
    following: ListPlace | None = None
    for name in left:
        after = place.after if name == place.node else None
        if len(found) >= chosen["limit"]:
            following = ListPlace(place.chosen, name, after)
            break
        args = chosen | {"limit": chosen["limit"] - len(found), "after": after}
        try:
            answer = await hub.ask(name, "scheduled", args)
        except ProblemError as problem:
            refused.append(problem)
            if problem.problem != "not_found":  # else the queues are not there
                reason = problem.detail or problem.problem
                missing.append(NotSearched(node=name, reason=reason))
            continue
        found += [_shown(each, withheld=withheld) for each in answer["records"]]
        if answer["next"] is not None:
            following = ListPlace(place.chosen, name, answer["next"])
            break
    if refused and len(refused) == len(left):
        raise next((each for each in refused if each.problem != "not_found"), refused[0])
    found.sort(key=lambda each: (int(each.deliver_at_ns), each.queue or 0, int(each.token or 0)))
    return ScheduledPage(
        topic=chosen["topic"],
        messages=found,
        complete=following is None and not missing,
        next_cursor=None if following is None else encode(following),
        missing=missing,
        withheld=withheld,
    )


def _shown(message: dict[str, Any], *, withheld: bool) -> ScheduledMessage:
    due_ns = int(message["deliver_at_ns"])
    return ScheduledMessage(
        **shown_message(message, withheld=withheld).model_dump(),
        deliver_at=datetime.fromtimestamp(due_ns / 1e9, UTC),
        deliver_at_ns=due_ns,
        subscriptions=message["subscriptions"],
    )
