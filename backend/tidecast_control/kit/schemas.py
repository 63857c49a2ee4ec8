"""Shapes that all resources share. 64-bit counters and positions travel as strings."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import (
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    WithJsonSchema,
)

NAME_PATTERN = r"^[A-Za-z0-9_][A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)*$"
LABEL_KEY = r"^[A-Za-z0-9_./-]{1,63}$"
LABELS_MAX, LABEL_VALUE_CHARS_MAX = 64, 255
LIMIT_MAX, LIMIT_DEFAULT = 500, 50

Int64 = Annotated[
    int,
    PlainSerializer(str, return_type=str, when_used="json"),
    WithJsonSchema({"type": "string", "pattern": r"^-?\d{1,19}$", "format": "int64"}),
]
"""A 64-bit number, in JSON a string: JavaScript would round it."""

Name = Annotated[str, Field(min_length=1, max_length=200, pattern=NAME_PATTERN)]
LabelKey = Annotated[str, Field(pattern=LABEL_KEY)]
LabelValue = Annotated[str, Field(max_length=LABEL_VALUE_CHARS_MAX, pattern=r"^[^\x00]*$")]
Labels = Annotated[dict[LabelKey, LabelValue], Field(max_length=LABELS_MAX)]
Count = Annotated[int, Field(ge=0, le=1 << 53)]
Signed = Annotated[int, Field(ge=-(1 << 53), le=1 << 53)]
Text = Annotated[str, Field(max_length=4096, pattern=r"^[^\x00]*$")]
Short = Annotated[str, Field(max_length=200, pattern=r"^[^\x00]*$")]


INSTANT = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d(:\d\d(\.\d{1,9})?)?([Zz]|[+-]\d\d:?\d\d)")


def _instant(value: Any) -> Any:
    """Pydantic alone takes `0.5` as half a second after 1970."""
    if isinstance(value, datetime) or (isinstance(value, str) and INSTANT.fullmatch(value)):
        return value
    raise ValueError("allowed is ISO 8601 with a time zone, as in 2026-01-31T12:00:00Z")


Instant = Annotated[AwareDatetime, Field(strict=False), BeforeValidator(_instant)]
"""A time in a request: ISO 8601 with its zone."""

ReadOnly = Annotated[
    Any, Field(exclude=True, description="Ignored", json_schema_extra={"readOnly": True})
]
"""Fields of an answer of GET that a write may bring along: so PUT takes GET's answer."""


class Model(BaseModel):
    """Base: unknown fields are refused, and values of another type (`"100"` for 100)."""

    model_config = ConfigDict(extra="forbid", strict=True, ser_json_inf_nan="null")


class View(BaseModel):
    """Base of shapes that are only sent."""

    model_config = ConfigDict(ser_json_inf_nan="null", from_attributes=True)


class MetadataInput(Model):
    """The fields of a resource besides its spec that a client may set."""

    name: Name | None = Field(None, description="If given, it is the name in the path.")
    labels: Labels = {}
    owner: Short = ""
    description: Text = ""
    deletion_protection: bool = False
    managed_by: Short = Field("", description="Set by `apply`; only such resources are pruned.")
    uid: ReadOnly = None
    generation: ReadOnly = None
    created_at: ReadOnly = None
    updated_at: ReadOnly = None
    updated_by: ReadOnly = None


class Metadata(View):
    """A resource's identity and history."""

    name: str
    uid: str
    labels: dict[str, str]
    owner: str
    description: str
    deletion_protection: bool
    managed_by: str
    generation: Count = Field(description="Raised by every change of spec or metadata; the ETag.")
    created_at: datetime
    updated_at: datetime
    updated_by: str


class Condition(View):
    """One fact about a resource, for people and programs."""

    type: Literal["Applied", "Drift", "RestartNeeded", "Error", "Unwired"]
    status: bool
    reason: str = ""
    message: str = ""
    node: str = ""


class Status(View):
    """The state of a spec in the engines. Drift: ``observed_generation`` < ``generation``."""

    observed_generation: Count = 0
    drift: bool = False
    conditions: list[Condition] = []


SpecT = TypeVar("SpecT", bound=BaseModel)
StatusT = TypeVar("StatusT", bound=Status)


class Resource(View, Generic[SpecT, StatusT]):
    """A resource: its metadata, its desired state, its actual state."""

    kind: str
    metadata: Metadata
    spec: SpecT
    status: StatusT


class ResourceInput(Model, Generic[SpecT]):
    """The body of PUT: the whole desired state. An omitted field has its default."""

    kind: str | None = None
    metadata: MetadataInput = MetadataInput()
    spec: SpecT
    status: ReadOnly = None


class MergePatch(BaseModel):
    """The body of PATCH, RFC 7396: named fields change, null resets to the default."""

    model_config = ConfigDict(extra="forbid")
    metadata: dict[str, Any] = {}
    spec: dict[str, Any] = {}


ItemT = TypeVar("ItemT")


class Page(View, Generic[ItemT]):
    """One page of a list. ``next_cursor`` null = the last page."""

    items: list[ItemT]
    next_cursor: str | None = None
    total: Count | None = Field(None, description="Only when asked with `count=true`.")


Impact = Literal["none", "live", "restart", "recreate", "data_loss"]


class Change(View):
    """One difference.

    Impact: live = at once; restart = when the engine starts again; recreate = publications and
    subscriptions end; data_loss = messages are deleted.
    """

    path: str = Field(description="JSON pointer, such as /spec/rate_bytes_per_s")
    old: Any = None
    new: Any = None
    impact: Impact = "live"


class Plan(View):
    """The changes of a write. ``dry_run`` true: it would make them; nothing was done."""

    dry_run: bool
    kind: str
    name: str
    action: Literal["create", "update", "delete", "none"]
    impact: Impact = "none"
    changes: list[Change] = []
    warnings: list[str] = []


class ProblemItem(View):
    """One thing wrong with a request."""

    pointer: str = Field(description="JSON pointer into the body, or query/NAME, path/NAME")
    detail: str
    allowed: str | None = None


class Problem(View):
    """RFC 9457. ``code`` is stable; see GET /api/v1/problems."""

    type: str
    title: str
    status: Count
    code: str
    detail: str = ""
    instance: str = ""
    errors: list[ProblemItem] = []
    request_id: str = ""
    retry_after_s: float | None = None


Pattern = Annotated[
    str,
    Field(
        min_length=1,
        max_length=200,
        pattern=r"^([A-Za-z0-9_-]+|\*)(\.([A-Za-z0-9_-]+|\*))*(\.>)?$|^>$",
        description="`*` = one token, `>` = one or more, only last",
    ),
]
Role = Literal["admin", "operator", "viewer"]
Right = Literal["publish", "subscribe", "manage", "read_payloads"]


class Scope(Model):
    """Rights on the topics that match."""

    pattern: Pattern
    rights: Annotated[list[Right], Field(min_length=1, max_length=4)]
