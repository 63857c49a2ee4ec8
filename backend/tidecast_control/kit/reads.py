"""Reading resources: one statement each. Other inputs of statuses are kept until they change.

Every statement returns, with its rows, the topology's version and the progress of the engines:
while both are unchanged, the result of `Kind.learn` is valid, and no notice is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeAlias

import msgspec
from anyio import to_thread
from pydantic import BaseModel

from tidecast_control.db import Database
from tidecast_control.kit import cursor as cursors
from tidecast_control.kit import rights
from tidecast_control.kit.actor import Actor
from tidecast_control.kit.kind import Kind
from tidecast_control.kit.problems import invalid, not_found
from tidecast_control.kit.schemas import Metadata

Stamp: TypeAlias = tuple[int, str]

_COLUMNS = (
    "uid, kind, name, labels, owner, description, deletion_protection, managed_by, spec, "
    "generation, version, created_at, updated_at, updated_by"
)
_STAMP = (
    "coalesce((SELECT version FROM topology_clock WHERE id = 1), 0), "
    "(SELECT concat(max(seen_at), count(*) FILTER (WHERE connected)) FROM node_states)"
)
_METADATA = tuple(Metadata.model_fields)
_SELECT = f"SELECT {_STAMP}, {_COLUMNS} FROM "
_ONE = _SELECT + "resources WHERE kind = %s AND name = %s"
_WITH_UNSTORED = f"""(
SELECT {_COLUMNS}, search FROM resources
UNION ALL
SELECT '', n.kind, n.name, '{{}}'::jsonb, '', '', false, '', n.spec::jsonb, 0, 0, to_timestamp(0),
    to_timestamp(0), '', lower(n.name)
FROM unnest(%s::text[], %s::text[], %s::text[]) AS n (kind, name, spec)
WHERE NOT EXISTS (SELECT 1 FROM resources r WHERE r.kind = n.kind AND r.name = n.name)
) AS listed"""
"""Resources, and names without a resource: those have generation 0. A name stands once."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A row as it is read: in the order of the columns."""

    uid: str
    kind: str
    name: str
    labels: dict[str, str]
    owner: str
    description: str
    deletion_protection: bool
    managed_by: str
    spec: dict[str, Any]
    generation: int
    version: int
    created_at: datetime
    updated_at: datetime
    updated_by: str


@dataclass(frozen=True)
class ListQuery:
    """Which rows of a list: filters hold before paging."""

    limit: int
    cursor: str | None = None
    sort: str = "name"
    q: str = ""
    labels: tuple[str, ...] = ()
    count: bool = False
    unstored: bool = False
    """Also the names of `Kind.unstored`."""


async def one(db: Database, kind: Kind, name: str, actor: Actor) -> tuple[Stored, Stamp]:
    """One row that the caller sees, and when it was so. Raises `not_found`."""
    shown, patterns = _shown(kind, actor)
    sql = " AND ".join([_ONE, *shown])
    found = await db.statements.rows(sql, kind.name, name, *patterns)
    if not found:
        raise not_found(kind.name, name)
    return Stored(*found[0][2:]), found[0][:2]


async def page(db: Database, kind: Kind, query: ListQuery, actor: Actor) -> bytes:
    """A page of the resources of a kind that the caller sees: `Page`, as JSON."""
    where, arguments = _filters(kind, query)
    shown, patterns = _shown(kind, actor)
    where, arguments = where + shown, arguments + patterns
    table, listed = _table(db, kind, query)
    arguments = listed + arguments
    total = None
    if query.count:
        counting = f"SELECT count(*) FROM {table} WHERE {' AND '.join(where)}"
        total = int((await db.statements.rows(counting, *arguments))[0][0])
    down = query.sort.startswith("-")
    field = query.sort.removeprefix("-")
    if query.cursor:
        where.append(_beyond(field, down))
        arguments += _place(query.cursor, query.sort, field)
    order = " DESC" if down else ""
    by = f"name{order}" if field == "name" else f"{field}{order}, name{order}"
    sql = f"{_SELECT}{table} WHERE {' AND '.join(where)} ORDER BY {by} LIMIT %s"
    found = await db.statements.rows(sql, *arguments, query.limit + 1)
    following = None
    rows = [Stored(*each[2:]) for each in found[: query.limit]]
    if len(found) > query.limit:
        last = rows[-1]
        value = last.name if field == "name" else getattr(last, field).isoformat()
        following = cursors.encode(query.sort, value, last.name)
    items = await views(db, kind, rows, found[0][:2]) if rows else []
    return encode({"items": items, "next_cursor": following, "total": total})


def _table(db: Database, kind: Kind, query: ListQuery) -> tuple[str, list[Any]]:
    """The table of a list, and its parameters."""
    specs = kind.unstored(db.world()) if query.unstored and kind.unstored is not None else {}
    if not specs:
        return "resources", []
    texts = [msgspec.json.encode(spec).decode() for spec in specs.values()]
    return _WITH_UNSTORED, [[kind.name] * len(specs), list(specs), texts]


def _filters(kind: Kind, query: ListQuery) -> tuple[list[str], list[Any]]:
    where, arguments = ["kind = %s"], [kind.name]
    if query.q:
        part = query.q.replace("\\", r"\\").replace("%", r"\%").replace("_", r"\_")
        where.append("search LIKE lower(%s)")
        arguments.append(f"%{part}%")
    for label in query.labels:
        key, equals, value = label.partition("=")
        where.append(
            "labels @> jsonb_build_object(%s::text, %s::text)" if equals else "labels ? %s"
        )
        arguments += [key, value] if equals else [key]
    return where, arguments


def _shown(kind: Kind, actor: Actor) -> tuple[list[str], list[Any]]:
    """The condition of rows that a key with scopes sees, and its parameter."""
    if actor.shown is None:
        return [], []
    by = rights.SHOWN_BY.get(kind.name, f"'{rights.EVERY_TOPIC}'")
    return [f"{by} ~ ANY(%s::text[])"], [[rights.expression(each) for each in actor.shown]]


def _beyond(field: str, down: bool) -> str:
    sign = "<" if down else ">"
    return f"name {sign} %s" if field == "name" else f"({field}, name) {sign} (%s, %s)"


def _place(cursor: str, sort: str, field: str) -> list[Any]:
    value, last = cursors.decode(cursor, sort)
    if field == "name":
        return [last]
    try:
        at = datetime.fromisoformat(str(value))
        at.utcoffset()
    except ValueError:
        raise invalid("query/cursor", "not a cursor of this list", "next_cursor") from None
    return [at, last]


async def views(
    db: Database, kind: Kind, rows: Sequence[Stored], stamp: Stamp
) -> list[dict[str, Any]]:
    """Rows as resources, with their statuses: for `encode`.

    Not as models: creating two models a row is half of the cost of a page of 50.
    """
    known = db.learned.get(kind.name)
    if known is None or known[0] != stamp or not kind.keeps:

        def learn() -> Any:
            with db.begin() as session:
                return kind.learn(session)

        known = db.learned[kind.name] = (stamp, await to_thread.run_sync(learn))
    statuses = kind.status(known[1], db.world(), rows)
    return [
        {
            "kind": kind.name,
            "metadata": {field: getattr(row, field) for field in _METADATA},
            "spec": kind.spec.model_validate(row.spec),
            "status": status,
        }
        for row, status in zip(rows, statuses, strict=True)
    ]


def encode(value: dict[str, Any]) -> bytes:
    """JSON, with models in it."""
    return msgspec.json.encode(value, enc_hook=_raw)


def _raw(model: BaseModel) -> msgspec.Raw:
    return msgspec.Raw(model.model_dump_json().encode())
