"""Moves of leased queues between nodes: noted in the transaction that changes the lease.

A queue without an owner has one open move at most: it begins when its lease is given back or ended,
and the next grant completes it. All runs on the locked rows of the leases.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, delete, func, or_, select
from sqlmodel import Session, col

from tidecast_control.kit import cursor as cursors
from tidecast_control.kit.models import utc_now
from tidecast_control.kit.paging import PageQuery
from tidecast_control.kit.problems import invalid, not_found
from tidecast_control.kit.repository import find, names
from tidecast_control.kit.schemas import Page
from tidecast_control.leases.models import LeaseMoveRow, LeaseRow
from tidecast_control.leases.schemas import LeaseMove

PRESENCE = "@"
"""A node shows by such a lease that it is there: no queue, so it does not move."""
DAYS, ROWS_MAX = 30, 100_000
FIRST, GIVEN_BACK = "it had no owner", "its node gave it back"
AGAIN, ENDED = "its node started again", "its lease ended: its node did not renew it"
_SORT = "-id"


@dataclass(frozen=True)
class MovesQuery:
    """Which moves: of a topic, from or to a node."""

    page: PageQuery
    topic: str = ""
    node: str = ""


# --- noting ---------------------------------------------------------------------------------------


class Moves:
    """Notes the moves of some queues in one transaction; their leases are locked."""

    def __init__(self, session: Session, queues: Sequence[str]) -> None:
        """``queues``: those without an owner that may get one."""
        self._session = session
        self._open: dict[str, LeaseMoveRow] = {}
        if queues:
            query = select(LeaseMoveRow).where(
                col(LeaseMoveRow.queue).in_(queues), col(LeaseMoveRow.to_node) == ""
            )
            self._open = {row.queue: row for row in session.execute(query).scalars()}

    def left(self, lease: LeaseRow, reason: str, now: datetime) -> None:
        """The owner of ``lease`` has lost or released it, and no node has it yet."""
        if _is_presence(lease.queue):
            return
        self._session.flush()  # completed moves first: a queue has one open move
        self._open[lease.queue] = self._note(lease, now, reason or GIVEN_BACK)

    def taken(self, lease: LeaseRow, owner: str, epoch: int, now: datetime) -> None:
        """``owner`` is granted the queue; ``lease`` as it was before."""
        if _is_presence(lease.queue):
            return
        move = self._open.pop(lease.queue, None)
        if move is None:
            reason = FIRST if not lease.owner else AGAIN if lease.owner == owner else ENDED
            move = self._note(lease, min(lease.ends_at, now) if reason == ENDED else now, reason)
        move.to_node, move.epoch, move.taken_at = owner, epoch, now

    def _note(self, lease: LeaseRow, at: datetime, reason: str) -> LeaseMoveRow:
        queue, owner = lease.queue, lease.owner
        move = LeaseMoveRow(
            queue=queue,
            topic=_topic_of(queue),
            at=at,
            from_node=owner,
            to_node="",
            epoch=lease.epoch,
            reason=reason,
        )
        self._session.add(move)
        return move


def _is_presence(queue: str) -> bool:
    return _topic_of(queue).startswith(PRESENCE)


def _topic_of(queue: str) -> str:
    """A lease is named by the id of its directory and the topic: `tidecast.queues.leases.scope`."""
    return queue.rpartition("/")[2]


# --- reading --------------------------------------------------------------------------------------


def page(session: Session, query: MovesQuery) -> Page[LeaseMove]:
    """Newest first. Raises `invalid_request`: the cursor; `not_found`: no such node.

    A node that was deleted is known as long as one of its moves is kept.
    """
    filters = _filters(query)
    if query.node:
        _check_node(session, query.node)
    total = None
    if query.page.count:
        counting = select(func.count()).select_from(LeaseMoveRow).where(*filters)
        total = int(session.execute(counting).scalar_one())
    if query.page.cursor:
        before, _ = cursors.decode(query.page.cursor, _SORT)
        if not isinstance(before, int) or not 0 <= before < 1 << 63:
            raise invalid("query/cursor", "not a cursor of this list", "next_cursor")
        filters.append(col(LeaseMoveRow.id) < before)
    found = select(LeaseMoveRow).where(*filters).order_by(col(LeaseMoveRow.id).desc())
    rows = list(session.execute(found.limit(query.page.limit + 1)).scalars())
    following = None
    if len(rows) > query.page.limit:
        rows = rows[: query.page.limit]
        following = cursors.encode(_SORT, rows[-1].id, "")
    items = [_shown(row) for row in rows]
    return Page(items=items, next_cursor=following, total=total)


def _check_node(session: Session, node: str) -> None:
    if find(session, "node", node) is not None:
        return
    moved = select(col(LeaseMoveRow.id)).where(_of_node(node))
    if session.execute(moved.limit(1)).first() is None:
        raise not_found("node", node, names(session, "node"))


def _filters(query: MovesQuery) -> list[ColumnElement[bool]]:
    found: list[ColumnElement[bool]] = []
    if query.topic:
        found.append(col(LeaseMoveRow.topic) == query.topic)
    if query.node:
        found.append(_of_node(query.node))
    return found


def _of_node(node: str) -> ColumnElement[bool]:
    return or_(col(LeaseMoveRow.from_node) == node, col(LeaseMoveRow.to_node) == node)


def _shown(row: LeaseMoveRow) -> LeaseMove:
    away_s = None
    if row.taken_at is not None:
        away_s = max(0.0, (row.taken_at - row.at).total_seconds())
    return LeaseMove(
        id=str(row.id),
        at=row.at,
        taken_at=row.taken_at,
        away_s=away_s,
        topic=row.topic,
        from_node=row.from_node,
        to_node=row.to_node,
        epoch=str(row.epoch),
        reason=row.reason,
    )


# --- forgetting -----------------------------------------------------------------------------------


def forget(session: Session) -> None:
    """Delete old moves, and moves beyond the newest `ROWS_MAX`."""
    old = col(LeaseMoveRow.at) < utc_now() - timedelta(days=DAYS)
    session.execute(delete(LeaseMoveRow).where(old))
    newest = select(col(LeaseMoveRow.id)).order_by(col(LeaseMoveRow.id).desc())
    last = session.execute(newest.offset(ROWS_MAX).limit(1)).scalar_one_or_none()
    if last is not None:
        session.execute(delete(LeaseMoveRow).where(col(LeaseMoveRow.id) <= last))
