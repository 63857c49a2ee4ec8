"""Queries on runs."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from sqlalchemy import delete, select, text, update
from sqlalchemy.dialects.postgresql import distinct_on
from sqlmodel import Session, col

from tidecast_control.kit.lease import is_over, lease_end
from tidecast_control.kit.models import utc_now
from tidecast_control.pipelines.models import PipelineLogRow, PipelineRunRow

OPEN = ("queued", "running")


def newest(session: Session) -> dict[str, PipelineRunRow]:
    """The newest run of each pipeline."""
    query = (
        select(PipelineRunRow)
        .ext(distinct_on(col(PipelineRunRow.pipeline)))
        .order_by(col(PipelineRunRow.pipeline), col(PipelineRunRow.queued_at).desc())
    )
    return {row.pipeline: row for row in session.execute(query).scalars()}


def runs(session: Session, pipeline: str, limit: int) -> list[PipelineRunRow]:
    """Newest first."""
    query = select(PipelineRunRow).where(col(PipelineRunRow.pipeline) == pipeline)
    query = query.order_by(col(PipelineRunRow.queued_at).desc()).limit(limit)
    return list(session.execute(query).scalars())


def open_run(session: Session, pipeline: str, *, lock: bool = False) -> PipelineRunRow | None:
    """The run that waits or runs; there is one at most."""
    query = select(PipelineRunRow).where(
        col(PipelineRunRow.pipeline) == pipeline, col(PipelineRunRow.state).in_(OPEN)
    )
    if lock:
        query = query.with_for_update()
    return session.execute(query).scalar_one_or_none()


def lost(session: Session) -> list[PipelineRunRow]:
    """Runs whose service does not renew their leases; another service does not get them too."""
    query = select(PipelineRunRow).where(
        col(PipelineRunRow.state) == "running", is_over(col(PipelineRunRow.held_until))
    )
    return list(session.execute(query.with_for_update(skip_locked=True)).scalars())


def take_queued(session: Session, at_most: int, lease_s: float) -> list[PipelineRunRow]:
    """The oldest that wait, now running; another service does not get them too."""
    query = select(PipelineRunRow).where(col(PipelineRunRow.state) == "queued")
    query = query.order_by(col(PipelineRunRow.queued_at)).limit(at_most)
    rows = list(session.execute(query.with_for_update(skip_locked=True)).scalars())
    for row in rows:
        row.state, row.started_at = "running", utc_now()
        session.add(row)
    session.flush()
    renew(session, [row.id for row in rows], lease_s)
    return rows


def renew(session: Session, runs: Collection[str], lease_s: float) -> dict[str, bool]:
    """Renew leases of runs. Returns the runs that are still held, and whether each shall end."""
    query = update(PipelineRunRow).where(
        col(PipelineRunRow.id).in_(runs), col(PipelineRunRow.state) == "running"
    )
    held = query.values(held_until=lease_end(lease_s)).returning(
        col(PipelineRunRow.id), col(PipelineRunRow.ending)
    )
    return {row.id: row.ending for row in session.execute(held)} if runs else {}


def change(session: Session, run: str, **values: Any) -> bool:
    """Set fields of a run that runs. False: it does not run any more."""
    query = update(PipelineRunRow).where(
        col(PipelineRunRow.id) == run, col(PipelineRunRow.state) == "running"
    )
    changed = session.execute(query.values(**values).returning(col(PipelineRunRow.id)))
    return changed.first() is not None


def newest_report(session: Session, job: str) -> PipelineRunRow | None:
    """The newest run of a job that is done."""
    query = select(PipelineRunRow).where(
        col(PipelineRunRow.job) == job, col(PipelineRunRow.state) == "done"
    )
    query = query.order_by(col(PipelineRunRow.queued_at).desc()).limit(1)
    return session.execute(query).scalar_one_or_none()


def forget(session: Session, keep: int) -> None:
    """Delete all but the newest runs of each pipeline, and logs of no run."""
    session.execute(
        text(
            "delete from pipeline_runs where id in (select id from (select id, row_number() over "
            "(partition by pipeline order by queued_at desc) n from pipeline_runs "
            "where state not in ('queued', 'running')) ranked where n > :keep)"
        ),
        {"keep": keep},
    )
    known = select(col(PipelineRunRow.id))
    session.execute(delete(PipelineLogRow).where(col(PipelineLogRow.run).not_in(known)))
