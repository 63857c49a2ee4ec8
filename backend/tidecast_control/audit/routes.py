"""Routes of the audit."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query
from fastapi.responses import StreamingResponse

from tidecast_control.api.http import Ctx, Db, needs, problem_responses
from tidecast_control.audit import service
from tidecast_control.audit.repository import AuditQuery
from tidecast_control.audit.schemas import AuditEntry
from tidecast_control.kit.actor import Actor
from tidecast_control.kit.queries import Cursor
from tidecast_control.kit.schemas import LIMIT_DEFAULT, LIMIT_MAX, Instant, Page

router = APIRouter(tags=["audit"])
Outcome = Annotated[str, Query(pattern="^(done|denied|failed)?$")]
NDJSON = "application/x-ndjson"
Word = Annotated[str, Query(max_length=210, pattern=r"^[^\x00]*$")]


@router.get("/audit", responses=problem_responses())
def list_audit(
    session: Db,
    reader: Annotated[Actor, needs("audit:read")],
    limit: Annotated[int, Query(ge=1, le=LIMIT_MAX)] = LIMIT_DEFAULT,
    cursor: Cursor = None,
    actor: Word = "",
    kind: Word = "",
    name: Word = "",
    outcome: Outcome = "",
    q: Word = "",
    since: Instant | None = None,
    until: Instant | None = None,
    count: bool = False,
) -> Page[AuditEntry]:
    """Writes and denials, newest first."""
    del reader
    query = AuditQuery(limit, cursor, actor, kind, name, outcome, q, since, until, count)
    return service.page(session, query)


@router.get(
    "/audit/export",
    response_class=StreamingResponse,
    responses={
        200: {
            "content": {NDJSON: {"schema": {"type": "string"}}},
            "description": "One entry a line",
        },
        **problem_responses(),
    },
)
def export_audit(
    ctx: Ctx,
    reader: Annotated[Actor, needs("audit:read")],
    actor: Word = "",
    kind: Word = "",
    name: Word = "",
    outcome: Outcome = "",
    q: Word = "",
    since: Instant | None = None,
    until: Instant | None = None,
) -> StreamingResponse:
    """All entries that match, newest first: one JSON object a line."""
    del reader
    query = AuditQuery(LIMIT_MAX, None, actor, kind, name, outcome, q, since, until)
    return StreamingResponse(
        service.export(ctx.db, query),
        media_type=NDJSON,
        headers={"Content-Disposition": 'attachment; filename="audit.jsonl"'},
    )


@router.get("/audit/{entry_id}", responses=problem_responses(404))
def get_audit(
    session: Db,
    entry_id: Annotated[str, Path(pattern=r"^\d{1,19}$")],
    reader: Annotated[Actor, needs("audit:read")],
) -> AuditEntry:
    """One entry, with before and after."""
    del reader
    return service.entry(session, int(entry_id))
