"""The caller of a request and its permissions. Rights are strings such as `topics:write`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime

from tidecast.access import RIGHTS, covers
from tidecast_control.kit.problems import ProblemError
from tidecast_control.kit.rights import (
    BY_SCOPE_ALONE,
    BY_TOPIC,
    EVERY_TOPIC,
    OF_EVERY_KEY,
    PLATFORM,
    Need,
    covered,
)
from tidecast_control.kit.schemas import Role, Scope

READ_KINDS = (
    "topics", "transports", "rate_limits", "subscriptions", "queues", "nodes", "faults", "traffic",
    "alert_rules", "silences", "alerts", "operations", "live", "system", "metrics", "history",
    "pipelines", "mirrors",
)  # fmt: skip
OPERATOR_WRITES = (
    "topics",
    "rate_limits",
    "subscriptions",
    "traffic",
    "alert_rules",
    "silences",
    "operations",
    "pipelines",
    "mirrors",
)

VIEWER = frozenset(f"{kind}:read" for kind in READ_KINDS)
OPERATOR = (
    VIEWER
    | {f"{kind}:write" for kind in OPERATOR_WRITES}
    | {"messages:publish", "messages:read", "apply:write", "export:read", "audit:read"}
)
ADMIN = OPERATOR | {
    "transports:write",
    "nodes:write",
    "faults:write",
    "users:read",
    "users:write",
    "keys:read",
    "keys:write",
    "enrolments:read",
    "enrolments:write",
    "queues:write",
    "tokens:check",
}
ROLES: dict[Role, frozenset[str]] = {"viewer": VIEWER, "operator": OPERATOR, "admin": ADMIN}


@dataclass(frozen=True)
class Actor:
    """The caller. A user has the rights of its role; a key has them within its scopes."""

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

    @property
    def unbounded(self) -> bool:
        """No scopes bound it: it is no key, or a key of an admin."""
        return self.kind != "key" or (self.role == "admin" and not self.scopes)

    def may(self, right: str, *needs: Need) -> bool:
        """Whether the role has the right and the scopes cover all that the request touches.

        Without ``needs``: whether it has the right at all. A right that does not reach single
        topics is there for keys whose scopes are not limited.
        """
        if self.unbounded:
            return right in self.rights
        if right not in self.rights and right not in BY_SCOPE_ALONE:
            return False
        if needs:
            return all(self.covers(*need) for need in needs)
        if right in BY_SCOPE_ALONE:
            return any(BY_SCOPE_ALONE[right] in scope.rights for scope in self.scopes)
        if not self.scopes or right in BY_TOPIC or right in OF_EVERY_KEY:
            return True
        return self.covers(*PLATFORM)

    def covers(self, right: str, pattern: str) -> bool:
        """Do its scopes give a right on a topic, or on every topic of a pattern?"""
        if self.unbounded:
            return True
        return any(right in s.rights and covers(s.pattern, pattern) for s in self.scopes)

    @property
    def shown(self) -> tuple[str, ...] | None:
        """Patterns of topics that lists show; None: all that the role may see."""
        if self.unbounded or not self.scopes:
            return None
        patterns = tuple(scope.pattern for scope in self.scopes)
        return None if EVERY_TOPIC in patterns else patterns

    def sees(self, pattern: str) -> bool:
        """Is a topic, or every topic of a pattern, shown to it?"""
        return self.shown is None or covered(pattern, self.shown)

    def need(self, right: str, *needs: Need) -> None:
        """Raise the problem `denied` when the right is missing."""
        if self.may(right, *needs):
            return
        lacks = [need for need in needs if not self.covers(*need)]
        if not needs and self.may_by_role(right):
            lacks = [PLATFORM]
        if self.unbounded or not self.may_by_role(right) or not lacks:
            raise ProblemError("denied", f"{self.kind} {self.name} lacks the right {right}")
        raise ProblemError(
            "denied",
            f"{self.kind} {self.name} lacks the right {right}: its scopes do not give "
            + " and ".join(f"`{need.right}` on {need.pattern}" for need in lacks),
        )

    def may_by_role(self, right: str) -> bool:
        """Whether the role allows it, within any scopes."""
        return right in self.rights or (self.kind == "key" and right in BY_SCOPE_ALONE)

    def need_shown(self, pattern: str) -> None:
        """Raise `denied` for a topic of which it may see nothing."""
        if not self.sees(pattern):
            raise ProblemError("denied", f"key {self.name} has no right on {pattern}")

    def need_to_grant(self, what: str, role: Role, scopes: Iterable[Scope] | None) -> None:
        """Raise `denied` when a user or a key would get more rights than the caller has.

        ``scopes``: of a key; None: a user, whose rights only the role limits.
        """
        if self.unbounded:
            return
        granted = [Need(right, s.pattern) for s in scopes or () for right in s.rights]
        if scopes is None or role == "admin":
            granted = [Need(right, EVERY_TOPIC) for right in RIGHTS]
        lacks = [need for need in granted if not self.covers(*need)]
        if role == "admin" or lacks or self.shown is not None:
            more = f"`{lacks[0].right}` on {lacks[0].pattern}" if lacks else f"the role {role}"
            raise ProblemError("denied", f"key {self.name} cannot grant {what} {more}: it lacks it")


SERVICE = Actor(kind="service", name="service", role="admin", rights=ADMIN)
