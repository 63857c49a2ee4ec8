"""The gauges of queues say what their logs are at, whatever happened to those since."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.simulation.test_durable_leases import TOPIC, cluster, durable
from tests.simulation.test_durable_owners import hand_over
from tests.support.durable import Platform, platform

from tidecast.control_link.browse import purge
from tidecast.errors import StorageError
from tidecast.layout.counters import QUEUE_GAUGES
from tidecast.layout.counters import QueueCounter as C
from tidecast.log.files import segment_name
from tidecast.log.queue_log import QueueLog
from tidecast.node.durable.service import TICK_S, Durable
from tidecast.node.durable.topic import DurableTopic

SEGMENT = 1 << 16
Gauges = dict[str, list[int]]


def gauges(node: Durable, topic: str = "orders") -> Gauges:
    """By name: what is counted, a number a queue."""
    rows = [row for (name, _), row in sorted(node.rows.items()) if name == topic]
    values = node.ctx.counters.values[rows]
    return {one.name: values[:, one].tolist() for one in [*QUEUE_GAUGES, C.PRODUCERS_EXPIRED]}


def bytes_on_disk(log: QueueLog) -> int:
    paths = [log.directory / segment_name(each.base_token) for each in log.segments]
    assert sorted(paths) == sorted(log.directory.glob("*.log"))
    return sum(path.stat().st_size for path in paths)


def true(topic: DurableTopic) -> Gauges:
    """The same, asked of each log and of its files."""
    logs = topic.logs
    return {
        "NEXT_TOKEN": [log.next_token for log in logs],
        "DURABLE_TOKEN": [log.durable_token for log in logs],
        "EARLIEST_TOKEN": [log.segments[0].base_token for log in logs],
        "STORED_TOKEN": [0 for _ in logs],
        "STORAGE_WAITS": [0 for _ in logs],
        "LOG_BYTES": [bytes_on_disk(log) for log in logs],
        "SEGMENTS": [len(log.segments) for log in logs],
        "PRODUCERS": [len(topic.producers.known)] * len(logs),
        "PRODUCERS_EXPIRED": [topic.producers.expired] * len(logs),
        "ERRNO": [0] * len(logs),
        "OWNER_EPOCH": [topic.owner] * len(logs),
    }


def settled(one: Platform) -> Gauges:
    """The gauges a tick later; they equal the counts of the topic."""
    one.run(int(TICK_S * 1000) + 200)
    found = gauges(one.durable)
    assert found == true(one.topic)
    return found


def publish(publisher: Any, one: Platform, n: int, size: int = 1000) -> None:
    for i in range(0, n, 20):
        for k in range(i, min(i + 20, n)):
            publisher.publish(bytes(size), key=b"k%d" % k)
        one.run(8)


@pytest.mark.parametrize("fsync", ["none", "interval", "batch"])
def test_gauges_follow_appends_rolls_and_recovery(fsync: str) -> None:
    with platform(queues=3, segment_bytes=SEGMENT, fsync=fsync) as one:
        assert settled(one)["NEXT_TOKEN"] == [0, 0, 0]
        publisher = one.publisher()
        publish(publisher, one, 60)
        some = settled(one)
        assert sum(some["NEXT_TOKEN"]) == sum(some["DURABLE_TOKEN"]) == 60
        assert some["SEGMENTS"] == [1, 1, 1]
        assert some["PRODUCERS"] == [1, 1, 1]
        publish(publisher, one, 400)
        more = settled(one)
        assert sum(more["NEXT_TOKEN"]) == 460
        assert min(more["SEGMENTS"]) > 1
        assert all(a < b for a, b in zip(some["LOG_BYTES"], more["LOG_BYTES"], strict=True))
        one.crash()
        one.restart()
        assert settled(one) == more, "as it was, from the files"
        publish(one.publisher(), one, 200)
        assert sum(settled(one)["NEXT_TOKEN"]) == 660


def test_gauges_follow_a_sync_that_comes_later() -> None:
    with platform(queues=2, fsync_interval_ms=2000) as one:
        publish(one.publisher(), one, 20)
        one.run(int(TICK_S * 1000))
        found = gauges(one.durable)
        assert sum(found["NEXT_TOKEN"]) == 20
        assert sum(found["DURABLE_TOKEN"]) < 20
        assert found == true(one.topic)
        one.run(2000)
        assert sum(settled(one)["DURABLE_TOKEN"]) == 20


def test_gauges_follow_retention_purge_and_forgotten_producers() -> None:
    with platform(
        queues=3, segment_bytes=SEGMENT, retention_bytes=2 * SEGMENT, producer_ttl_s=60
    ) as one:
        held = [0]
        one.durable.registry.positions.append(lambda topic, queue: held[0] if queue else None)
        publisher = one.publisher()
        publish(publisher, one, 900)
        some = settled(one)
        assert some["EARLIEST_TOKEN"][0] > 0
        assert some["EARLIEST_TOKEN"][1:] == [0, 0]
        held[0] = 150
        more = settled(one)
        assert all(0 < token <= 150 for token in more["EARLIEST_TOKEN"][1:])
        assert more["LOG_BYTES"][1] < some["LOG_BYTES"][1]
        purge(one.node, one.topic, 1, dry_run=False)
        one_purged = settled(one)
        assert one_purged["EARLIEST_TOKEN"][1] == one_purged["NEXT_TOKEN"][1]
        assert one_purged["SEGMENTS"][1] == 1
        assert one_purged["SEGMENTS"][2] > 1
        purge(one.node, one.topic, None, dry_run=False)
        assert settled(one)["SEGMENTS"] == [1, 1, 1]
        publisher.close()
        assert settled(one)["PRODUCERS"] == [1, 1, 1]
        one.durable.ctx.wall_ns = lambda: 2 * 10**18  # type: ignore[method-assign]
        gone = settled(one)
        assert gone["PRODUCERS"] == [0, 0, 0]
        assert gone["PRODUCERS_EXPIRED"] == [1, 1, 1]


def test_gauges_follow_growth_also_one_that_the_disk_refused_at_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with platform(queues=2, segment_bytes=SEGMENT) as one:
        publisher = one.publisher()
        publish(publisher, one, 200)
        write = QueueLog.write_snapshot
        refused: list[int] = []

        def refuse(log: QueueLog, base_token: int, raw: bytes) -> None:
            if log.queue == 3 and not refused:
                refused.append(log.queue)
                raise StorageError("no room", errno.ENOSPC)
            write(log, base_token, raw)

        monkeypatch.setattr(QueueLog, "write_snapshot", refuse)
        with pytest.raises(StorageError, match="no room"):
            one.node.edit_topic("orders", {"queues": 5})
        assert [log.queue for log in one.topic.logs] == [0, 1], "none that nobody knows of"
        one.node.edit_topic("orders", {"queues": 5})
        assert refused == [3]
        assert [log.queue for log in one.topic.logs] == [0, 1, 2, 3, 4]
        assert settled(one)["NEXT_TOKEN"][2:] == [0, 0, 0]
        publish(publisher, one, 400)
        publisher.close()
        found = settled(one)
        assert sum(found["NEXT_TOKEN"]) == 600
        assert all(found["NEXT_TOKEN"])


def test_gauges_of_queues_that_another_engine_has_now_are_0(tmp_path: Path) -> None:
    with cluster(tmp_path) as one:
        a = one.node("a")
        one.until_kept(a)
        publisher = a.connect().publisher("orders")

        def publish(n: int) -> None:
            for i in range(n):
                publisher.publish(bytes(1000), key=b"k%d" % i)
            durable(one, publisher)

        def all_are_true() -> Gauges:
            one.net.run(2 * TICK_S * 1e6)
            keeper = one.keeper()
            assert keeper is not None
            for node in one.net.nodes:
                node_gauges = gauges(node.engine.durable)
                if node is keeper:
                    found = node_gauges
                    assert found == true(keeper.engine.durable.topics["orders"])
                else:
                    assert not np.any(list(node_gauges.values()))
            return found

        publish(100)
        first = all_are_true()
        assert sum(first["NEXT_TOKEN"]) == 100
        assert first["OWNER_EPOCH"] == [1] * TOPIC.queues
        b = one.node("b")
        hand_over(one, b)
        assert all_are_true()["NEXT_TOKEN"] == first["NEXT_TOKEN"]
        publish(100)
        assert sum(all_are_true()["NEXT_TOKEN"]) == 200
        hand_over(one, a)
        publish(50)
        assert sum(all_are_true()["NEXT_TOKEN"]) == 250
