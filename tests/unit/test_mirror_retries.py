"""Retries of a mirror: an absent system is reported once, and waited for until patience ends."""

from __future__ import annotations

import pytest

from tidecast.errors import ConnectionLost
from tidecast.mirror.progress import Event, Progress, Stopped
from tidecast.mirror.retries import Retries

AWAY = ConnectionLost("the system is away")


class _Waits(Progress):
    """Progress that notes the pauses, and does not wait."""

    def __init__(self, patience_s: float) -> None:
        self.events: list[Event] = []
        self.pauses: list[float] = []
        super().__init__(None, self.events.append, patience_s=patience_s)

    def wait(self, seconds: float) -> None:
        self.check()
        self.pauses.append(seconds)


def test_an_absence_is_reported_once_and_each_retry_is_counted() -> None:
    progress, now = _Waits(10.0), [1.0]
    retries = Retries(progress, "SourceAway", lambda: now[0])
    for _ in range(3):
        retries.wait(AWAY)
        now[0] += 1.0
    assert [(each.event, each.text) for each in progress.events] == [
        ("SourceAway", "the system is away; it is tried again")
    ]
    assert progress.counts.retries == len(progress.pauses) == 3
    assert progress.pauses[2] > progress.pauses[0]


def test_patience_counts_from_the_first_failure_and_begins_again_after_a_success() -> None:
    progress, now = _Waits(10.0), [100.0]
    retries = Retries(progress, "TargetAway", lambda: now[0])
    retries.wait(AWAY)
    now[0] += 9.0
    retries.end()
    retries.note(AWAY, queue=3)
    now[0] += 10.0
    retries.wait(AWAY)
    now[0] += 0.1
    with pytest.raises(ConnectionLost, match="the system is away"):
        retries.wait(AWAY)
    assert [each.about for each in progress.events] == [{}, {"queue": 3}]
    assert progress.counts.retries == 3
    assert progress.pauses[1] == pytest.approx(progress.pauses[0], rel=0.7)


def test_a_mirror_that_is_stopped_does_not_wait() -> None:
    progress = _Waits(10.0)
    progress.stopping.set()
    with pytest.raises(Stopped):
        Retries(progress, "EngineAway").wait(AWAY)
