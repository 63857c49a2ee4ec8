"""Many writes in one transaction: rows that all of them read are read once.

While a batch is open, rows that were found (or found missing), lists of a kind, and the topology's
version are remembered with the session; every write through `kit.resources` keeps them true. Its
inserts reach Postgres together, at its end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import insert, select
from sqlmodel import Session, SQLModel, col

from tidecast_control.kit.models import ResourceRow

_KEY = "batch"
_NAMES_AT_ONCE = 5000


@dataclass
class Batch:
    """Rows that a transaction has read already."""

    rows: dict[tuple[str, str], ResourceRow | None] = field(default_factory=dict)
    lists: dict[str, list[ResourceRow]] = field(default_factory=dict)
    version: int | None = None
    announced: bool = False
    inserts: dict[type[SQLModel], list[dict[str, Any]]] = field(default_factory=dict)
    """Rows that the batch does not read again: Postgres gets them all at the end."""
    numbers: dict[str, dict[int, set[str]]] = field(default_factory=dict)
    """Kind -> number -> names: topics by their id in packets."""

    def changed(self, row: ResourceRow, before: int | None) -> None:
        """A row was written."""
        self.rows[row.kind, row.name] = row
        self.lists.pop(row.kind, None)
        self._renumber(row, before, row.number)

    def deleted(self, row: ResourceRow) -> None:
        """A row is gone."""
        self.rows[row.kind, row.name] = None
        self.lists.pop(row.kind, None)
        self._renumber(row, row.number, None)

    def _renumber(self, row: ResourceRow, before: int | None, after: int | None) -> None:
        known = self.numbers.get(row.kind)
        if known is None:
            return
        if before is not None:
            known.get(before, set()).discard(row.name)
        if after is not None:
            known.setdefault(after, set()).add(row.name)


def batch_of(session: Session) -> Batch | None:
    """The batch that is open, if one is."""
    found = session.info.get(_KEY)
    assert found is None or isinstance(found, Batch)
    return found


def add(session: Session, model: type[SQLModel], values: dict[str, Any]) -> None:
    """Insert a row; ``values`` has every column but the number that Postgres gives."""
    found = batch_of(session)
    if found is None:
        session.add(model(**values))
    else:
        found.inserts.setdefault(model, []).append(values)


@contextmanager
def batch(session: Session, wanted: Iterable[tuple[str, str]]) -> Iterator[Batch]:
    """Open a batch; the rows of ``wanted`` (kind, name) are read, and locked, at once."""
    made = Batch()
    by_kind: dict[str, list[str]] = {}
    for kind, name in wanted:
        by_kind.setdefault(kind, []).append(name)
    for kind in sorted(by_kind):
        names = sorted(by_kind[kind])  # always in one order: two batches do not lock each other
        made.rows |= {(kind, name): None for name in names}
        for first in range(0, len(names), _NAMES_AT_ONCE):
            query = select(ResourceRow).where(
                col(ResourceRow.kind) == kind,
                col(ResourceRow.name).in_(names[first : first + _NAMES_AT_ONCE]),
            )
            query = query.order_by(col(ResourceRow.name)).with_for_update()
            found: Any = session.execute(query).scalars()
            made.rows |= {(kind, row.name): row for row in found}
    session.info[_KEY] = made
    try:
        with session.no_autoflush:
            yield made
        session.flush()
        for model, rows in made.inserts.items():
            session.execute(insert(model), rows)
    finally:
        session.info.pop(_KEY, None)
