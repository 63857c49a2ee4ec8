"""Who asks, and what they may. Rights are strings such as `topics:write`."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from tidecast.access import covers
from tidecast_control.auth.schemas import Role, Scope
from tidecast_control.kit.problems import ProblemError

READ_KINDS = (
    "topics", "transports", "rate_limits", "subscriptions", "queues", "nodes", "faults", "traffic",
    "alert_rules", "silences", "alerts", "operations", "live", "system", "history", "pipelines",
)  # fmt: skip
OPERATOR_WRITES = (
    "topics", "rate_limits", "subscriptions", "traffic", "alert_rules", "silences", "operations",
    "pipelines",
)  # fmt: skip

VIEWER = frozenset(f"{kind}:read" for kind in READ_KINDS)
OPERATOR = VIEWER | {f"{kind}:write" for kind in OPERATOR_WRITES} | {
    "messages:publish", "messages:read", "apply:write", "export:read", "audit:read",
}  # fmt: skip
ADMIN = OPERATOR | {
    "transports:write", "nodes:write", "faults:write", "users:read", "users:write", "keys:read",
    "keys:write", "enrolments:read", "enrolments:write", "queues:write", "tokens:check",
}  # fmt: skip
ROLES: dict[Role, frozenset[str]] = {"viewer": VIEWER, "operator": OPERATOR, "admin": ADMIN}

_SCOPED = {
    "topics:write": "manage",
    "subscriptions:write": "manage",
    "queues:write": "manage",
    "traffic:write": "manage",
    "pipelines:write": "manage",
    "messages:publish": "publish",
    "messages:read": "read_payloads",
}
"""Rights that a key has only on the topics of its scopes, whatever its role."""


@dataclass(frozen=True)
class Actor:
    """Who asks."""

    kind: str
    name: str
    role: Role
    scopes: tuple[Scope, ...] = ()
    session_id: str | None = None
    csrf: str | None = None
    must_change_password: bool = False
    expires_at: datetime | None = None
    request_id: str = ""
    address: str = ""
    rights: frozenset[str] = field(default=frozenset())

    def may(self, right: str, topic: str | None = None) -> bool:
        """Whether the right is there; scoped rights of a key need a topic."""
        if self.kind != "key" or right not in _SCOPED:
            return right in self.rights
        wanted = _SCOPED[right]
        if wanted == "manage" and right not in self.rights:
            return False
        if topic is None:
            return any(wanted in s.rights for s in self.scopes)
        return any(wanted in s.rights and covers(s.pattern, topic) for s in self.scopes)

    def need(self, right: str, topic: str | None = None) -> None:
        """Raise the problem `denied` when the right is missing."""
        if not self.may(right, topic):
            on = f" on {topic}" if topic else ""
            raise ProblemError("denied", f"{self.kind} {self.name} lacks the right {right}{on}")


SERVICE = Actor(kind="service", name="service", role="admin", rights=ADMIN)
