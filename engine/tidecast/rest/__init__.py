"""A client of the control service's REST API: `tidecast.Control` and `tidecast.sync.Control`."""

from __future__ import annotations

from tidecast.rest.types import (
    Applied,
    Change,
    Key,
    Metadata,
    Operation,
    Plan,
    Resource,
    Scope,
)

__all__ = ["Applied", "Change", "Key", "Metadata", "Operation", "Plan", "Resource", "Scope"]
