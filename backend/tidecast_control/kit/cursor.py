"""Keyset cursors: the sort value and the name of the last row of a page, opaque to clients."""

from __future__ import annotations

import base64
import binascii
from typing import Any

import msgspec

from tidecast_control.kit.problems import invalid


def encode(sort: str, value: Any, name: str) -> str:
    """An opaque cursor."""
    raw = msgspec.json.encode([sort, value, name])
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def decode(cursor: str, sort: str) -> tuple[Any, str]:
    """(value, name). Raises the problem `invalid_request` for a text that `encode` did not make."""
    try:
        padded = cursor.encode("ascii") + b"=" * (-len(cursor) % 4)
        raw = base64.b64decode(padded, altchars=b"-_", validate=True)
        made_for, value, name = msgspec.json.decode(raw, type=tuple[str, str | int, str])
    except (ValueError, binascii.Error, msgspec.MsgspecError):
        raise invalid("query/cursor", "not a cursor of this list", "next_cursor") from None
    if made_for != sort:
        raise invalid("query/cursor", f"made for sort={made_for}", f"the same sort: {made_for}")
    if "\x00" in name:
        raise invalid("query/cursor", "not a cursor of this list", "next_cursor")
    return value, name
