"""Retention follows the archive: what is not archived stays, whatever its age."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.conftest import Eventually
from tests.support.lab import Platform, open_lab, topology

import tidecast.sync
from tidecast.errors import EngineNotRunning
from tidecast.log.queue_files import QueueFiles
from tidecast_spark.jobs.archive_hold import holding

SEGMENT, A_BATCH = 65_536, 25


@pytest.fixture
def platform() -> Iterator[Platform]:
    topic = {
        "name": "orders",
        "mode": "durable",
        "segment_bytes": SEGMENT,
        "retention_bytes": 1,
        "fsync_interval_ms": 1,
    }
    with open_lab() as lab:
        yield lab.platform(topology({"name": "ipc", "kind": "ipc"}, topics=[topic]))


def publish(platform: Platform, count: int) -> None:
    with tidecast.sync.connect(platform.url) as client, client.publisher("orders") as publisher:
        for _ in range(count // A_BATCH):  # acked one by one, or all would be one segment
            publisher.publish_batch([bytes(1000)] * A_BATCH, ack="durable")


def test_retention_does_not_pass_a_held_position(
    platform: Platform, eventually: Eventually
) -> None:
    queue = QueueFiles(platform.directory, "orders", 0)
    with holding(platform.directory, "archive", "") as hold:
        assert hold is not None
        hold.move({"orders": {"0": 0}})
        publish(platform, 500)  # some seven segments, all older than retention wants
        hold.move({"orders": {"0": 200}})
        eventually(lambda: queue.earliest_token() > 0, "the segments before 200 are gone")
        publish(platform, 200)
        assert 0 < queue.earliest_token() <= 200
    publish(platform, 200)
    assert queue.earliest_token() <= 200, "it holds while no archive runs"
    with holding(platform.directory, "archive", "") as hold:
        assert hold is not None
        hold.move({"orders": {"0": 900}})
        eventually(lambda: queue.earliest_token() > 700, "all but the last segment is gone")


def test_a_hold_needs_the_engine(platform: Platform) -> None:
    platform.stop()
    with pytest.raises(EngineNotRunning), holding(platform.directory, "archive", ""):
        pass
    with holding(platform.directory, "", "") as none:
        assert none is None
