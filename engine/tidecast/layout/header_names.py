"""Names of headers that only an engine may write, because their values decide on deliveries."""

from __future__ import annotations

RESERVED = ("dead-", "tidecast-")
"""Beginnings of reserved names. See docs/CONSUMING.md, "Dead letters"."""


REQUEST, REPLY, ERROR = "tidecast-request", "tidecast-reply", "tidecast-error"
"""Headers of requests and replies: `tidecast.client.requests.wire`."""
DELIVER_AT = "tidecast-deliver-at"
"""First header of a record with a delivery time (ns since 1970): `buffers.header_names`."""


def is_reserved(name: str) -> bool:
    """May only an engine give a header this name?"""
    return name.startswith(RESERVED)
