"""The base of all events."""

from __future__ import annotations

import msgspec


class Event(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Base of all events. ``at_ns``: wall clock, ns since 1970."""

    at_ns: int = 0


def field_of(event: Event, name: str) -> str:
    """A field that some events have, as ``topic``, ``pattern``, ``reason``; "": not this event."""
    return str(getattr(event, name, ""))
