"""Operations: asked of every engine, noted, audited."""

from __future__ import annotations

import asyncio
import shlex
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlmodel import Session, col

from tidecast_control.audit import service as audit
from tidecast_control.db import Database
from tidecast_control.kinds import KINDS
from tidecast_control.kit import repository as resources_repository
from tidecast_control.kit import rights
from tidecast_control.kit.actor import Actor
from tidecast_control.kit.models import utc_now
from tidecast_control.kit.paging import PageQuery, newest_first
from tidecast_control.kit.problems import ProblemError, not_found
from tidecast_control.kit.schemas import Page
from tidecast_control.link.hub import Hub
from tidecast_control.operations import remote_redrive, repository
from tidecast_control.operations.models import OperationRow
from tidecast_control.operations.schemas import NodeResult, Operation


@dataclass(frozen=True)
class Wanted:
    """The request."""

    action: str
    kind: str
    name: str
    request: dict[str, Any]
    dry_run: bool


async def listed(db: Database, query: PageQuery, name: str, actor: Actor) -> Page[Operation]:
    """Newest first, of topics that the caller sees."""
    at, key = col(OperationRow.created_at), col(OperationRow.id)

    def read() -> Page[Operation]:
        with db.begin() as session:
            rows = repository.of(name, actor.shown)
            return newest_first(session, rows, at, key, query, Operation.model_validate)

    return await asyncio.to_thread(read)


async def one(db: Database, operation_id: str, actor: Actor) -> Operation:
    """One operation that the caller sees. Raises `not_found`."""

    def read() -> Operation:
        with db.begin() as session:
            row = repository.one(session, operation_id, actor.shown)
            if row is None:
                raise not_found("operation", operation_id)
            return Operation.model_validate(row)

    return await asyncio.to_thread(read)


async def run(db: Database, hub: Hub, wanted: Wanted, actor: Actor) -> Operation:
    """Ask every connected engine. Returns the results of all. Raises when all refused."""

    def check() -> dict[str, Any]:
        with db.begin() as session:
            return _check(session, wanted, actor)

    place = await asyncio.to_thread(check)
    nodes = hub.connected()
    if not nodes:
        raise ProblemError("no_node", "no engine is connected", None, 5.0)
    args: dict[str, Any] = {"kind": wanted.kind, "name": wanted.name, "dry_run": wanted.dry_run}
    args |= {**wanted.request, **place}
    if "messages" in args:
        args["records"] = [[one["queue"], int(one["token"])] for one in args.pop("messages")]
    answers = await asyncio.gather(
        *(hub.ask(node, wanted.action, args) for node in nodes), return_exceptions=True
    )
    if wanted.action == "redrive":
        known = dict(zip(nodes, answers, strict=True))
        answers = list((await remote_redrive.redrive(hub, args, known)).values())
    results = [_result(n, a) for n, a in zip(nodes, answers, strict=True)]
    done = [r.ok for r in results]
    missing = [r.ok or r.code == "not_found" for r in results]
    if not any(done):
        first = next(a for a in answers if isinstance(a, BaseException))
        raise first
    row = OperationRow(
        id=str(uuid.uuid4()),
        action=wanted.action,
        kind=wanted.kind,
        name=wanted.name,
        state="done" if all(missing) else "partial",
        dry_run=wanted.dry_run,
        request=wanted.request,
        results=[r.model_dump(mode="json") for r in results],
        cli=cli_of(wanted, str(place.get("pattern", ""))),
        finished_at=utc_now(),
        created_by=actor.name,
    )

    return await noted(db, row, actor, lambda session: _keep(session, wanted, actor))


async def noted(
    db: Database, row: OperationRow, actor: Actor, also: Callable[[Session], None] | None = None
) -> Operation:
    """Store an operation that was carried out, and audit it; ``also`` stores more with it."""

    def note() -> Operation:
        with db.begin() as session:
            session.add(row)
            if not row.dry_run:
                outcome = {"request": row.request, "results": row.results}
                audit.record(session, actor, row.action, row.kind, row.name, None, outcome)
                if also is not None:
                    also(session)
            session.flush()
            return Operation.model_validate(row)

    return await asyncio.to_thread(note)


def _check(session: Session, wanted: Wanted, actor: Actor) -> dict[str, Any]:
    """Further arguments that an engine needs. Raises `not_found`, `conflict`, `denied`."""
    number = ""
    if wanted.kind == "queue":
        topic, _, number = wanted.name.rpartition(":")
        row = resources_repository.find(session, "topic", topic)
        if row is None or int(number) >= int(row.spec.get("queues", 1)):
            raise not_found("queue", wanted.name)
    else:
        row = resources_repository.find(session, wanted.kind, wanted.name)
        if row is None:
            raise not_found(wanted.kind, wanted.name)
        topic = row.spec["topic"] if wanted.kind == "subscription" else wanted.name
    needs = rights.of_operation(wanted.action, wanted.kind, topic, wanted.request)
    actor.need("queues:write" if wanted.action == "purge" else "operations:write", *needs)
    if wanted.kind != "subscription" and row.spec.get("mode") != "durable":
        raise ProblemError("conflict", f"topic {topic} is live: only durable topics have queues")
    if wanted.action == "purge" and row.deletion_protection:
        raise ProblemError("protected", f"topic {topic} has deletion_protection")
    if wanted.kind == "subscription":
        return {"pattern": topic}
    return {"topic": topic, **({"queue": int(number)} if wanted.kind == "queue" else {})}


def _keep(session: Session, wanted: Wanted, actor: Actor) -> None:
    """A paused subscription stays paused when its engine starts again."""
    from tidecast_control.api import resources
    from tidecast_control.kit.schemas import MergePatch

    if wanted.kind == "subscription" and wanted.action in ("pause", "resume"):
        patch = MergePatch(spec={"paused": wanted.action == "pause"})
        resources.patch(session, KINDS["subscription"], wanted.name, patch, actor)


def _result(node: str, answer: dict[str, Any] | BaseException) -> NodeResult:
    if isinstance(answer, ProblemError):
        return NodeResult(node=node, ok=False, code=answer.problem, detail=answer.detail)
    if isinstance(answer, BaseException):
        raise answer
    return NodeResult(node=node, ok=True, value=texts(answer))


def texts(value: Any) -> Any:
    """Every number of an engine's answer is 64-bit: in JSON a string."""
    if isinstance(value, dict):
        return {str(key): texts(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [texts(each) for each in value]
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def cli_of(wanted: Wanted, topic: str = "") -> str:
    """The same from the shell; "" where `tidecast` has no command for it."""
    if wanted.kind in ("topic", "queue") and wanted.action in ("pause", "resume"):
        which = wanted.name.rsplit(":", 1) if wanted.kind == "queue" else [wanted.name]
        return shlex.join(["tidecast", "queue", wanted.action, *which])
    if wanted.action == "cancel_scheduled":
        return _cli_of_cancel(wanted)
    if wanted.kind != "subscription":
        return ""
    request = wanted.request
    words = ["tidecast", "subscription", wanted.action, topic, wanted.name]
    if wanted.action == "seek":
        where = _where(request)
        if not where:
            return ""
        words += where
    if wanted.action == "redrive":
        words += ["--limit", str(request["count_max"])]
        given = ("key", "reason", "where", "to")
        words += [w for key in given if request.get(key) for w in (f"--{key}", request[key])]
    return shlex.join(words + (["--dry-run"] if wanted.dry_run else []))


def _cli_of_cancel(wanted: Wanted) -> str:
    request = wanted.request
    words = ["tidecast", "queue", "cancel", wanted.name]
    for one in request.get("messages", ()):
        words += ["--record", f"{one['queue']}:{one['token']}"]
    given = ("key", "where", "subscription")
    words += [w for key in given if request.get(key) for w in (f"--{key}", request[key])]
    if request.get("everything"):
        words += ["--all", *(() if wanted.dry_run else ("--yes",))]
    return shlex.join(words + (["--dry-run"] if wanted.dry_run else []))


def _where(request: dict[str, Any]) -> list[str]:
    queue = ["--queue", str(request["queue"])] if request.get("queue") is not None else []
    if request.get("shift") is not None:
        return ["--shift", str(request["shift"]), *queue]
    if request["at"] == "token":
        return []
    if request["at"] != "time":
        return ["--to", request["at"], *queue]
    at = datetime.fromtimestamp(int(request["time_ns"]) // 1_000_000_000, UTC)
    fraction = int(request["time_ns"]) % 1_000_000_000 // 1000
    return ["--to", at.replace(microsecond=fraction).isoformat(), *queue]
