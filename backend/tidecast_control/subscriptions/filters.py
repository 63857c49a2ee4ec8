"""Filters of subscriptions: conditions on key and headers, which engines check in compiled code."""

from __future__ import annotations

from dataclasses import dataclass, field

ALLOWED = "`key=KEY`, `key=PREFIX*`, `header:NAME=VALUE`, joined by ` and `"
HEADERS_MAX = 16


@dataclass(frozen=True)
class Filter:
    """What a record must have. ``key`` "": any."""

    key: str = ""
    headers: dict[str, str] = field(default_factory=dict)


def parse(text: str) -> Filter:
    """A filter. Raises ValueError, which says what is allowed."""
    key, headers = "", dict[str, str]()
    for part in text.split(" and ") if text.strip() else ():
        name, equals, value = part.strip().partition("=")
        if name == "key" and equals and value and not key and "*" not in value[:-1]:
            key = value
        elif name.startswith("header:") and len(name) > 7 and equals and name[7:] not in headers:
            headers[name[7:]] = value
        else:
            raise ValueError(f"{part.strip()!r}: allowed is {ALLOWED}, each thing once")
    if len(headers) > HEADERS_MAX:
        raise ValueError(f"{len(headers)} headers: at most {HEADERS_MAX}")
    return Filter(key, headers)
