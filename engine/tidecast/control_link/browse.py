"""Browsing and purging what durable topics keep. Nothing is consumed by browsing."""

from __future__ import annotations

import base64
import time
from typing import TYPE_CHECKING, Any

from tidecast import events as ev
from tidecast.errors import ConfigError, NotFound
from tidecast.layout.counters import QueueCounter
from tidecast.log.queue_log import QueueLog
from tidecast.node.consumers.admin import decoded
from tidecast.node.consumers.redrive import records

if TYPE_CHECKING:
    from tidecast.node.durable.topic import DurableTopic
    from tidecast.node.node import Node

SCANNED_MAX, SECONDS_MAX = 100_000, 5.0
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


def browse(node: Node, topic: DurableTopic, args: Json) -> Json:
    """Messages from a position on: of one queue by token, of several by time.

    ``next_token``: where to go on, when one queue was read. ``start`` latest: the newest ones.
    """
    queue = args.get("queue")
    logs = _logs(topic, None if queue is None else int(queue))
    if args.get("start") == "token" and len(logs) > 1:
        raise ConfigError("start=token: a token belongs to a queue: name the queue")
    limit, needle = int(args["limit"]), str(args.get("q", "")).encode()
    not_before_ns = int(args.get("time_ns") or 0) if args.get("start") == "time" else 0
    deadline_s = time.monotonic() + SECONDS_MAX
    found: list[Json] = []
    scanned, complete, following = 0, True, 0
    for log in logs:
        mine, following = 0, log.next_token
        for token, raw in records(log, _first(log, args, limit)):
            if mine >= limit or scanned >= SCANNED_MAX or time.monotonic() > deadline_s:
                complete, following = False, token
                break
            scanned += 1
            record = decoded(raw, cut=False)
            if record["time_ns"] < not_before_ns:
                continue  # its batch holds later ones
            if needle and needle not in record["payload"] and needle not in (record["key"] or b""):
                continue
            found.append(_message(node, topic, log, token, record))
            mine += 1
    if len(logs) > 1:
        found.sort(key=lambda each: (each["at_ns"], each["queue"], each["token"]))
        complete = complete and len(found) <= limit
        found = found[-limit:] if args.get("start") == "latest" else found[:limit]
    return {
        "messages": found, "scanned": scanned, "complete": complete,
        "next_token": str(following) if len(logs) == 1 else None,
    }  # fmt: skip


def _first(log: QueueLog, args: Json, limit: int) -> int:
    match args.get("start"):
        case "token":
            wanted = int(args.get("token") or 0)
        case "time":
            wanted = log.token_at_time(int(args.get("time_ns") or 0))
        case "latest":
            wanted = log.next_token - limit
        case _:
            wanted = 0
    return min(max(wanted, log.earliest_token), log.next_token)


def _message(node: Node, topic: DurableTopic, log: QueueLog, token: int, record: Json) -> Json:
    key = record["key"]
    return {
        "topic": topic.config.name,
        "node": node.name,
        "session": 0,
        "queue": log.queue,
        "token": token,
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
    """Delete every message of a queue, or of all; subscriptions go on with what comes next.

    Raises StorageError: the disk refuses a new segment; then nothing of that queue is deleted.
    """
    rows = []
    for log in _logs(topic, queue):
        before = {
            "queue": log.queue, "messages": log.next_token - log.earliest_token,
            "bytes": log.bytes,
        }  # fmt: skip
        if not dry_run:
            _purge_one(node, topic, log)
            _move_lanes(node, topic.config.name, log)
        rows.append(before | {"earliest": log.earliest_token})
    return {"queues": rows, "dry_run": dry_run}


def _purge_one(node: Node, topic: DurableTopic, log: QueueLog) -> None:
    """A new segment, then all before it go: between two cycles of the archiver."""
    durable = node.durable
    runtime, number = durable.runtime, durable.tables.queue_numbers(topic)[log.queue]

    def roll() -> int:
        runtime.drain_events()  # a roll that was asked for comes first
        if log.next_token > log.segments[-1].base_token:
            topic.roll(log.queue, time.time_ns(), durable.tables.waiting_in(number))
            runtime.state.queues[number]["dirty"] = 1
        return len(log.retain(bytes_max=1))

    gone = runtime.on_archiver(roll)
    if gone:
        row = durable.row_of(topic.config.name, log.queue)
        node.counters.values[row, QueueCounter.SEGMENTS_DELETED] += gone
        node.tell_all(
            ev.SegmentsDeleted(
                topic=topic.config.name, queue=log.queue, segments=gone,
                earliest_token=log.earliest_token,
            )
        )  # fmt: skip


def _move_lanes(node: Node, topic: str, log: QueueLog) -> None:
    """Cursors that rest at what is gone move behind it, so that they do not tell of a gap."""
    for row in node.consumers.perform("list", {}):
        which = {"pattern": row["pattern"], "name": row["name"]}
        for lane in node.consumers.perform("show", which)["lanes"]:
            mine = (lane["topic"], lane["queue"]) == (topic, log.queue)
            if mine and lane["position"] < log.earliest_token:
                node.consumers.perform(
                    "seek", which | {"topic": topic, "queue": log.queue, "start": "tokens",
                                     "start_tokens": {log.queue: log.earliest_token}},
                )  # fmt: skip
