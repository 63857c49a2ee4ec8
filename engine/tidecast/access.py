"""Keys of clients and their rights by topic. Checked offline, against hashes.

A key's secret is random and long, so SHA-256 is enough to keep it. Keys are declared in the
topology file (``keys``), or sent by the control service, which stores them the same way.
"""

from __future__ import annotations

import hashlib
import ipaddress
import secrets
from datetime import datetime
from typing import Annotated, Literal, NamedTuple

import msgspec
from msgspec import Meta

from tidecast.errors import AuthError

KEYS_MAX, SCOPES_MAX = 10_000, 100
NAME_SHOWN_MAX = 200
SECRET_PREFIX = "tck_"
RIGHTS = ("publish", "subscribe", "manage", "read_payloads")
SCOPE_PATTERN = r"^(([A-Za-z0-9_-]+|\*)(\.([A-Za-z0-9_-]+|\*))*(\.>)?|>)$"
"""A topic's name, with `*` for one token and `>` at the end for all that follow."""
Right = Literal["publish", "subscribe", "manage", "read_payloads"]


class Scope(msgspec.Struct, frozen=True, kw_only=True):
    """Rights on the topics that match."""

    pattern: Annotated[str, Meta(min_length=1, max_length=200, pattern=SCOPE_PATTERN)]
    rights: Annotated[list[Right], Meta(min_length=1, max_length=4)]


class Quota(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The most that all clients of one key together may hold at a gateway."""

    publications: Annotated[int, Meta(ge=0, le=65_536)] = 1024
    consumers: Annotated[int, Meta(ge=0, le=65_536)] = 1024
    ring_bytes: Annotated[int, Meta(ge=0, le=1 << 46)] = 1 << 30
    """Rings of publications and consumers, in shared memory."""


class ClientKey(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A key: the hash of its secret, its rights, and its end."""

    id: Annotated[str, Meta(min_length=1, max_length=64)]
    sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    name: Annotated[str, Meta(max_length=200)] = ""
    scopes: Annotated[list[Scope], Meta(max_length=SCOPES_MAX)] = []
    expires: Annotated[datetime, Meta(tz=True)] | None = None
    quota: Quota = Quota()

    def over(self, now: datetime) -> bool:
        """It has expired."""
        return self.expires is not None and self.expires <= now


class Access(NamedTuple):
    """The rights of a client that showed a token. ``scopes`` None: everything.

    ``quota`` None: no limit but those of each client.
    """

    id: str
    name: str
    scopes: tuple[Scope, ...] | None = None
    quota: Quota | None = None

    def may(self, right: str, pattern: str) -> bool:
        """Is the right there on a topic, or on every topic of a pattern?"""
        if self.scopes is None:
            return True
        return any(right in s.rights and covers(s.pattern, pattern) for s in self.scopes)

    def may_hear_of(self, topic: str) -> bool:
        """Is there any right on it?"""
        return any(self.may(right, topic) for right in RIGHTS)

    def need(self, right: str, pattern: str) -> None:
        """Raise AuthError when the right is missing."""
        if not self.may(right, pattern):
            have = [s.pattern for s in self.scopes or () if right in s.rights]
            raise AuthError(
                f"key {self.name} lacks the right {right} on {pattern}: it has it on "
                f"{', '.join(have) or 'nothing'}; ask for a key whose scopes cover it"
            )


EVERYTHING = Access("engine", "gateway.token")


def covers(pattern: str, topic: str) -> bool:
    """Whether a scope's pattern covers a topic, or every topic of a pattern."""
    if pattern in (">", topic):
        return True
    wide, narrow = pattern.split("."), topic.split(".")
    for i, token in enumerate(wide):
        if token == ">":
            return len(narrow) > i
        if i >= len(narrow) or narrow[i] == ">":
            return False
        if token not in ("*", narrow[i]):
            return False
    return len(wide) == len(narrow)


def printable(name: str) -> str:
    """A name that a client chose, for logs and events: no control characters, no line breaks."""
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in name[:NAME_SHOWN_MAX])


def is_loopback(host: str) -> bool:
    """Is this an address of this host alone?"""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def digest_of(secret: str) -> str:
    """The hash that is kept of a secret."""
    return hashlib.sha256(secret.encode("utf-8", "replace")).hexdigest()


def new_key(
    name: str, scopes: list[Scope], expires: datetime | None = None
) -> tuple[str, ClientKey]:
    """(secret, key) for the topology file."""
    secret = SECRET_PREFIX + secrets.token_urlsafe(32)
    key = ClientKey(
        id=secrets.token_hex(8), sha256=digest_of(secret), name=name, scopes=scopes, expires=expires
    )
    return secret, key
