"""Everything that can go wrong with a request: one catalogue, one exception. RFC 9457."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, NamedTuple

from tidecast.config.check import shown
from tidecast.config.suggestions import near
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
        409, "In use", "Something else refers to it.",
        "Change or delete what `detail` names; `if_unused=false` deletes all the same."),
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


NO_NUL = r"^[^\x00]*$"
ALLOWED: dict[str, str] = {
    NO_NUL: "text without the character NUL",
    r"^[A-Za-z0-9_][A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)*$": (
        "tokens of A-Z a-z 0-9 _ - joined by dots (md.eu.bonds), and not - first"
    ),
    r"^([A-Za-z0-9_-]+|\*)(\.([A-Za-z0-9_-]+|\*))*(\.>)?$|^>$": (
        "a name or a pattern: * in place of one token, .> or > at the end for all that follow "
        "(md.*, md.>)"
    ),
    r"^[A-Za-z0-9_.*>-]*$": "the name of a topic, or a pattern (md.*, md.>)",
    r"^[A-Za-z0-9_.-]+:\d{1,4}$": "TOPIC:NUMBER (orders:0)",
    r"^[A-Za-z0-9_.-]+(:\d{1,4})?$": "a name, or TOPIC:NUMBER of a queue (orders:0)",
    r"^[A-Za-z0-9_.-]*$": "characters A-Z a-z 0-9 _ . -",
    r"^[A-Za-z0-9._-]*$": "characters A-Z a-z 0-9 . _ -",
    r"^[A-Za-z0-9_-]+$": "characters A-Z a-z 0-9 _ -",
    r"^[A-Za-z0-9_./-]{1,63}$": "1 to 63 characters A-Z a-z 0-9 _ . / -",
    r"^(\*|[A-Za-z0-9_.-]*)$": "the name of a node, or *",
    r"^(name|-name|created_at|-created_at|updated_at|-updated_at)$": (
        "name, created_at, updated_at, with - in front for descending"
    ),
    r"^(alert|low|high|all)$": "alert, low, high, all",
    r"^(done|denied|failed)?$": "done, denied, failed",
    r"^[^\x00=]+(=[^\x00]*)?$": "KEY, or KEY=VALUE",
    r"^[^\x00=]+=[^\x00]*$": "KEY=VALUE",
    r"^[\x21-\x7e]+$": "visible ASCII characters without spaces",
    r"^[0-9a-f-]{1,36}$": "a UUID",
    r"^([0-9a-f]{16})?$": "16 hex digits in lower case",
    r"^([0-9a-fA-F]{2})*$": "pairs of hex digits",
    r"^-?\d{1,19}$": 'a whole number as text ("17")',
    r"^\d{1,19}$": 'a whole number from 0 on, as text ("17")',
    r"^\d{1,18}$": 'a whole number from 0 on, as text ("17")',
    r"^(\d{4}-\d{2}-\d{2}([T ]\d{2}:\d{2}(:\d{2})?)?Z?)?$": (
        "a time in UTC (2027-01-31, 2027-01-31T12:00:00Z)"
    ),
    r"^[^\x00/@?#\s]+$": "HOST:PORT, or several with commas between them",
    r"^[^\s:\x00]+:\d{1,5}$": "HOST:PORT",
    r"^[^\s/\x00]{1,15}$": "the name or the address of an interface, at most 15 characters",
}
"""Regular expression of a field -> its meaning in an error."""

_BOUNDS = {
    "greater_than_equal": ("ge", ">="),
    "greater_than": ("gt", ">"),
    "less_than_equal": ("le", "<="),
    "less_than": ("lt", "<"),
}


def wrong(error: Mapping[str, Any]) -> str:
    """The value that an error of pydantic is about, and the values that are allowed."""
    kind, facts = str(error["type"]), error.get("ctx") or {}
    value = shown(error.get("input"))
    if kind == "missing":
        return "missing"
    if kind == "extra_forbidden":
        return "unknown: there is no such setting"
    if kind in _BOUNDS:
        bound, sign = _BOUNDS[kind]
        return f"{value}: allowed {sign} {facts[bound]}"
    if kind in ("string_too_short", "string_too_long"):  # a password may be the value
        least, most = facts.get("min_length"), facts.get("max_length")
        return f"allowed {f'at least {least}' if least else f'at most {most}'} characters"
    if kind == "literal_error":
        return f"{value}: allowed {facts['expected']}"
    if kind == "string_pattern_mismatch":
        pattern = str(facts["pattern"])
        words = ALLOWED.get(pattern, f"text that matches {pattern}")
        return f"allowed {words}" if pattern == NO_NUL else f"{value}: allowed {words}"
    text = str(error["msg"]).removeprefix("Value error, ")[:500]
    return f"{value}: {text}" if kind.endswith(("_type", "_parsing")) else text


def invalid(pointer: str, detail: str, allowed: str | None = None) -> ProblemError:
    """One field is wrong."""
    item = ProblemItem(pointer=pointer, detail=detail, allowed=allowed)
    return ProblemError("invalid_request", f"{pointer}: {detail}", [item])


def not_found(kind: str, name: str, known: Iterable[str] = ()) -> ProblemError:
    """No such resource. ``known``: names that the caller may see, of which the nearest is named."""
    return ProblemError("not_found", f"no {kind.replace('_', ' ')} {name!r}{near(name, known)}")
