"""Where reading begins, as options of several commands take it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import click

from tidecast.cli.options.params import Param

if TYPE_CHECKING:
    from tidecast.api.start import Start

PLACES = (
    "earliest, latest, a sequence (17; of several queues 0:17,1:9), or a time: now, "
    "2026-01-31T12:00 (of this machine's zone unless it names one), @SECONDS since 1970, -1h."
)
_SEQUENCE = re.compile(r"\d{1,18}$")
ANY_QUEUE = -1
"""In `Tokens` of a bare sequence: the queue is not named."""


class Place(Param):
    """`PLACES` as a `tidecast.api.start.Start`; see `of_queue` for a bare sequence."""

    name = "where"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """See `click.ParamType`."""
        from tidecast.api.start import Start, Tokens
        from tidecast.errors import ConfigError

        if not isinstance(value, str):
            return value
        if _SEQUENCE.match(value):
            return Tokens({ANY_QUEUE: int(value)})
        try:
            return Start.parse(value)
        except ConfigError:
            self.fail(f"{value!r}: allowed are {PLACES}", param, ctx)


def of_queue(start: Start, queues: list[int], option: str) -> Start:
    """A bare sequence counts in the one queue there is. Raises `click.BadParameter`."""
    from tidecast.api.start import Tokens

    if not isinstance(start, Tokens) or ANY_QUEUE not in start.tokens:
        return start
    token = start.tokens[ANY_QUEUE]
    if len(queues) != 1:
        some = ",".join(f"{queue}:{token}" for queue in queues[:3] or [0])
        raise click.BadParameter(
            f"{token}: each queue counts its own sequences: allowed are pairs of queue and "
            f"sequence such as {some}",
            param_hint=f"'{option}'",
        )
    return Tokens({queues[0]: token})
