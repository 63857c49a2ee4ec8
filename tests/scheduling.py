"""Which worker runs which tests: files as a whole, and suites with costly fixtures together.

So a platform with a browser and a Spark session start once, not once a worker. A database server
starts in seconds: one a worker, because the suite that shares it is the longest. Long groups go
first: small ones fill the end.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

COSTLY = ("tests/e2e/", "tests/spark/", "tests/cluster/")
"""Suites whose tests share what is costly to start: each is one group."""
WITH_BROKER = tuple(
    f"tests/unit/test_kafka_{name}.py"
    for name in ("storage", "adapter", "attached", "brokers", "producing")
)
"""They share a broker of Apache Kafka: 12 s of CPU in each worker that has one. One group."""
LONG = (*COSTLY, WITH_BROKER[0], "tests/control/", "tests/system/", "tests/test_")
"""Where a group takes longer than its number of tests says, the longest first."""


def group_of(test: str) -> str:
    """The unit that one worker runs as a whole: a costly suite, or a file."""
    if test.startswith(WITH_BROKER):
        return WITH_BROKER[0]
    return next((suite for suite in COSTLY if test.startswith(suite)), test.partition("::")[0])


def next_of(groups: Mapping[str, Mapping[str, Any]]) -> str:
    """The group to begin next."""

    def rank(group: str) -> tuple[int, int]:
        kind = next((i for i, part in enumerate(LONG) if group.startswith(part)), len(LONG))
        return kind, -len(groups[group])

    return min(groups, key=rank)


class GroupScheduling(LoadScopeScheduling):  # type: ignore[misc] # without types
    """Gives each worker group after group."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)

    def _assign_work_unit(self, node: WorkerController) -> None:
        self.workqueue.move_to_end(next_of(self.workqueue), last=False)
        super()._assign_work_unit(node)

    def remove_node(self, node: WorkerController) -> str | None:
        """Take a worker out; the test that it crashed in, which no other worker runs again."""
        workload = self.assigned_work.pop(node)
        left = [
            (unit, test) for unit in workload.values() for test, done in unit.items() if not done
        ]
        if not left:
            return None
        unit, crashed = left[0]
        unit[crashed] = True
        self.workqueue.update({k: v for k, v in workload.items() if not all(v.values())})
        for each in self.assigned_work:
            self._reschedule(each)
        return str(crashed)

    def _reschedule(self, node: WorkerController) -> None:
        """A worker runs a test when it knows the next, or that none follows: one would wait."""
        super()._reschedule(node)
        while not node.shutting_down and self._pending_of(self.assigned_work[node]) < 2:
            if self.workqueue:
                self._assign_work_unit(node)
            else:
                node.shutdown()
