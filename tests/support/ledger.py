"""Accounts of keyed records: acks of producers, notes of consumers, rows of the log.

For the roles `keyed` and `note` of `tests.support.roles`.
"""

from __future__ import annotations

import itertools
import struct
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support.durable import rows_of
from tests.support.progress import noted
from tests.support.roles import KEYS, MARKED
from tidecast.config.topology import TopicConfig
from tidecast.node.durable.topic import DurableTopic

NOTED = struct.Struct("<QQQ")
"""When a consumer got a record; its producer; its number."""


def durable(progress: Sequence[Path]) -> list[int]:
    """Up to which number each producer's records are durable."""
    return [noted(path) for path in progress]


def events(seen: Sequence[Path]) -> list[tuple[int, int, int]]:
    """The notes of all consumers, in the order of time."""
    found = []
    for path in seen:
        raw = path.read_bytes()
        found += list(NOTED.iter_unpack(raw[: len(raw) // NOTED.size * NOTED.size]))
    return sorted(found, key=lambda each: each[0])


def numbers_of(seen: Sequence[Path]) -> set[tuple[int, int]]:
    """Producers and numbers that were noted."""
    return {(mark, number) for _, mark, number in events(seen)}


def all_of(last: Sequence[int]) -> set[tuple[int, int]]:
    """Producers and numbers, up to the last of each."""
    return {(mark, n) for mark, most in enumerate(last) for n in range(1, most + 1)}


def first_deliveries_keep_order(seen: Sequence[Path]) -> None:
    """A record that is new to the group is the next of its key; others were delivered before."""
    newest: dict[tuple[int, int], int] = {}
    for _, mark, number in events(seen):
        key = mark, number % KEYS
        before = newest.get(key, 0)
        if number > before:
            assert number == (before + KEYS if before else number), (key, before, number)
            assert before or number <= KEYS
            newest[key] = number


def one_owner_at_a_time(moves: Sequence[Any]) -> None:
    """Each owner took the topic from the one before, later, with a higher epoch. Oldest first."""
    for before, after in itertools.pairwise(moves):
        assert after["from_node"] == before["to_node"]
        assert int(after["epoch"]) > int(before["epoch"])
        assert before["taken_at"] <= after["at"] <= after["taken_at"]


def log_is_whole(shared: Path, topic: dict[str, Any], last: Sequence[int]) -> None:
    """Each record once, each key in one queue and in order."""
    config = TopicConfig(**{**topic, "owner": ""})
    opened = DurableTopic.open(config, shared, time.time_ns(), owner=1000, name="test")
    rows = rows_of(opened)
    opened.close()
    newest: dict[bytes, tuple[int, int]] = {}
    for queue, _, key, payload, _ in rows:
        assert key is not None
        mark, number = MARKED.unpack_from(payload)
        assert key == f"{mark}-{number % KEYS}".encode()
        there, before = newest.get(key, (queue, 0))
        assert there == queue
        assert number == before + KEYS if before else number <= KEYS, (key, before, number)
        newest[key] = queue, number
    assert len(rows) == sum(last)
