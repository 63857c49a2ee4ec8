"""The built dashboard: files of `static/`, and its one page for every other path.

A path of the page may hold dots (`/topics/md.eu`), so a suffix does not make a file.
"""

from __future__ import annotations

from pathlib import Path

from fastapi import APIRouter
from starlette.exceptions import HTTPException
from starlette.responses import FileResponse, PlainTextResponse, RedirectResponse, Response

STATIC = Path(__file__).parent / "static"
CACHED = {"Cache-Control": "public, max-age=31536000, immutable"}
"""Names below assets/ carry a digest of their content."""
FRESH = {"Cache-Control": "no-cache"}
TEXT_TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
PAGES = frozenset(
    ("", "access", "alerts", "audit", "cluster", "flow", "limits", "login", "messages", "nodes",
     "pipelines", "mirrors", "reliability", "subscriptions", "topics")
)  # fmt: skip
"""First parts of the paths that the dashboard routes itself; all others are 404."""

router = APIRouter(include_in_schema=False)


@router.get("/openapi.json", response_model=None)
def openapi_document() -> Response:
    """Where tools look first."""
    return RedirectResponse("/api/v1/openapi.json", 308)


@router.get("/{path:path}", response_model=None)
def page(path: str) -> Response:
    """A file of the dashboard, or its page."""
    wanted = (STATIC / path).resolve()
    if path and wanted.is_relative_to(STATIC) and wanted.is_file() and ".vite" not in wanted.parts:
        headers = CACHED if path.startswith("assets/") else FRESH
        return FileResponse(wanted, headers=headers, media_type=TEXT_TYPES.get(wanted.suffix))
    if path.partition("/")[0] not in PAGES:
        raise HTTPException(404)
    index = STATIC / "index.html"
    if not index.is_file():
        return PlainTextResponse("The dashboard is not built: run `make dashboard`.\n", 503)
    return FileResponse(index, headers=FRESH)
