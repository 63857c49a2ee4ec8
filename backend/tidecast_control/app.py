"""The application: routes, middleware, handlers. Nothing happens at import."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.openapi.utils import get_openapi
from starlette.middleware.gzip import GZipMiddleware

import tidecast
from tidecast_control.alerts.routes import router as alerts
from tidecast_control.api.crud import resource_routes
from tidecast_control.api.http import (
    SAFE_METHODS,
    anyone,
    context_of,
    install_handlers,
)
from tidecast_control.apply.routes import SCHEMAS as APPLY_SCHEMAS
from tidecast_control.apply.routes import router as apply
from tidecast_control.audit.routes import router as audit
from tidecast_control.auth.routes import router as auth
from tidecast_control.faults import service as faults
from tidecast_control.history.routes import router as history
from tidecast_control.kafka.routes import router as kafka
from tidecast_control.kinds import KINDS
from tidecast_control.kit.methods import routes_of
from tidecast_control.kit.queries import ONLY_KNOWN_QUERIES
from tidecast_control.kit.schemas import Problem
from tidecast_control.leases.routes import router as leases
from tidecast_control.live.routes import SCHEMAS as LIVE_SCHEMAS
from tidecast_control.live.routes import router as live
from tidecast_control.messages.routes import router as messages
from tidecast_control.mirrors.routes import router as mirrors
from tidecast_control.nodes.routes import router as nodes
from tidecast_control.operations.routes import router as operations
from tidecast_control.page import router as page
from tidecast_control.pipelines.routes import router as pipelines
from tidecast_control.queues.routes import router as queues
from tidecast_control.rate_limits.routes import router as rate_limits
from tidecast_control.shell import RequestShell
from tidecast_control.system.routes import api as system_api
from tidecast_control.system.routes import router as system
from tidecast_control.traffic.routes import router as traffic
from tidecast_control.wire_keys.routes import router as wire_keys

Lifespan = Callable[[FastAPI], AbstractAsyncContextManager[None]]
PREFIX = "/api/v1"


async def _guard_faults(request: Request) -> None:
    if request.method not in SAFE_METHODS:
        faults.allow(context_of(request).settings.allow_faults)


def api_router() -> APIRouter:
    """Everything below /api/v1."""
    api = APIRouter()
    for kind in KINDS.values():
        if kind.name == "fault":
            one = APIRouter(dependencies=[Depends(_guard_faults)])
            resource_routes(kind, one)
            api.include_router(one)
        else:
            resource_routes(kind, api)  # a router in a router is looked into for every request
    for router in (
        auth, nodes, leases, wire_keys, queues, messages, operations, alerts, audit, apply, live,
        traffic, history, pipelines, mirrors, rate_limits, kafka, system_api,
    ):  # fmt: skip
        api.include_router(router)
    return api


def create_app(lifespan: Lifespan | None = None) -> FastAPI:
    """The application; ``lifespan`` puts a `Context` at ``app.state.context``."""
    app = FastAPI(
        title="Tidecast control service",
        version=tidecast.__version__,
        description="Topology, rate limits, users and live data of a Tidecast platform.",
        openapi_url=f"{PREFIX}/openapi.json",
        docs_url=None,  # its page loads scripts from elsewhere, which our policy forbids
        redoc_url=None,
        lifespan=lifespan,
        separate_input_output_schemas=False,
        generate_unique_id_function=lambda route: route.name,
    )
    install_handlers(app)
    app.add_middleware(GZipMiddleware, minimum_size=2000)
    app.add_middleware(RequestShell, prefix=PREFIX)
    app.include_router(api_router(), prefix=PREFIX, dependencies=[ONLY_KNOWN_QUERIES])
    app.include_router(system, dependencies=[ONLY_KNOWN_QUERIES])
    app.include_router(page)  # last: it answers every path that no other route answers
    app.openapi = lambda: openapi(app)  # type: ignore[method-assign]
    return app


def _asks_who(dependant: Any) -> bool:
    """The route needs a session or a key."""
    return dependant.call is anyone or any(_asks_who(each) for each in dependant.dependencies)


def openapi(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document, with the shapes that no route names (problems, live frames)."""
    if app.openapi_schema is None:
        made = get_openapi(
            title=app.title, version=app.version, description=app.description, routes=app.routes
        )
        schemas = made["components"]["schemas"]
        for model in (Problem, *APPLY_SCHEMAS, *LIVE_SCHEMAS):
            schema = model.model_json_schema(
                ref_template="#/components/schemas/{model}", mode="serialization"
            )
            for name, part in schema.pop("$defs", {}).items():
                schemas.setdefault(name, part)
            schemas.setdefault(model.__name__, schema)
        for unused in ("HTTPValidationError", "ValidationError"):
            schemas.pop(unused, None)
        made["components"]["schemas"] = dict(sorted(schemas.items()))
        made["components"]["securitySchemes"] = {
            "key": {"type": "http", "scheme": "bearer"},
            "session": {"type": "apiKey", "in": "cookie", "name": "tidecast_session"},
            "csrf": {"type": "apiKey", "in": "header", "name": "X-CSRF-Token"},
        }
        made["security"] = [{"key": []}, {"session": [], "csrf": []}]
        public = {
            route.name for _, route in routes_of(app.routes) if not _asks_who(route.dependant)
        }
        for methods in made["paths"].values():
            for operation in methods.values():
                if operation["operationId"] in public:
                    operation["security"] = []
        app.openapi_schema = made
    return app.openapi_schema
