"""The rules of resources: plan, put, patch, delete. Knows no HTTP and never commits."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError
from sqlmodel import Session

from tidecast_control.audit import service as audit
from tidecast_control.kit import repository, rights
from tidecast_control.kit.actor import Actor
from tidecast_control.kit.batch import batch_of
from tidecast_control.kit.kind import Kind
from tidecast_control.kit.models import ResourceRow, Row, utc_now
from tidecast_control.kit.problems import ProblemError, invalid, not_found, wrong
from tidecast_control.kit.schemas import (
    Change,
    Impact,
    MergePatch,
    Metadata,
    MetadataInput,
    Plan,
    ProblemItem,
    Resource,
    ResourceInput,
)
from tidecast_control.live.seen import world_of

IMPACTS: tuple[Impact, ...] = ("none", "live", "restart", "recreate", "data_loss")
META_FIELDS = ("labels", "owner", "description", "deletion_protection", "managed_by")

Precondition = Callable[[str | None], None]


def no_precondition(_etag: str | None) -> None:
    """Accept any state of the resource."""


@dataclass(frozen=True)
class Outcome:
    """The changes that a request made, or would make."""

    plan: Plan
    resource: Resource[Any, Any] | None
    dry_run: bool
    version: int = 0
    """The topology with this write; 0: no engine applies it."""


def etag(row: ResourceRow | None) -> str | None:
    """The strong ETag of a row."""
    return None if row is None else f'"{row.uid[:8]}-{row.generation}"'


# --- reading --------------------------------------------------------------------------------------


def metadata_of(row: Row) -> Metadata:
    """A row's metadata."""
    return Metadata.model_construct(
        name=row.name,
        uid=row.uid,
        labels=row.labels,
        owner=row.owner,
        description=row.description,
        deletion_protection=row.deletion_protection,
        managed_by=row.managed_by,
        generation=row.generation,
        created_at=row.created_at,
        updated_at=row.updated_at,
        updated_by=row.updated_by,
    )


def row_of(session: Session, kind: Kind, name: str, *, lock: bool = False) -> ResourceRow:
    """The row of a resource. Raises `not_found`."""
    row = repository.find(session, kind.name, name, lock=lock)
    if row is None:
        raise not_found(kind.name, name)
    return row


def shown_row(session: Session, kind: Kind, name: str, actor: Actor) -> ResourceRow:
    """The row of a resource that the caller sees. Raises `not_found`."""
    row = repository.find(session, kind.name, name)
    if row is None or not all(
        actor.sees(need.pattern) for need in rights.to_replace(kind.name, name, row.spec)
    ):
        raise not_found(kind.name, name)
    return row


def view(session: Session, kind: Kind, row: Row) -> Resource[Any, Any]:
    """A row as a resource, with its status, as this transaction sees it."""
    return kind.resource.model_construct(
        kind=kind.name,
        metadata=metadata_of(row),
        spec=kind.spec.model_validate(row.spec),
        status=kind.status(kind.learn(session), world_of(session), [row])[0],
    )


# --- planning -------------------------------------------------------------------------------------


def _flat(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for key, each in value.items():
            escaped = str(key).replace("~", "~0").replace("/", "~1")
            yield from _flat(each, f"{path}/{escaped}")
    else:
        yield path, value


def _changes(kind: Kind, old: dict[str, Any] | None, new: dict[str, Any]) -> list[Change]:
    if old == new:
        return []
    before, after = dict(_flat(old or {}, "")), dict(_flat(new, ""))
    before.pop("", None), after.pop("", None)
    found = []
    for path in sorted({*before, *after}):
        if before.get(path) == after.get(path) and (path in before) == (path in after):
            continue
        impact = "live" if old is None else _impact(kind, path, before.get(path), after.get(path))
        found.append(Change(path=path, old=before.get(path), new=after.get(path), impact=impact))
    return found


def _impact(kind: Kind, path: str, old: Any, new: Any) -> Impact:
    area, _, rest = path.removeprefix("/").partition("/")
    if area == "metadata":
        return "none"
    field = rest.partition("/")[0]
    impact = kind.impacts.get(field, kind.default_impact)
    shrinks = field.startswith("retention") and isinstance(old, int | float) and bool(new)
    if shrinks and (old == 0 or new < old):
        return "data_loss"
    return impact


def _worst(changes: list[Change]) -> Impact:
    return max((c.impact for c in changes), key=IMPACTS.index, default="none")


def _document(row: ResourceRow) -> dict[str, Any]:
    return {"metadata": {f: getattr(row, f) for f in META_FIELDS}, "spec": row.spec}


def _checked(
    session: Session, kind: Kind, name: str, body: ResourceInput[Any], row: ResourceRow | None
) -> dict[str, Any]:
    if body.kind not in (None, kind.name):
        raise invalid("/kind", f"{body.kind!r}", kind.name)
    if body.metadata.name not in (None, name):
        raise invalid("/metadata/name", f"{body.metadata.name!r}: not the name in the path", name)
    errors = kind.check(session, name, body.spec, row)
    if errors:
        raise ProblemError("invalid_request", "; ".join(e.detail for e in errors)[:500], errors)
    metadata = body.metadata.model_dump(mode="json", exclude={"name"})
    return {"metadata": metadata, "spec": body.spec.model_dump(mode="json")}


def _given(body: ResourceInput[Any]) -> dict[str, Any]:
    """The fields of a new resource that differ from its defaults."""
    given = body.model_dump(
        mode="json",
        include={"metadata", "spec"},
        exclude={"metadata": {"name"}},
        exclude_defaults=True,
    )
    return {area: values for area, values in given.items() if values}


def plan_of(
    kind: str,
    name: str,
    before: Mapping[str, Any] | None,
    after: Mapping[str, Any] | None,
    *,
    dry_run: bool,
) -> Plan:
    """The plan of users, keys, enrolments, runs, which are no resources. None: absent."""
    fields = sorted({*(before or {}), *(after or {})})
    found = [(f, (before or {}).get(f), (after or {}).get(f)) for f in fields]
    changes = [Change(path=f"/{f}", old=old, new=new) for f, old, new in found if old != new]
    action: Any = "create" if before is None else "delete" if after is None else "update"
    if action == "update" and not changes:
        action = "none"
    impact: Impact = "live" if action != "none" else "none"
    return Plan(
        dry_run=dry_run, kind=kind, name=name, action=action, impact=impact, changes=changes
    )


# --- writing --------------------------------------------------------------------------------------


@contextmanager
def trial(session: Session, *, dry_run: bool) -> Iterator[None]:
    """Undo all changes of the block at its end when this is a dry run."""
    savepoint = session.begin_nested()
    try:
        yield
    except BaseException:
        savepoint.rollback()
        raise
    if dry_run:
        savepoint.rollback()
    else:
        savepoint.commit()


def put(
    session: Session,
    kind: Kind,
    name: str,
    body: ResourceInput[Any],
    actor: Actor,
    *,
    dry_run: bool = False,
    precondition: Precondition = no_precondition,
    plan_only: bool = False,
) -> Outcome:
    """Create or replace a resource by the body. A repeat does not raise the generation.

    ``plan_only``: the caller does not need the resource afterwards, with its status.
    """
    row = repository.find(session, kind.name, name, lock=not dry_run)
    precondition(etag(row))
    if row is None and not kind.can_create:
        raise not_found(kind.name, name)
    needs = [*rights.of_resource(kind.name, name, body.spec.model_dump(mode="json"))]
    if row is not None:
        needs += rights.to_replace(kind.name, name, row.spec)
    actor.need(f"{kind.rights}:write", *needs)  # first: other problems reveal existing resources
    spec = kind.seal(session, name, body.spec, store=not dry_run)
    body = body.model_copy(update={"spec": spec})
    new = _checked(session, kind, name, body, row)
    old = _document(row) if row is not None else None
    changes = _changes(kind, old, new if old is not None else _given(body))
    action: Any = "create" if old is None else "update" if changes else "none"
    plan = Plan(
        dry_run=dry_run,
        kind=kind.name,
        name=name,
        action=action,
        impact=_worst(changes),
        changes=changes,
        warnings=kind.warn(session, name, body.spec, row),
    )
    if dry_run:
        return Outcome(plan, None, True)
    if action != "none":
        row = _store(session, kind, name, row, new, actor)
        audit.record(session, actor, action, kind.name, name, old, new)
    assert row is not None
    shown = None if plan_only else view(session, kind, row)
    return Outcome(plan, shown, False, row.version if kind.in_topology else 0)


def _store(
    session: Session,
    kind: Kind,
    name: str,
    row: ResourceRow | None,
    new: dict[str, Any],
    actor: Actor,
) -> ResourceRow:
    old_spec = None if row is None else row.spec
    old_number = None if row is None else row.number
    if row is None:
        row = ResourceRow(uid=str(uuid.uuid4()), kind=kind.name, name=name)
    else:
        row.generation += 1
    for field in META_FIELDS:
        setattr(row, field, new["metadata"][field])
    row.number = kind.number_of(name, new["spec"])
    row.spec, row.updated_at, row.updated_by = new["spec"], utc_now(), actor.name
    kind.changed(session, name, row.spec)
    if kind.in_topology:  # the clock is locked last: no other write waits while this one does
        row.version = repository.next_version(session)
        repository.announce(session, row.version, kind.name, name, old_spec)
    session.add(row)
    batch = batch_of(session)
    if batch is None:
        session.flush()
    else:
        batch.changed(row, old_number)
    return row


def merged(target: Any, patch: Any) -> Any:
    """RFC 7396: ``patch`` merged into ``target``; null removes."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


def patch(
    session: Session,
    kind: Kind,
    name: str,
    body: MergePatch,
    actor: Actor,
    *,
    dry_run: bool = False,
    precondition: Precondition = no_precondition,
) -> Outcome:
    """Change some fields; null resets one to its default."""
    row = row_of(session, kind, name, lock=not dry_run)
    raw = merged(_document(row), {"metadata": body.metadata, "spec": body.spec})
    whole = built(kind.input, raw)
    return put(session, kind, name, whole, actor, dry_run=dry_run, precondition=precondition)


def built(model: type[ResourceInput[Any]], raw: Any) -> ResourceInput[Any]:
    """A checked body from plain values. Raises `invalid_request`."""
    try:
        return model.model_validate(raw)
    except ValidationError as problem:
        raise ProblemError(
            "invalid_request",
            f"{problem.error_count()} problem(s)",
            [
                ProblemItem(
                    pointer="/" + "/".join(str(p) for p in e["loc"]),
                    detail=wrong(e),
                )
                for e in problem.errors()[:100]
            ],
        ) from None


def delete(
    session: Session,
    kind: Kind,
    name: str,
    actor: Actor,
    *,
    dry_run: bool = False,
    if_unused: bool = True,
    precondition: Precondition = no_precondition,
) -> Outcome:
    """Delete a resource. Raises `protected`, `in_use`, `not_found`."""
    row = row_of(session, kind, name, lock=not dry_run)
    precondition(etag(row))
    actor.need(f"{kind.rights}:write", *rights.to_replace(kind.name, name, row.spec))
    uses = kind.uses(session, row)
    plan = Plan(
        dry_run=dry_run,
        kind=kind.name,
        name=name,
        action="delete",
        impact=kind.delete_impact,
        warnings=uses,
        changes=[Change(path="", old=_document(row), new=None, impact=kind.delete_impact)],
    )
    if dry_run:
        return Outcome(plan, None, True)
    if row.deletion_protection:
        raise ProblemError("protected", f"{kind.name} {name} has deletion_protection")
    if uses and if_unused:
        raise ProblemError("in_use", "; ".join(uses)[:500])
    old, version = _document(row), 0
    kind.changed(session, name, None)
    if kind.in_topology:
        version = repository.next_version(session)
        repository.announce(session, version, kind.name, name, row.spec)
    session.delete(row)
    batch = batch_of(session)
    if batch is None:
        session.flush()
    else:
        batch.deleted(row)
    audit.record(session, actor, "delete", kind.name, name, old, None)
    return Outcome(plan, None, False, version)


def ensure(
    session: Session, kind: Kind, name: str, spec: BaseModel, actor: Actor, description: str = ""
) -> bool:
    """Create a resource unless it exists. Returns whether it was created."""
    if repository.find(session, kind.name, name) is not None:
        return False
    body: ResourceInput[Any] = kind.input.model_validate(
        {"metadata": MetadataInput(description=description), "spec": spec.model_dump(mode="json")}
    )
    put(session, kind, name, body, actor, plan_only=True)
    return True
