"""Apply and export: many resources at once."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from tidecast_control.kit.schemas import Count, Model, Plan, View

DOCUMENTS_MAX = 20_000


class Document(Model):
    """One document: the YAML between two `---`."""

    kind: str = Field(min_length=1, max_length=50)
    metadata: dict[str, Any]
    spec: dict[str, Any] = {}


class ApplyInput(Model):
    """The JSON form; `application/yaml` with many documents is the other."""

    documents: list[Document] = Field(max_length=DOCUMENTS_MAX)


class ApplyResult(View):
    """The changes that were made, or with `dry_run=true` would be made: all of them or none."""

    dry_run: bool
    created: Count
    updated: Count
    deleted: Count
    unchanged: Count
    plans: list[Plan]
    warnings: list[str] = []
