"""Query parameters: a route refuses unknown names, and names given twice.

An ignored `?dryrun=true` would make the changes that the caller only wanted to try.
"""

from __future__ import annotations

import difflib
import typing
from collections.abc import Iterator
from typing import Annotated, Any

from fastapi import Depends, Query
from fastapi.routing import APIRoute
from starlette.requests import HTTPConnection

from tidecast_control.kit.paging import PageQuery
from tidecast_control.kit.problems import ProblemError
from tidecast_control.kit.schemas import LIMIT_DEFAULT, LIMIT_MAX, ProblemItem

CURSOR = r"^[A-Za-z0-9_-]+$"
Cursor = Annotated[
    str | None,
    Query(max_length=1000, pattern=CURSOR, description="`next_cursor` of the page before"),
]


async def _page_query(
    limit: Annotated[int, Query(ge=1, le=LIMIT_MAX)] = LIMIT_DEFAULT,
    cursor: Cursor = None,
    count: Annotated[bool, Query(description="Also count all that match")] = False,
) -> PageQuery:
    return PageQuery(limit, cursor, count)


Paged = Annotated[PageQuery, Depends(_page_query)]
"""The query of a list that holds no resources."""

_known: dict[int, dict[str, bool]] = {}


def names_of(route: APIRoute) -> dict[str, bool]:
    """The query parameters of a route, those of its dependencies too: whether each may repeat."""
    found = _known.get(id(route))
    if found is None:
        found = _known[id(route)] = {
            field.alias: typing.get_origin(field.field_info.annotation) is list
            for field in _fields(route.dependant)
        }
    return found


def _fields(dependant: Any) -> Iterator[Any]:
    yield from dependant.query_params
    for each in dependant.dependencies:
        yield from _fields(each)


async def _only_known(connection: HTTPConnection) -> None:
    route = connection.scope.get("route")
    if not connection.scope["query_string"] or not isinstance(route, APIRoute):
        return
    known = names_of(route)
    errors = []
    for name in dict.fromkeys(connection.query_params):
        at = f"query/{name}"[:300]
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            detail = "no such parameter" + (f": did you mean {near[0]}?" if near else "")
            allowed = ", ".join(sorted(known)) or "none"
            errors.append(ProblemItem(pointer=at, detail=detail, allowed=allowed))
        elif not known[name] and len(connection.query_params.getlist(name)) > 1:
            errors.append(ProblemItem(pointer=at, detail="given twice", allowed="once"))
    if errors:
        raise ProblemError("invalid_request", f"{len(errors)} problem(s)", errors[:100])


ONLY_KNOWN_QUERIES = Depends(_only_known)
"""For every route of the API: raises `invalid_request` for unknown query parameters."""
