"""Every adapter passes the conformance suite; the generator's records and faults."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from tests.support.punched import Punched, PunchedAdapter

from tidecast.errors import StorageError
from tidecast.queues import conformance
from tidecast.queues.adapter import Adapter, EmbeddedAdapter, pack, unpack
from tidecast.queues.generator import LEAD, GeneratorAdapter, Recipe, payload_of


class Embedded:
    def __init__(self, directory: Path, fsync: str) -> None:
        self.directory, self.fsync = directory, fsync

    def open(self) -> EmbeddedAdapter:
        return EmbeddedAdapter.open(
            self.directory, topic="orders", queues=2, fsync=self.fsync, segment_bytes=1 << 16
        )

    fill = staticmethod(conformance.fill_by_sender)


class Generated:
    def __init__(self, hole: int = 0) -> None:
        self.counts, self.hole = [0, 0], hole

    def open(self) -> GeneratorAdapter:
        recipe = Recipe(seed=3, payload_min=16, payload_max=300, hole=self.hole)
        adapter = GeneratorAdapter(2, 0, recipe)
        for queue, count in enumerate(self.counts):
            adapter.grow(queue, count)
        return adapter

    def fill(self, adapter: Adapter, queue: int, count: int) -> None:
        assert isinstance(adapter, GeneratorAdapter)
        adapter.grow(queue, count)
        self.counts[queue] += count


@pytest.mark.parametrize("fsync", ["none", "interval", "batch"])
@pytest.mark.parametrize("check", conformance.CHECKS)
def test_embedded(check: str, fsync: str, tmp_path: Path) -> None:
    conformance.run(check, Embedded(tmp_path, fsync))


@pytest.mark.parametrize("hole", [0, 1, 100_000])
@pytest.mark.parametrize("check", conformance.CHECKS)
def test_generator(check: str, hole: int) -> None:
    conformance.run(check, Generated(hole))


class PunchedSubject:
    def __init__(self) -> None:
        self.queues = [Punched(), Punched()]

    def open(self) -> PunchedAdapter:
        return PunchedAdapter(*self.queues)

    def fill(self, adapter: Adapter, queue: int, count: int) -> None:
        del adapter
        for begin in range(0, count, 7):
            self.queues[queue].add(begin % 5, min(7, count - begin))


@pytest.mark.parametrize("check", conformance.CHECKS)
def test_holes_of_any_length(check: str) -> None:
    conformance.run(check, PunchedSubject())


class Broken(Embedded):
    """Adapters with one fault each, to see that the suite finds it."""

    def __init__(self, directory: Path, fault: str) -> None:
        super().__init__(directory, "none")
        self.fault = fault

    def open(self) -> EmbeddedAdapter:
        adapter: Any = super().open()
        receiver_of, sender_of = adapter.receiver, adapter.sender

        def receiver(queue: int) -> Any:
            made: Any = receiver_of(queue)
            receive, latest, at_time = made.receive, made.latest, made.at_time
            match self.fault:
                case "skips":
                    made.receive = lambda t, b, s: receive(t + 60 if t == 150 else t, b, s)
                case "sleeps":
                    made.receive = lambda t, b, s: receive(t, b, 0.0)
                case "off by one":
                    made.latest = lambda: latest() + 1
                case "late":
                    made.at_time = lambda t: min(at_time(t) + 60, latest())
            return made

        def sender(queue: int, owner: int) -> Any:
            return sender_of(queue, 2**20 if self.fault == "unfenced" else owner)

        adapter.receiver, adapter.sender = receiver, sender
        return cast("EmbeddedAdapter", adapter)


@pytest.mark.parametrize(
    ("fault", "check"),
    [
        ("skips", "any_token"),
        ("sleeps", "wakes_up"),
        ("off by one", "in_order"),
        ("late", "by_time"),
        ("unfenced", "fences"),
    ],
)
def test_the_suite_finds_faults(
    fault: str, check: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conformance, "TIMEOUT_S", 1.0)  # for a record that never comes
    with pytest.raises(AssertionError):
        conformance.run(check, Broken(tmp_path, fault))


def test_generated_records_depend_on_nothing_but_seed_queue_and_number() -> None:
    recipe = Recipe(seed=5, payload_min=20, payload_max=90, keys=10, batch_records=7)
    buffer = np.zeros(1 << 16, dtype=np.uint8)
    whole = GeneratorAdapter(2, 100, recipe).receiver(1).receive(0, buffer, 0.0)
    found = unpack(buffer[: whole.bytes])
    assert len(found) == 100
    for token, record in found:
        assert LEAD.unpack_from(record.payload) == (token, 1)
        assert 20 <= len(record.payload) <= 90
        assert record.payload == payload_of(recipe, 1, token)
        assert record.time_ns == recipe.start_ns + token * recipe.period_ns
    assert len({record.key for _, record in found}) == 10
    other = GeneratorAdapter(2, 100, Recipe(seed=6, payload_min=20, payload_max=90))
    got = other.receiver(1).receive(0, buffer, 0.0)
    assert unpack(buffer[: got.bytes])[0][1].payload[16:] != found[0][1].payload[16:]


def test_round_trips_and_faults_are_injected_before_each_receive() -> None:
    waits: list[float] = []

    def fault(call: int) -> Exception | None:
        return StorageError("planted", 5) if call == 1 else None

    adapter = GeneratorAdapter(1, 1000, round_trip_s=0.03, wait=waits.append, fault=fault)
    receiver, buffer = adapter.receiver(0), np.zeros(1 << 14, dtype=np.uint8)
    got = receiver.receive(0, buffer, 0.0)
    with pytest.raises(StorageError, match="planted"):
        receiver.receive(got.next_token, buffer, 0.0)
    again = receiver.receive(got.next_token, buffer, 0.0)
    assert unpack(buffer[: again.bytes])[0][0] == got.next_token, "nothing was lost by the fault"
    assert (waits, receiver.calls) == ([0.03] * 3, 3)
    assert receiver.bytes == got.bytes + again.bytes


def test_packing_splits_into_batches_and_keeps_everything() -> None:
    given = [conformance.sample(i) for i in range(2500)]
    found = unpack(pack(given, first_token=7))
    assert [token for token, _ in found] == list(range(7, 2507))
    assert [record for _, record in found] == given
    assert pack([]).size == 0
