"""Requests and replies of remote clients: their reserved headers, and the clients they may name.

A request's reply goes to the subscription in its header, which must belong to the session that
sends it. Replies go to one subscription each: a message for all would reach other requesters.
"""

from __future__ import annotations

import time
from collections.abc import Collection

from tidecast.client.core import metadata
from tidecast.client.core.image import Copied
from tidecast.client.remote.frames import Block
from tidecast.client.requests import wire
from tidecast.config.internal import REPLIES
from tidecast.errors import AuthError, ConfigError
from tidecast.layout import packet
from tidecast.layout.header_names import (
    DELIVER_AT,
    ERROR,
    REPLY,
    REQUEST,
    RESERVED,
    is_reserved,
)

GRACE_NS = 24 * 3600 * 1_000_000_000
"""The clock of a remote client may be ahead of ours by so much."""


def check_block(
    topic: str, receiver: int, block: Block, node_id: int, homes: Collection[int]
) -> list[int]:
    """Check a remote client's messages to ``topic`` for node ``receiver`` (0: for all).

    ``homes``: its subscriptions to replies, at this node. Returns the messages that must be left
    out: requests whose replies would go to others. They are forged, or of the client's session
    before, and have failed then. Raises ConfigError for a header that only an engine may write,
    AuthError for a reply to all.
    """
    replies = topic.startswith(REPLIES)
    if replies and (receiver == 0 or not all(flags & packet.TO for flags in block.flags_of_all())):
        raise AuthError(f"topic {topic}: a reply goes to one subscription of one node")
    left_out: list[int] = []
    if not block.has_reserved():
        return left_out
    allowed = {REPLY, ERROR} if replies else {REQUEST, DELIVER_AT}
    for i, message in enumerate(block.leads_of_all()):
        names = _reserved(message)
        if not names <= allowed:
            raise ConfigError(
                f"headers: message {i} of a batch has a name that begins with "
                f"{' or '.join(RESERVED)}: these are the engine's own"
            )
        if DELIVER_AT in names:
            _check_due(i, message)
        if REQUEST in names:
            found = wire.return_of(message)
            if found is None or found[0].node != node_id or found[0].subscriber not in homes:
                left_out.append(i)
    return left_out


def _check_due(i: int, message: Copied) -> None:
    """Raise ConfigError for a delivery time that is none, or too far ahead."""
    due = metadata.decode(memoryview(message.raw), 0, message.flags).all_headers[DELIVER_AT]
    if not isinstance(due, int) or due < 0:
        raise ConfigError(f"deliver_at: message {i} of a batch: {due!r}: allowed is ns since 1970")
    metadata.check_due_ns("deliver_at", due, time.time_ns() + GRACE_NS)


def _reserved(message: Copied) -> set[str]:
    if not message.flags & packet.HEADERS:
        return set()
    fields = metadata.decode(memoryview(message.raw), 0, message.flags)
    names = fields.all_headers.keys()
    if not names:  # no map that can be decoded: the kernel has found a reserved name in it
        return {RESERVED[0]}
    return set(filter(is_reserved, names))
