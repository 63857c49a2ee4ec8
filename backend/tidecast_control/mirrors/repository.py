"""Queries on the states of mirrors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import delete, func, or_, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlmodel import Session, col

from tidecast_control.kit.lease import is_over, lease_end
from tidecast_control.kit.models import ResourceRow
from tidecast_control.mirrors.models import MirrorStateRow


def states(session: Session) -> dict[str, MirrorStateRow]:
    """Of each mirror that ran."""
    return {row.mirror: row for row in session.execute(select(MirrorStateRow)).scalars()}


FIGURES = ("state", "error", "failures", "records", "bytes", "gone", "left_out", "rate", "lag")


def figures(session: Session) -> dict[str, dict[str, Any]]:
    """For metrics: those of each mirror that ran."""
    return {
        name: {field: getattr(row, field) for field in FIGURES}
        for name, row in states(session).items()
    }


def take(session: Session, mirrors: Iterable[str], holder: str, lease_s: float) -> set[str]:
    """Hold mirrors that no other service holds; the mirrors that are held now, for so long."""
    names = list(mirrors)
    if not names:
        return set()
    until = lease_end(lease_s)
    fresh = MirrorStateRow(mirror="").model_dump(exclude={"mirror", "holder", "held_until"})
    rows = [fresh | {"mirror": name, "holder": holder} for name in names]
    query = insert(MirrorStateRow).values([row | {"held_until": until} for row in rows])
    free = or_(col(MirrorStateRow.holder) == holder, is_over(col(MirrorStateRow.held_until)))
    taken = query.on_conflict_do_update(
        index_elements=["mirror"], set_={"holder": holder, "held_until": until}, where=free
    )
    return set(session.execute(taken.returning(col(MirrorStateRow.mirror))).scalars())


def keep(session: Session, holder: str, mirror: str, values: Mapping[str, Any]) -> None:
    """Write how a mirror does, unless another service has it, or it is deleted."""
    mine = update(MirrorStateRow).where(
        col(MirrorStateRow.mirror) == mirror, col(MirrorStateRow.holder) == holder
    )
    session.execute(mine.values(**values))


def release(session: Session, holder: str, mirrors: Iterable[str]) -> None:
    """Let another service have mirrors at once."""
    mine = update(MirrorStateRow).where(
        col(MirrorStateRow.holder) == holder, col(MirrorStateRow.mirror).in_(list(mirrors))
    )
    session.execute(mine.values(holder="", held_until=func.now(), rate=0.0))


def forget_others(session: Session) -> None:
    """Delete states of mirrors that were deleted while a service took them."""
    mirrors = select(col(ResourceRow.name)).where(col(ResourceRow.kind) == "mirror")
    others = delete(MirrorStateRow).where(col(MirrorStateRow.mirror).not_in(mirrors))
    session.execute(others, execution_options={"synchronize_session": False})


def forget(session: Session, mirror: str) -> None:
    """Delete the state of a mirror."""
    session.execute(delete(MirrorStateRow).where(col(MirrorStateRow.mirror) == mirror))
