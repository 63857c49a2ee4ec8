"""Options of typed topics, as in the client's calls, without `codec`."""

from __future__ import annotations

from typing import Literal, TypedDict

from tidecast.api.start import Start
from tidecast.api.words import OnGap, StartWord
from tidecast.client.consumer.core import Filter

Invalid = Literal["term", "nak", "raise"]
"""The fate of a record that cannot be decoded: given up, delivered again, or an exception."""
InvalidLive = Literal["raise", "skip"]
"""The same of a live message."""


class SubscribeOptions(TypedDict, total=False):
    """Options of `Topic.subscribe`, see `Connection.subscribe`."""

    start: Start | StartWord
    on_gap: OnGap | None
    tethered: bool | None
    receive_bytes: int | None


class ConsumeOptions(TypedDict, total=False):
    """Options of `Topic.consumer`, see `Connection.consumer`."""

    start: Start | StartWord
    ack_wait: float | None
    max_in_flight: int
    max_bytes_in_flight: int
    max_deliver: int | None
    dead_letter: str | None
    key: str | None
    headers: dict[str, str] | None
    where: Filter | None
    ring_bytes: int
