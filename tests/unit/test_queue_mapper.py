"""Queue mapper: the hash is the published one, tables are even, and growth moves the least."""

from __future__ import annotations

import hashlib
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidecast.errors import ConfigError
from tidecast.native.jit import kernel
from tidecast.queues import mapper
from tidecast.queues.mapper import SLOTS, Growth, QueueMap, hash_of, table_of

MURMUR3 = [
    (b"", 0),
    (b"\0\0\0\0", 0x2362F9DE),
    (b"test", 0xBA6BD213),
    (b"Hello, world!", 0xC0363E43),
    (b"The quick brown fox jumps over the lazy dog", 0x2E4FF723),
    (b"abc", 0xB3DD93FA),
]


@kernel
def queues_of(table, hashes, out):  # type: ignore[no-untyped-def]
    for i in range(hashes.size):
        out[i] = mapper.queue_of(table, hashes[i])


def reference(key: bytes) -> int:
    """MurmurHash3 x86_32 as its paper of code says, in plain Python."""

    def rotl(x: int, r: int) -> int:
        return (x << r | x >> (32 - r)) & 0xFFFFFFFF

    h = 0
    for i in range(0, len(key), 4):
        part = key[i : i + 4]
        k = int.from_bytes(part, "little") * 0xCC9E2D51 & 0xFFFFFFFF
        h ^= rotl(k, 15) * 0x1B873593 & 0xFFFFFFFF
        if len(part) == 4:
            h = (rotl(h, 13) * 5 + 0xE6546B64) & 0xFFFFFFFF
    h ^= len(key)
    h = (h ^ h >> 16) * 0x85EBCA6B & 0xFFFFFFFF
    h = (h ^ h >> 13) * 0xC2B2AE35 & 0xFFFFFFFF
    return h ^ h >> 16


@pytest.mark.parametrize(("key", "expected"), MURMUR3)
def test_golden_hashes(key: bytes, expected: int) -> None:
    assert hash_of(key) == reference(key) == expected


@given(st.binary(max_size=40), st.binary(max_size=9))
def test_hash_is_of_the_range_alone(key: bytes, around: bytes) -> None:
    data = np.frombuffer(bytearray(around + key + around + b"x"), dtype=np.uint8)
    assert mapper.hash_bytes(data, len(around), len(key)) == reference(key) == hash_of(key)


@settings(max_examples=25)
@given(st.integers(1, 300), st.integers(1, 40))
def test_growth_moves_the_least_and_only_into_new_queues(queues: int, more: int) -> None:
    before, after = table_of(queues), table_of(queues + more)
    moved = before != after
    assert (after[moved] >= queues).all()
    assert (after[~moved] < queues).all()
    held = np.bincount(after, minlength=queues + more)
    assert held.max() - held.min() <= 1
    assert moved.sum() == held[queues:].sum()
    if more == 1:
        assert moved.sum() == SLOTS // (queues + 1)


def test_keys_are_spread_evenly() -> None:
    hashes = np.array([hash_of(b"customer-%d" % i) for i in range(20_000)], dtype=np.int64)
    out = np.zeros_like(hashes)
    for queues in (2, 8, 50):
        queues_of(table_of(queues), hashes, out)
        counts = np.bincount(out, minlength=queues)
        mean = len(hashes) / queues
        assert np.abs(counts - mean).max() < 5 * mean**0.5


def test_the_largest_topic_is_even() -> None:
    held = np.bincount(table_of(mapper.QUEUES_MAX))
    assert held.tolist() == [SLOTS // mapper.QUEUES_MAX] * mapper.QUEUES_MAX


def digest(queues: int) -> str:
    return hashlib.sha256(table_of(queues).tobytes()).hexdigest()[:16]


def test_all_processes_and_versions_agree() -> None:
    """A table is never stored: another one would route the keys of every topic elsewhere."""
    code = (
        "from tests.unit.test_queue_mapper import digest; import sys; sys.stdout.write(digest(8))"
    )
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert other.stdout == digest(8) == GOLDEN_8
    assert digest(100) == GOLDEN_100


GOLDEN_8, GOLDEN_100 = "a692be2c766645f7", "9418d675dbb99443"


@pytest.mark.parametrize("queues", [-1, 0, mapper.QUEUES_MAX + 1])
def test_counts_out_of_range(queues: int) -> None:
    with pytest.raises(ConfigError, match=f"queues: {queues}: give 1 to 4096"):
        table_of(queues)


def test_a_new_queue_waits_until_what_lies_before_it_is_settled() -> None:
    grown = QueueMap(2).grown(3, [10, 20]).grown(5, [15, 25, 7])
    assert (grown.queues, grown.epoch) == (5, 2)
    assert grown.blocked_by(0, [0, 0, 0, 0, 0]) == []
    assert grown.blocked_by(2, [9, 20, 0, 0, 0]) == [0]
    assert grown.blocked_by(2, [10, 20, 0, 0, 0]) == []
    assert grown.blocked_by(4, [10, 20, 6, 0, 0]) == [0, 1, 2]
    assert grown.blocked_by(4, [15, 30, 7, 0, 0]) == []


@settings(max_examples=30)
@given(st.lists(st.integers(1, 3), min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_order_by_key_holds_across_growths(steps: list[int], chance: object) -> None:
    """Records are appended while the topic grows; a subscription that obeys the gate, and else
    reads queues in any order, sees each key's records in the order they were appended in."""
    import random

    assert isinstance(chance, random.Random)
    keys = [b"k%d" % i for i in range(30)]
    hashes = np.array([hash_of(k) for k in keys], dtype=np.int64)
    topic = QueueMap(1)
    logs: list[list[tuple[int, int]]] = [[]]
    serial = 0
    for step in steps:
        out = np.zeros_like(hashes)
        queues_of(topic.table(), hashes, out)
        for _ in range(40):
            k = chance.randrange(len(keys))
            logs[out[k]].append((k, serial))
            serial += 1
        topic = topic.grown(topic.queues + step, [len(log) for log in logs])
        logs += [[] for _ in range(step)]
    settled = [0] * topic.queues
    seen: dict[int, int] = {}
    while any(settled[q] < len(log) for q, log in enumerate(logs)):
        ready = [
            q
            for q, log in enumerate(logs)
            if settled[q] < len(log) and not topic.blocked_by(q, settled)
        ]
        queue = chance.choice(ready)
        key, at = logs[queue][settled[queue]]
        assert seen.get(key, -1) < at
        seen[key] = at
        settled[queue] += 1


def test_maps_that_cannot_be() -> None:
    with pytest.raises(ConfigError, match="queues only grow"):
        QueueMap(4).grown(3, [0] * 4)
    with pytest.raises(ConfigError, match="a cut for each of the 4"):
        QueueMap(4).grown(5, [0] * 3)
    with pytest.raises(ConfigError, match="must lead from 2"):
        QueueMap(2, (Growth(3, 4, (0, 0, 0)),))


def test_a_map_is_stored_as_it_is() -> None:
    import msgspec

    grown = QueueMap(2).grown(3, [10, 20])
    assert msgspec.json.decode(msgspec.json.encode(grown), type=QueueMap) == grown
