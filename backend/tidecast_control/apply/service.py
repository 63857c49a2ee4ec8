"""Apply: one atomic plan over many documents. Export: the documents that apply takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import yaml
from pydantic import ValidationError
from sqlmodel import Session

from tidecast.config.yaml import LOADER, check_events
from tidecast_control.api import resources
from tidecast_control.apply.schemas import ApplyInput, ApplyResult, Document
from tidecast_control.faults import service as faults
from tidecast_control.kinds import KINDS
from tidecast_control.kit import repository
from tidecast_control.kit.actor import Actor
from tidecast_control.kit.batch import batch
from tidecast_control.kit.kind import Kind
from tidecast_control.kit.models import ResourceRow
from tidecast_control.kit.problems import ProblemError, invalid, wrong
from tidecast_control.kit.schemas import NAME_PATTERN, Plan, ProblemItem

YAML_BYTES_MAX = 32 << 20
ERRORS_MAX = 100
ANALYZED_FROM = 500
"""After so many changes Postgres counts again: until then a page of 10,000 took 12 ms, not 0.3."""


@dataclass(frozen=True)
class Wanted:
    """The resources to apply."""

    documents: Sequence[Document]
    managed_by: str
    prune: bool
    labels: tuple[str, ...]
    dry_run: bool


def documents_of_yaml(raw: bytes) -> list[Document]:
    """Documents separated by `---`. Raises `bad_request`, `invalid_request`."""
    if len(raw) > YAML_BYTES_MAX:
        raise ProblemError("too_large", f"{len(raw)} bytes: allowed {YAML_BYTES_MAX}")
    try:
        check_events(raw, aliases=False)
        found = [each for each in yaml.load_all(raw, Loader=LOADER) if each is not None]
        plain = msgspec.json.decode(msgspec.json.encode(found))
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError, TypeError) as problem:
        raise ProblemError("bad_request", f"not YAML: {problem}"[:500]) from None
    if not plain:  # a file that is empty by mistake, and `prune` would delete everything
        raise invalid("", "no document", 'at least one; to prune all: {"documents": []} as JSON')
    return _documents({"documents": plain})


def documents_of_json(raw: bytes) -> list[Document]:
    """`{"documents": [...]}`. Raises `bad_request`, `invalid_request`."""
    try:
        plain = msgspec.json.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as problem:
        raise ProblemError("bad_request", f"not JSON: {problem}"[:500]) from None
    return _documents(plain)


def _documents(plain: Any) -> list[Document]:
    try:
        return ApplyInput.model_validate(plain).documents
    except ValidationError as problem:
        items = [
            ProblemItem(pointer="/" + "/".join(str(p) for p in e["loc"]), detail=wrong(e))
            for e in problem.errors()[:ERRORS_MAX]
        ]
        raise ProblemError(
            "invalid_request", f"{problem.error_count()} problem(s)", items
        ) from None


def apply(session: Session, wanted: Wanted, actor: Actor, faults_allowed: bool) -> ApplyResult:
    """Do all of it, or (dry run, any error) nothing. Raises `invalid_request` with every error.

    A dry run does all of it too, in a savepoint that is rolled back: later documents may refer to
    earlier ones.
    """
    if wanted.prune and not wanted.managed_by:
        raise invalid("query/managed_by", "missing", "needed with prune=true")
    ordered = _ordered(wanted.documents)
    if any(kind.name == "fault" for _, kind, _, _ in ordered):
        faults.allow(faults_allowed)
    names = [(kind.name, name) for _, kind, name, _ in ordered]
    with resources.trial(session, dry_run=wanted.dry_run), batch(session, names):
        plans = _all(session, ordered, wanted, actor)
    for plan in plans:
        plan.dry_run = wanted.dry_run
    actions = [plan.action for plan in plans]
    return ApplyResult(
        dry_run=wanted.dry_run,
        created=actions.count("create"),
        updated=actions.count("update"),
        deleted=actions.count("delete"),
        unchanged=actions.count("none"),
        plans=plans,
        warnings=[f"{p.kind} {p.name}: {w}" for p in plans for w in p.warnings],
    )


def _all(
    session: Session,
    ordered: Sequence[tuple[int, Kind, str, Document]],
    wanted: Wanted,
    actor: Actor,
) -> list[Plan]:
    errors: list[ProblemItem] = []
    plans = [
        plan
        for index, kind, name, document in ordered
        if (plan := _one(session, index, kind, name, document, wanted, actor, errors)) is not None
    ]
    if errors:
        raise ProblemError("invalid_request", f"{len(errors)} problem(s)", errors[:ERRORS_MAX])
    if wanted.prune:
        plans += _prune(session, wanted, {(k.name, n) for _, k, n, _ in ordered}, actor)
    return plans


def _ordered(documents: Sequence[Document]) -> list[tuple[int, Kind, str, Document]]:
    import re

    found, errors, seen = [], [], set()
    for index, document in enumerate(documents):
        at = f"/documents/{index}"
        kind, name = KINDS.get(document.kind), document.metadata.get("name")
        if kind is None:
            errors.append(
                ProblemItem(
                    pointer=f"{at}/kind", detail=repr(document.kind), allowed=", ".join(KINDS)
                )
            )
        elif not isinstance(name, str) or len(name) > 200 or not re.fullmatch(NAME_PATTERN, name):
            errors.append(ProblemItem(pointer=f"{at}/metadata/name", detail="missing or no name"))
        elif (kind.name, name) in seen:
            errors.append(ProblemItem(pointer=at, detail=f"{kind.name} {name} is given twice"))
        else:
            seen.add((kind.name, name))
            found.append((index, kind, name, document))
    if errors:
        raise ProblemError("invalid_request", f"{len(errors)} problem(s)", errors[:ERRORS_MAX])
    return sorted(found, key=lambda each: (each[1].order, each[0]))


def _one(
    session: Session,
    index: int,
    kind: Kind,
    name: str,
    document: Document,
    wanted: Wanted,
    actor: Actor,
    errors: list[ProblemItem],
) -> Plan | None:
    metadata = dict(document.metadata)
    if wanted.managed_by:
        metadata["managed_by"] = wanted.managed_by
    at = f"/documents/{index}"
    try:
        actor.need(f"{kind.rights}:write")
        body = resources.built(kind.input, {"metadata": metadata, "spec": document.spec})
        return resources.put(session, kind, name, body, actor, plan_only=True).plan
    except ProblemError as problem:
        if problem.problem == "denied":
            raise
        found = problem.errors or [ProblemItem(pointer="", detail=problem.detail)]
        errors += [e.model_copy(update={"pointer": at + _below(e.pointer)}) for e in found]
        return None


def _below(pointer: str) -> str:
    return pointer if pointer.startswith("/") or not pointer else "/metadata/name"


def _prune(
    session: Session, wanted: Wanted, kept: set[tuple[str, str]], actor: Actor
) -> list[Plan]:
    plans = []
    for kind in sorted(KINDS.values(), key=lambda k: -k.order):
        for row in repository.all_of(session, kind.name):
            if row.managed_by != wanted.managed_by or (kind.name, row.name) in kept:
                continue
            if not _labelled(row, wanted.labels):
                continue
            actor.need(f"{kind.rights}:write")
            plans.append(resources.delete(session, kind, row.name, actor).plan)
    return plans


def _labelled(row: ResourceRow, labels: Sequence[str]) -> bool:
    return all(row.labels.get(key) == value for key, _, value in (x.partition("=") for x in labels))


def export(session: Session, kinds: Sequence[str], managed_by: str) -> str:
    """Documents as YAML; `apply` of them changes nothing."""
    unknown = [k for k in kinds if k not in KINDS]
    if unknown:
        raise invalid("query/kind", ", ".join(map(repr, unknown)), ", ".join(KINDS))
    documents = []
    for kind in KINDS.values():
        if kinds and kind.name not in kinds:
            continue
        for row in repository.all_of(session, kind.name):
            if managed_by and row.managed_by != managed_by:
                continue
            documents.append(_exported(row))
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    return str(yaml.dump_all(documents, Dumper=dumper, sort_keys=False, allow_unicode=True))


def _exported(row: ResourceRow) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": row.name}
    metadata |= {f: v for f in resources.META_FIELDS if (v := getattr(row, f))}
    return {"kind": row.kind, "metadata": metadata, "spec": row.spec}
