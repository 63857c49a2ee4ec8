"""The routes of one kind of resource, the same for every kind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from sqlmodel import Session

from tidecast_control.api import resources
from tidecast_control.api.http import (
    Conditions,
    Ctx,
    DryRun,
    entity_tags,
    etag_of,
    etag_of_body,
    fresh,
    needs,
    problem_responses,
)
from tidecast_control.context import Context
from tidecast_control.kit import reads, repository
from tidecast_control.kit.actor import Actor
from tidecast_control.kit.kind import Kind
from tidecast_control.kit.queries import Cursor
from tidecast_control.kit.reads import ListQuery
from tidecast_control.kit.schemas import (
    LIMIT_DEFAULT,
    LIMIT_MAX,
    NAME_PATTERN,
    MergePatch,
    Page,
    Plan,
)

APPLIED_WITHIN_S = 1.0
"""A write waits so long at most for the connected engines to apply it."""
SORTS = (
    "name",
    "-name",
    "created_at",
    "-created_at",
    "updated_at",
    "-updated_at",
)


async def list_query(
    limit: Annotated[int, Query(ge=1, le=LIMIT_MAX)] = LIMIT_DEFAULT,
    cursor: Cursor = None,
    sort: Annotated[str, Query(pattern=rf"^({'|'.join(SORTS)})$")] = "name",
    q: Annotated[
        str, Query(max_length=200, pattern=r"^[^\x00]*$", description="Part of name or description")
    ] = "",
    label: Annotated[
        list[Annotated[str, Query(max_length=320, pattern=r"^[^\x00=]+(=[^\x00]*)?$")]],
        Query(max_length=20, description="`key=value`, or `key`: all must hold"),
    ] = [],  # noqa: B006 - FastAPI copies it
    count: Annotated[bool, Query(description="Also count all that match")] = False,
) -> ListQuery:
    """The query of every list."""
    return ListQuery(limit=limit, cursor=cursor, sort=sort, q=q, labels=tuple(label), count=count)


async def topic_query(
    ctx: Ctx,
    query: Annotated[ListQuery, Depends(list_query)],
    adapters: Annotated[
        bool,
        Query(description="Also topics that adapters of engines keep: no resources, generation 0"),
    ] = False,
) -> ListQuery:
    """The query of the list of topics."""
    if adapters:
        await fresh(ctx)
    return replace(query, unstored=adapters)


def typed(called: str, endpoint: Callable[..., Any], doc: str, /, **annotations: Any) -> Any:
    """An endpoint with its name, text and annotations: FastAPI reads them."""
    endpoint.__annotations__.update(annotations)
    endpoint.__name__ = called
    endpoint.__doc__ = doc
    return endpoint


def resource_routes(kind: Kind, router: APIRouter) -> None:
    """Add list, get, put, patch, delete of a kind to a router."""
    _read_routes(kind, router)
    _write_routes(kind, router)
    _delete_route(kind, router)


def _read_routes(kind: Kind, router: APIRouter) -> None:
    label = kind.name.replace("_", " ")
    read = Annotated[Actor, needs(f"{kind.rights}:read")]
    in_path = Annotated[str, Path(min_length=1, max_length=200, pattern=NAME_PATTERN)]

    first = [Depends(fresh)] if kind.measured else []

    async def list_all(ctx, actor, query):  # type: ignore[no-untyped-def]
        return _json(await reads.page(ctx.db, kind, query, actor))

    async def get(ctx, actor, name, request):  # type: ignore[no-untyped-def]
        row, stamp = await reads.one(ctx.db, kind, name, actor)
        found = await reads.views(ctx.db, kind, [row], stamp)
        body = reads.encode(found[0])
        etag = etag_of_body(row.uid, row.generation, body)
        if etag in entity_tags(request.headers.get("if-none-match", "")):
            return Response(status_code=304, headers={"ETag": etag})
        return _json(body, {"ETag": etag})

    router.add_api_route(
        f"/{kind.path}",
        typed(
            f"list_{kind.path.replace('-', '_')}",
            list_all,
            f"A page of {label}s.",
            ctx=Ctx,
            actor=read,
            query=Annotated[ListQuery, Depends(topic_query if kind.unstored else list_query)],
        ),
        response_model=Page[kind.resource],  # type: ignore[name-defined]
        responses=problem_responses(),
        dependencies=first,
        tags=[kind.path],
    )
    router.add_api_route(
        f"/{kind.path}/{{name}}",
        typed(
            f"get_{kind.name}",
            get,
            f"One {label}, with its ETag.",
            ctx=Ctx,
            actor=read,
            name=in_path,
            request=Request,
        ),
        response_model=kind.resource,
        responses=problem_responses(404),
        dependencies=first,
        tags=[kind.path],
    )


def _json(body: bytes, headers: dict[str, str] | None = None) -> Response:
    return Response(body, 200, headers, media_type="application/json")


def _write_routes(kind: Kind, router: APIRouter) -> None:
    label = kind.name.replace("_", " ")
    either = kind.resource | Plan

    def answer(outcome: resources.Outcome, response: Response) -> Any:
        if outcome.resource is None or outcome.dry_run:
            return outcome.plan
        if outcome.plan.action == "create":
            response.status_code = 201
        meta = outcome.resource.metadata
        response.headers["ETag"] = etag_of(meta.uid, meta.generation)
        return outcome.resource

    async def put(ctx, actor, name, body, conditions, response, dry_run=False):  # type: ignore[no-untyped-def]
        def work(session: Session) -> resources.Outcome:
            return resources.put(
                session, kind, name, body, actor, dry_run=dry_run, precondition=conditions.check
            )

        return answer(await _written(ctx, kind, name, work), response)

    async def patch(ctx, actor, name, body, conditions, response, dry_run=False):  # type: ignore[no-untyped-def]
        def work(session: Session) -> resources.Outcome:
            return resources.patch(
                session, kind, name, body, actor, dry_run=dry_run, precondition=conditions.check
            )

        return answer(await _written(ctx, kind, name, work), response)

    common = _common(kind)
    router.add_api_route(
        f"/{kind.path}/{{name}}",
        typed(
            f"put_{kind.name}",
            put,
            f"Create (201) or change (200) the {label} so that it is as the body describes. "
            "A repeat changes nothing.",
            body=kind.input,
            response=Response,
            **common,
        ),
        methods=["PUT"],
        response_model=either,
        responses={
            201: {"model": kind.resource, "description": "Created"},
            **problem_responses(404, 409, 412),
        },
        tags=[kind.path],
    )
    router.add_api_route(
        f"/{kind.path}/{{name}}",
        typed(
            f"patch_{kind.name}",
            patch,
            f"Change some fields of the {label} (merge patch, RFC 7396).",
            body=MergePatch,
            response=Response,
            **common,
        ),
        methods=["PATCH"],
        response_model=either,
        responses=problem_responses(404, 409, 412),
        tags=[kind.path],
    )


async def _written(
    ctx: Context, kind: Kind, name: str, work: Callable[[Session], resources.Outcome]
) -> resources.Outcome:
    """Commit a write and wait until the connected engines applied it, `APPLIED_WITHIN_S` at most.

    The resource's status, or the plan's warnings, name the engines that have not applied it yet.
    """

    def commit() -> resources.Outcome:
        with ctx.db.begin() as session:
            return work(session)

    outcome = await run_in_threadpool(commit)
    if outcome.dry_run:
        return outcome
    ctx.changed()
    if not outcome.version or not ctx.hub.engines:
        return outcome
    late = await ctx.hub.applied(outcome.version, APPLIED_WITHIN_S)
    outcome.plan.warnings += not_applied(late)
    shown = outcome.resource
    if shown is None:
        return outcome

    def view_again() -> resources.Outcome:
        with ctx.db.begin() as session:
            row = repository.find(session, kind.name, name)
            if row is None or (row.uid, row.generation) != (
                shown.metadata.uid,
                shown.metadata.generation,
            ):
                return outcome  # another write was here meanwhile
            return replace(outcome, resource=resources.view(session, kind, row))

    return await run_in_threadpool(view_again)


def not_applied(engines: Sequence[str]) -> list[str]:
    """A warning for each engine that has not applied a write yet."""
    return [
        f"engine {name} has not applied this yet: it does so when it answers" for name in engines
    ]


def _common(kind: Kind) -> dict[str, Any]:
    return {
        "ctx": Ctx,
        "actor": Annotated[Actor, needs(f"{kind.rights}:write")],
        "name": Annotated[str, Path(min_length=1, max_length=200, pattern=NAME_PATTERN)],
        "conditions": Conditions,
        "dry_run": DryRun,
    }


def _delete_route(kind: Kind, router: APIRouter) -> None:
    label = kind.name.replace("_", " ")

    async def delete(ctx, actor, name, conditions, if_unused=True, dry_run=False):  # type: ignore[no-untyped-def]
        def work(session: Session) -> resources.Outcome:
            return resources.delete(
                session,
                kind,
                name,
                actor,
                dry_run=dry_run,
                if_unused=if_unused,
                precondition=conditions.check,
            )

        return (await _written(ctx, kind, name, work)).plan

    unused = Annotated[bool, Query(description="Refuse (409) when something refers to it")]
    router.add_api_route(
        f"/{kind.path}/{{name}}",
        typed(
            f"delete_{kind.name}",
            delete,
            f"Delete a {label}; the answer is the plan.",
            if_unused=unused,
            **_common(kind),
        ),
        methods=["DELETE"],
        response_model=Plan,
        responses=problem_responses(404, 409, 412),
        tags=[kind.path],
    )
