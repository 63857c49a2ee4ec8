"""What several engines say, put together."""

from __future__ import annotations

from typing import Any

from tidecast_control.live.world import Source, build


def _sample(at_s: int, **subscription: Any) -> dict[str, Any]:
    row = {
        "name": "billing", "topic": "orders", "state": "idle", "members": 0, "lag_messages": 0,
        "lag_s": 0.0, "outstanding": 0, "delivered": 0, "dead": 0, "dead_open": 0,
    }  # fmt: skip
    return {
        "at_ns": at_s * 10**9, "mono_ns": at_s * 10**9, "counters": {}, "publications": [],
        "images": [], "receivers": [], "subscriptions": {}, "clients": 0,
        "durable_subscriptions": [row | subscription],
    }  # fmt: skip


def test_a_subscription_is_the_sum_of_what_engines_say() -> None:
    """An engine without a member hides nothing of the one that has it."""
    busy = Source(
        "a",
        _sample(1, state="active", members=1, lag_messages=90, delivered=10, dead=1, dead_open=1),
        _sample(2, state="active", members=1, lag_messages=60, delivered=50, dead=3, dead_open=2),
    )
    quiet = Source("b", _sample(1), _sample(2))
    for order in ((busy, quiet), (quiet, busy)):
        found = build(order).subscriptions["billing"]
        assert found["state"] == "active"
        assert found["members"] == 1
        assert found["lag_messages"] == "60"
        assert found["lag_trend_per_s"] == -30.0
        assert found["delivered_per_s"] == 40.0
        assert found["drain_s"] == 2.0
        assert (found["dead_letters"], found["given_up"]) == ("2", "3")
