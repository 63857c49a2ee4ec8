"""Appends of mirrors: a mark admits a run once, also after a crash; a wrong run does nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.durable import Platform

from tidecast.config.topology import TopicConfig
from tidecast.errors import ConfigError, NotFound
from tidecast.node.consumers.admin import ACTIONS
from tidecast.node.mirroring.appends import NAME_MAX, RUN_BYTES_MAX, source_name
from tidecast.protocol.dedup import ProducerTable, is_mirror, is_placed, mirror_id
from tidecast.queues.adapter import Record, pack, unpack

DAY_NS = 86_400 * 10**9


def run_of(*values: bytes, first: int = 1) -> bytes:
    """A run whose sequences begin with ``first``."""
    return pack([Record(value, key=b"k") for value in values], base_seq=first).tobytes()


class Engine:
    """An inline engine with a durable topic of two queues."""

    def __init__(self, directory: Path) -> None:
        self.platform = Platform(directory, queues=2)

    def perform(self, action: str, **arguments: Any) -> Any:
        node = self.platform.node
        return node.consumers.perform(action, {"topic": "orders", **arguments})

    def append(self, run: bytes, after: int = 0, **more: Any) -> dict[str, Any]:
        given = {"mirror": "m", "source": 0, "queue": 0} | more
        found: dict[str, Any] = self.perform("append_run", run=run, after=after, **given)
        return found

    def marks(self, sources: int = 1) -> list[list[int]]:
        found = self.perform("mirror_marks", mirror="m", sources=sources)
        assert found["queues"] == 2
        rows: list[list[int]] = found["marks"]
        return rows

    def values(self, queue: int = 0) -> list[bytes]:
        self.platform.run()
        log = self.platform.node.durable.topics["orders"].logs[queue]
        with_room = np.zeros(1 << 20, dtype=np.uint8)
        reader, token, found = log.reader(), log.earliest_token, []
        while n := reader.read_block(token, with_room):
            found += [record.payload for _, record in unpack(with_room[:n].copy())]
            token = reader.next_token
        reader.close()
        return found


@pytest.fixture
def engine(short_dir: Path) -> Iterator[Engine]:
    made = Engine(short_dir)
    yield made
    made.platform.node.stop()


def test_a_run_is_appended_once_however_often_it_is_sent(engine: Engine) -> None:
    run = run_of(b"a", b"b")
    assert engine.append(run)["appended"]
    for _ in range(3):
        again = engine.append(run)
        assert (again["appended"], again["mark"]) == (False, 2)
    assert engine.append(run_of(b"c", first=3), after=2)["mark"] == 3
    assert engine.values() == [b"a", b"b", b"c"]


def test_holes_in_the_source_are_holes_in_sequences_alone(engine: Engine) -> None:
    engine.append(run_of(b"a", first=10))
    found = engine.append(run_of(b"b", first=500), after=10)
    assert (found["mark"], found["end"]) == (500, 2)
    assert engine.values() == [b"a", b"b"]


def test_marks_are_of_a_queue_and_a_source(engine: Engine) -> None:
    engine.append(run_of(b"a", first=7))
    engine.append(run_of(b"b", first=4), source=1, queue=1)
    assert engine.marks(3) == [[7, 0], [0, 4], [0, 0]]


def test_marks_survive_a_crash_of_the_engine(engine: Engine) -> None:
    run = run_of(b"a", b"b")
    engine.append(run)
    engine.append(run_of(b"c", first=90), after=2)
    engine.values()
    engine.platform.crash()
    engine.platform.start()
    assert engine.marks() == [[90, 0]]
    assert not engine.append(run)["appended"]
    assert engine.values() == [b"a", b"b", b"c"]


def test_a_run_beyond_the_mark_waits_for_what_is_missing(engine: Engine) -> None:
    found = engine.append(run_of(b"late", first=6), after=5)
    assert (found["appended"], found["mark"]) == (False, 0)
    assert engine.values() == []


def test_a_synced_run_is_durable(engine: Engine) -> None:
    engine.append(run_of(b"a"))
    engine.values()
    found = engine.append(run_of(b"a"))
    assert found["durable"] == found["end"] == 1


def broken(run: bytes, at: int) -> bytes:
    return run[:at] + bytes([run[at] ^ 0xFF]) + run[at + 1 :]


RUN = run_of(b"a", b"b")
BAD: list[tuple[dict[str, Any], str]] = [
    ({"run": b""}, "run: 0"),
    ({"run": "text"}, "run: str"),
    ({"run": bytes(RUN_BYTES_MAX + 1)}, "run: "),
    ({"run": RUN[:-1]}, "batch at byte 0"),
    ({"run": RUN + b"x"}, "batch at byte"),
    ({"run": broken(RUN, len(RUN) - 1)}, "batch at byte 0"),
    ({"run": RUN, "after": 5}, "do not ascend above 5"),
    ({"run": RUN + RUN}, "do not ascend above 2"),
    ({"run": RUN, "after": -1}, "after: -1"),
    ({"run": RUN, "queue": -1}, "queue: -1"),
    ({"run": RUN, "queue": "0"}, "queue: '0'"),
    ({"run": RUN, "source": 1 << 20}, "source: "),
    ({"run": RUN, "mirror": ""}, "mirror: ''"),
    ({"run": RUN, "mirror": "m" * (NAME_MAX + 1)}, "mirror: "),
]


@pytest.mark.parametrize(("given", "said"), BAD)
def test_a_wrong_run_names_its_fault_and_changes_nothing(
    engine: Engine, given: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        engine.append(**given)
    assert engine.marks() == [[0, 0]]
    assert engine.values() == []


def test_bytes_of_any_kind_are_refused(engine: Engine) -> None:
    rng = np.random.default_rng(7)
    for _ in range(300):
        run = bytearray(RUN)
        for at in rng.integers(0, len(run), size=rng.integers(1, 6)):
            run[at] = rng.integers(0, 256)
        if bytes(run) != RUN:
            with pytest.raises(ConfigError):
                engine.append(bytes(run))
    assert engine.values() == []


def test_a_queue_or_topic_that_is_not_there(engine: Engine) -> None:
    with pytest.raises(NotFound, match="has 2 queues"):
        engine.append(RUN, queue=2)
    with pytest.raises(NotFound, match=r"no such topic \(did you mean orders\?\)"):
        engine.append(RUN, topic="order")
    engine.platform.node.create_topic(TopicConfig(name="ticks"))
    with pytest.raises(ConfigError, match="topic ticks: mode: live: a mirror needs durable"):
        engine.append(RUN, topic="ticks")


def test_mirrors_are_never_forgotten_for_being_silent() -> None:
    table = ProducerTable(queues=1, ttl_ns=DAY_NS)
    made = table.placed(mirror_id(source_name("m", 0)))
    made.note_placed(1, now_ns=1)
    assert is_mirror(made.id)
    assert is_placed(made.id)
    assert table.expire(1000 * DAY_NS) == []
    assert "append_run" in ACTIONS
