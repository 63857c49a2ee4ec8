"""Records that come again although they were acked: after a kill -9 only those of the last 100 ms.

A consumer notes each record with the time, then acks it. A record that is noted again was acked at
the time of its last note, or a moment later; the age of that ack at the kill is bounded. An ack
after the kill, of a record that was in the consumer's ring then, reaches no engine.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from typing import Any

import pytest
from tests.conftest import Eventually
from tests.support.lab import Lab, Platform, topology
from tests.support.patience import machine_share
from tests.support.process import Child
from tests.support.progress import progress_file
from tests.support.roles import MARKED

pytestmark = pytest.mark.long
TOPIC: dict[str, Any] = {
    "name": "orders",
    "mode": "durable",
    "queues": 3,
    "fsync": "batch",
    "fsync_interval_ms": 5,
}
NOTED = struct.Struct(f"<Q{MARKED.size}s")
BOUND_S = 0.1
"""Promised: positions are saved so often."""
SLACK_S = 0.2
"""From the note to the ack, and from a save that is due to the disk, on a machine that is free."""
KILLS, WAIT_S = 12, 60.0


class Run:
    """An engine, a producer and a consumer, and when which of them was killed."""

    def __init__(self, lab: Lab, eventually: Eventually) -> None:
        self.lab, self.eventually = lab, eventually
        self.platform: Platform = lab.platform(
            topology({"name": "ipc", "kind": "ipc"}, topics=[TOPIC])
        )
        self.seen, self.progress = lab.directory / "seen", lab.directory / "progress"
        self.seen.touch()
        progress_file(self.progress)
        arguments = ("orders", "1", str(self.progress), "0.002")
        self.producer = lab.role("keyed", self.platform.url, *arguments)
        self.consumer = self.begin_consumer()
        self.kills: list[tuple[int, float]] = []
        """(monotonic time in ns, share of the processors that a task got)."""

    def begin_consumer(self) -> Child:
        return self.lab.role("note", self.platform.url, "orders", str(self.seen))

    def notes(self) -> Iterator[tuple[int, bytes]]:
        raw = self.seen.read_bytes()
        yield from NOTED.iter_unpack(raw[: len(raw) // NOTED.size * NOTED.size])

    def until_more(self, records: int) -> None:
        goal = self.seen.stat().st_size + records * NOTED.size
        self.eventually(
            lambda: self.seen.stat().st_size >= goal, "records are consumed", timeout_s=WAIT_S
        )

    def kill(self, what: str) -> None:
        """`engine`, `consumer`, or both."""
        self.kills.append((time.monotonic_ns(), machine_share()))
        if "engine" in what:
            self.platform.kill()
        if "consumer" in what:
            self.consumer.kill()
            whole = self.seen.stat().st_size // NOTED.size * NOTED.size
            with self.seen.open("r+b") as file:
                file.truncate(whole)
        if "engine" in what:
            self.platform.start()
        if "consumer" in what:
            self.consumer = self.begin_consumer()

    def repeats(self) -> list[tuple[float, float]]:
        """(age of the ack at the kill before the repeat, the bound then), of each repeat."""
        acked: dict[bytes, int] = {}
        found = []
        for at_ns, record in self.notes():
            if record in acked:
                kill_ns, share = max(each for each in self.kills if each[0] < at_ns)
                found.append(((kill_ns - acked[record]) / 1e9, (BOUND_S + SLACK_S) / share))
            acked[record] = at_ns
        return found


@pytest.mark.timeout(600)
@pytest.mark.parametrize("what", ["engine", "consumer", "engine and consumer"])
def test_only_acks_of_the_last_moment_are_repeated(
    lab: Lab, eventually: Eventually, what: str
) -> None:
    run = Run(lab, eventually)
    for _ in range(KILLS):
        run.until_more(3_000)
        run.kill(what)
    run.until_more(3_000)
    run.producer.tell("stop")
    last = int(run.producer.line("the producer's last ack", WAIT_S).removeprefix("durable "))
    eventually(
        lambda: len({record for _, record in run.notes()}) >= last, "all records", timeout_s=WAIT_S
    )
    run.consumer.kill()
    repeats = run.repeats()
    late = [(age, bound) for age, bound in repeats if age > bound]
    assert not late, f"{len(late)} of {len(repeats)}: (age of the ack, bound): {sorted(late)[-5:]}"
    numbers = sorted(MARKED.unpack(record)[1] for record in {record for _, record in run.notes()})
    assert numbers == list(range(1, last + 1))
