"""Browsing: every engine that keeps queues of the topic is asked, and their answers are merged.

A cursor holds, by engine and queue, where the next page begins. A page lists the queues that could
not be searched, and is never `complete` then.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import heapq
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from tidecast_control.kit.problems import ProblemError, invalid
from tidecast_control.link.hub import Hub
from tidecast_control.messages.schemas import NotSearched

CURSOR_BYTES_MAX = 4 << 20
Json = dict[str, Any]
Places = dict[str, dict[str, str]]
"""Node -> queue -> token."""


@dataclass(frozen=True)
class Kept:
    """Where a topic's queues should be: its mode, owner, queues, and all nodes there are."""

    durable: bool
    owner: str
    queues: int
    nodes: Sequence[str]


class Place(msgspec.Struct, array_like=True):
    """The place that a cursor names."""

    topic: str
    older: bool
    queue: int | None
    node: str
    places: Places


@dataclass(frozen=True)
class Found:
    """A page, before it is shown."""

    messages: list[Json]
    scanned: int
    complete: bool
    missing: list[NotSearched]
    next_cursor: str | None
    previous_cursor: str | None
    next_token: str | None


def encode(place: Place) -> str:
    """An opaque cursor."""
    packed = zlib.compress(msgspec.msgpack.encode(place))
    return base64.urlsafe_b64encode(packed).rstrip(b"=").decode()


def decode(cursor: str, topic: str) -> Place:
    """The place of a cursor that `encode` made. Raises `invalid_request`."""
    try:
        padded = cursor.encode("ascii") + b"=" * (-len(cursor) % 4)
        packed = base64.b64decode(padded, altchars=b"-_", validate=True)
        unpacking = zlib.decompressobj()
        raw = unpacking.decompress(packed, CURSOR_BYTES_MAX)
        if not unpacking.eof:
            raise ValueError("cut")
        place = msgspec.msgpack.decode(raw, type=Place)
        for queues in place.places.values():
            for queue, token in queues.items():
                if not (0 <= int(queue) < 1 << 16 and 0 <= int(token) < 1 << 63):
                    raise ValueError(queue)
    except (ValueError, binascii.Error, zlib.error, msgspec.MsgspecError):
        raise invalid("query/cursor", "not a cursor of this list", "next_cursor") from None
    if place.topic != topic:
        raise invalid("query/cursor", f"made for topic {place.topic}", "a cursor of this topic")
    return place


async def search(hub: Hub, kept: Kept, args: Json, place: Place | None) -> Found:
    """One page. Raises `no_node`, or an engine's problem when no engine could answer."""
    node = str(args.get("node") or "")
    if place is not None:
        node = place.node
        args = args | {"queue": place.queue, "older": place.older, "start": "earliest"}
    args = {key: value for key, value in args.items() if value is not None}
    asked = [node] if node else keepers(hub, kept)
    if not asked:
        raise ProblemError("no_node", "no engine is connected", None, 5.0)

    def arguments_of(name: str) -> Json:
        if place is None:
            return args | {"durable": kept.durable}
        return args | {"durable": kept.durable, "places": place.places.get(name, {})}

    answers = await asyncio.gather(
        *(hub.ask(name, "browse", arguments_of(name)) for name in asked), return_exceptions=True
    )
    good: dict[str, Json] = {}
    failed: list[ProblemError] = []
    missing: list[NotSearched] = []
    for name, answer in zip(asked, answers, strict=True):
        if isinstance(answer, ProblemError):
            failed.append(answer)
            missing.append(NotSearched(node=name, reason=answer.detail or answer.problem))
        elif isinstance(answer, BaseException):
            raise answer
        else:
            good[name] = answer
    if not good:
        raise failed[0]
    if not node:
        missing += _unseen(hub, kept, good, missing, args.get("queue"))
    older = bool(args.get("older")) or args.get("start") == "latest"
    if not kept.durable:
        _drop_doubles(good)
    queue = args.get("queue")
    return _page(good, missing, Place(str(args["topic"]), older, queue, node, {}), args["limit"])


def keepers(hub: Hub, kept: Kept) -> list[str]:
    """The engines to ask: the one that owns the queues, else all."""
    connected = hub.connected()
    if kept.durable and kept.owner in connected:
        return [kept.owner]
    return connected


def _unseen(
    hub: Hub, kept: Kept, good: Mapping[str, Json], failed: Sequence[NotSearched], queue: int | None
) -> list[NotSearched]:
    """Queues that no engine showed."""
    connected = hub.connected()
    if not kept.durable:
        return []
    if not kept.owner:  # each engine keeps the messages that are published there
        return [
            NotSearched(node=name, reason=f"{name} is not connected")
            for name in kept.nodes
            if name not in connected
        ]
    shown = {int(number) for answer in good.values() for number in answer.get("places", {})}
    wanted = range(kept.queues) if queue is None else (queue,)
    gone = [number for number in wanted if number not in shown]
    if not gone or failed:
        return []
    if kept.owner != "*" and kept.owner not in connected:
        return [NotSearched(node=kept.owner, queues=gone, reason=f"{kept.owner} is not connected")]
    return [NotSearched(queues=gone, reason="no connected engine has them")]


def _drop_doubles(good: dict[str, Json]) -> None:
    """Keep each message once: every engine of a live topic receives the others' messages, too.

    Each engine shows its own messages. The first engine that has messages of a node that is not
    connected shows them.
    """
    shown_by: dict[tuple[str, int], str] = {}
    for name, answer in sorted(good.items()):
        mine = []
        for each in answer["messages"]:
            source = (each["node"], each["session"])
            by = each["node"] if each["node"] in good else shown_by.setdefault(source, name)
            if by == name:
                mine.append(each)
        answer["messages"] = mine


def _time(each: tuple[str, Json]) -> tuple[int, str]:
    return (each[1].get("at_ns") or 0, each[0])


def _page(good: Mapping[str, Json], missing: list[NotSearched], place: Place, limit: int) -> Found:
    """Merge the engines' messages; messages beyond the limit are left for the next page."""
    older = place.older
    rows = [
        [(name, m) for m in (reversed(a["messages"]) if older else a["messages"])]
        for name, a in good.items()
    ]
    merged = list(heapq.merge(*rows, key=_time, reverse=older))
    taken, left = merged[:limit], merged[limit:]
    following: Places = {name: dict(a.get("places", {})) for name, a in good.items()}
    _give_back(following, left, older=older)
    began: Places = {name: dict(a.get("began", {})) for name, a in good.items()}
    newer, before = (began, following) if older else (following, began)
    earliest = {name: a.get("earliest", {}) for name, a in good.items()}
    has_older = any(
        int(token) > int(earliest[name].get(queue, 0))
        for name, queues in before.items()
        for queue, token in queues.items()
    )
    named = [(name, queue) for name, queues in following.items() for queue in queues]

    def cursor(places: Places, *, back: bool) -> str:
        return encode(Place(place.topic, back, place.queue, place.node, places))

    single = following[named[0][0]][named[0][1]] if len(named) == 1 and not older else None
    shown = [message for _, message in (reversed(taken) if older else taken)]
    return Found(
        messages=shown,
        scanned=sum(int(a["scanned"]) for a in good.values()),
        complete=all(a["complete"] for a in good.values()) and not left and not missing,
        missing=missing,
        next_cursor=cursor(newer, back=False) if named else None,
        previous_cursor=cursor(before, back=True) if has_older else None,
        next_token=single,
    )


def _give_back(places: Places, left: Iterable[tuple[str, Json]], *, older: bool) -> None:
    seen: set[tuple[str, str]] = set()
    for name, message in left:
        if message.get("queue") is None:
            continue
        queue = str(message["queue"])
        if (name, queue) not in seen:  # the first that is left: where the next page begins
            seen.add((name, queue))
            places[name][queue] = str(int(message["token"]) + older)
