"""Points in time as people write them: one parser for every command."""

from __future__ import annotations

import re
from datetime import datetime

from tidecast.config.check import parse_duration_ns, shown
from tidecast.errors import ConfigError

ALLOWED = (
    "now, a time (2026-01-31T12:00, of this machine's zone unless it names one), @SECONDS since "
    "1970, or a time from now: -1h before, +5m after"
)
"""The forms that `parse_time_ns` takes; a bare ``5m`` is before now."""
TIME_NS_MAX = (1 << 63) - 1
_RELATIVE = re.compile(r"([-+]?)\s*(\d+(?:\.\d+)?\s*[a-zA-Z]+)$")
_SECONDS = re.compile(r"@(\d{1,11})(?:\.(\d{1,9}))?$")


def parse_time_ns(text: str, now_ns: int, *, ahead: bool = False) -> int:
    """Nanoseconds since 1970 of `ALLOWED`. ``ahead``: a bare ``5m`` is after now.

    Raises ConfigError.
    """
    text = text.strip()
    if text == "now":
        return now_ns
    time_ns = None
    if found := _RELATIVE.match(text):
        sign = found.group(1) or ("+" if ahead else "-")
        delta_ns = parse_duration_ns(found.group(2))
        time_ns = now_ns + delta_ns if sign == "+" else now_ns - delta_ns
    elif found := _SECONDS.match(text):
        time_ns = int(found.group(1)) * 10**9 + int((found.group(2) or "").ljust(9, "0"))
    else:
        time_ns = _of_calendar_ns(text)
    if time_ns is None:
        raise ConfigError(f"{shown(text)}: not a time: allowed are {ALLOWED}")
    if not 0 <= time_ns <= TIME_NS_MAX:
        raise ConfigError(f"{shown(text)}: allowed are times from 1970 to 2262")
    return time_ns


def _of_calendar_ns(text: str) -> int | None:
    try:
        moment = datetime.fromisoformat(text).astimezone()
        whole = int(moment.replace(microsecond=0).timestamp())
    except (ValueError, OverflowError):
        return None
    return (whole * 1_000_000 + moment.microsecond) * 1000
