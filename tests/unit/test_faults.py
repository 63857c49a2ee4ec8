"""Fault injection: rates as told, the same for the same seed, in an order that delays allow."""

from __future__ import annotations

import numpy as np
import pytest
from tests.support import packets as packet_builder

from tidecast.layout.counters import COLUMNS, Counter
from tidecast.native.jit import kernel
from tidecast.transport import faults as fault_table

N = 40_000
QUIET = {
    "drop": 0.0,
    "duplicate": 0.0,
    "reorder": 0.0,
    "corrupt": 0.0,
    "delay_ns": 0,
    "cut_nodes": [],
    "seed": 7,
}

faults_of = fault_table.FAULTS.of


@kernel
def judged(words, counters, buffer, name, n, verdicts, now_ns):  # type: ignore[no-untyped-def]
    faults = faults_of(words)
    for i in range(verdicts.size):
        verdicts[i] = fault_table.fault_verdict(faults, counters, 0, buffer, 0, n, name, now_ns)
        while True:
            held = fault_table.due_held(faults, now_ns)
            if held < 0:
                break
            fault_table.forget_held(faults, held)
        fault_table.packet_passed(faults)


@kernel
def hold(words, counters, buffer, name, n, now_ns):  # type: ignore[no-untyped-def]
    faults = faults_of(words)
    return fault_table.fault_verdict(faults, counters, 0, buffer, 0, n, name, now_ns)


@kernel
def due(words, now_ns, out):  # type: ignore[no-untyped-def]
    faults = faults_of(words)
    i = fault_table.due_held(faults, now_ns)
    if i < 0:
        return -1
    n = faults.held[i, 2]
    for k in range(n):
        out[k] = faults.held_bytes[i, k]
    fault_table.forget_held(faults, i)
    return n


class Bench:
    def __init__(self, **settings: object) -> None:
        self.faults = fault_table.no_faults()
        fault_table.apply_faults(self.faults, **{**QUIET, **settings})  # type: ignore[arg-type]
        self.counters = np.zeros((1, COLUMNS), dtype=np.int64)
        self.name = np.zeros(16, dtype=np.uint8)

    def count(self, counter: Counter) -> int:
        return int(self.counters[0, counter])

    def judge(self, n: int = N, packet: bytes = b"") -> np.ndarray:
        raw = np.frombuffer(
            packet or packet_builder.data(packet_builder.message(b"x" * 64)), dtype=np.uint8
        ).copy()
        verdicts = np.zeros(n, dtype=np.int64)
        judged(self.faults.words, self.counters, raw, self.name, raw.size, verdicts, 1000)
        return verdicts


@pytest.mark.parametrize("rate", [0.001, 0.01, 0.05, 0.5])
def test_rates_are_as_told(rate: float) -> None:
    sigma = (N * rate * (1 - rate)) ** 0.5
    bench = Bench(drop=rate)
    lost = int((bench.judge() == fault_table.SWALLOWED).sum())
    assert abs(lost - N * rate) < 5 * sigma
    assert bench.count(Counter.FAULTS_DROPPED) == lost
    assert bench.count(Counter.FAULTS_DROPPED_BYTES) == lost * 100
    bench = Bench(duplicate=rate)
    assert abs(int((bench.judge() == fault_table.DELIVER_TWICE).sum()) - N * rate) < 5 * sigma
    bench = Bench(corrupt=rate)
    spoiled = int((bench.judge() == fault_table.SWALLOWED).sum())
    assert abs(spoiled - N * rate) < 5 * sigma
    assert bench.count(Counter.INVALID_CHECKSUM) == spoiled
    bench = Bench(reorder=rate)
    bench.judge()
    assert abs(bench.count(Counter.FAULTS_DELAYED) - N * rate) < 5 * sigma


def test_the_same_seed_gives_the_same_verdicts() -> None:
    settings = {"drop": 0.1, "duplicate": 0.1, "reorder": 0.1}
    one, two = Bench(**settings).judge(), Bench(**settings).judge()
    assert (one == two).all()
    other = Bench(**settings, seed=8).judge()
    assert (one != other).any()


def test_all_is_lost_and_nothing_is() -> None:
    assert (Bench(drop=1.0).judge(1000) == fault_table.SWALLOWED).all()
    assert (Bench().judge(1000) == fault_table.DELIVER).all()
    assert Bench().faults.settings[fault_table.F_ON] == 0
    assert Bench(cut_nodes=[3]).faults.settings[fault_table.F_ON] == 1


def test_only_the_nodes_that_are_cut_off_are() -> None:
    bench = Bench(cut_nodes=[3, 63, 64, 65_534])
    for node, verdict in ((3, 0), (4, 1), (63, 0), (64, 0), (65, 1), (65_534, 0), (65_533, 1)):
        packet = packet_builder.heartbeat(source=node)
        assert bench.judge(1, packet)[0] == verdict, node


def test_delay_keeps_order_and_time() -> None:
    bench = Bench(delay_ns=500)
    packets = [packet_builder.data(packet_builder.message(b"m%d" % i), seq=i) for i in range(5)]
    for i, packet in enumerate(packets):
        raw = np.frombuffer(packet, dtype=np.uint8).copy()
        verdict = hold(bench.faults.words, bench.counters, raw, bench.name, raw.size, 1000 + i * 10)
        assert verdict == fault_table.SWALLOWED
    out = np.zeros(1400, dtype=np.uint8)
    assert due(bench.faults.words, 1499, out) == -1
    found = []
    for now in range(1500, 1545):
        n = int(due(bench.faults.words, now, out))
        if n > 0:
            found.append((now, out[:n].tobytes()))
    assert found == [(1500 + i * 10, packet) for i, packet in enumerate(packets)]


def test_what_finds_no_room_to_wait_is_delivered() -> None:
    bench = Bench(delay_ns=500)
    raw = np.frombuffer(packet_builder.heartbeat(), dtype=np.uint8).copy()
    verdicts = [
        int(hold(bench.faults.words, bench.counters, raw, bench.name, raw.size, 1))
        for _ in range(fault_table.HELD_MAX + 3)
    ]
    assert verdicts == [fault_table.SWALLOWED] * fault_table.HELD_MAX + [fault_table.DELIVER] * 3


def test_packets_too_short_to_be_ours_are_judged_too() -> None:
    bench = Bench(drop=1.0)
    assert bench.judge(1, b"x")[0] == fault_table.SWALLOWED
    assert bench.count(Counter.FAULTS_DROPPED_BYTES) == 0
