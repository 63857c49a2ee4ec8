"""Everything that can go wrong with a request: one catalogue, one exception. RFC 9457."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

from tidecast.errors import TidecastError
from tidecast_control.kit.schemas import ProblemItem


class ProblemEntry(NamedTuple):
    """The meaning of a code, and the next step."""

    status: int
    title: str
    meaning: str
    mend: str
    retryable: bool = False


CATALOGUE: dict[str, ProblemEntry] = {
    "invalid_request": ProblemEntry(
        422, "The request is not valid", "A field has a value outside what is allowed.",
        "See `errors`: each names the place, the value and what is allowed."),
    "bad_request": ProblemEntry(
        400, "The request cannot be read", "The body is not JSON or YAML, or a header is wrong.",
        "Fix the syntax; see `detail`."),
    "unauthenticated": ProblemEntry(
        401, "Not logged in", "There is no session and no API key, or it is wrong or expired.",
        "Log in, or send `Authorization: Bearer KEY`."),
    "csrf": ProblemEntry(
        403, "The CSRF token is missing or wrong", "A write with a cookie needs X-CSRF-Token.",
        "Send the `csrf_token` of GET /api/v1/auth/me as X-CSRF-Token."),
    "denied": ProblemEntry(
        403, "Not allowed", "Who asks lacks a right; `detail` names it.",
        "Ask an admin for a role or a key scope that has the right."),
    "password_change_required": ProblemEntry(
        403, "Change the password first", "The account has a first-run or reset password.",
        "POST /api/v1/auth/password."),
    "not_found": ProblemEntry(
        404, "Not found", "There is nothing of that name.", "List the resources; check the name."),
    "method_not_allowed": ProblemEntry(
        405, "Method not allowed", "The path exists, but not with that method.",
        "See the Allow header and /api/v1/openapi.json."),
    "conflict": ProblemEntry(
        409, "In conflict with what exists", "It exists already, is in use, or is protected.",
        "See `detail`; remove what depends on it, or choose another name."),
    "protected": ProblemEntry(
        409, "Protected from deletion", "The resource has deletion_protection.",
        "PATCH metadata.deletion_protection to false first."),
    "in_use": ProblemEntry(
        409, "In use", "Something else refers to it.", "Change or delete what `detail` names."),
    "idempotency_mismatch": ProblemEntry(
        409, "The Idempotency-Key was used for another request",
        "The same key came with a different body or path.", "Use a new key."),
    "precondition_failed": ProblemEntry(
        412, "Changed in the meantime", "If-Match or If-None-Match does not hold.",
        "GET the resource again, and repeat with its ETag."),
    "too_large": ProblemEntry(
        413, "Too large", "The body is larger than the service reads.", "Send less at once."),
    "misdirected": ProblemEntry(
        421, "Not a name of this service", "The Host header names something else.",
        "Use an address, or add the name to TIDECAST_CONTROL_ALLOWED_HOSTS."),
    "unsupported_media_type": ProblemEntry(
        415, "Unsupported media type", "The path does not accept this Content-Type.",
        "Use a type that /api/v1/openapi.json lists."),
    "throttled": ProblemEntry(
        429, "Too many attempts", "There were too many failed logins or requests.",
        "Wait for Retry-After seconds.", True),
    "not_implemented": ProblemEntry(
        501, "Not there yet", "The service or the engines of this version cannot do that.",
        "Upgrade the engines, or see the changelog."),
    "node_failed": ProblemEntry(
        502, "An engine refused", "The engine answered with an error; `detail` has it.",
        "Fix the cause that the engine names."),
    "no_node": ProblemEntry(
        503, "No engine is connected", "The request needs an engine and none is there.",
        "Start one: tidecast engine --control URL.", True),
    "database_unavailable": ProblemEntry(
        503, "Postgres does not answer", "The service cannot reach its database. Engines run on.",
        "Try again; see /health/ready.", True),
    "node_timeout": ProblemEntry(
        504, "An engine did not answer in time", "The engine is connected, but was silent.",
        "Try again; look at the node's page.", True),
    "internal": ProblemEntry(
        500, "A defect of the service", "Something unforeseen; it was logged with the request id.",
        "Report it with the request id.", True),
}  # fmt: skip
"""Code -> entry. A code, once published, keeps its meaning."""


class ProblemError(TidecastError):
    """A request that cannot be served. ``problem`` is a key of `CATALOGUE`."""

    code: ClassVar[str] = "control"

    def __init__(
        self,
        problem: str,
        detail: str = "",
        errors: list[ProblemItem] | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(detail or CATALOGUE[problem].title)
        self.problem, self.detail = problem, detail
        self.errors = errors or []
        self.retry_after_s = retry_after_s


def wrong(error: Mapping[str, Any]) -> str:
    """The text of an error of pydantic, without the name of the exception."""
    return str(error["msg"]).removeprefix("Value error, ")[:500]


def invalid(pointer: str, detail: str, allowed: str | None = None) -> ProblemError:
    """One field is wrong."""
    item = ProblemItem(pointer=pointer, detail=detail, allowed=allowed)
    return ProblemError("invalid_request", f"{pointer}: {detail}", [item])


def not_found(kind: str, name: str) -> ProblemError:
    """No such resource."""
    return ProblemError("not_found", f"no {kind.replace('_', ' ')} {name!r}")
