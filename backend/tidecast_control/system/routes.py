"""Routes about the service itself."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Request, Response
from fastapi.concurrency import run_in_threadpool

from tidecast_control.api.http import Ctx, actor_of, checked, needs, problem_responses
from tidecast_control.context import Context
from tidecast_control.kit.actor import Actor
from tidecast_control.kit.problems import CATALOGUE, not_found
from tidecast_control.kit.schemas import Page
from tidecast_control.live.facts import read as read_facts
from tidecast_control.settings import is_loopback
from tidecast_control.system import service
from tidecast_control.system.metrics import CONTENT_TYPE, text
from tidecast_control.system.schemas import Health, ProblemKind, SystemInfo

PROXY_HEADERS = ("forwarded", "x-forwarded-for", "x-real-ip", "via")

api = APIRouter(tags=["system"])
router = APIRouter(tags=["system"])


@api.get("/system", responses=problem_responses())
async def system_info(ctx: Ctx, actor: Annotated[Actor, needs("system:read")]) -> SystemInfo:
    """Version, time, and the settings a client should know."""
    del actor
    return await service.info(ctx)


@api.get("/problems")
def list_problems() -> Page[ProblemKind]:
    """The catalogue of problems: every code with its meaning and its remedy. Needs no login."""
    return Page(items=[_kind(code) for code in sorted(CATALOGUE)])


@api.get("/problems/{code}", responses=problem_responses(404))
def get_problem(code: Annotated[str, Path(max_length=100)]) -> ProblemKind:
    """One entry of the catalogue."""
    if code not in CATALOGUE:
        raise not_found("problem", code)
    return _kind(code)


def _kind(code: str) -> ProblemKind:
    return ProblemKind(code=code, **CATALOGUE[code]._asdict())


@router.get("/health/live")
async def health_live() -> Health:
    """The process answers. Needs no login."""
    return Health(ok=True, checks={"process": "ok"})


@router.get("/health/ready", responses={503: {"model": Health}})
def health_ready(ctx: Ctx, response: Response) -> Health:
    """The service can serve: Postgres answers, its background tasks work. Needs no login."""
    health = service.ready(ctx)
    response.status_code = 200 if health.ok else 503
    return health


@router.get("/metrics", response_class=Response, responses=problem_responses())
async def metrics(request: Request, ctx: Ctx) -> Response:
    """For Prometheus, in its text format. From this machine without a key, else with one."""
    if not _is_near(request, ctx):
        checked(await actor_of(request, ctx)).need("metrics:read")
    samples = await ctx.hub.samples()
    facts = await run_in_threadpool(read_facts, ctx.db)
    shown = text(samples, facts, ctx.feed.watchers, ctx.supervisor.tasks.values())
    return Response(shown, media_type=CONTENT_TYPE)


def _is_near(request: Request, ctx: Context) -> bool:
    """From this machine, and not by way of a proxy here that serves others."""
    host = request.client.host if request.client else ""
    by_proxy = any(name in request.headers for name in PROXY_HEADERS)
    return is_loopback(host) and not by_proxy and not ctx.settings.behind_tls_proxy
