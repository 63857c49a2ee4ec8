"""Writer and reader of a packet ring, one kernel call at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tidecast.buffers import reader as ring_reader
from tidecast.buffers import writer
from tidecast.buffers.ring_file import (
    add_consumer,
    consumer_entry,
    consumers,
    create_ring,
    describe,
    remove_consumer,
)
from tidecast.buffers.slots import control_at, control_word
from tidecast.errors import Conflict, SharedMemoryError
from tidecast.layout import packet as wire
from tidecast.layout import ring as lay
from tidecast.native.mapped import MappedFile

SLOTS, SLOT_BYTES = 16, 600
ROOM = SLOT_BYTES - wire.PACKET_HEADER_BYTES - wire.MESSAGE_HEADER_BYTES
EMPTY = np.empty(0, dtype=np.uint8)


class Ring:
    """One ring with its writer, and readers as asked for."""

    def __init__(
        self, directory: Path, *, has_network: bool = False, first: int = 0, tail: bool = False
    ) -> None:
        self.mapped = create_ring(
            directory / "ring",
            kind=lay.KIND_PUBLICATION,
            slots=SLOTS,
            slot_bytes=SLOT_BYTES,
            session=5,
            topic=1,
            node=1,
            channel=1,
            flow=0,
            reliability=0,
            has_network=has_network,
            incarnation=1,
            first=first,
            topic_name="t",
            node_name="n",
            tail=tail,
        )
        bells_bytes = lay.DOORBELLS_MAX * lay.DOORBELL_BYTES
        self.bells = MappedFile.create(directory / "bells", bells_bytes).array
        self.ring = self.mapped.array
        self.w = writer.writer_state(self.ring)
        self.first = first

    def word(self, at: int) -> Any:
        return self.ring[at : at + 8].view(np.int64)

    def reader(
        self, *, tethered: bool = True, position: int | None = None, doorbell: int = 4
    ) -> Reader:
        at = self.first if position is None else position
        consumer = add_consumer(
            self.ring, position=at, client=1, doorbell=doorbell, subscription=1, tethered=tethered
        )
        return Reader(self.ring, consumer)

    def append(self, payload: bytes, *, flush: bool = False, receiver: int = 0) -> int:
        source = np.frombuffer(bytearray(payload), dtype=np.uint8)
        return int(
            writer.append(
                self.ring,
                self.bells,
                self.w,
                source,
                len(payload),
                EMPTY,
                0,
                0,
                receiver,
                int(flush),
            )
        )

    def batch(self, payloads: list[bytes], done: Any = None) -> tuple[int, int]:
        joined = np.frombuffer(bytearray(b"".join(payloads)), dtype=np.uint8)
        lengths = np.array([len(each) for each in payloads], dtype=np.int64)
        done = np.zeros(2, dtype=np.int64) if done is None else done
        status = writer.append_batch(
            self.ring, self.bells, self.w, joined, lengths, 0, len(payloads), 0, 0, done
        )
        return int(status), int(done[0])

    def seal_as_sender(self) -> bool:
        """Seal an OPEN packet whose linger time is over, as a sender does."""
        seq = int(self.word(lay.HEAD_AT)[0]) - 1
        word = self.word(control_at(seq, SLOTS - 1))
        length = int(word[0]) & lay.CONTROL_LENGTH_MASK
        if length <= wire.PACKET_HEADER_BYTES or (int(word[0]) >> lay.STATE_SHIFT) & 0xFF != (
            lay.OPEN
        ):
            return False
        word[0] = control_word(seq, lay.SEALED, length)
        return True


class Reader:
    """A reader that assembles fragments and collects payloads."""

    def __init__(self, ring: Any, consumer: int) -> None:
        self.ring, self.consumer = ring, consumer
        self.r = ring_reader.reader_state(ring, consumer)
        self.assembly = np.empty(0, dtype=np.uint8)
        self.out = np.zeros((64, ring_reader.OUT_FIELDS), dtype=np.int64)

    def poll(self, limit: int = 64) -> Any:
        """Payloads, or a gap as (first, end)."""
        n = ring_reader.poll(self.ring, self.r, self.assembly, self.out, limit)
        if n == ring_reader.NEED_BUFFER:
            size = int(self.r[ring_reader.R_TOTAL] + self.r[ring_reader.R_META_N])
            self.assembly = np.empty(size, dtype=np.uint8)
            n = ring_reader.poll(self.ring, self.r, self.assembly, self.out, limit)
        if n == ring_reader.ASSEMBLED:
            return [self.assembly[: int(self.r[ring_reader.R_TOTAL])].tobytes()]
        if n == ring_reader.GAP:
            return int(self.r[ring_reader.R_GAP_FIRST]), int(self.r[ring_reader.R_GAP_END])
        return [self.ring[at : at + length].tobytes() for at, length, _, _ in self.out[:n].tolist()]


@pytest.fixture
def ring(tmp_path: Path) -> Ring:
    return Ring(tmp_path)


@pytest.fixture
def long_ring(tmp_path: Path) -> Ring:
    """A ring with a tail."""
    return Ring(tmp_path, tail=True)


def test_messages_come_in_order_and_share_a_packet(ring: Ring) -> None:
    reader = ring.reader()
    assert reader.poll() == []
    assert ring.append(b"one") == 0
    assert int(ring.word(lay.MESSAGES_AT)[0]) == 0
    assert ring.append(b"") == 0
    assert reader.poll() == [b"one", b""]
    ring.append(b"three")
    assert reader.poll() == [b"three"]
    assert describe(ring.ring).head == 1
    ring.append(bytes(ROOM))
    assert int(ring.word(lay.MESSAGES_AT)[0]) == 3


@pytest.mark.parametrize("size", [ROOM, ROOM + 1, 2 * ROOM, SLOTS // 2 * ROOM - 8])
def test_sizes_up_to_half_the_ring(ring: Ring, size: int) -> None:
    reader = ring.reader()
    payload = bytes(i * 7 & 255 for i in range(size))
    ring.append(b"before")
    assert ring.append(payload) >= 0
    assert ring.append(b"behind") == 0
    found: list[bytes] = []
    while got := reader.poll():
        found += got
    assert found == [b"before", payload, b"behind"]


def test_larger_than_half_the_ring_is_refused_and_changes_nothing(ring: Ring) -> None:
    reader = ring.reader()
    assert ring.append(bytes(SLOTS // 2 * ROOM - 7)) == writer.TOO_LARGE
    assert reader.poll() == []


def test_optional_fields_that_do_not_fit_the_first_fragment_are_refused(ring: Ring) -> None:
    meta = np.zeros(ROOM - 7, dtype=np.uint8)
    source = np.zeros(100, dtype=np.uint8)
    status = writer.append(
        ring.ring, ring.bells, ring.w, source, 100, meta, meta.size, wire.KEY, 0, 0
    )
    assert status == writer.TOO_LARGE


def test_tethered_reader_holds_the_writer_back(ring: Ring) -> None:
    reader = ring.reader()
    big = bytes(ROOM)
    for _ in range(SLOTS):
        assert ring.append(big) == 0
    assert ring.append(big) == writer.FULL
    assert len(reader.poll(4)) == 4
    assert ring.append(big) == writer.FULL, "what was polled is held until the next poll"
    assert len(reader.poll(1)) == 1
    assert [ring.append(big) for _ in range(5)] == [0, 0, 0, 0, writer.FULL]


def test_untethered_reader_is_lapped_and_told_the_range(ring: Ring) -> None:
    reader = ring.reader(tethered=False)
    for i in range(SLOTS * 2):
        ring.append(bytes([i]) * ROOM)
    first, end = reader.poll()
    assert first == 0
    assert SLOTS <= end <= SLOTS * 2
    assert reader.poll(1) == [bytes([end]) * ROOM]


def test_a_torn_batch_is_noticed(ring: Ring) -> None:
    reader = ring.reader(tethered=False)
    ring.append(bytes(ROOM))
    reader.poll()
    assert ring_reader.still_held(ring.ring, reader.r)
    for _ in range(SLOTS):
        ring.append(bytes(ROOM))
    assert not ring_reader.still_held(ring.ring, reader.r)


def test_evicted_reader_rejoins_with_a_gap(ring: Ring) -> None:
    reader = ring.reader()
    ring.append(bytes(ROOM))
    reader.poll()
    [(_, entry)] = consumers(ring.ring)
    entry[lay.CONSUMER_STATE_AT // 8] = lay.CONSUMER_EVICTED
    assert not ring_reader.still_held(ring.ring, reader.r)
    for _ in range(SLOTS * 2):
        assert ring.append(bytes(ROOM)) == 0
    gap = reader.poll()
    assert isinstance(gap, tuple)
    assert entry[lay.CONSUMER_STATE_AT // 8] == lay.CONSUMER_ACTIVE
    assert reader.poll(1) == [bytes(ROOM)]


def test_an_empty_slot_is_waited_for_not_skipped(ring: Ring) -> None:
    reader = ring.reader()
    ring.word(control_at(0, SLOTS - 1))[0] = control_word(0, lay.EMPTY, 0)
    assert reader.poll() == []


def test_gone_packets_are_one_gap(ring: Ring) -> None:
    reader = ring.reader()
    for i in range(5):
        ring.append(bytes([i]) * ROOM)
    for seq in (1, 2):
        ring.word(control_at(seq, SLOTS - 1))[0] = control_word(seq, lay.GONE, 0)
    assert reader.poll() == [bytes(ROOM)]
    assert reader.poll() == (1, 3)
    assert reader.poll() == [b"\3" * ROOM, b"\4" * ROOM]


def test_extending_a_batch_holds_all_of_it(ring: Ring) -> None:
    reader = ring.reader()
    for _ in range(SLOTS):
        ring.append(b"b" * ROOM, flush=True)
    assert reader.poll(1) == [b"b" * ROOM]
    assert ring_reader.arm_keeping(ring.ring, reader.r)
    assert ring.append(b"c" * ROOM) == writer.FULL, "what was polled stays held"
    assert ring_reader.arm(ring.ring, reader.r)
    assert ring.append(b"c" * ROOM) == 0


def test_the_sender_may_seal_between_appends(tmp_path: Path) -> None:
    ring = Ring(tmp_path, has_network=True)
    ring.word(lay.NETWORK_LIMIT_AT)[0] = SLOTS
    reader = ring.reader()
    ring.append(b"one")
    assert ring.seal_as_sender()
    assert not ring.seal_as_sender()
    ring.append(b"two")
    status, done = ring.batch([b"three", b"four"])
    assert (status, done) == (0, 2)
    assert ring.seal_as_sender()
    assert ring.batch([b"five"] * 3) == (0, 3)
    assert reader.poll() == [b"one", b"two", b"three", b"four"] + [b"five"] * 3


def test_batches_resume_where_the_ring_was_full(ring: Ring) -> None:
    reader = ring.reader()
    payloads = [bytes([i]) * (ROOM // 2) for i in range(64)]
    done = np.zeros(2, dtype=np.int64)
    found: list[bytes] = []
    for _ in range(100):
        status, _ = ring.batch(payloads, done)
        while got := reader.poll():
            found += got
        if status == 0:
            break
        assert status == writer.FULL
    assert found == payloads


def test_a_batch_counts_each_message_once(tmp_path: Path) -> None:
    """Also one that needs fragments, and in the header, before a packet is the newest one."""
    ring = Ring(tmp_path)
    payloads = [b"a", b"x" * (2 * ROOM), b"b", b"y" * (3 * ROOM), b"c", b"d" * ROOM]
    assert ring.batch(payloads) == (0, len(payloads))
    assert int(ring.w[writer.W_MESSAGES]) == len(payloads)
    assert int(ring.w[writer.W_BYTES]) == sum(map(len, payloads))
    assert int(ring.word(lay.MESSAGES_AT)[0]) == len(payloads) - 1, "all but that of the newest"


def test_a_message_for_another_receiver_has_its_own_packet(ring: Ring) -> None:
    ring.append(b"all")
    ring.append(b"one", receiver=9)
    ring.append(b"all")
    assert describe(ring.ring).head == 3
    receivers = [
        int(ring.ring[lay.slots_at(SLOTS) + i * SLOT_BYTES :][12:14].view(np.uint16)[0])
        for i in range(3)
    ]
    assert receivers == [0, 9, 0]


def test_closed_ring_is_drained(ring: Ring) -> None:
    reader = ring.reader()
    ring.append(b"last")
    writer.close_ring(ring.ring, ring.bells, ring.w)
    assert not ring_reader.drained(ring.ring, reader.r)
    assert reader.poll() == [b"last"]
    assert ring_reader.drained(ring.ring, reader.r)


@pytest.mark.parametrize("has_network", [False, True])
def test_a_running_writer_does_not_overwrite_a_packet_that_the_engine_sealed(
    tmp_path: Path, has_network: bool
) -> None:
    """An engine that stops closes the ring; its writer has reserved a place and not committed."""
    ring = Ring(tmp_path, has_network=has_network)
    ring.word(lay.NETWORK_LIMIT_AT)[0] = SLOTS
    reader = ring.reader()
    ring.append(b"before")
    writer.close_abandoned(ring.ring, ring.bells, SLOTS)
    end = int(ring.word(lay.END_SEQ_AT)[0])
    sealed = int(ring.word(control_at(end - 1, SLOTS - 1))[0])
    assert ring.append(b"after") == 0
    assert ring.batch([b"a", b"batch"]) == (0, 2)
    assert int(ring.word(control_at(end - 1, SLOTS - 1))[0]) == sealed
    assert (end, describe(ring.ring).head) == (1, 2), "what it adds lies in packets behind the end"
    assert reader.poll() == [b"before", b"after", b"a", b"batch"]


def test_a_packet_that_holds_nothing_yet_stays_its_writers(ring: Ring) -> None:
    """Amid a fragmented message the open packet has only its header: sealed, a part were lost."""
    ring.append(b"x" * ROOM)
    ring.append(b"y" * ROOM)
    ring.word(control_at(1, SLOTS - 1))[0] = control_word(1, lay.OPEN, wire.PACKET_HEADER_BYTES)
    writer.close_abandoned(ring.ring, ring.bells, SLOTS)
    assert int(ring.word(lay.END_SEQ_AT)[0]) == 1
    word = int(ring.word(control_at(1, SLOTS - 1))[0])
    assert word >> lay.STATE_SHIFT & 0xFF == lay.OPEN


def test_damaged_files_are_refused(ring: Ring) -> None:
    with pytest.raises(SharedMemoryError, match="not a ring"):
        describe(np.zeros(100, dtype=np.uint8))
    with pytest.raises(SharedMemoryError, match="magic"):
        describe(np.zeros(8192, dtype=np.uint8))
    ring.ring[lay.SLOTS_AT] = 17
    with pytest.raises(SharedMemoryError, match="17 slots"):
        describe(ring.ring)


def _rung(ring: Ring) -> list[int]:
    """Lines whose bells were rung so far, once for each time."""
    words = ring.bells.view(np.int32)[:: lay.DOORBELL_BYTES // 4]
    return [line for line, count in enumerate(words.tolist()) for _ in range(count)]


def test_a_tail_has_places_for_further_readers_and_none_for_agents(long_ring: Ring) -> None:
    readers = [long_ring.reader() for _ in range(lay.CONSUMERS_MAX - lay.AGENT_CONSUMERS)]
    with pytest.raises(Conflict, match="at most 294 subscriptions"):
        long_ring.reader()
    agents = [
        add_consumer(
            long_ring.ring, position=0, client=0, doorbell=9, subscription=agent, tethered=True
        )
        for agent in (0, -1)
    ]
    assert agents == [38, 39]
    assert {each.consumer for each in readers} | {*agents} == {*range(lay.CONSUMERS_MAX)}
    assert len(consumers(long_ring.ring)) == lay.CONSUMERS_MAX
    remove_consumer(long_ring.ring, 200)
    assert long_ring.reader().consumer == 200


def test_each_reader_of_a_tail_holds_the_writer_back(long_ring: Ring) -> None:
    readers = [long_ring.reader() for _ in range(lay.CONSUMERS_MAX - lay.AGENT_CONSUMERS)]
    full = bytes(ROOM)
    while long_ring.append(full) == 0:
        for each in readers[:-1]:
            while each.poll():
                pass
    assert describe(long_ring.ring).head == SLOTS
    while readers[-1].poll():
        pass
    assert long_ring.append(full) == 0


def test_a_commit_wakes_the_readers_of_a_tail_that_sleep(long_ring: Ring) -> None:
    """A commit rings the bells of the consumers that sleep, and no other bell."""
    readers = [long_ring.reader(doorbell=64 + n) for n in range(100)]
    first, before, behind, last = (readers[n] for n in (0, 37, 38, 99))
    assert [each.consumer for each in (before, behind)] == [37, 40]
    for each in (first, before, behind, last):
        assert not ring_reader.arm(long_ring.ring, each.r)
    ring_reader.disarm(long_ring.ring, behind.r)
    long_ring.append(b"a", flush=True)
    assert _rung(long_ring) == [64, 64 + 37, 64 + 99]
    long_ring.append(b"b", flush=True)
    assert _rung(long_ring) == [64, 64 + 37, 64 + 99]
    for each in (behind, last):
        assert ring_reader.arm(long_ring.ring, each.r), "there is something to read"
        assert each.poll() == [b"a", b"b"]
        assert not ring_reader.arm(long_ring.ring, each.r)
    long_ring.append(b"c", flush=True)
    assert _rung(long_ring) == [64, 64 + 37, 64 + 38, 64 + 99, 64 + 99]


def test_an_entry_of_a_tail_begins_without_its_last_owners_state(long_ring: Ring) -> None:
    readers = [long_ring.reader(doorbell=70) for _ in range(39)]
    assert not ring_reader.arm(long_ring.ring, readers[-1].r)
    remove_consumer(long_ring.ring, readers[-1].consumer)
    new = long_ring.reader(doorbell=71)
    assert new.consumer == readers[-1].consumer
    long_ring.append(b"a", flush=True)
    assert _rung(long_ring) == []


@pytest.mark.parametrize("used", [-1, -(1 << 63), 41, 297, 1 << 40, (1 << 63) - 1])
@pytest.mark.parametrize("tail", [False, True])
def test_no_count_in_open_memory_makes_a_writer_leave_the_file(
    tmp_path: Path, tail: bool, used: int
) -> None:
    """Also where the header says that there is a tail, and there is none. No entry is in use."""
    ring = Ring(tmp_path, tail=tail)
    ring.word(lay.MAGIC_AT)[0] = lay.MAGIC_WITH_TAIL
    ring.word(lay.CONSUMERS_USED_AT)[0] = used
    ring.word(lay.ARMED_AT)[0] = -1
    for _ in range(3 * SLOTS):
        assert ring.append(bytes(ROOM)) == 0
    assert _rung(ring) == [0] * (1 + lay.HEADER_CONSUMERS), "the sender, and those of the header"


def test_a_ring_without_a_tail_has_no_entry_behind_those_of_its_header(ring: Ring) -> None:
    for _ in range(lay.HEADER_CONSUMERS):
        ring.reader()
    with pytest.raises(Conflict, match="at most 40 subscriptions"):
        ring.reader()
    for index in (-1, lay.HEADER_CONSUMERS, lay.CONSUMERS_MAX):
        with pytest.raises(SharedMemoryError, match=f"consumer {index}: "):
            consumer_entry(ring.ring[: lay.HEADER_BYTES], index)


def test_a_ring_that_is_shorter_than_its_tail_is_refused(tmp_path: Path) -> None:
    ring = Ring(tmp_path, tail=True)
    assert describe(ring.ring).tail
    with pytest.raises(SharedMemoryError, match="damaged ring"):
        describe(ring.ring[: -lay.PAGE_BYTES])
