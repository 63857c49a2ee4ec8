"""Routes of apply and export."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from fastapi.concurrency import run_in_threadpool

from tidecast_control.api.crud import APPLIED_WITHIN_S, not_applied
from tidecast_control.api.http import Ctx, Db, DryRun, as_json, needs, problem_responses
from tidecast_control.apply import service
from tidecast_control.apply.schemas import ApplyInput, ApplyResult
from tidecast_control.kit import repository
from tidecast_control.kit.actor import Actor
from tidecast_control.kit.problems import ProblemError

router = APIRouter(tags=["apply"])
YAML_TYPES = ("application/yaml", "application/x-yaml", "text/yaml")


@router.post(
    "/apply",
    response_model=ApplyResult,
    responses=problem_responses(409),
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {"schema": {"$ref": "#/components/schemas/ApplyInput"}},
                "application/yaml": {"schema": {"type": "string"}},
            },
        }
    },
)
async def apply(
    request: Request,
    ctx: Ctx,
    actor: Annotated[Actor, needs("apply:write")],
    dry_run: DryRun = False,
    managed_by: Annotated[str, Query(max_length=200, pattern=r"^[^\x00]*$")] = "",
    prune: Annotated[
        bool, Query(description="Delete resources of this managed_by that are left out")
    ] = False,
    label: Annotated[
        list[Annotated[str, Query(max_length=320, pattern=r"^[^\x00=]+=[^\x00]*$")]],
        Query(max_length=20, description="Prune only resources with these labels"),
    ] = [],  # noqa: B006 - FastAPI copies it
) -> Response:
    """Apply many documents, YAML or JSON: all of them or none."""
    raw = await request.body()
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media in YAML_TYPES:
        documents = await run_in_threadpool(service.documents_of_yaml, raw)
    elif media in ("application/json", ""):
        documents = service.documents_of_json(raw)
    else:
        raise ProblemError("unsupported_media_type", f"{media}: allowed {', '.join(YAML_TYPES)}")
    wanted = service.Wanted(documents, managed_by, prune, tuple(label), dry_run)

    def work() -> tuple[ApplyResult, int]:
        with ctx.db.begin() as session:
            result = service.apply(session, wanted, actor, ctx.settings.allow_faults)
            version, _ = repository.clock(session)
        if not dry_run and len(result.plans) - result.unchanged >= service.ANALYZED_FROM:
            ctx.db.analyze("resources")
        return result, version

    result, version = await run_in_threadpool(work)
    if not dry_run:
        ctx.changed()
        result.warnings += not_applied(await ctx.hub.applied(version, APPLIED_WITHIN_S))
    return as_json(result)


@router.get(
    "/export",
    response_class=Response,
    responses={
        200: {"content": {"application/yaml": {"schema": {"type": "string"}}}},
        **problem_responses(),
    },
)
def export(
    session: Db,
    actor: Annotated[Actor, needs("export:read")],
    kind: Annotated[
        list[Annotated[str, Query(max_length=50)]], Query(max_length=20, description="All if none")
    ] = [],  # noqa: B006 - FastAPI copies it
    managed_by: Annotated[str, Query(max_length=200, pattern=r"^[^\x00]*$")] = "",
) -> Response:
    """All resources as YAML that `POST /apply` takes."""
    del actor
    text = service.export(session, kind, managed_by)
    return Response(text, media_type="application/yaml")


SCHEMAS = (ApplyInput,)
