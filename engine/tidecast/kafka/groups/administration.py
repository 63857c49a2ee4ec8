"""Clients and groups for the operators of a node: listed, deleted, their offsets reset.

Looking is done in the caller's thread; changes are made in the loop's, where members join.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol, TypeVar

import msgspec
from msgspec import Meta

from tidecast.access import Access
from tidecast.errors import ConfigError, Conflict, NotFound, StorageError
from tidecast.kafka.fetch import first_since
from tidecast.kafka.groups.rows import AGES_READ_MAX, GroupRows
from tidecast.kafka.groups.service import GroupService, Offset, Place

if TYPE_CHECKING:
    from tidecast.log.queue_log import QueueLog
    from tidecast.node.node import Node

Json = dict[str, Any]
T = TypeVar("T")
ROWS_MAX = 1000
SAMPLED_MAX = 256
"""Groups and clients of one sample of telemetry: the groups that lag the most."""
SHARE, PAUSE_S_MAX = 0.05, 5.0
"""Share of the time that samples of groups may take; beyond it a sample repeats older groups."""
CHANGE_S = 20.0
Text = Annotated[str, Meta(max_length=255)]


class Seen(Protocol):
    """A connection, as operators see it."""

    number: int
    client_id: str
    software: str
    peer: str
    peer_port: int
    since_ns: int
    bytes_in: int
    bytes_out: int
    requests: int

    @property
    def shown_access(self) -> Access | None:
        """The key that it showed; None: it has yet to log in, or needs none."""


class _Listing(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Arguments of `kafka_groups`. ``inclusive``: begin with ``after`` itself."""

    after: Text = ""
    inclusive: bool = False
    limit: Annotated[int, Meta(ge=1, le=ROWS_MAX)] = 100
    q: Text = ""
    topic: Text = ""
    state: Literal["", "Empty", "PreparingRebalance", "CompletingRebalance", "Stable"] = ""
    within: list[str] | None = None


class _Clients(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Arguments of `kafka_clients`: clients behind the number ``after``."""

    after: Annotated[int, Meta(ge=0)] = 0
    limit: Annotated[int, Meta(ge=1, le=ROWS_MAX)] = 100


class _Named(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Arguments of `kafka_group` and `kafka_delete_group`."""

    name: Text
    within: list[str] | None = None
    dry_run: bool = False


class Reset(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Arguments of `kafka_reset_offsets`: exactly one of ``to`` and ``shift``."""

    name: Text
    to: Literal["earliest", "latest", "offset", "time"] | None = None
    topic: Text = ""
    queue: Annotated[int, Meta(ge=0, le=1023)] | None = None
    offset: Annotated[int, Meta(ge=0)] | None = None
    time_ns: Annotated[int, Meta(ge=0)] | None = None
    shift: int | None = None
    within: list[str] | None = None
    dry_run: bool = False


class GroupAdministration:
    """See module, and `tidecast.node.kafka_endpoint.KafkaAdministration`."""

    def __init__(
        self,
        node: Node,
        groups: GroupService,
        connections: Callable[[], Iterable[Seen]],
        loop: Callable[[], asyncio.AbstractEventLoop | None],
    ) -> None:
        self._node, self._groups, self._connections, self._loop = node, groups, connections, loop
        self._rows = GroupRows(
            node, lambda: groups.coordinator.groups, lambda: groups.offsets.groups
        )
        self._lock = threading.Lock()
        self._sampled: Json = {"groups": [], "groups_total": 0}
        self._next_s = 0.0
        self._actions: dict[str, Callable[[Json], Any]] = {
            "kafka_groups": self._list,
            "kafka_group": self._show,
            "kafka_clients": self._clients,
            "kafka_delete_group": self._delete,
            "kafka_reset_offsets": self._reset,
        }

    def perform(self, action: str, arguments: Json) -> Any:
        """See `KafkaAdministration`."""
        return self._actions[action](arguments)

    # --- looking ----------------------------------------------------------------------------------

    def sample(self) -> Json:
        """See `KafkaAdministration`."""
        clients = sorted(self._connections(), key=lambda each: each.number)
        with self._lock:
            began_s = time.monotonic()
            if began_s >= self._next_s:
                self._sampled = self._sample_groups()
                now_s = time.monotonic()
                self._next_s = now_s + min((now_s - began_s) / SHARE, PAUSE_S_MAX)
            groups = self._sampled
        return {
            "clients": [_client(each) for each in clients[:SAMPLED_MAX]],
            "clients_total": len(clients),
            **groups,
        }

    def _sample_groups(self) -> Json:
        """The groups that lag the most. Ages are read for these alone."""
        names = self._rows.names()
        rows = [self._rows.row(name, None, [0]) for name in names]
        found = [row for row in rows if row is not None]
        found.sort(key=lambda row: (-(row["lag"] or 0), -row["members"], row["name"]))
        reads = [AGES_READ_MAX]
        shown = [self._rows.row(row["name"], None, reads) or row for row in found[:SAMPLED_MAX]]
        return {"groups": shown, "groups_total": len(found)}

    def _list(self, arguments: Json) -> Json:
        asked = _asked(_Listing, "kafka_groups", arguments)
        found: list[Json] = []
        reads = [AGES_READ_MAX]
        more = False
        for name in self._rows.names():
            if name < asked.after or (name == asked.after and not asked.inclusive):
                continue
            if asked.q not in name:
                continue
            if asked.topic and asked.topic not in self._rows.topics_of(name):
                continue
            row = self._rows.row(name, asked.within, reads)
            if row is None or asked.state not in ("", row["state"]):
                continue
            if len(found) == asked.limit:
                more = True
                break
            found.append(row)
        return {"rows": found, "next": found[-1]["name"] if more else None}

    def _show(self, arguments: Json) -> Json:
        asked = _asked(_Named, "kafka_group", arguments)
        found = self._rows.detail(asked.name, asked.within)
        if found is None:
            raise _no_group(asked.name)
        return found

    def _clients(self, arguments: Json) -> Json:
        asked = _asked(_Clients, "kafka_clients", arguments)
        seen = sorted(self._connections(), key=lambda each: each.number)
        left = [each for each in seen if each.number > asked.after]
        rows = [_client(each) for each in left[: asked.limit]]
        return {"rows": rows, "next": rows[-1]["number"] if len(left) > asked.limit else None}

    # --- changing ---------------------------------------------------------------------------------

    def _delete(self, arguments: Json) -> Json:
        asked = _asked(_Named, "kafka_delete_group", arguments)
        return self._in_loop(lambda: self._deleted(asked))

    async def _deleted(self, asked: _Named) -> Json:
        stored = self._offsets_of(asked.name, asked.within)
        n = sum(len(rows) for rows in stored.values())
        answer = {"name": asked.name, "offsets": n, "topics": sorted(stored)}
        if not asked.dry_run:
            await self._stored(self._groups.offsets.forget(asked.name))
        return answer

    def _reset(self, arguments: Json) -> Json:
        asked = _asked(Reset, "kafka_reset_offsets", arguments)
        _check(asked)
        stored = self._offsets_of(asked.name, asked.within)
        rows = [self._moved(asked, *each) for each in self._chosen(asked, stored)]
        return self._in_loop(lambda: self._committed(asked, rows))

    async def _committed(self, asked: Reset, rows: list[Json]) -> Json:
        self._offsets_of(asked.name, asked.within)  # members may have joined meanwhile
        places: dict[Place, Offset] = {
            (row["topic"], row["queue"]): Offset(row["after"]) for row in rows
        }
        if not asked.dry_run:
            await self._stored(self._groups.offsets.commit(asked.name, places))
        return {"name": asked.name, "rows": rows}

    def _offsets_of(self, name: str, within: list[str] | None) -> dict[str, dict[int, Offset]]:
        """The offsets of a group without members. Raises Conflict, NotFound."""
        group, stored = self._groups.coordinator.groups.get(name), self._groups.offsets.groups
        if self._rows.row(name, within, [0]) is None:
            raise _no_group(name)
        members = 0 if group is None else len(group.members) + len(group.pending)
        if members:
            raise Conflict(
                f"group {name} has {members} member{'s' if members > 1 else ''}: stop its "
                "consumers first, or wait for their session time-out"
            )
        if name not in stored:
            raise _no_group(name)
        return stored[name].offsets

    def _chosen(
        self, asked: Reset, stored: dict[str, dict[int, Offset]]
    ) -> list[tuple[str, int, int | None, QueueLog]]:
        """(topic, queue, committed, log) of all that is to move. Raises ConfigError, NotFound."""
        if asked.topic and asked.topic not in stored:
            known = ", ".join(sorted(stored)) or "none"
            raise NotFound(f"topic: {asked.topic}: group {asked.name} has offsets of {known}")
        found: list[tuple[str, int, int | None, QueueLog]] = []
        for topic in [asked.topic] if asked.topic else sorted(stored):
            kept = self._node.durable.topics.get(topic)
            if kept is None:
                raise NotFound(f"topic: {topic}: its queues are not at this engine")
            queues = range(len(kept.logs)) if asked.queue is None else [asked.queue]
            for queue in queues:
                if queue >= len(kept.logs):
                    most = len(kept.logs) - 1
                    raise ConfigError(f"queue: {queue}: allowed are 0 to {most} of {topic}")
                before = stored[topic].get(queue)
                committed = None if before is None else before.offset
                found.append((topic, queue, committed, kept.logs[queue]))
        return found

    @staticmethod
    def _moved(asked: Reset, topic: str, queue: int, before: int | None, log: QueueLog) -> Json:
        earliest, end = log.earliest_token, log.durable_token
        if asked.shift is not None:
            after = min(max((earliest if before is None else before) + asked.shift, earliest), end)
        elif asked.to == "earliest":
            after = earliest
        elif asked.to == "latest":
            after = end
        elif asked.to == "time":
            assert asked.time_ns is not None
            after, _ = first_since(log, -(-asked.time_ns // 1_000_000))
            after = end if after < 0 else after
        else:
            assert asked.offset is not None
            after = asked.offset
            if not earliest <= after <= end:
                raise ConfigError(
                    f"offset: {after}: allowed are {earliest} to {end} of {topic}:{queue}"
                )
        return {
            "topic": topic,
            "queue": queue,
            "before": before,
            "after": after,
            "earliest": earliest,
            "end": end,
            "records": after - (earliest if before is None else before),
        }

    @staticmethod
    async def _stored(work: Awaitable[None]) -> None:
        try:
            await work
        except OSError as problem:
            raise StorageError(f"offsets are not stored: {problem.strerror}") from problem

    def _in_loop(self, work: Callable[[], Coroutine[Any, Any, Json]]) -> Json:
        """The result of a coroutine, from the loop's thread."""
        loop = self._loop()
        if loop is None or not loop.is_running():
            raise NotFound("the Kafka endpoint of this engine is not running")
        try:
            return asyncio.run_coroutine_threadsafe(work(), loop).result(CHANGE_S)
        except TimeoutError:
            raise StorageError(f"offsets are not stored within {CHANGE_S:.0f} s") from None


def _asked(kind: type[T], action: str, arguments: Json) -> T:
    try:
        return msgspec.convert(arguments, kind)
    except msgspec.ValidationError as problem:
        raise ConfigError(f"{action}: {problem}") from None


def _check(asked: Reset) -> None:
    """Raise ConfigError for a place that is none."""
    if (asked.to is None) == (asked.shift is None):
        raise ConfigError("to: give either `to` (earliest, latest, offset, time) or `shift`")
    for to, field in (("offset", "offset"), ("time", "time_ns")):
        if (asked.to == to) != (getattr(asked, field) is not None):
            raise ConfigError(f"{field}: `to` {to} and `{field}` belong together")
    if asked.to == "offset" and not (asked.topic and asked.queue is not None):
        raise ConfigError("queue: an offset is of one queue: give `topic` and `queue`")
    if asked.queue is not None and not asked.topic:
        raise ConfigError("topic: a queue is of one topic: give `topic`")


def _no_group(name: str) -> NotFound:
    return NotFound(f"no group {name} with members or offsets at this engine")


def _client(each: Seen) -> Json:
    access = each.shown_access
    return {
        "number": each.number,
        "client_id": each.client_id,
        "software": each.software,
        "address": f"{each.peer}:{each.peer_port}",
        "key": "" if access is None else access.id,
        "key_name": "" if access is None else access.name,
        "since_ns": each.since_ns,
        "bytes_in": each.bytes_in,
        "bytes_out": each.bytes_out,
        "requests": each.requests,
    }
