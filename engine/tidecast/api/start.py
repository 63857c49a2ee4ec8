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


class Time(Start, frozen=True):
    """Durable topics: with the first record that is not older than this; ns since 1970.

    Later than all records: at the end.
    """

    time_ns: int
    word: ClassVar[str] = "time"


class Tokens(Start, frozen=True):
    """Durable topics: at an offset a queue.

    Queues that are not named: a new subscription has them from their beginning, `seek` leaves them
    where they are. An offset behind the end of its queue is an error; one of a record that
    retention has deleted leads to the oldest that is kept.
    """

    tokens: dict[int, int]
    word: ClassVar[str] = "tokens"


WORDS: dict[str, Start] = {"earliest": Earliest(), "latest": Latest()}


def start_of(start: Start | str) -> Start | str:
    """``"earliest"`` and ``"latest"`` as positions; all else as it is."""
    return WORDS.get(start, start) if isinstance(start, str) else start
