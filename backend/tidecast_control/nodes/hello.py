"""The first message of an engine, checked before any of it reaches the database."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from tidecast.config.check import unicast_problem
from tidecast.config.topology import NODE_ID_MAX, TRANSPORTS_MAX
from tidecast_control.kit.problems import ProblemError
from tidecast_control.kit.schemas import NAME_PATTERN

NAME_MAX = 200
VERSION_MAX = INCARNATION_MAX = 2**63 - 1
"""The largest number that a column of 64 bits holds."""
SOFTWARE_MAX, HOST_MAX = 50, 200


@dataclass(frozen=True)
class Hello:
    """An engine's hello. ``fetch``: it only asks for the transports.

    ``addresses``: where other nodes reach its unicast transports, by transport: host and port.
    """

    node: str
    node_id: int
    incarnation: int
    version: str
    host: str
    applied_version: int
    protocol: Any
    levels: Any
    fetch: bool
    addresses: dict[str, dict[str, Any]]


def read_hello(text: str) -> Hello:
    """A hello as it came. Raises `unauthenticated`: it is none; `invalid_request`: a field."""
    try:
        said = msgspec.json.decode(text)
    except msgspec.MsgspecError as problem:
        raise ProblemError("bad_request", f"the hello is not JSON: {problem}"[:200]) from None
    if not isinstance(said, dict) or said.get("type") != "hello":
        raise ProblemError("unauthenticated", "a hello comes first")
    node = _text(said, "node", NAME_MAX)
    if re.fullmatch(NAME_PATTERN, node) is None:
        raise ProblemError("invalid_request", f"node: {node!r}: allowed is {NAME_PATTERN}")
    fetch = bool(said.get("fetch"))
    return Hello(
        node=node,
        node_id=0 if fetch else number(said, "node_id", 1, NODE_ID_MAX),
        incarnation=0 if fetch else number(said, "incarnation", 0, INCARNATION_MAX),
        version=_text(said, "version", SOFTWARE_MAX),
        host="" if fetch else _text(said, "host", HOST_MAX, least=0),
        applied_version=number(said, "applied_version", 0, VERSION_MAX),
        protocol=said.get("protocol"),
        levels=said.get("levels"),
        fetch=fetch,
        addresses={} if fetch else _addresses(said),
    )


def _addresses(said: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The addresses of a hello; engines of before name none. Raises `invalid_request`."""
    given = said.get("addresses", {})
    if not isinstance(given, dict) or len(given) > TRANSPORTS_MAX:
        raise ProblemError(
            "invalid_request",
            f"addresses: allowed is an object of at most {TRANSPORTS_MAX} entries",
        )
    found: dict[str, dict[str, Any]] = {}
    for name, each in given.items():
        at = f"addresses.{name[:64]!r}"
        if re.fullmatch(NAME_PATTERN, name) is None or len(name) > NAME_MAX:
            raise ProblemError("invalid_request", f"{at}: allowed is the name of a transport")
        if not isinstance(each, dict):
            raise ProblemError("invalid_request", f"{at}: allowed is an object of host and port")
        host, port = each.get("host"), each.get("port")
        problem = unicast_problem(host, port)
        if problem:
            raise ProblemError("invalid_request", f"{at}.{problem}")
        found[name] = {"host": host, "port": port}
    return found


def number(said: Mapping[str, Any], name: str, low: int, high: int) -> int:
    """A whole number of a message. Raises `invalid_request` with field, value and range."""
    value = said.get(name)
    if type(value) is not int or not low <= value <= high:
        shown = "missing" if value is None else repr(value)[:40]
        raise ProblemError("invalid_request", f"{name}: {shown}: allowed is {low} to {high}")
    return value


def _text(said: Mapping[str, Any], name: str, most: int, *, least: int = 1) -> str:
    value = said.get(name)
    if not isinstance(value, str) or not least <= len(value) <= most or "\x00" in value:
        shown = "missing" if value is None else repr(value)[:40]
        raise ProblemError(
            "invalid_request", f"{name}: {shown}: allowed is a text of {least} to {most} characters"
        )
    return value
