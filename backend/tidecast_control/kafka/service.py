"""Kafka clients and groups, by way of the engines that have them.

Engines get the patterns of the caller's scopes, and leave out rows that the caller does not see.
"""

from __future__ import annotations

import asyncio
import shlex
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from tidecast_control.db import Database
from tidecast_control.kafka.live import client_row, group_row
from tidecast_control.kafka.schemas import (
    KafkaClient,
    KafkaClientPage,
    KafkaGroup,
    KafkaGroupDetail,
    KafkaGroupPage,
    KafkaMember,
    KafkaOffset,
    NotAsked,
)
from tidecast_control.kit import cursor as cursors
from tidecast_control.kit.actor import Actor
from tidecast_control.kit.models import utc_now
from tidecast_control.kit.paging import PageQuery
from tidecast_control.kit.problems import ProblemError, invalid, not_found
from tidecast_control.kit.rights import PLATFORM, Need
from tidecast_control.link.hub import Hub
from tidecast_control.operations.models import OperationRow
from tidecast_control.operations.schemas import NodeResult, Operation
from tidecast_control.operations.service import noted, texts

KIND = "kafka_group"
Json = dict[str, Any]
NOT_HERE = ("not_found", "not_implemented")
"""An engine without an endpoint, or of a version that has no commands for it."""


@dataclass(frozen=True)
class Listing:
    """Which groups a list shows."""

    page: PageQuery
    q: str = ""
    topic: str = ""
    state: str = ""
    node: str = ""


async def groups(hub: Hub, wanted: Listing, actor: Actor) -> KafkaGroupPage:
    """Groups of topics that the caller sees, by name and node."""
    limit, after, after_node = wanted.page.limit, "", ""
    if wanted.page.cursor:
        value, after = cursors.decode(wanted.page.cursor, "name")
        after_node = str(value)
    asked = {
        "q": wanted.q,
        "topic": wanted.topic,
        "state": wanted.state,
        "limit": limit,
        "after": after,
        "within": _within(actor),
    }
    names = await _nodes(hub, wanted.node)
    more = [asked | {"inclusive": bool(after) and name > after_node} for name in names]
    answers, missing = await _all(hub, "kafka_groups", dict(zip(names, more, strict=True)))
    found = [
        group
        for node, answer in answers.items()
        for row in answer.get("rows", ())
        if _sees_some(actor, (group := KafkaGroup.model_validate(group_row(node, row))).topics)
    ]
    found.sort(key=lambda each: (each.name, each.node))
    rest = len(found) > limit or any(each.get("next") for each in answers.values())
    found = found[:limit]
    following = None
    if rest and found:
        following = cursors.encode("name", found[-1].node, found[-1].name)
    return KafkaGroupPage(items=found, next_cursor=following, missing=missing)


async def group(hub: Hub, name: str, node: str, actor: Actor) -> KafkaGroupDetail:
    """One group. Raises `not_found`; `conflict` when several engines have one of that name."""
    asked = {"name": name, "within": _within(actor)}
    names = await _nodes(hub, node)
    answers, missing = await _all(hub, "kafka_group", dict.fromkeys(names, asked))
    found = {
        each: answer
        for each, answer in answers.items()
        if answer and _sees_some(actor, answer["topics"])
    }
    if len(found) > 1:
        raise ProblemError(
            "conflict",
            f"group {name} is at {' and '.join(sorted(found))}, with offsets of its own at each: "
            "name the node",
        )
    for where, answer in found.items():
        return _detail(where, answer)
    if missing:
        raise ProblemError("node_failed", "; ".join(f"{m.node}: {m.reason}" for m in missing))
    raise not_found("Kafka group", name)


def _detail(node: str, answer: Json) -> KafkaGroupDetail:
    offsets = [KafkaOffset.model_validate(each) for each in answer.get("offsets", ())]
    members = [KafkaMember.model_validate(each) for each in answer.get("consumers", ())]
    return KafkaGroupDetail(
        **KafkaGroup.model_validate(group_row(node, answer)).model_dump(),
        offsets=offsets,
        offsets_left_out=int(answer.get("offsets_left_out", 0)),
        consumers=members,
    )


async def clients(hub: Hub, page: PageQuery, node: str) -> KafkaClientPage:
    """Connections at all engines, or one, by node and number."""
    names, after_node, after = await _nodes(hub, node), "", 0
    if page.cursor:
        value, after_node = cursors.decode(page.cursor, "node")
        if not isinstance(value, int) or value < 0:
            raise invalid("query/cursor", "not a cursor of this list", "next_cursor")
        after, names = value, [each for each in names if each >= after_node]
    asked = {
        each: {"limit": page.limit, "after": after if each == after_node else 0} for each in names
    }
    answers, missing = await _all(hub, "kafka_clients", asked)
    found = [
        KafkaClient.model_validate(client_row(each, row))
        for each in sorted(answers)
        for row in answers[each].get("rows", ())
    ]
    rest = len(found) > page.limit or any(each.get("next") for each in answers.values())
    found = found[: page.limit]
    following = None
    if rest and found:
        following = cursors.encode("node", found[-1].number, found[-1].node)
    return KafkaClientPage(items=found, next_cursor=following, missing=missing)


# --- changes --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Wanted:
    """A change to a group."""

    action: str
    name: str
    node: str
    request: Json
    dry_run: bool


async def change(db: Database, hub: Hub, wanted: Wanted, actor: Actor) -> Operation:
    """Delete a group or reset its offsets; needs `manage` on each of its topics."""
    found = await group(hub, wanted.name, wanted.node, actor)
    needs = [Need("manage", each) for each in found.topics]
    if not needs or found.topics_total > len(needs):
        needs = [PLATFORM]
    actor.need("operations:write", *needs)
    command = "kafka_delete_group" if wanted.action == "delete" else "kafka_reset_offsets"
    arguments = {"name": wanted.name, "dry_run": wanted.dry_run, "within": _within(actor)}
    answer = await hub.ask(found.node, command, arguments | wanted.request)
    row = OperationRow(
        id=str(uuid.uuid4()),
        action=wanted.action,
        kind=KIND,
        name=wanted.name,
        state="done",
        dry_run=wanted.dry_run,
        request=wanted.request,
        results=[NodeResult(node=found.node, ok=True, value=texts(answer)).model_dump(mode="json")],
        cli=cli_of(wanted),
        finished_at=utc_now(),
        created_by=actor.name,
    )
    return await noted(db, row, actor)


def cli_of(wanted: Wanted) -> str:
    """The same from the shell of the engine's host."""
    request = wanted.request
    if wanted.action == "delete":
        words = ["tidecast", "kafka", "delete", wanted.name]
        return shlex.join([*words, "--dry-run" if wanted.dry_run else "--yes"])
    words = ["tidecast", "kafka", "reset", wanted.name]
    to = request.get("to")
    if to is None:
        words += ["--shift", str(request["shift"])]
    elif to == "time":
        at = datetime.fromtimestamp(int(request["time_ns"]) // 1_000_000_000, UTC)
        micros = int(request["time_ns"]) % 1_000_000_000 // 1000
        words += ["--to", at.replace(microsecond=micros).isoformat()]
    else:
        words += ["--to", str(request["offset"]) if to == "offset" else to]
    for name in ("topic", "queue"):
        if request.get(name) not in (None, ""):
            words += [f"--{name}", str(request[name])]
    return shlex.join(words + (["--dry-run"] if wanted.dry_run else []))


# --- engines --------------------------------------------------------------------------------------


async def _nodes(hub: Hub, node: str) -> list[str]:
    """The engines to ask. Raises `not_found`, `no_node`."""
    if node:
        return [(await hub.named(node)).name]
    return hub.connected()


async def _all(
    hub: Hub, command: str, asked: dict[str, Json]
) -> tuple[dict[str, Json], list[NotAsked]]:
    """The answers of engines, and the engines without an answer, unless they have no endpoint."""
    done = await asyncio.gather(
        *(hub.ask(name, command, args) for name, args in asked.items()), return_exceptions=True
    )
    answers: dict[str, Json] = {}
    missing: list[NotAsked] = []
    for name, answer in zip(asked, done, strict=True):
        if isinstance(answer, ProblemError):
            if answer.problem not in NOT_HERE:
                missing.append(NotAsked(node=name, reason=answer.detail or answer.problem))
        elif isinstance(answer, BaseException):
            raise answer
        else:
            answers[name] = answer
    return answers, missing


def _within(actor: Actor) -> list[str] | None:
    return None if actor.shown is None else list(actor.shown)


def _sees_some(actor: Actor, topics: Sequence[str]) -> bool:
    return actor.shown is None or any(actor.sees(each) for each in topics)
