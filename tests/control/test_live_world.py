"""The samples of several engines, merged."""

from __future__ import annotations

from typing import Any

from tidecast_control.alerts.evaluate import measured
from tidecast_control.live.channels import Facts, keys, topic
from tidecast_control.live.schemas import KeysLive, TopicDetail
from tidecast_control.live.world import Source, build


def _sample(at_s: int, **subscription: Any) -> dict[str, Any]:
    row = {
        "name": "billing",
        "topic": "orders",
        "state": "idle",
        "members": 0,
        "lag_messages": 0,
        "lag_s": 0.0,
        "outstanding": 0,
        "delivered": 0,
        "dead": 0,
        "dead_open": 0,
    }
    return {
        "at_ns": at_s * 10**9,
        "mono_ns": at_s * 10**9,
        "counters": {},
        "publications": [],
        "images": [],
        "receivers": [],
        "subscriptions": {},
        "clients": 0,
        "durable_subscriptions": [row | subscription],
    }


def _published(at_s: int, messages: int, head: int) -> dict[str, Any]:
    ring = {
        "publication_id": 1,
        "topic": "orders",
        "session": 7,
        "channel": "ordinary",
        "head": head,
        "messages": messages,
        "transport": "ipc",
        "slots": 64,
        "packet_bytes": 1400,
        "closing": False,
        "readers": [],
    }
    return _sample(at_s) | {"publications": [ring]}


def test_messages_of_publishers_are_counted_not_their_packets() -> None:
    world = build([Source("a", _published(1, 100, 10), _published(3, 500, 30))])
    assert world.topics["orders"]["rates"]["messages_out"] == 200.0
    assert world.topics["orders"]["rates"]["packets_out"] == 10.0
    assert world.totals["messages_out"] == world.nodes["a"]["rates"]["messages_out"] == 200.0
    again = build([Source("a", _published(1, 500, 30), _published(2, 3, 31))])
    assert again.totals["messages_out"] == 0.0, "the ring was created again"


def test_bytes_that_tables_save_count_where_they_were_sent() -> None:
    """Images count them too: those are the same bytes."""

    def saved(at_s: int, total: int) -> dict[str, Any]:
        row = {"name": "orders", "detail": "", "session": 7, "peer": 0, "bytes_saved": total}
        return _published(at_s, 0, 0) | {"counters": {"publication": [row], "image": [row]}}

    world = build([Source("a", saved(1, 1_000), saved(3, 5_000))])
    assert world.topics["orders"]["rates"]["bytes_saved"] == 2_000.0
    assert world.totals["bytes_saved"] == 2_000.0


def test_a_subscription_is_the_sum_of_what_engines_say() -> None:
    """An engine without a member hides nothing of the one that has it."""
    busy = Source(
        "a",
        _sample(1, state="active", members=1, lag_messages=90, delivered=10, dead=1, dead_open=1),
        _sample(
            2,
            state="active",
            members=1,
            lag_messages=60,
            delivered=50,
            dead=3,
            dead_open=2,
            scheduled=7,
        ),
    )
    quiet = Source("b", _sample(1), _sample(2, scheduled=2))
    for order in ((busy, quiet), (quiet, busy)):
        found = build(order).subscriptions["billing"]
        assert found["state"] == "active"
        assert found["members"] == 1
        assert found["lag_messages"] == "60"
        assert found["lag_trend_per_s"] == -30.0
        assert found["delivered_per_s"] == 40.0
        assert found["drain_s"] == 2.0
        assert (found["dead_letters"], found["given_up"]) == ("2", "3")
        assert found["scheduled"] == "9"


def test_forged_packets_are_a_rate_of_their_node_that_rules_can_watch() -> None:
    """Those of the sender and the receiver of each transport together."""

    def counted(at_s: int, tag_failed: int, plain_refused: int) -> dict[str, Any]:
        rows = {
            kind: [
                {
                    "name": "lan",
                    "detail": "",
                    "session": 0,
                    "peer": 0,
                    "tag_failed": tag_failed,
                    "plain_refused": plain_refused,
                    "opened": 9,
                }
            ]
            for kind in ("sender", "receiver")
        }
        return _sample(at_s) | {"counters": rows}

    world = build(
        [
            Source("a", counted(1, 5, 0), counted(3, 25, 10)),
            Source("b", counted(1, 5, 0), counted(3, 5, 0)),
        ]
    )
    assert world.forged == {"a": 30.0, "b": 0.0}
    assert (world.invalid["tag_failed"], world.invalid["plain_refused"]) == (60, 20)
    found = measured("forged_packets_per_s", world)
    assert found.values == {"a": 30.0, "b": 0.0}
    assert found.sources == {"a": {"a"}, "b": {"b"}}


def test_a_peer_that_runs_and_is_not_heard_is_counted_at_its_node() -> None:
    def seen(*silent: str) -> Any:
        rows = [{"transport": "lan", "node": n, "silent": n in silent} for n in ("b", "gone")]
        return _sample(1) | {"peers": rows}

    world = build([Source("a", None, seen("b", "gone")), Source("b", None, _sample(1))])
    assert world.unheard == {"a": [("lan", "b"), ("lan", "gone")], "b": []}
    shown = world.nodes["a"]
    assert (shown["peers"], shown["peers_silent"]) == (2, ["b on lan", "gone on lan"])
    assert (world.nodes["b"]["peers"], world.nodes["b"]["peers_silent"]) == (0, [])
    found = measured("silent_peers", world)
    assert found.values == {"a": 1.0, "b": 0.0}, "gone is down: that is another metric"
    assert found.sources == {"a": {"a"}, "b": {"b"}}


ABOUT = {"detail": "", "session": 0, "peer": 0}


def test_a_topic_has_the_state_of_its_adapter_on_each_node() -> None:
    waits = {
        "topic": "feed",
        "adapter": "kafka",
        "state": "waiting",
        "queues": 0,
        "detail": "127.0.0.1:9092: connection refused",
        "since_ns": 10**18,
    }
    reads = waits | {"state": "open", "queues": 3, "detail": "", "since_ns": 0}
    row = ABOUT | {"name": "feed", "detail": "kafka", "lag": 70, "errors": 2, "reconnects": 1}
    away = _sample(1) | {"adapters": [waits]}
    there = _sample(1) | {"adapters": [reads], "counters": {"adapter": [row]}}
    world = build(
        [Source("a", None, away), Source("b", None, there), Source("c", None, _sample(1))]
    )
    found = TopicDetail.model_validate(topic(world, Facts(), "feed")).topic
    assert found is not None
    assert found.nodes == ["a", "b"]
    waiting, read = found.adapters["a"], found.adapters["b"]
    assert (waiting.adapter, waiting.state) == ("kafka", "waiting")
    assert waiting.detail == "127.0.0.1:9092: connection refused"
    assert waiting.since is not None
    assert waiting.since.isoformat() == "2001-09-09T01:46:40+00:00"
    assert (read.state, read.since, read.queues) == ("open", None, 3)
    assert (read.lag, read.errors, read.reconnects) == (70, 2, 1)
    assert measured("waiting", world).values == {"feed": 1.0}


def test_a_topic_has_the_state_of_its_storage_at_the_node_that_keeps_it() -> None:
    waits = {
        "topic": "orders",
        "storage": "kafka://127.0.0.1:9092/orders",
        "state": "waiting",
        "detail": "no broker answers",
        "since_ns": 10**18,
        "waiting_records": 2**53 + 1,
        "records": 5,
        "failures": 3,
    }
    world = build(
        [Source("a", None, _sample(1) | {"storages": [waits]}), Source("b", None, _sample(1))]
    )
    found = TopicDetail.model_validate(topic(world, Facts(), "orders")).topic
    assert found is not None
    [(node, storage)] = found.storages.items()
    assert (node, storage.state, storage.detail) == ("a", "waiting", "no broker answers")
    assert storage.since is not None
    assert storage.since.isoformat() == "2001-09-09T01:46:40+00:00"
    assert (storage.waiting_records, storage.records, storage.failures) == (2**53 + 1, 5, 3)
    waiting = measured("waiting", world)
    assert (waiting.values, waiting.sources) == ({"orders": 1.0}, {"orders": {"a"}})
    opened = waits | {"state": "open", "detail": "", "since_ns": 0}
    back = build([Source("a", None, _sample(1) | {"storages": [opened]})])
    assert measured("waiting", back).values == {"orders": 0.0}


def test_refusals_of_a_key_are_the_sum_of_what_engines_say() -> None:
    def of(at_s: int, **counts: int) -> dict[str, Any]:
        return _sample(at_s) | {"counters": {"key": [ABOUT | {"name": "shop"} | counts]}}

    one = Source("a", of(1, denied=3), of(3, denied=7, over_quota=1))
    other = Source("b", None, of(3, over_quota=5))
    shown = KeysLive.model_validate(
        keys(build([one, other, Source("c", None, _sample(3))]), Facts())
    )
    (shop,) = shown.keys.values()
    assert (shop.name, shop.denied, shop.over_quota) == ("shop", 7, 6)
    assert shop.refused_per_s == 2.5
