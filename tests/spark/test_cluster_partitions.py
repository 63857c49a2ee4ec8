"""`commit=partitions` on a stand-alone cluster: executors, attempts and drivers die on the way."""

from __future__ import annotations

import os
import signal
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import Eventually
from tests.spark.test_cluster import DRIVER_S, engine
from tests.spark.test_end_to_end import KEYS, by_key, publish
from tests.support.lab import Lab, Platform, open_lab
from tests.support.process import Process
from tests.support.spark_cluster import SparkCluster

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]
ROWS, A_BATCH = 600_000, 200_000


@pytest.fixture
def lab() -> Iterator[Lab]:
    with open_lab() as made:
        yield made


class Sink:
    """A query on the cluster, that is started again and again."""

    def __init__(self, lab: Lab, directory: Path, eventually: Eventually) -> None:
        self._lab, self.directory = lab, directory
        self.platform: Platform = engine(lab)
        publish(self.platform, ROWS)
        self.cluster = SparkCluster(lab, directory, eventually)

    def start(self, *at: str) -> Process:
        command = [sys.executable, "-m", "tests.support.spark_sink_driver", self.cluster.url]
        command += [str(self.platform.directory), str(self.directory / "ck"), str(A_BATCH), *at]
        paths = os.pathsep.join(each for each in sys.path if each)
        environment = {**os.environ, "PYTHONPATH": paths}
        made = self._lab._process(command, env=environment, start_new_session=True)
        assert made.line() == "ready"
        return made

    def claims(self, batch: int) -> set[str]:
        """Partitions of a batch that are claimed, and not durable as far as is noted."""
        found: dict[str, set[str]] = defaultdict(set)
        for one in self.directory.glob(f"ck/tidecast-sink/*/partitions/*/{batch:012d}.*"):
            found[one.suffix].add(one.parent.name)
        return found[".json"] - found[".durable"]

    def finish(self, running: Process) -> None:
        batches = -(-(ROWS + 1) // A_BATCH)
        assert running.line() == f"done in {batches} batches"
        assert running.code(DRIVER_S) == 0
        self.check()

    def check(self) -> None:
        """Each row is there once, and each task's rows of a key are in their order."""
        seen: set[int] = set()
        rows = 0
        for key, values in by_key(self.platform, "out").items():
            by_task: dict[Any, list[int]] = defaultdict(list)
            for value, _, _ in values:
                number, partition = map(int, value.split(b","))
                assert key in (b"the end", b"k%d" % (number % KEYS))
                if key != b"the end":
                    by_task[partition].append(number)
                    seen.add(number)
                rows += 1
            assert all(numbers == sorted(numbers) for numbers in by_task.values())
        assert (rows, len(seen)) == (ROWS + 1, ROWS)


@pytest.fixture
def sink(lab: Lab, tmp_path: Path, eventually: Eventually) -> Sink:
    return Sink(lab, tmp_path, eventually)


def test_executors_killed_while_they_publish_leave_each_row_once(
    sink: Sink, eventually: Eventually
) -> None:
    running, killed = sink.start(), 0
    for batch in (0, 1, 2):
        eventually(lambda batch=batch: sink.claims(batch), "a claim", timeout_s=DRIVER_S)
        killed += sink.cluster.kill_executor(batch % 2)
    sink.finish(running)
    assert killed == 3


def test_a_speculative_attempt_beside_the_first_leaves_each_row_once(sink: Sink) -> None:
    running = sink.start("slow:1")
    sink.finish(running)
    assert (sink.directory / "both").exists()


def test_a_driver_killed_between_write_and_commit_leaves_each_row_once(sink: Sink) -> None:
    for at in ("written:0", "finished:1", "written:2"):
        assert sink.start(at).code(DRIVER_S) == -signal.SIGKILL, at
    sink.finish(sink.start())
