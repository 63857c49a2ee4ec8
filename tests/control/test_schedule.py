"""Schedules of pipelines, against a slow and plain reading of cron."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidecast_control.pipelines.schedule import parse

START = datetime(2026, 2, 27, 23, 58, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("every 15m", "2026-02-28T00:00"),
        ("every 1d", "2026-02-28T00:00"),
        ("@hourly", "2026-02-28T00:00"),
        ("*/5 * * * *", "2026-02-28T00:00"),
        ("59 23 * * *", "2026-02-27T23:59"),
        ("30 6 1 * *", "2026-03-01T06:30"),
        ("0 0 * * 7", "2026-03-01T00:00"),
        ("0 12 29 2 *", "2028-02-29T12:00"),
        ("0 0 13 * 5", "2026-03-06T00:00"),
        ("10-20/5,50 1 * 3 *", "2026-03-01T01:10"),
    ],
)
def test_the_next_time(text: str, expected: str) -> None:
    found = parse(text).next_after(START)
    assert found is not None
    assert found.isoformat()[:16] == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "every 0m",
        "every 5s",
        "every 99999d",
        "* * * *",
        "60 * * * *",
        "0 0 31 2 *",
        "5-1 * * * *",
        "*/0 * * * *",
        "x * * * *",
        "@yearly",
    ],
)
def test_what_is_no_schedule_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"allowed|more than|no such"):
        parse(text)


@given(
    minute=st.integers(0, 59),
    step=st.integers(1, 30),
    hour=st.integers(0, 23),
    start_s=st.integers(1_735_689_600, 1_893_456_000),
)
def test_nothing_fits_in_between(minute: int, step: int, hour: int, start_s: int) -> None:
    start = datetime.fromtimestamp(start_s, UTC)
    found = parse(f"{minute}/{step} {hour} * * *").next_after(start)
    assert found is not None
    fits = set(range(minute, 60, step))
    at = start.replace(second=0, microsecond=0)
    while at <= start or at.hour != hour or at.minute not in fits:
        at += timedelta(minutes=1)
    assert found == at
