"""Browsing and purging records of durable topics. Browsing consumes nothing."""

from __future__ import annotations

import base64
import heapq
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidecast import events
from tidecast.errors import ConfigError, NotFound
from tidecast.layout.counters import QueueCounter
from tidecast.log.queue_log import QueueLog
from tidecast.queues.records import decoded, records_from

if TYPE_CHECKING:
    from tidecast.node.durable.topic import DurableTopic
    from tidecast.node.node import Node

SCANNED_MAX, SECONDS_MAX = 100_000, 5.0
BLOCK = 1000
"""Messages that a backward read looks at together."""
PAYLOAD_BYTES_MAX = 64 * 1024

Json = dict[str, Any]


def topic_of(node: Node, name: str) -> DurableTopic | None:
    """A durable topic that is open here."""
    found: DurableTopic | None = node.durable.topics.get(name)
    return found


def _logs(topic: DurableTopic, queue: int | None) -> list[QueueLog]:
    if queue is None:
        return list(topic.logs)
    if not 0 <= queue < len(topic.logs):
        raise NotFound(f"topic {topic.config.name} has no queue {queue}")
    return [topic.logs[queue]]


# --- browsing -------------------------------------------------------------------------------------


@dataclass
class _Budget:
    """How much one browse may look at."""

    deadline_s: float
    scanned: int = 0

    def spent(self) -> bool:
        return self.scanned >= SCANNED_MAX or time.monotonic() > self.deadline_s


@dataclass
class _Scan:
    """How far a queue was read. ``position``: forward the next token, backward the last one."""

    log: QueueLog
    position: int
    pending: int | None = None
    """Read, and not taken: another queue's were earlier."""

    def place(self, *, older: bool) -> int:
        """Where the next page begins."""
        if self.pending is None:
            return self.position
        return self.pending + 1 if older else self.pending


def browse(node: Node, topic: DurableTopic, args: Json) -> Json:
    """Messages of one queue or of all, merged by time; each queue in the order of its tokens.

    A page begins at ``start``, or at ``places`` (queue -> token) of the page before. ``older``: the
    newest records before those places. Messages always come in the order of time. The answer has
    ``places``, where the next page in this direction begins, and ``began``, where this page did.
    """
    older = bool(args.get("older")) or args.get("start") == "latest"
    limit, needle = int(args["limit"]), str(args.get("q", "")).encode()
    budget = _Budget(time.monotonic() + SECONDS_MAX)
    not_before_ns = int(args.get("time_ns") or 0) if args.get("start") == "time" else 0
    scans = [_Scan(log, place) for log, place in _places(topic, args)]
    began = {str(scan.log.queue): str(scan.position) for scan in scans}
    read = _backward if older else _forward
    found: list[Json] = []
    merged = heapq.merge(
        *(read(scan, budget, needle, not_before_ns, limit) for scan in scans),
        key=lambda each: (each[2]["time_ns"], each[0].log.queue),
        reverse=older,
    )
    for scan, token, record in merged:
        scan.pending = None
        found.append(_message(node, topic, scan.log, token, record))
        if len(found) >= limit:
            break
    places = {str(s.log.queue): str(s.place(older=older)) for s in scans}
    ends = [
        (s.place(older=older), s.log.earliest_token if older else s.log.next_token) for s in scans
    ]
    return {
        "messages": found[::-1] if older else found,
        "scanned": budget.scanned,
        "complete": all(place <= end if older else place >= end for place, end in ends),
        "places": places,
        "began": began,
        "earliest": {str(s.log.queue): str(s.log.earliest_token) for s in scans},
    }


def _places(topic: DurableTopic, args: Json) -> list[tuple[QueueLog, int]]:
    """The queues to read, and where each begins."""
    queue = args.get("queue")
    logs = _logs(topic, None if queue is None else int(queue))
    places = args.get("places")
    if places is None:
        if args.get("start") == "token" and len(logs) > 1:
            raise ConfigError("start=token: a token belongs to a queue: name the queue")
        return [(log, _first(log, args)) for log in logs]
    older = bool(args.get("older"))
    return [
        (log, min(max(int(places.get(str(log.queue), 0)), log.earliest_token), log.next_token))
        for log in logs
        if str(log.queue) in places or not older  # a queue that is new has nothing older
    ]


_Item = tuple[_Scan, int, Json]


def _forward(
    scan: _Scan, budget: _Budget, needle: bytes, not_before_ns: int, _limit: int
) -> Iterator[_Item]:
    for token, raw in records_from(scan.log, scan.position):
        if budget.spent():
            return
        budget.scanned += 1
        scan.position = token + 1
        record = decoded(raw, cut=False)
        if record["time_ns"] >= not_before_ns and _holds(needle, record):
            scan.pending = token
            yield scan, token, record


def _backward(
    scan: _Scan, budget: _Budget, needle: bytes, _not_before_ns: int, limit: int
) -> Iterator[_Item]:
    while scan.position > scan.log.earliest_token and not budget.spent():
        first = max(scan.position - max(limit, BLOCK), scan.log.earliest_token)
        block = []
        for token, raw in records_from(scan.log, first):
            if token >= scan.position:
                break
            block.append((token, raw))
        for token, raw in reversed(block):
            budget.scanned += 1
            scan.position = token
            record = decoded(raw, cut=False)
            if _holds(needle, record):
                scan.pending = token
                yield scan, token, record
        scan.position = first


def _holds(needle: bytes, record: Json) -> bool:
    return not needle or needle in record["payload"] or needle in (record["key"] or b"")


def _first(log: QueueLog, args: Json) -> int:
    match args.get("start"):
        case "token":
            wanted = int(args.get("token") or 0)
        case "time":
            wanted = log.token_at_time(int(args.get("time_ns") or 0))
        case "latest":
            wanted = log.next_token
        case _:
            wanted = 0
    return min(max(wanted, log.earliest_token), log.next_token)


def _message(node: Node, topic: DurableTopic, log: QueueLog, token: int, record: Json) -> Json:
    return _parts(node, record | {"topic": topic.config.name, "queue": log.queue, "token": token})


def scheduled_message(node: Node, record: Json) -> Json:
    """A record that waits for its delivery time, as `node.scheduling` lists it."""
    names = [name for _, name in record["subscriptions"]]
    about = {"deliver_at_ns": record["deliver_at_ns"], "subscriptions": names}
    return _parts(node, record) | about


def _parts(node: Node, record: Json) -> Json:
    key = record["key"]
    return {
        "topic": record["topic"],
        "node": node.name,
        "session": 0,
        "queue": record["queue"],
        "token": record["token"],
        "at_ns": record["time_ns"],
        "key": key.decode("utf-8", "backslashreplace") if key else None,
        "headers": {
            str(k): v.hex() if isinstance(v, bytes) else v for k, v in record["headers"].items()
        },
        "size": record["size"],
        "payload": base64.b64encode(record["payload"][:PAYLOAD_BYTES_MAX]).decode(),
    }


# --- purging --------------------------------------------------------------------------------------


def purge(node: Node, topic: DurableTopic, queue: int | None, *, dry_run: bool) -> Json:
    """Delete every message of a queue, or of all; subscriptions continue with the next message.

    Raises StorageError: the disk refuses a new segment; then nothing of that queue is deleted.
    """
    rows = []
    for log in _logs(topic, queue):
        before = {
            "queue": log.queue,
            "messages": log.next_token - log.earliest_token,
            "bytes": log.bytes,
        }
        if not dry_run:
            _purge_one(node, topic, log)
            _move_cursors(node, topic.config.name, log)
        rows.append(before | {"earliest": log.earliest_token})
    return {"queues": rows, "dry_run": dry_run}


def _purge_one(node: Node, topic: DurableTopic, log: QueueLog) -> None:
    """A new segment, then all before it go: between two cycles of the archiver."""
    durable = node.durable.registry
    runtime, number = durable.runtime, durable.tables.queue_numbers(topic)[log.queue]

    def roll() -> int:
        runtime.drain_events()  # a roll that was asked for comes first
        if log.next_token > log.segments[-1].base_token:
            topic.roll(log.queue, durable.ctx.wall_ns(), durable.tables.waiting_in(number))
            runtime.state.queues[number]["dirty"] = 1
        return len(log.retain(bytes_max=1))

    gone = runtime.on_archiver(roll)
    if gone:
        row = durable.row_of(topic.config.name, log.queue)
        node.counters.values[row, QueueCounter.SEGMENTS_DELETED] += gone
        node.notify_all(
            events.SegmentsDeleted(
                topic=topic.config.name,
                queue=log.queue,
                segments=gone,
                earliest_token=log.earliest_token,
            )
        )


def _move_cursors(node: Node, topic: str, log: QueueLog) -> None:
    """Move cursors behind deleted records, so that they report no gap."""
    for row in node.consumers.perform("list", {}):
        which = {"pattern": row["pattern"], "name": row["name"]}
        for cursor in node.consumers.perform("show", which)["cursors"]:
            mine = (cursor["topic"], cursor["queue"]) == (topic, log.queue)
            if mine and cursor["position"] < log.earliest_token:
                node.consumers.perform(
                    "seek",
                    which
                    | {
                        "topic": topic,
                        "queue": log.queue,
                        "start": "tokens",
                        "start_tokens": {log.queue: log.earliest_token},
                    },
                )
