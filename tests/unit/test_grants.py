"""The file of grants: granted epochs are there, however it was written, and it does not grow."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from tidecast.config.topology import TopicConfig
from tidecast.errors import CorruptLog
from tidecast.log import grants
from tidecast.log.grants import GrantLog
from tidecast.node.durable.topic import DurableTopic
from tidecast.protocol.dedup import PRODUCERS_MAX, ProducerTable, producer_id

RECORD = 44


def _granted(table: ProducerTable, log: GrantLog, name: str, line: int = 7) -> int:
    session = table.open(producer_id(name), None, 1_000, line)
    log.append(table.grant(session))
    table.close(session.producer, 1_000)
    return session.epoch


def _loaded(directory: Path) -> ProducerTable:
    table = ProducerTable(1)
    table.load_grants(GrantLog(directory).load())
    return table


def test_a_grant_is_there_with_its_line_and_time(tmp_path: Path) -> None:
    table, log = ProducerTable(1), GrantLog(tmp_path)
    assert [_granted(table, log, "a"), _granted(table, log, "b"), _granted(table, log, "a", 9)] == [
        1,
        1,
        2,
    ]
    found = _loaded(tmp_path).known[producer_id("a")]
    assert (found.epoch, found.line, found.opened_ns) == (2, 9, 1_000)


NOW_NS = 1_700_000_000_000_000_000


@pytest.mark.parametrize(
    ("age_ns", "loaded_ns"),
    [
        (0, 0),
        (1, 1_000_000),
        (86_400_000_000_000, 86_400_000_000_000),
        (10**17, ((1 << 32) - 1) * 1_000_000),
        (-5_000_000_000, 0),
    ],
)
def test_a_grant_keeps_the_age_of_its_ring_apart_from_its_time(
    tmp_path: Path, age_ns: int, loaded_ns: int
) -> None:
    """A producer whose ring is old was seen when its session was granted."""
    table, log = ProducerTable(1, ttl_ns=3_600_000_000_000), GrantLog(tmp_path)
    session = table.open(producer_id("a"), None, NOW_NS, 7, NOW_NS - age_ns)
    assert session.producer.born_ns == NOW_NS - age_ns
    log.append(table.grant(session))
    table = _loaded(tmp_path)
    [found] = table.known.values()
    assert (found.opened_ns, found.born_ns) == (NOW_NS, NOW_NS - loaded_ns)
    assert not table.expire(NOW_NS + 1)
    resumed = table.resume(found.id, 1, 1, NOW_NS + 1, 7, NOW_NS - 9)
    assert resumed.producer.born_ns == NOW_NS - loaded_ns


def test_a_grant_of_a_version_without_ages_is_read(tmp_path: Path) -> None:
    grant = struct.pack("<QQqqq", producer_id("a"), 3, (1 << 31) - 1, 5, NOW_NS)
    GrantLog(tmp_path).append(grant)
    [found] = _loaded(tmp_path).known.values()
    assert (found.epoch, found.line, found.acked_seq) == (3, (1 << 31) - 1, 5)
    assert (found.opened_ns, found.born_ns) == (NOW_NS, NOW_NS)


@pytest.mark.parametrize("cut", [1, 20, RECORD - 1])
def test_a_torn_grant_was_never_told_and_the_next_takes_its_place(tmp_path: Path, cut: int) -> None:
    table, log = ProducerTable(1), GrantLog(tmp_path)
    _granted(table, log, "a")
    _granted(table, log, "b")
    path = tmp_path / grants.GRANTS_NAME
    path.write_bytes(path.read_bytes()[:-cut])
    again, known = GrantLog(tmp_path), ProducerTable(1)
    known.load_grants(again.load())
    assert list(known.known) == [producer_id("a")]
    _granted(known, again, "c")
    assert set(_loaded(tmp_path).known) == {producer_id("a"), producer_id("c")}


def test_damage_before_the_end_is_told(tmp_path: Path) -> None:
    table, log = ProducerTable(1), GrantLog(tmp_path)
    for name in "abc":
        _granted(table, log, name)
    path = tmp_path / grants.GRANTS_NAME
    raw = bytearray(path.read_bytes())
    raw[RECORD + 3] ^= 1
    path.write_bytes(raw)
    with pytest.raises(CorruptLog, match=f"damaged at byte {RECORD}"):
        GrantLog(tmp_path).load()


def test_a_topic_keeps_one_grant_a_producer_and_forgets_with_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grants, "REPLACED_MAX", 16)
    monkeypatch.setattr("os.fsync", lambda fd: None)
    topic = DurableTopic.open(TopicConfig(name="t", mode="durable"), tmp_path, 1)
    topic.producers.producers_max = 8
    path = topic.directory / grants.GRANTS_NAME
    longest = 0
    for n in range(200):
        session = topic.grant(producer_id(f"p{n % 12}"), None, n)
        topic.producers.close(session.producer, n)
        longest = max(longest, path.stat().st_size)
    assert longest <= RECORD * (8 + 17 + 8)
    assert len(topic.producers.granted) == 8
    topic.close()
    again = DurableTopic.open(TopicConfig(name="t", mode="durable"), tmp_path, 1)
    assert path.stat().st_size == RECORD * len(again.producers.granted)
    assert set(again.producers.known) >= set(topic.producers.known)
    again.producers.producers_max = 8
    again.grant(producer_id("one more"), None, 1_000)
    assert len(again.producers.known) == len(again.producers.granted) == 8
    again.close()


def test_a_grant_writes_as_much_with_many_producers_as_with_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, log = ProducerTable(1), GrantLog(tmp_path)
    for n in range(PRODUCERS_MAX):
        table.grant(table.open(producer_id(f"p{n}"), None, n))
    log.rewrite(table.grants())
    written: list[int] = []
    pwrite = os.pwrite

    def noted(fd: int, raw: bytes, at: int) -> int:
        written.append(len(raw))
        return pwrite(fd, raw, at)

    monkeypatch.setattr(os, "pwrite", noted)
    monkeypatch.setattr(grants, "write_atomically", lambda path, raw: written.append(len(raw)))
    for n in range(100):
        _granted(table, log, f"p{n}")
        assert not log.is_long
    assert written == [RECORD] * 100
