"""Telemetry: what an engine's samples say, when they are written, and what ends between them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.durable import Platform, rows_of

from tidecast.config.telemetry import TelemetryConfig
from tidecast.config.topology import TopicConfig, topology_from
from tidecast.errors import Conflict
from tidecast.telemetry.samples import QUIET_NS, Key, Reading, Sampler
from tidecast.telemetry.sampling import TOPIC, Telemetry

S = 1_000_000_000
AT_US = 1_700_000_000_000_000


@pytest.fixture
def platform(tmp_path: Path) -> Iterator[Platform]:
    made = Platform(tmp_path, queues=2)
    yield made
    made.node.stop()


def telemetry(platform: Platform, **config: Any) -> Telemetry:
    made = Telemetry(
        platform.node,
        TelemetryConfig(**config),
        10.0,
        clock_ns=lambda: AT_US * 1000,
        mono_ns=lambda: platform.now_ns,
    )
    made.open()
    return made


def written(platform: Platform) -> list[dict[str, Any]]:
    platform.run(2000)
    return [msgspec.json.decode(one) for *_, one, _ in rows_of(platform.durable.topics[TOPIC])]


def test_a_sample_has_rows_of_topics_queues_and_subscriptions(platform: Platform) -> None:
    made = telemetry(platform)
    publisher = platform.publisher()
    consumer = platform.connect().consumer("orders", "billing")
    made.sample()
    for i in range(10):
        publisher.publish(b"x" * 100, key=b"k%d" % i)
    platform.run()
    consumer.fetch(4, max_wait=0.1).ack()
    platform.run()
    live = platform.publisher("prices")
    live.publish(b"gone before the sample", flush=True)
    live.close()
    platform.run()
    assert made.sample() == 6
    rows = {(r["topic"], r.get("queue"), r.get("subscription")): r for r in written(platform)}
    assert rows.keys() == {
        ("prices", None, None),
        ("orders", None, None),
        ("orders", 0, None),
        ("orders", 1, None),
        ("orders", 0, "billing"),
        ("orders", 1, "billing"),
    }
    for row in rows.values():
        assert (row["time_us"], row["node"]) == (AT_US, platform.node.name)
        assert row["interval_ms"] > 0
    queues = [rows["orders", q, None] for q in (0, 1)]
    assert sum(q["messages_in"] for q in queues) == 10
    assert sum(q["bytes_in"] for q in queues) > 1000
    assert all(0 < q["cache_bytes"] <= q["cache_max"] for q in queues)
    cursors = [rows["orders", q, "billing"] for q in (0, 1)]
    assert sum(cursor["messages_out"] for cursor in cursors) == 4
    assert sum(cursor["messages_due"] for cursor in cursors) == 10
    assert sum(cursor["lag"] for cursor in cursors) == 6
    assert rows["prices", None, None]["packets"] == 1
    assert "lag" not in rows["orders", None, None]


def test_counts_go_on_where_the_sample_before_ended(platform: Platform) -> None:
    made = telemetry(platform)
    publisher = platform.publisher()
    for _ in range(3):
        publisher.publish(b"x", key=b"k")
        platform.run()
        made.sample()
    rows = [r for r in written(platform) if "queue" in r and r["messages_in"]]
    assert [r["messages_in"] for r in rows] == [1, 1, 1]


def test_what_is_quiet_is_written_once_a_minute() -> None:
    sampler = Sampler("n", 0)
    key = Key("orders", 0)

    def at(s: int, count: int, **gauges: int) -> list[dict[str, Any]]:
        return sampler.rows({key: Reading({"messages_in": count}, gauges)}, AT_US, s * S)

    assert at(10, 5, lag=3) == [
        {
            "time_us": AT_US,
            "node": "n",
            "topic": "orders",
            "queue": 0,
            "interval_ms": 10_000,
            "messages_in": 5,
            "lag": 3,
        }
    ]
    for s in range(20, 70, 10):  # still of the busy minute: its percentiles count all samples
        assert [r["interval_ms"] for r in at(s, 0, lag=3)] == [10_000]
    assert QUIET_NS == 60 * S
    written = {s: at(s, 0, lag=3) for s in range(70, 240, 10)}
    assert [s for s, rows in written.items() if rows] == [120, 180]
    assert written[180][0]["interval_ms"] == 60_000
    [row] = at(240, 0, lag=4)
    assert (row["interval_ms"], row["lag"]) == (60_000, 4)
    assert sampler.rows({}, AT_US, 250 * S) == []


def test_while_the_disk_refuses_samples_wait_and_the_oldest_are_dropped(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidecast.telemetry.sampling.ROWS_KEPT_MAX", 3)
    made = telemetry(platform)
    made._waiting = [b"{}"] * 2
    assert made.sample() == 2
    assert made.dropped == 1
    assert len(written(platform)) == 3


def test_the_topic_is_bounded_and_a_live_one_of_that_name_is_refused(platform: Platform) -> None:
    telemetry(platform, retention_bytes=64 << 20)
    config = platform.node.topic_by_name[TOPIC]
    assert (config.mode, config.retention_bytes, config.segment_bytes) == (
        "durable",
        64 << 20,
        4 << 20,
    )
    assert config.retention_past_unacked
    platform.node.delete_topic(TOPIC)
    platform.node.create_topic(TopicConfig(name=TOPIC))
    refused = Telemetry(platform.node, TelemetryConfig(), 10.0)
    with pytest.raises(Conflict, match="telemetry needs it durable"):
        refused.open()
    refused.start()
    assert "needs it durable" in refused.problem, "and the engine runs on"


def test_one_line_in_the_topology_decides(platform: Platform) -> None:
    for told, expected in (({}, 10.0), ({"interval_s": 0}, 0.0), ({"interval_s": 2.5}, 2.5)):
        config = topology_from({"telemetry": told}).telemetry
        assert Telemetry(platform.node, config, 10.0).interval_s == expected
