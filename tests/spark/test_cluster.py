"""Source and sink on a stand-alone Spark cluster, whose tasks run in processes of workers."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import Eventually
from tests.spark.test_end_to_end import by_key, publish
from tests.support.lab import Lab, Platform, open_lab, topology
from tests.support.process import Process
from tests.support.spark_cluster import SparkCluster

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]
ROWS, QUEUES = 400_000, 12
DRIVER_S = 400.0


@pytest.fixture
def lab() -> Iterator[Lab]:
    with open_lab() as made:
        yield made


def engine(lab: Lab) -> Platform:
    settings = {"mode": "durable", "queues": QUEUES, "fsync_interval_ms": 5}
    topics = [{"name": "in"} | settings, {"name": "out"} | settings]
    return lab.platform(topology({"name": "ipc", "kind": "ipc"}, topics=topics))


def driver(lab: Lab, cluster: SparkCluster, platform: Platform, staging: Path) -> Process:
    command = [sys.executable, "-m", "tests.support.spark_cluster", cluster.url]
    made = lab._process(
        [*command, str(platform.directory), str(staging)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(each for each in sys.path if each)},
    )
    assert made.line() == "ready"
    return made


def values(platform: Platform, topic: str) -> dict[Any, list[Any]]:
    """Values and times of each key, in order."""
    return {k: [row[:2] for row in rows] for k, rows in by_key(platform, topic).items()}


@pytest.mark.parametrize("killed", [False, True])
def test_a_copy_by_two_workers_is_whole_and_in_order_though_one_is_killed(
    lab: Lab, tmp_path: Path, eventually: Eventually, killed: bool
) -> None:
    platform = engine(lab)
    publish(platform, ROWS)
    cluster, staging = SparkCluster(lab, tmp_path, eventually), tmp_path / "staging"
    copying = driver(lab, cluster, platform, staging)
    if killed:
        eventually(lambda: any(staging.rglob("*.arrow*")), "a staged file", timeout_s=DRIVER_S)
        cluster.kill(0)
    left = 2 - int(killed)
    assert copying.line() == f"done on {left}"
    assert copying.code(DRIVER_S) == 0
    found, wanted = values(platform, "out"), values(platform, "in")
    assert Counter({k: len(v) for k, v in found.items()}) == {k: len(v) for k, v in wanted.items()}
    assert found == wanted
    again = driver(lab, cluster, platform, staging)
    assert again.line() == f"done on {left}"
    assert sum(map(len, values(platform, "out").values())) == ROWS + 1
