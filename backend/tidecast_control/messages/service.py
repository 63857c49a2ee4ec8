"""Browsing and publishing, by way of an engine."""

from __future__ import annotations

import asyncio
import base64
import json
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from tidecast.client.core.metadata import due_ns_of
from tidecast.errors import ConfigError
from tidecast.layout.header_names import RESERVED, is_reserved
from tidecast_control.api import resources
from tidecast_control.audit import service as audit
from tidecast_control.db import Database
from tidecast_control.kit import repository
from tidecast_control.kit.actor import Actor
from tidecast_control.kit.problems import invalid, not_found
from tidecast_control.kit.rights import Need
from tidecast_control.kit.schemas import Plan
from tidecast_control.link.hub import Hub
from tidecast_control.messages.browse import Kept, decode, search
from tidecast_control.messages.decode import shown_message
from tidecast_control.messages.schemas import BrowsePage, Published, PublishInput


@dataclass(frozen=True)
class Browse:
    """The query of a browse."""

    topic: str
    start: str
    queue: int | None
    token: str | None
    time_ns: str | None
    limit: int
    wait_ms: int
    q: str
    node: str
    cursor: str | None


async def _check_topic(db: Database, topic: str, body: PublishInput) -> None:
    """Raise unless the topic is there, and is durable if the message needs that."""

    def check() -> None:
        with db.begin() as session:
            row = repository.find(session, "topic", topic)
            if row is None:
                raise not_found("topic", topic)
            field = "ack" if body.ack == "durable" else next(iter(_delivery_time(body)), None)
            if field is not None and row.spec["mode"] != "durable":
                raise invalid(f"/{field}", f"topic {topic} is live", "a durable topic")

    await asyncio.to_thread(check)


def _delivery_time(body: PublishInput) -> dict[str, Any]:
    """The field that gives a delivery time, if any does. Raises `invalid_request`."""
    given = {
        field: value
        for field in ("deliver_at", "deliver_in_s")
        if (value := getattr(body, field)) is not None
    }
    now_ns = int(datetime.now(UTC).timestamp() * 1e9)
    try:
        due_ns_of(body.deliver_at, body.deliver_in_s, now_ns)
    except ConfigError as problem:
        raise invalid("/deliver_at", str(problem), "one time, at most 365 days ahead") from None
    return given


async def browse(db: Database, hub: Hub, wanted: Browse, actor: Actor) -> BrowsePage:
    """Messages found. Without the right to payloads, none is shown, nor searched."""
    actor.need_shown(wanted.topic)
    withheld = not actor.may("messages:read", Need("read_payloads", wanted.topic))
    if withheld and wanted.q:
        actor.need("messages:read", Need("read_payloads", wanted.topic))
    place = None if wanted.cursor is None else decode(wanted.cursor, wanted.topic)

    def read() -> Kept:
        with db.begin() as session:
            row = repository.find(session, "topic", wanted.topic)
            if row is None:
                raise not_found("topic", wanted.topic)
            spec = row.spec
            nodes = repository.names(session, "node")
            return Kept(spec["mode"] == "durable", spec["owner"], spec["queues"], nodes)

    kept = await asyncio.to_thread(read)
    if wanted.node:
        await hub.named(wanted.node)
    args = asdict(wanted)
    del args["cursor"]
    found = await search(hub, kept, args, place)
    return BrowsePage(
        topic=wanted.topic,
        messages=[shown_message(m, withheld=withheld) for m in found.messages],
        scanned=found.scanned,
        complete=found.complete,
        next_cursor=found.next_cursor,
        previous_cursor=found.previous_cursor,
        next_token=found.next_token,
        missing=found.missing,
        withheld=withheld,
    )


async def planned(db: Database, hub: Hub, topic: str, body: PublishInput) -> Plan:
    """The plan of a `publish`. Raises all that it would raise before it asks an engine."""
    payload = _payload(body)
    _check_headers(body)
    await _check_topic(db, topic, body)
    await hub.named(body.node)
    values = {"bytes": len(payload), "key": body.key, "ack": body.ack}
    return resources.plan_of("message", topic, None, values, dry_run=True)


async def publish(
    db: Database, hub: Hub, topic: str, body: PublishInput, actor: Actor
) -> Published:
    """Publish one message. Raises `invalid_request`, `not_found`, `no_node`, `node_failed`."""
    payload = _payload(body)
    _check_headers(body)
    await _check_topic(db, topic, body)
    await hub.named(body.node)
    args: dict[str, Any] = {
        "topic": topic,
        "payload": base64.b64encode(payload).decode(),
        "key": body.key,
        "headers": body.headers,
        "ack": body.ack,
    }
    name = "publish"
    if _delivery_time(body):
        name = "schedule"  # an engine that cannot hold it back must not publish it at once
        args["deliver_in_s"] = body.deliver_in_s
        args["deliver_at"] = None if body.deliver_at is None else body.deliver_at.isoformat()
    answer = await hub.ask(body.node, name, args)

    def note() -> None:
        with db.begin() as session:
            audit.record(
                session,
                actor,
                "publish",
                "topic",
                topic,
                None,
                {"bytes": len(payload), "key": body.key},
            )

    await asyncio.to_thread(note)
    return Published.model_validate(answer)


def _check_headers(body: PublishInput) -> None:
    for name in body.headers:
        _encoded("/headers", name)
    for name in filter(is_reserved, body.headers):
        why = f"names that begin with {' or '.join(RESERVED)} are the engine's own"
        raise invalid(f"/headers/{name}", why, name)


def _payload(body: PublishInput) -> bytes:
    given = [f for f in ("text", "value", "hex") if f in body.model_fields_set]
    if len(given) != 1:
        raise invalid("", "give exactly one payload", "text, value or hex")
    match given[0]:
        case "text":
            return (body.text or "").encode()
        case "hex":
            return bytes.fromhex(body.hex or "")
    return _encoded("/value", json.dumps(body.value, ensure_ascii=False, separators=(",", ":")))


def _encoded(place: str, text: str) -> bytes:
    """Text as UTF-8. Raises `invalid_request`: JSON can name half of a surrogate pair."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise invalid(place, "half of a surrogate pair", "Unicode text") from None
