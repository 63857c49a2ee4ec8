"""Answers at the pace of a client that sleeps, and short waits for a client that comes back."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.support.kafka import Bare, Served, batch_of

from tidecast.kafka.answers import pacing as module
from tidecast.kafka.answers.pacing import QUEUE_BYTES, QUEUE_RECORDS, RECENT_MAX, Recent
from tidecast.kafka.schemas import tables

ANSWER, ANSWER_S, SLEEP_S = 0.38, 0.015, 1.0
"""Share of a client's queue in an answer, time of a round trip, librdkafka's backoff."""


@dataclass(eq=False)
class FakeLog:
    """The part of a log that pacing needs."""

    durable_token: int


def rate(drain: float, *, paced: bool, seconds: float = 30.0) -> float:
    """Queues a second that an application gets that takes ``drain`` of them a second."""
    now_s, queue, got, offset = 0.0, 0.0, 0.0, 0
    recent, log = Recent(lambda: now_s), FakeLog(durable_token=1 << 60)

    def passes(some_s: float) -> None:
        nonlocal now_s, queue, got
        taken = min(queue, drain * some_s)
        now_s, queue, got = now_s + some_s, queue - taken, got + taken

    while now_s < seconds:
        if paced:
            passes(recent.delay_s())
        passes(ANSWER_S)
        queue += ANSWER
        behind = offset + int(ANSWER * QUEUE_RECORDS)
        recent.answered([(log, offset, behind, log.durable_token)], 1)  # type: ignore[list-item]
        offset = behind
        if queue >= 1.0:
            passes(SLEEP_S)
    return got / now_s


@pytest.mark.parametrize("drain", [0.2, 1.0, 2.0, 4.0, 6.0, 9.0, 12.0, 20.0])
def test_an_application_runs_dry_less_often_than_without_a_pace(drain: float) -> None:
    paced, without = rate(drain, paced=True), rate(drain, paced=False)
    assert paced >= 0.97 * without
    if 4 <= drain <= 12:
        assert paced >= 0.6 * drain
        assert paced >= 1.9 * without


def test_a_reader_at_the_end_is_never_paced_and_a_delay_has_a_limit() -> None:
    now_s = 0.0
    recent, log = Recent(lambda: now_s), FakeLog(durable_token=9)
    row: Any = (log, 0, 1 << 40, 1 << 41)
    for _ in range(10):
        recent.answered([row], 1)
        assert 0 <= recent.delay_s() <= module.DELAY_S_MAX
    assert recent.delay_s() == module.DELAY_S_MAX
    recent.answered([(log, 0, 9, 9)], QUEUE_BYTES)  # type: ignore[list-item]
    assert recent.delay_s() == 0


def test_large_records_fill_a_queue_by_their_bytes() -> None:
    now_s = 0.0
    recent, log = Recent(lambda: now_s), FakeLog(durable_token=9)
    for _ in range(2):
        recent.answered([(log, 0, 1, 9)], QUEUE_BYTES // 2)  # type: ignore[list-item]
    assert recent.delay_s() == pytest.approx((1.5 - module.FULL) / module.DRAIN_FIRST)
    now_s = 0.1
    assert recent.delay_s() == 0


def test_a_bounded_number_of_partitions_is_remembered_for_a_while() -> None:
    now_s = 0.0
    recent = Recent(lambda: now_s)
    logs: Any = [FakeLog(durable_token=9) for _ in range(RECENT_MAX + 1)]
    for log in logs:
        recent.answered([(log, 0, 5, 9)], 1)
    assert not recent.left_out(set(logs[1:]))
    assert recent.left_out(set(logs[2:]))
    logs[1].durable_token = 5
    assert not recent.left_out(set(logs[2:]))
    now_s = module.RECENT_S + 0.1
    assert not recent.left_out(set())
    recent.answered([(logs[0], 5, 5, 9)], 0)
    assert not recent.left_out(set())


# --- over a socket --------------------------------------------------------------------------------


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    made = Served(tmp_path, [{"name": "t", "mode": "durable", "queues": 2, "fsync": "none"}])
    yield made
    made.close()


@pytest.fixture
def bare(served: Served) -> Iterator[Bare]:
    made = served.bare()
    for _ in range(3):
        made.produce("t", 0, batch_of(bytes(1000)))
    yield made
    made.close()


def test_a_wait_is_short_for_a_client_that_left_out_what_it_reads(
    served: Served, bare: Bare
) -> None:
    """The second Fetch waited for `max_wait_ms`; the client reads on in queue 0 behind it alone."""
    assert bare.fetch("t", 0, 0, bytes_max=100)["records"]
    begun_s = time.monotonic()
    assert not bare.fetch("t", 1, 0, max_wait_ms=50_000, min_bytes=1)["records"]
    assert time.monotonic() - begun_s < 20
    assert served.endpoint.counters.of("fetches_cut_short") == 1
    assert len(bare.fetch("t", 0, 1)["records"]) > 2000  # to the end
    assert not bare.fetch("t", 1, 0, max_wait_ms=100, min_bytes=1)["records"]
    assert served.endpoint.counters.of("fetches_cut_short") == 1


@pytest.mark.parametrize(("software", "paced"), [("librdkafka", 1), ("apache-kafka-java", 0)])
def test_a_client_that_sleeps_is_paced(
    served: Served, bare: Bare, monkeypatch: pytest.MonkeyPatch, software: str, paced: int
) -> None:
    monkeypatch.setattr(module, "QUEUE_RECORDS", 1)
    body = {"client_software_name": software, "client_software_version": "1"}
    assert bare.ask(tables.API_VERSIONS, 3, body)["error_code"] == 0
    for offset in range(3):
        assert bare.fetch("t", 0, offset, bytes_max=100)["records"]
    assert (served.endpoint.counters.of("fetches_paced") > 0) == bool(paced)
