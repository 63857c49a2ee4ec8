"""Which methods a path has: a router knows a route object a method, and none knows all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.routing import compile_path


def routes_of(routes: Any, prefix: str = "") -> Iterator[tuple[str, APIRoute]]:
    """(path, route) of every route, those of included routers too."""
    for route in routes:
        if isinstance(route, APIRoute):
            yield prefix + route.path, route
        elif hasattr(route, "original_router"):
            inner = prefix + route.include_context.prefix
            yield from routes_of(route.original_router.routes, inner)


def methods_of(app: FastAPI, path: str) -> set[str]:
    """The methods of all routes that have this path; the dashboard's pages are not asked."""
    table = getattr(app.state, "methods", None)
    if table is None:
        table = app.state.methods = [
            (compile_path(at)[0], frozenset(route.methods or ()))
            for at, route in routes_of(app.routes)
            if route.include_in_schema
        ]
    return {each for regex, methods in table if regex.match(path) for each in methods}
