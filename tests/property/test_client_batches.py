"""Batches of the client: any mixture of lists, rows and other messages comes out as it went in.

Lists and rows are appended by kernels of their own, and plain messages listed by one; early seals,
messages with a key, fragments and a full ring lie between.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st
from tests.property.test_packet_ring_sequences import FIRST, Run
from tests.unit.test_packet_ring import ROOM, SLOTS

from tidecast.buffers import reader, writer
from tidecast.buffers.ring_file import consumers
from tidecast.client.core import metadata
from tidecast.client.kernels import batches as batch_kernels
from tidecast.client.kernels import ports
from tidecast.layout import ring as lay
from tidecast.native.memory import address

LIMIT = 50
SMALL = st.one_of(st.integers(0, 80), st.integers(ROOM - 3, ROOM))
SIZES = st.one_of(SMALL, st.integers(ROOM + 1, SLOTS // 4 * ROOM))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("list"), st.lists(SIZES, max_size=40), st.booleans()),
        st.tuples(st.just("rows"), st.tuples(SIZES, st.integers(1, 40)), st.booleans()),
        st.tuples(st.just("keyed"), st.integers(0, 80), st.booleans()),
        st.tuples(st.just("append"), SIZES, st.booleans()),
        st.tuples(st.just("poll"), st.integers(1, LIMIT), st.booleans()),
        st.tuples(st.just("seal"), st.just(0), st.booleans()),
    ),
    max_size=40,
)


class Batches(Run):
    """A ring that the client's kernels write and read."""

    def __init__(self, directory: Path, has_network: bool, first: int) -> None:
        super().__init__(directory, has_network, first)
        self.port = ports.writer_port(self.ring.ring, self.ring.bells)
        self.ring.w = self.port
        consumer = int(self.reader.r[reader.R_CONSUMER])
        self.r = ports.reader_port(self.ring.ring, consumer, 0)
        self.r[ports.Q_IN_PLACE] = 1
        self.out = np.full((LIMIT, reader.OUT_FIELDS), -1, dtype=np.int64)
        self.columns = np.zeros((2, LIMIT), dtype=np.int64)
        self.assembly = np.zeros(1 << 17, dtype=np.uint8)
        self.r[ports.Q_ASSEMBLY], self.r[ports.Q_ASSEMBLY_BYTES] = address(self.assembly), 1 << 17
        self.keys: list[bytes | None] = []
        self.keys_found: list[bytes | None] = []

    def put(self, call: Any, alone: list[bytes]) -> None:
        """Until all is in; what needs packets of its own is appended by itself."""
        done = 0
        while done < len(alone):
            done, code = divmod(call(done), batch_kernels.CODES)
            if code == batch_kernels.OTHER:
                assert len(alone[done]) > ROOM
                if self.ring.append(alone[done]) != writer.FULL:
                    done += 1
            if done < len(alone):
                self.poll(LIMIT)
        self.sent += alone
        self.keys += [None] * len(alone)

    def list(self, sizes: list[int], flush: bool) -> None:
        payloads = [self.payload(size) for size in sizes]
        put = batch_kernels.list_append_fn()
        given: Any = payloads if flush else tuple(payloads)
        self.put(lambda done: put(self.port, given, done, int(flush)), payloads)

    def rows(self, size: int, n: int, flush: bool) -> None:
        payloads = [self.payload(size) for _ in range(n)]
        array = np.frombuffer(b"".join(payloads) + b"-", dtype=np.uint8)
        put = batch_kernels.rows_append_fn()
        self.put(lambda done: put(self.port, array, size, done, n, int(flush)), payloads)

    def keyed(self, size: int) -> None:
        payload = self.payload(size)
        meta, flags = metadata.encode(b"key", None, None, None)
        while ports.put(self.port, payload, meta, flags, 0, 0) == writer.FULL:
            self.poll(LIMIT)
        self.sent.append(payload)
        self.keys.append(b"key")

    def append(self, size: int, flush: bool) -> None:
        super().append(size, flush)
        self.keys.append(None)

    def poll(self, limit: int) -> bool:
        limit = min(limit, LIMIT)  # what `out` has room for
        n = batch_kernels.take(self.r, self.out, self.columns, limit)
        assert n not in (reader.GAP, reader.NEED_BUFFER)
        if n == reader.ASSEMBLED:
            self.found.append(self.assembly[: int(self.r[reader.R_TOTAL])].tobytes())
            self.keys_found.append(None)
            return True
        for wanted in (limit // 2, limit):  # more behind it, in the same place
            more = (
                batch_kernels.extend(self.r, self.out, self.columns, n, wanted)
                if 0 < n < wanted
                else n
            )
            n = n if more == ports.NOTHING else more
        plain = int(self.r[ports.Q_FLAGS]) & ~3 == 0
        memory = self.ring.ring.data.toreadonly()
        for i in range(n):
            start, end = self.columns[:, i].tolist()
            self.found.append(bytes(memory[start:end]))
            key = None
            if not plain:
                at, length, meta_at, flags = self.out[i].tolist()
                assert (at, length) == (start, end - start)
                key = metadata.decode(memory, meta_at, flags).key
            self.keys_found.append(key)
        return n > 0

    def step(self, kind: str, what: Any, flag: bool) -> None:
        if kind == "list":
            self.list(what, flag)
        elif kind == "rows":
            size, n = what
            self.rows(size, n, flag)
        elif kind == "keyed":
            self.keyed(what)
        else:
            super().step(kind, what, flag)


@hypothesis.settings(max_examples=60)
@hypothesis.given(steps=STEPS, has_network=st.booleans(), first=FIRST)
def test_what_goes_in_comes_out(
    steps: list[tuple[str, Any, bool]], has_network: bool, first: int
) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="tc-") as directory:
        run = Batches(Path(directory), has_network, first)
        for kind, what, flag in steps:
            if kind == "seal" and not has_network:
                continue  # without a network nobody else touches the control words
            run.step(kind, what, flag)
        run.drain()
        assert run.found == run.sent
        assert run.keys_found == run.keys
        for port, counts in (
            (run.r, (reader.R_MESSAGES, reader.R_BYTES)),
            (run.port, (writer.W_MESSAGES, writer.W_BYTES)),
        ):
            counted = [int(port[each]) for each in counts]
            assert counted == [len(run.sent), sum(map(len, run.sent))]


def test_nothing_of_a_list_goes_in_when_something_is_not_bytes(tmp_path: Path) -> None:
    run = Batches(tmp_path, False, 0)
    for wrong in ("text", 7, bytearray(b"x"), None):
        given: Any = [b"a", wrong, b"b"]
        assert batch_kernels.list_append_fn()(run.port, given, 0, 0) == batch_kernels.OTHER
    assert batch_kernels.list_append_fn()(run.port, [], 0, 0) == batch_kernels.DONE
    run.port[ports.P_BUSY] = 1
    assert batch_kernels.list_append_fn()(run.port, [b"a"], 0, 0) == batch_kernels.OTHER
    assert (
        batch_kernels.rows_append_fn()(run.port, np.zeros(8, np.uint8), 8, 0, 1, 0)
        == batch_kernels.OTHER
    )
    assert not run.poll(LIMIT)


def test_a_lapped_batch_is_a_gap_and_counts_nothing(tmp_path: Path) -> None:
    run = Batches(tmp_path, False, 0)
    put = batch_kernels.list_append_fn()
    assert put(run.port, [b"x" * ROOM] * 4, 0, 0) // batch_kernels.CODES == 4
    assert batch_kernels.take(run.r, run.out, run.columns, 2) == 2
    [(_, entry)] = consumers(run.ring.ring)
    entry[lay.CONSUMER_STATE_AT // 8] = lay.CONSUMER_EVICTED
    for _ in range(3):
        put(run.port, [b"y" * ROOM] * (SLOTS // 2), 0, 0)
    before = int(run.r[reader.R_MESSAGES])
    assert batch_kernels.extend(run.r, run.out, run.columns, 2, LIMIT) == reader.GAP
    assert int(run.r[reader.R_MESSAGES]) == before


@pytest.mark.parametrize("spins", [0, 50])
def test_waiting_for_a_full_batch_ends_by_itself(tmp_path: Path, spins: int) -> None:
    run = Batches(tmp_path, False, 0)
    run.list([10, 10], True)
    assert batch_kernels.take(run.r, run.out, run.columns, LIMIT) == 2
    batch_kernels.await_packets(
        run.r, LIMIT, 2, spins
    )  # nobody writes: it looks as often as it may
    run.list([10], True)
    assert batch_kernels.extend(run.r, run.out, run.columns, 2, LIMIT) == 3
