"""Pages of tables that hold no resources: by name, or the newest first. Keyset cursors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from pydantic import BaseModel
from sqlalchemy import Select, func, select, tuple_
from sqlmodel import Session

from tidecast_control.kit import cursor as cursors
from tidecast_control.kit.problems import invalid
from tidecast_control.kit.schemas import Page

ViewT = TypeVar("ViewT", bound=BaseModel)


@dataclass(frozen=True)
class PageQuery:
    """Which page of a list."""

    limit: int
    cursor: str | None = None
    count: bool = False


def by_name(
    session: Session, query: Select[Any], name: Any, page: PageQuery, view: Callable[[Any], ViewT]
) -> Page[ViewT]:
    """Rows in the order of the column ``name``, which is unique."""
    total = _total(session, query, page)
    if page.cursor:
        _, last = cursors.decode(page.cursor, "name")
        query = query.where(name > last)
    rows = _rows(session, query.order_by(name), page)
    following = None
    if len(rows) > page.limit:
        last = getattr(rows[page.limit - 1], name.key)
        following = cursors.encode("name", last, last)
    items = [view(row) for row in rows[: page.limit]]
    return Page(items=items, next_cursor=following, total=total)


def newest_first(
    session: Session,
    query: Select[Any],
    at: Any,
    key: Any,
    page: PageQuery,
    view: Callable[[Any], ViewT],
) -> Page[ViewT]:
    """Rows by the column ``at``, downwards; ``key`` is unique and decides between equal times."""
    sort = f"-{at.key}"
    total = _total(session, query, page)
    if page.cursor:
        value, last = cursors.decode(page.cursor, sort)
        query = query.where(tuple_(at, key) < (_time(value), last))
    rows = _rows(session, query.order_by(at.desc(), key.desc()), page)
    following = None
    if len(rows) > page.limit:
        row = rows[page.limit - 1]
        following = cursors.encode(sort, getattr(row, at.key).isoformat(), getattr(row, key.key))
    items = [view(row) for row in rows[: page.limit]]
    return Page(items=items, next_cursor=following, total=total)


def _rows(session: Session, query: Select[Any], page: PageQuery) -> list[Any]:
    """One more than fits: then there is another page."""
    return list(session.execute(query.limit(page.limit + 1)).scalars())


def _total(session: Session, query: Select[Any], page: PageQuery) -> int | None:
    if not page.count:
        return None
    counting = select(func.count()).select_from(query.subquery())
    return int(session.execute(counting).scalar_one())


def _time(value: Any) -> datetime:
    try:
        at = datetime.fromisoformat(str(value))
    except ValueError:
        at = None
    if at is None or at.tzinfo is None:
        raise invalid("query/cursor", "not a cursor of this list", "next_cursor")
    return at
