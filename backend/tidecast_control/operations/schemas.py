"""Operations: requests to engines, and their outcomes."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import Field

from tidecast_control.kit.schemas import View


class NodeResult(View):
    """The answer of one engine."""

    node: str
    ok: bool
    value: dict[str, Any] = Field({}, description="All numbers as strings: they are 64-bit")
    code: str = ""
    detail: str = ""


class Operation(View):
    """One operation. With `dry_run=true` the engines only report the effect."""

    id: str
    action: Literal[
        "pause",
        "resume",
        "purge",
        "seek",
        "redrive",
        "cancel_scheduled",
        "recorder",
        "drain",
        "delete",
        "reset_offsets",
    ]
    kind: str
    name: str
    state: Literal["done", "failed", "partial"]
    dry_run: bool = False
    request: dict[str, Any] = {}
    results: list[NodeResult] = []
    cli: str = Field("", description="The same from the shell")
    created_at: datetime
    finished_at: datetime | None = None
    created_by: str
