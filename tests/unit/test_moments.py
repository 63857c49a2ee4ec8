"""Points in time as people write them, see `tidecast.config.moments`."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidecast.config.moments import TIME_NS_MAX, parse_time_ns
from tidecast.errors import ConfigError

NOW_NS = 1_800_000_000_000_000_000
S, MINUTE, HOUR = 10**9, 60 * 10**9, 3600 * 10**9


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("now", NOW_NS),
        ("-1h", NOW_NS - HOUR),
        ("5m", NOW_NS - 5 * MINUTE),
        ("+5m", NOW_NS + 5 * MINUTE),
        (" -1.5 d ", NOW_NS - 36 * HOUR),
        ("@1700000000", 1_700_000_000 * S),
        ("@1700000000.000000001", 1_700_000_000 * S + 1),
        ("2026-01-01T00:00Z", 1_767_225_600 * S),
        ("2026-01-01T01:00+01:00", 1_767_225_600 * S),
        ("2026-01-01T00:00:00.000001Z", 1_767_225_600 * S + 1000),
    ],
)
def test_times(text: str, expected: int) -> None:
    assert parse_time_ns(text, NOW_NS) == expected


def test_a_bare_duration_may_lie_ahead() -> None:
    assert parse_time_ns("90d", NOW_NS, ahead=True) == NOW_NS + 90 * 24 * HOUR
    assert parse_time_ns("-90d", NOW_NS, ahead=True) == NOW_NS - 90 * 24 * HOUR


def test_a_time_without_a_zone_is_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    monkeypatch.setenv("TZ", "Etc/GMT-2")
    time.tzset()
    try:
        assert parse_time_ns("2026-01-01T02:00", NOW_NS) == 1_767_225_600 * S
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(
    "text", ["", "soon", "5", "1w", "2026-13-01", "@", "@x", "-", "1969-12-31T00:00Z", "-90000d"]
)
def test_what_is_no_time_is_refused_with_what_is(text: str) -> None:
    with pytest.raises(ConfigError, match="allowed are"):
        parse_time_ns(text, NOW_NS)


@given(st.text(max_size=30))
def test_any_text_is_a_time_or_refused(text: str) -> None:
    with contextlib.suppress(ConfigError):
        assert 0 <= parse_time_ns(text, NOW_NS) <= TIME_NS_MAX
