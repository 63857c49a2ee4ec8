"""Words that options of the client take, and those options as types."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Literal, TypedDict

Ack = Literal["none", "engine", "durable"]
"""When `publish` returns: as soon as the ring has the message, or when it is on disk."""
OnFull = Literal["block", "error", "drop"]
"""The behaviour of `publish` while the ring is full."""
OnGap = Literal["raise", "event", "skip"]
"""How a subscription reports lost packets."""
ChannelName = Literal["control", "ordinary", "large"]
StartWord = Literal["earliest", "latest"]
AckWhen = Literal["after", "before", "none"]
"""When `Consumer.run` acks: after the handler returns, before it is called, or never."""
Outcome = Literal["nak", "term", "ack", "raise"]
"""The fate of a message whose handler raised."""
NodeMode = Literal["threads", "inline"]


class PublishOptions(TypedDict, total=False):
    """Options of `Connection.publish`, see `Publisher.publish`."""

    key: bytes | str | None
    headers: Mapping[str, bytes | str | int] | None
    timestamp: bool | int | None
    to: str | int | None
    subscriber: int | None
    flush: bool
    timeout: float | None
    ack: Ack | None
    deliver_at: datetime | int | None
    deliver_in: float | None
