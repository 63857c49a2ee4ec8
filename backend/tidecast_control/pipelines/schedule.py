"""When a pipeline runs: ``every 15m``, or five fields as cron has them, in UTC."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

_EVERY = re.compile(r"every ([1-9]\d{0,4})([mhd])")
_UNITS = {"m": 60, "h": 3600, "d": 86_400}
_FIELDS = (("minute", 0, 59), ("hour", 0, 23), ("day", 1, 31), ("month", 1, 12), ("weekday", 0, 7))
_PART = re.compile(r"(\*|\d{1,2}(?:-\d{1,2})?)(?:/(\d{1,2}))?")
_NAMED = {"@hourly": "0 * * * *", "@daily": "0 0 * * *", "@weekly": "0 0 * * 0"}
_DAYS_AHEAD_MAX = 8 * 366
ALLOWED = "every N(m|h|d), @hourly, @daily, @weekly, or cron: MINUTE HOUR DAY MONTH WEEKDAY (UTC)"


@dataclass(frozen=True)
class Schedule:
    """Either ``every_s``, or the sets of a cron line."""

    every_s: int = 0
    minutes: tuple[int, ...] = ()
    hours: tuple[int, ...] = ()
    days: frozenset[int] = frozenset()
    months: frozenset[int] = frozenset()
    weekdays: frozenset[int] = frozenset()
    any_day: bool = True
    any_weekday: bool = True

    def next_after(self, time: datetime) -> datetime | None:
        """The first time after ``time``; None when there is none within eight years."""
        if self.every_s:
            after = int(time.timestamp()) // self.every_s * self.every_s + self.every_s
            return datetime.fromtimestamp(after, UTC)
        start = time.astimezone(UTC).replace(second=0, microsecond=0) + timedelta(minutes=1)
        for ahead in range(_DAYS_AHEAD_MAX):
            day = start.replace(hour=0, minute=0) + timedelta(days=ahead)
            if not self._on(day):
                continue
            for hour in self.hours:
                for minute in self.minutes:
                    at = day.replace(hour=hour, minute=minute)
                    if at >= start:
                        return at
        return None

    def _on(self, day: datetime) -> bool:
        """As cron does: with both days restricted, either will do."""
        if day.month not in self.months:
            return False
        by_day = day.day in self.days
        by_weekday = day.isoweekday() % 7 in self.weekdays
        if self.any_day or self.any_weekday:
            return by_day and by_weekday
        return by_day or by_weekday


def parse(text: str) -> Schedule:
    """A schedule. Raises ValueError with the allowed forms."""
    every = _EVERY.fullmatch(text)
    if every:
        every_s = int(every[1]) * _UNITS[every[2]]
        if every_s > 366 * 86_400:
            raise ValueError(f"{text!r}: more than a year")
        return Schedule(every_s=every_s)
    fields = _NAMED.get(text, text).split()
    if len(fields) != len(_FIELDS):
        raise ValueError(f"{text!r}: allowed is {ALLOWED}")
    minutes, hours, days, months, weekdays = (
        _values(field, *limits) for field, limits in zip(fields, _FIELDS, strict=True)
    )
    made = Schedule(
        0,
        tuple(sorted(minutes)),
        tuple(sorted(hours)),
        days,
        months,
        frozenset(day % 7 for day in weekdays),
        fields[2] == "*",
        fields[4] == "*",
    )
    if made.next_after(datetime(2024, 1, 1, tzinfo=UTC)) is None:
        raise ValueError(f"{text!r}: there is no such day")
    return made


def _values(field: str, name: str, low: int, high: int) -> frozenset[int]:
    found: set[int] = set()
    for part in field.split(","):
        match = _PART.fullmatch(part)
        if match is None:
            raise ValueError(f"{name} {field!r}: allowed is {ALLOWED}")
        span, step_text = match[1], match[2]
        step = int(step_text) if step_text is not None else 1
        first, last = low, high
        if span != "*":
            begin, _, end = span.partition("-")
            first = int(begin)
            last = int(end) if end else (high if step_text is not None else first)
        if not low <= first <= last <= high or step < 1:
            raise ValueError(f"{name} {part!r}: allowed are {low} to {high}")
        found.update(range(first, last + 1, step))
    return frozenset(found)
