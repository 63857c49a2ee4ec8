"""Results of the control service. Fields that it adds later are ignored."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

Kind = Literal[
    "topics",
    "subscriptions",
    "transports",
    "rate-limits",
    "traffic",
    "faults",
    "alert-rules",
    "silences",
    "pipelines",
    "mirrors",
    "nodes",
]
Role = Literal["admin", "operator", "viewer"]
Impact = Literal["none", "live", "restart", "recreate", "data_loss"]


class Metadata(msgspec.Struct, frozen=True, kw_only=True):
    """About a resource. Times are in ISO 8601, UTC."""

    name: str
    uid: str
    labels: dict[str, str]
    owner: str
    description: str
    deletion_protection: bool
    managed_by: str
    generation: int
    created_at: str
    updated_at: str
    updated_by: str


class Resource(msgspec.Struct, frozen=True, kw_only=True):
    """A topic, subscription, transport ... ``spec``: its settings; ``status``: as observed."""

    kind: str
    metadata: Metadata
    spec: dict[str, Any]
    status: dict[str, Any] = {}
    etag: str = ""
    """Of this version of it: give it as ``if_match`` to change no other. Empty in lists."""

    @property
    def name(self) -> str:
        """Its name."""
        return self.metadata.name


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One field that a request changes. ``path``: such as ``/spec/queues``."""

    path: str
    old: Any = None
    new: Any = None
    impact: Impact = "live"


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The changes of a request, made or (``dry_run``) planned."""

    dry_run: bool
    kind: str
    name: str
    action: Literal["create", "update", "delete", "none"]
    impact: Impact = "none"
    changes: list[Change] = []
    warnings: list[str] = []


class Applied(msgspec.Struct, frozen=True, kw_only=True):
    """The changes of `Control.apply`, made or (``dry_run``) planned."""

    dry_run: bool
    created: int
    updated: int
    deleted: int
    unchanged: int
    plans: list[Plan]
    warnings: list[str] = []


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """The engines' results. ``results``: one mapping an engine."""

    id: str
    action: str
    kind: str
    name: str
    state: Literal["done", "failed", "partial"]
    dry_run: bool = False
    results: list[dict[str, Any]] = []


class Scope(msgspec.Struct, frozen=True, kw_only=True):
    """Topics of a key, and its rights on them: ``publish``, ``subscribe``, ``manage``."""

    pattern: str
    rights: list[Literal["publish", "subscribe", "manage"]]


class Key(msgspec.Struct, frozen=True, kw_only=True):
    """An API key. Times are in ISO 8601, UTC. ``secret``: only of a key that was just created."""

    id: str
    name: str
    prefix: str
    role: Role
    scopes: list[Scope]
    description: str
    created_at: str
    created_by: str
    expires_at: str | None
    used_at: str | None
    revoked_at: str | None
    secret: str = ""

    def __repr__(self) -> str:
        return f"Key(name={self.name!r}, role={self.role!r}, prefix={self.prefix!r})"


ResourceList = list[Resource]
KeyList = list[Key]
"""In a class with a method `list`, annotations cannot name the type of that name."""
