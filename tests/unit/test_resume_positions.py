"""Where subscriptions of a node begin in sessions that come back."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.test_consumer import topology

from tidecast.api.link import RESUME_MAX, SubscriptionOptions
from tidecast.embedded import EmbeddedLink
from tidecast.node import state
from tidecast.node.state import ResumePositions


def test_all_that_several_subscriptions_ask_for_is_kept() -> None:
    kept = ResumePositions()
    for subscription in (1, 2, 3):
        for session in range(RESUME_MAX):
            kept.keep(session, subscription, session + subscription)
    for subscription in (1, 2, 3):
        for session in range(RESUME_MAX):
            assert kept.pop(session, subscription) == session + subscription
            assert kept.pop(session, subscription) is None


def test_the_position_that_is_oldest_is_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "RESUME_KEPT_MAX", 3)
    kept = ResumePositions()
    for session in (1, 2, 3):
        kept.keep(session, 9, session)
    kept.keep(1, 9, 10)
    assert [kept.get(session, 9) for session in (1, 2, 3)] == [10, 2, 3], "nothing was displaced"
    kept.keep(4, 9, 4)
    assert [kept.get(session, 9) for session in (1, 2, 3, 4)] == [10, None, 3, 4]


def test_a_subscription_that_ends_leaves_nothing() -> None:
    kept = ResumePositions()
    for subscription in (1, 2):
        for session in (5, 6):
            kept.keep(session, subscription, 7)
    kept.pop(5, 1)
    kept.forget(1)
    kept.forget(3)
    assert len(kept) == 2
    assert [kept.get(session, 2) for session in (5, 6)] == [7, 7]


def test_a_subscription_that_is_closed_frees_its_places(tmp_path: Path) -> None:
    link = EmbeddedLink.open(topology(), data_dir=tmp_path)
    try:
        kept = link.node.context.resume_positions
        options = SubscriptionOptions(resume={5: 1, 6: 2})
        ids = [link.open_subscription("a.*", options).subscription_id for _ in range(2)]
        assert len(kept) == 4
        link.close_subscription(ids[0])
        assert len(kept) == 2
        assert kept.get(5, ids[1]) == 1
    finally:
        link.close()
