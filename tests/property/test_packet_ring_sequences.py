"""Any sequence of appends, batches, polls and early seals delivers the messages, in order."""

from __future__ import annotations

import itertools
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st
from tests.support.patience import Patience
from tests.unit.test_packet_ring import ROOM, SLOTS, Ring

from tidecast.buffers import reader, writer
from tidecast.buffers.slots import control_at, control_word
from tidecast.layout import packet as wire
from tidecast.layout import ring as lay
from tidecast.native.atomics import compare_and_swap, load_acquire
from tidecast.native.jit import kernel

SIZES = st.one_of(
    st.integers(0, 80),
    st.integers(ROOM - 3, ROOM + 3),
    st.integers(0, SLOTS // 4 * ROOM),
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), SIZES, st.booleans()),
        st.tuples(st.just("batch"), st.lists(SIZES, max_size=40), st.booleans()),
        st.tuples(st.just("poll"), st.integers(1, 64), st.booleans()),
        st.tuples(st.just("seal"), st.just(0), st.booleans()),
        st.tuples(st.just("flush"), st.just(0), st.booleans()),
    ),
    max_size=60,
)


class Run:
    """One ring and what went in and came out."""

    def __init__(self, directory: Path, has_network: bool, first: int) -> None:
        self.ring = Ring(directory, has_network=has_network, first=first)
        self.ring.word(lay.NETWORK_LIMIT_AT)[0] = 1 << 60
        self.reader = self.ring.reader()
        self.sent: list[bytes] = []
        self.found: list[bytes] = []
        self.numbers = itertools.count()

    def payload(self, size: int) -> bytes:
        stamp = next(self.numbers).to_bytes(4, "little")
        return (stamp * (size // 4 + 1))[:size]

    def append(self, size: int, flush: bool) -> None:
        payload = self.payload(size)
        while (status := self.ring.append(payload, flush=flush)) == writer.FULL:
            self.poll(64)
        assert status >= 0
        self.sent.append(payload)

    def batch(self, sizes: list[int]) -> None:
        payloads = [self.payload(size) for size in sizes]
        done = np.zeros(2, dtype=np.int64)
        while self.ring.batch(payloads, done)[0] == writer.FULL:
            self.poll(64)
        assert done[0] == len(payloads)
        self.sent += payloads

    def poll(self, limit: int) -> bool:
        got = self.reader.poll(limit)
        assert isinstance(got, list), f"a gap: {got}"
        self.found += got
        return bool(got)

    def step(self, kind: str, what: Any, flag: bool) -> None:
        actions: dict[str, Callable[[], Any]] = {
            "append": lambda: self.append(what, flag),
            "batch": lambda: self.batch(what),
            "poll": lambda: self.poll(what),
            "seal": self.ring.seal_as_sender,
            "flush": lambda: writer.flush_open(self.ring.ring, self.ring.bells, self.ring.w),
        }
        actions[kind]()

    def drain(self) -> None:
        while self.poll(64):
            pass
        # a poll that only steps over a sealed packet returns nothing, once
        while self.poll(64):
            pass


FIRST = st.sampled_from([0, 1, 5, (1 << 31) - 7, (1 << 31) + 3, (1 << 40) + 1])


@hypothesis.settings(max_examples=150)
@hypothesis.given(steps=STEPS, has_network=st.booleans(), first=FIRST)
def test_what_goes_in_comes_out(
    steps: list[tuple[str, Any, bool]], has_network: bool, first: int
) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="tc-") as directory:
        run = Run(Path(directory), has_network, first)
        for kind, what, flag in steps:
            if kind == "seal" and not has_network:
                continue  # without a network nobody else touches the control words
            run.step(kind, what, flag)
        run.drain()
        assert run.found == run.sent
        assert int(run.reader.r[reader.R_MESSAGES]) == len(run.sent), (
            "the reader's own count agrees"
        )


@kernel
def seal_in_a_loop(ring, mask, stop, sealed):
    """A sender with no patience: seals whatever OPEN packet holds messages, as fast as it can."""
    while load_acquire(stop, 0) == 0:
        seq = load_acquire(ring, lay.HEAD_AT) - 1
        if seq < 0:
            continue
        at = control_at(seq, mask)
        word = load_acquire(ring, at)
        length = word & lay.CONTROL_LENGTH_MASK
        if length <= wire.PACKET_HEADER_BYTES:
            continue
        if word != control_word(seq, lay.OPEN, length):
            continue
        if compare_and_swap(ring, at, word, control_word(seq, lay.SEALED, length)):
            sealed[0] += 1


@pytest.mark.parametrize("batched", [False, True])
def test_a_racing_sender_loses_nothing(tmp_path: Path, batched: bool) -> None:
    run = Run(tmp_path, True, 0)
    stop, sealed = np.zeros(8, dtype=np.uint8), np.zeros(1, dtype=np.int64)
    sender = threading.Thread(target=seal_in_a_loop, args=(run.ring.ring, SLOTS - 1, stop, sealed))
    stop[0] = 1
    seal_in_a_loop(run.ring.ring, SLOTS - 1, stop, sealed)  # compiles
    stop[0] = 0
    sender.start()
    try:
        rounds, patience = 0, Patience(10.0)
        # until the sender has won the race some times: on a busy machine it waits for a processor
        while rounds < 300 or (sealed[0] < 20 and not patience.over()):
            rounds += 1
            if batched:
                run.batch([30 + (rounds + i) % 90 for i in range(40)])
            else:
                run.append(rounds % 200, flush=rounds % 5 == 0)
            if rounds % 3 == 0:
                run.poll(64)
    finally:
        stop[0] = 1
        sender.join()
    run.drain()
    assert run.found == run.sent
    assert sealed[0] > 0
