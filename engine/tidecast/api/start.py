"""Where a new subscription starts."""

from __future__ import annotations

import re
import time
from typing import ClassVar

import msgspec

from tidecast.config.check import shown
from tidecast.config.moments import parse_time_ns
from tidecast.errors import ConfigError

PLACES = (
    "earliest, latest, sequences by queue (0:17,1:9), or a time: now, 2026-01-31T12:00 (of this "
    "machine's zone unless it names one), @SECONDS since 1970, -1h"
)
_SEQUENCES = re.compile(r"\d{1,18}:\d{1,18}(,\d{1,18}:\d{1,18})*$")


class Start(msgspec.Struct, frozen=True):
    """Base of the start positions."""

    word: ClassVar[str] = "latest"

    @staticmethod
    def parse(text: str) -> Start:
        """The position that a text names, as the shell takes it; see `PLACES`.

        Raises ConfigError.
        """
        if text in WORDS:
            return WORDS[text]
        if _SEQUENCES.match(text):
            pairs = [pair.split(":") for pair in text.split(",")]
            return Tokens({int(queue): int(sequence) for queue, sequence in pairs})
        try:
            return Time(parse_time_ns(text, time.time_ns()))
        except ConfigError:
            raise ConfigError(f"start: {shown(text)}: allowed are {PLACES}") from None


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
    where they are. An offset behind the end of its queue is an error; the offset of a
    record that retention has deleted leads to the oldest kept record.
    """

    tokens: dict[int, int]
    word: ClassVar[str] = "tokens"


WORDS: dict[str, Start] = {"earliest": Earliest(), "latest": Latest()}


def start_of(start: Start | str) -> Start | str:
    """``"earliest"`` and ``"latest"`` as positions; all else as it is."""
    return WORDS.get(start, start) if isinstance(start, str) else start
