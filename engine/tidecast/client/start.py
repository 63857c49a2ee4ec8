"""Where a new subscription starts."""

from __future__ import annotations

from typing import ClassVar

import msgspec


class Start(msgspec.Struct, frozen=True):
    """Base of the start positions."""

    word: ClassVar[str] = "latest"


class Latest(Start, frozen=True):
    """With the first message published after the subscription was granted."""

    word: ClassVar[str] = "latest"


class Earliest(Start, frozen=True):
    """As far back as the publications' histories reach."""

    word: ClassVar[str] = "earliest"
