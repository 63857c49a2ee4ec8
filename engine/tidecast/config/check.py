"""Turns untyped input into settings Structs and names every problem, not only the first.

The limits are the `msgspec.Meta` annotations of the Structs themselves; this module reads them, so
that checks, messages and documentation agree.
"""

from __future__ import annotations

import difflib
import functools
import ipaddress
import re
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec import inspect

from tidecast.errors import ConfigError

PORT_MAX = 65_533
"""Of a transport: it uses the next two ports, too."""
_THIS_NETWORK = ipaddress.ip_network("0.0.0.0/8")
PROBLEMS_SHOWN_MAX = 20
PROBLEMS_MAX = 500
VALUE_SHOWN_MAX = 60

_UNITS = {
    "": 1,
    "b": 1,
    "k": 1000,
    "kb": 1000,
    "kib": 1 << 10,
    "m": 1000**2,
    "mb": 1000**2,
    "mib": 1 << 20,
    "g": 1000**3,
    "gb": 1000**3,
    "gib": 1 << 30,
    "t": 1000**4,
    "tb": 1000**4,
    "tib": 1 << 40,
}
_SIZE = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*$")
_LIKE = re.compile(r"([-+]?\d*\.?\d+(e\d+)?|true|false|null)$", re.IGNORECASE)
"""Text that looks like a value of another type, unless it is quoted."""
_DURATIONS_NS = {
    "ns": 1,
    "us": 1000,
    "ms": 10**6,
    "s": 10**9,
    "m": 60 * 10**9,
    "h": 3600 * 10**9,
    "d": 24 * 3600 * 10**9,
}

StructT = TypeVar("StructT", bound=msgspec.Struct)


def parse_bytes(text: str) -> int:
    """Bytes of a size such as ``4MiB``, ``64 kB``, ``1000``. Raises ConfigError."""
    found = _SIZE.match(text)
    if found is None or found.group(2).lower() not in _UNITS:
        raise ConfigError(
            f"{shown(text)}: not a size: allowed are bytes, kB, KiB, MB, MiB, GB, GiB, TB, TiB"
        )
    return int(float(found.group(1)) * _UNITS[found.group(2).lower()])


def parse_duration_ns(text: str) -> int:
    """Nanoseconds of a duration such as ``2ms``, ``1.5s``, ``50us``. Raises ConfigError."""
    found = _SIZE.match(text)
    if found is None or found.group(2).lower() not in _DURATIONS_NS:
        raise ConfigError(
            f"{shown(text)}: not a duration: allowed are ns, us, ms, s, m, h, d (2ms)"
        )
    return int(float(found.group(1)) * _DURATIONS_NS[found.group(2).lower()])


def shown(value: Any) -> str:
    """A value as an error shows it: short, on one line."""
    if isinstance(value, bool):
        text = str(value).lower()
    elif isinstance(value, str) and re.fullmatch(r"[\w.:/-]+", value) and not _LIKE.match(value):
        text = value
    else:
        text = repr(value)
    return text if len(text) <= VALUE_SHOWN_MAX else text[:VALUE_SHOWN_MAX] + "..."


def raise_problems(problems: list[str], source: str = "") -> None:
    """Raise one ConfigError that lists them all; nothing when there are none."""
    if not problems:
        return
    head = f"{source}: " if source else ""
    if len(problems) == 1:
        raise ConfigError(head + problems[0], problems)
    lines = [f"  {p}" for p in problems[:PROBLEMS_SHOWN_MAX]]
    if len(problems) > PROBLEMS_SHOWN_MAX:
        lines.append(f"  and {len(problems) - PROBLEMS_SHOWN_MAX} more")
    raise ConfigError("\n".join([f"{head}{len(problems)} problems", *lines]), problems)


def build(
    kind: type[StructT], raw: Any, at: str, problems: list[str], *, anyhow: bool = False
) -> StructT | None:
    """Build a Struct from a mapping (or from a Struct of that kind, which is checked again).

    Adds ``path: value: allowed values`` to ``problems`` for each defect; None then, or with
    ``anyhow`` a Struct of the right settings, if they suffice.
    """
    if isinstance(raw, kind):
        raw = {name: getattr(raw, name) for name in raw.__struct_fields__}
    if raw is None:
        raw = {}
    if not isinstance(raw, dict):
        where = f"{at}: " if at else ""
        problems.append(f"{where}{shown(raw)}: allowed is a mapping of settings")
        return None
    fields = _settings(kind)
    before = len(problems)
    values: dict[str, Any] = {}
    for key, value in raw.items():
        if len(problems) >= PROBLEMS_MAX:
            return None
        path = f"{at}.{key}" if at else str(key)
        if key not in fields:
            problems.append(f"{path}: unknown setting{_meant(key, fields)}")
            continue
        known = len(problems)
        made = _value(fields[key], value, path, problems, anyhow=anyhow)
        if len(problems) == known or (anyhow and made is not None):
            values[key] = made
    problems.extend(
        f"{at}.{name}: missing" if at else f"{name}: missing"
        for name, setting in fields.items()
        if setting.field.required and name not in raw
    )
    if len(problems) == before:
        return kind(**values)
    needed = (name for name, setting in fields.items() if setting.field.required)
    return kind(**values) if anyhow and all(name in values for name in needed) else None


def _value(setting: _Setting, value: Any, path: str, problems: list[str], *, anyhow: bool) -> Any:
    field, hint = setting
    kind = field.type
    if isinstance(kind, inspect.ListType) and isinstance(kind.item_type, inspect.StructType):
        if not isinstance(value, list | tuple):
            problems.append(f"{path}: {shown(value)}: allowed is a list")
            return None
        item = kind.item_type.cls
        made = [
            build(item, each, f"{path}[{i}]", problems, anyhow=anyhow)
            for i, each in enumerate(value)
        ]
        return None if anyhow and None in made else made
    if isinstance(kind, inspect.UnionType) and value is not None:  # of a section, and none
        kind = next((one for one in kind.types if isinstance(one, inspect.StructType)), kind)
    if isinstance(kind, inspect.StructType):
        return build(kind.cls, value, path, problems, anyhow=anyhow)
    if field.name.endswith(("_bytes", "_bytes_max")) and isinstance(value, str):
        try:
            value = parse_bytes(value)
        except ConfigError as problem:
            problems.append(f"{path}: {problem}")
            return None
    try:
        return msgspec.convert(value, type=hint, strict=True)
    except msgspec.ValidationError:
        problems.append(f"{path}: {shown(value)}: allowed {allowed(kind)}")
        return None


class _Setting(NamedTuple):
    field: inspect.Field
    hint: Any


@functools.cache
def _settings(kind: type[msgspec.Struct]) -> dict[str, _Setting]:
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    hints = [field.type for field in msgspec.structs.fields(kind)]
    return {f.name: _Setting(f, h) for f, h in zip(info.fields, hints, strict=True)}


def _meant(key: Any, fields: dict[str, _Setting]) -> str:
    close = difflib.get_close_matches(str(key), fields, n=1)
    if close:
        return f": did you mean {close[0]}?"
    return ": allowed " + ", ".join(fields)


def allowed(kind: inspect.Type) -> str:
    """The values that a type allows, in words made from its annotations."""
    match kind:
        case inspect.Metadata():
            return allowed(kind.type)
        case inspect.BoolType():
            return "true or false"
        case inspect.IntType() | inspect.FloatType():
            return _allowed_number(kind)
        case inspect.StrType():
            return _allowed_text(kind)
        case inspect.LiteralType():
            return ", ".join(str(v) for v in kind.values)
        case inspect.ListType() | inspect.VarTupleType():
            return f"a list of: {allowed(kind.item_type)}"
        case inspect.DateTimeType():
            return "a time with its zone, such as 2027-01-31T00:00:00Z"
        case inspect.DictType():
            return "a mapping from text to text"
        case inspect.UnionType():
            return " or ".join(
                allowed(t) for t in kind.types if not isinstance(t, inspect.NoneType)
            )
    return "something else"


def _allowed_number(kind: inspect.IntType | inspect.FloatType) -> str:
    noun = "whole number" if isinstance(kind, inspect.IntType) else "number"
    low = kind.ge if kind.ge is not None else kind.gt
    over = ">" if kind.gt is not None else ""
    if low is not None and kind.le is not None:
        text = f"{over}{low}..{kind.le}"
    elif low is not None:
        text = f"{noun}s {over or '>='} {low}"
    else:
        text = f"a {noun}"
    return f"{text}, a multiple of {kind.multiple_of}" if kind.multiple_of else text


def _allowed_text(kind: inspect.StrType) -> str:
    if kind.pattern is not None:
        return f"text that matches {kind.pattern}"
    return f"at most {kind.max_length} characters" if kind.max_length is not None else "text"


def unicast_problem(host: Any, port: Any) -> str:
    """Why no packet can be sent there; "" when it can. ``host``: a dotted IPv4 address."""
    if type(port) is not int or not 1 <= port <= PORT_MAX:
        return f"port: {shown(port)}: allowed 1..{PORT_MAX}"
    try:
        address = ipaddress.IPv4Address(host if isinstance(host, str) else "")
    except ValueError:
        return f"host: {shown(host)}: allowed an IPv4 address (10.0.0.5)"
    if address.is_multicast or address.is_reserved or address in _THIS_NETWORK:
        return f"host: {shown(host)}: allowed the IPv4 address of one host, not {_kind(address)}"
    return ""


def _kind(address: ipaddress.IPv4Address) -> str:
    if address.is_multicast:
        return "a group"
    return "every address of a host" if address.is_unspecified else "a reserved address"


def ipc_problems(at: str, secure: str, lanes: int) -> list[str]:
    """Settings of an ipc transport that only a network has."""
    found = []
    if secure != "off":
        found.append(f"{at}.secure: {secure}: allowed off: an ipc transport has no packets to seal")
    if lanes != 1:
        found.append(f"{at}.lanes: {lanes}: allowed 1: readers of an ipc transport read the ring")
    return found


def owner_problems(at: str, topic: Any, only_here: bool, node: str) -> list[str]:
    """The defects of a topic's ``owner``. ``only_here``: its transport never leaves a node."""
    if not topic.owner:
        return []
    given = f"{at}.owner: {shown(topic.owner)}"
    if topic.mode != "durable":
        return [f"{given}: topic {topic.name} is live and has no owner: leave it out"]
    if topic.owner == "*":
        return []
    if re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", topic.owner) is None:
        return [f"{given}: allowed the name of a node (1..64 of A-Z a-z 0-9 _ . -), or *"]
    if only_here and node and topic.owner != node:
        return [
            f"{given}: an ipc transport never leaves this node, {node}: use one of kind udp-..."
        ]
    return []
