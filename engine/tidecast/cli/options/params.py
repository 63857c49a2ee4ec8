"""Types of options: sizes, durations, points in time. One parser each, whatever the command."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    Param = click.ParamType[Any]
else:
    Param = click.ParamType

_NUMBER = re.compile(r"-?\d+(\.\d+)?$")
UNITS_NS = {"ns": 1, "us": 1000, "ms": 10**6, "s": 10**9}


class _Parsed(Param):
    """A value that a parser of `tidecast.config` reads from text; other values stay as they are."""

    def parse(self, text: str) -> Any:
        """The value. Raises ConfigError."""
        raise NotImplementedError

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """See `click.ParamType`."""
        from tidecast.errors import ConfigError

        if not isinstance(value, str):
            return value
        try:
            return self.parse(value)
        except ConfigError as problem:
            self.fail(str(problem), param, ctx)


class Size(_Parsed):
    """Bytes: ``4MiB``, ``64kB``, ``1000``."""

    name = "size"

    def parse(self, text: str) -> int:
        """Bytes as int."""
        from tidecast.config.check import parse_bytes

        return parse_bytes(text)


class Duration(_Parsed):
    """``2ms``, ``1.5s``, ``5m``; a bare number is of ``unit``, and so is the value.

    ``whole``: an int. ``bare=False``: a number needs its unit. ``low``, ``high``: allowed values;
    ``above``: more than ``low``.
    """

    name = "duration"

    def __init__(
        self,
        unit: str = "s",
        *,
        whole: bool = False,
        bare: bool = True,
        low: float | None = None,
        high: float | None = None,
        above: bool = False,
    ) -> None:
        self._bare = bare
        self.unit, self.whole, self.low, self.high, self.above = unit, whole, low, high, above

    def parse(self, text: str) -> float:
        """The duration in units."""
        from tidecast.config.check import parse_duration_ns, shown
        from tidecast.errors import ConfigError

        number = _NUMBER.match(text) if self._bare else None
        value = float(text) if number else parse_duration_ns(text) / UNITS_NS[self.unit]
        low, high = self.low, self.high
        below = low is not None and (value <= low if self.above else value < low)
        if below or (high is not None and value > high):
            raise ConfigError(f"{shown(text)}: allowed are {self._allowed()}")
        if not self.whole:
            return value
        if not value.is_integer():
            raise ConfigError(f"{shown(text)}: allowed are whole numbers of {self.unit}")
        return int(value)

    def _allowed(self) -> str:
        unit, low, high = self.unit, self.low, self.high
        parts = (
            [] if low is None else [f"{'more than' if self.above else 'at least'} {low:g}{unit}"]
        )
        parts += [] if high is None else [f"at most {high:g}{unit}"]
        return "durations of " + ", ".join(parts) if parts else "numbers"


class Moment(_Parsed):
    """A point in time, see `tidecast.config.moments`: nanoseconds since 1970.

    ``ahead``: a bare ``5m`` is after now.
    """

    name = "time"

    def __init__(self, *, ahead: bool = False, now_ns: Callable[[], int] = time.time_ns) -> None:
        self._ahead, self._now_ns = ahead, now_ns

    def parse(self, text: str) -> int:
        """Nanoseconds since 1970."""
        from tidecast.config.moments import parse_time_ns

        return parse_time_ns(text, self._now_ns(), ahead=self._ahead)
