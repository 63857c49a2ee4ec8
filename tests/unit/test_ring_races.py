"""Readers beside writers at full speed: every message that is handed out is whole.

Kernels without the interpreter lock in two threads; each message has a checksum in every word, and
messages are large, so that one that is seen while it is written would show.
"""

from __future__ import annotations

import collections
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.conftest import Eventually
from tests.support import packets
from tests.support.simulation import Reader, Stream, network_of

from tidecast.agents.live.sending import _copy_for_repair
from tidecast.buffers import reader as ring_reader
from tidecast.buffers import writer
from tidecast.buffers.ring_file import add_consumer, create_ring
from tidecast.layout import packet as wire
from tidecast.layout import ring as lay
from tidecast.native.atomics import fetch_add, load_acquire, pause, store_release
from tidecast.native.jit import inlined, kernel
from tidecast.native.mapped import MappedFile
from tidecast.native.memory import load_i64, store_i64
from tidecast.testing import Network
from tidecast.testing.switch import Packet

pytestmark = pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="a race needs two cores")

SLOTS, SLOT_BYTES = 16, 32 << 10
SIZE = 30_000
MESSAGES = 2000
REPAIRS = 60_000
Sender = collections.namedtuple("Sender", ["bounce"])
"""Of a sender's state what copying takes."""
MIX = 0x9E3779B97F4A7C15 - (1 << 64)
"""An odd multiplier: words of other messages do not fit."""
S_WRITTEN, S_READ, S_WRONG, S_LOST, S_STOP = 0, 8, 16, 24, 32
EMPTY = np.empty(0, dtype=np.uint8)


@kernel
def write_messages(shared, ring, bells, w, source, first, count):  # type: ignore[no-untyped-def]
    """Append messages whose words are all made from their number."""
    for i in range(first, first + count):
        if load_acquire(shared, S_STOP) != 0:
            return
        for k in range(source.size >> 3):
            store_i64(source, k * 8, i * MIX + k)
        while writer.append_into(ring, bells, w, source, source.size, source, 0, 0, 0, 1) < 0:
            if load_acquire(shared, S_STOP) != 0:
                return
            pause()
        store_release(shared, S_WRITTEN, i + 1)


@inlined
def note_lost(shared, r):  # type: ignore[no-untyped-def]
    """Count the last gap; the next message is the first of the packet behind it."""
    lost = r[ring_reader.R_GAP_END] - r[ring_reader.R_GAP_FIRST]
    store_release(shared, S_LOST, load_i64(shared, S_LOST) + lost)
    store_release(shared, S_READ, r[ring_reader.R_GAP_END])


@kernel
def read_messages(shared, ring, r, assembly, out, size, until):  # type: ignore[no-untyped-def]
    """Check every word of what is read, until message ``until`` or a stop."""
    inverse = 0
    while load_acquire(shared, S_READ) < until and load_acquire(shared, S_STOP) == 0:
        n = ring_reader.poll_into(ring, r, assembly, out, 4)
        if n == ring_reader.GAP:
            note_lost(shared, r)
            continue
        if n <= 0:
            pause()
            continue
        wrong = 0
        seq = load_i64(shared, S_READ)
        for j in range(n):
            at = out[j, ring_reader.OUT_AT]
            wrong += int(out[j, ring_reader.OUT_LENGTH] != size)
            inverse = (seq + j) * MIX
            for k in range(size >> 3):
                wrong += int(load_i64(ring, at + k * 8) != inverse + k)
        if ring_reader.still_held(ring, r):
            store_release(shared, S_WRONG, load_i64(shared, S_WRONG) + wrong)
            store_release(shared, S_READ, seq + n)
        else:  # torn: what comes next lies behind the gap, not behind the last whole batch
            ring_reader.note_torn(ring, r)
            note_lost(shared, r)


@kernel
def repair_often(shared, sender, pubs, ring, size):  # type: ignore[no-untyped-def]
    """Copy packets that are about to be overwritten, and check every word, until a stop."""
    while load_acquire(shared, S_STOP) == 0:
        seq = max(load_acquire(shared, S_WRITTEN) - SLOTS, 0)
        if _copy_for_repair(sender, pubs[0], ring, seq, 0, 0) == 0:
            continue
        wrong = 0
        at = wire.PACKET_HEADER_BYTES + wire.MESSAGE_HEADER_BYTES
        for k in range(size >> 3):
            wrong += int(load_i64(sender.bounce, at + k * 8) != seq * MIX + k)
        fetch_add(shared, S_WRONG, wrong)
        fetch_add(shared, S_READ, 1)


class Race:
    """A thread for each kernel; ends all of them."""

    def __init__(self, ring: Any, bells: Any) -> None:
        self.shared = np.zeros(64, dtype=np.uint8)
        self.threads: list[threading.Thread] = []
        # Compiled now: simulated time would pass meanwhile.
        w, source = writer.writer_state(ring), np.zeros(8, dtype=np.uint8)
        write_messages(self.shared, ring, bells, w, source, 0, 0)
        r, out = np.zeros(ring_reader.READER_FIELDS, dtype=np.int64), _out()
        read_messages(self.shared, ring, r, EMPTY, out, SIZE, 0)

    def start(self, fn: Any, *arguments: Any) -> None:
        thread = threading.Thread(target=fn, args=(self.shared, *arguments))
        self.threads.append(thread)
        thread.start()

    def word(self, at: int) -> int:
        return int(self.shared[at : at + 8].view(np.int64)[0])

    def stop(self) -> None:
        self.shared[S_STOP] = 1
        self.join()

    def join(self) -> None:
        for thread in self.threads:
            thread.join(60.0)
            assert not thread.is_alive()


def _out() -> Any:
    return np.zeros((4, ring_reader.OUT_FIELDS), dtype=np.int64)


def reader_of(ring: Any, *, tethered: bool, position: int = 0) -> Any:
    consumer = add_consumer(
        ring, position=position, client=1, doorbell=4, subscription=1, tethered=tethered
    )
    return ring_reader.reader_state(ring, consumer)


def rings_of(tmp_path: Path) -> tuple[Any, Any]:
    """(ring, bells)"""
    ring = create_ring(
        tmp_path / "ring",
        kind=lay.KIND_PUBLICATION,
        slots=SLOTS,
        slot_bytes=SLOT_BYTES,
        session=5,
        topic=1,
        node=1,
        channel=1,
        flow=0,
        reliability=0,
        has_network=False,
        incarnation=1,
        topic_name="t",
        node_name="n",
    ).array
    bells = MappedFile.create(tmp_path / "bells", lay.DOORBELLS_MAX * lay.DOORBELL_BYTES).array
    return ring, bells


@pytest.mark.parametrize("tethered", [True, False])
def test_what_a_reader_sees_was_written_before(tmp_path: Path, tethered: bool) -> None:
    ring, bells = rings_of(tmp_path)
    r = reader_of(ring, tethered=tethered)
    source = np.zeros(SIZE, dtype=np.uint8)
    race = Race(ring, bells)
    until = MESSAGES if tethered else MESSAGES * 20  # most are lost: it takes no longer
    race.start(read_messages, ring, r, EMPTY, _out(), SIZE, until)
    count = MESSAGES if tethered else 1 << 40  # until it is stopped
    race.start(write_messages, ring, bells, writer.writer_state(ring), source, 0, count)
    race.threads[0].join(60.0)
    race.stop()
    assert race.word(S_WRONG) == 0
    assert race.word(S_READ) >= until
    if tethered:
        assert (race.word(S_WRITTEN), race.word(S_LOST)) == (MESSAGES, 0)


def test_what_an_image_shows_has_arrived_whole() -> None:
    """Beside the receiver, which puts packets in place."""
    with Network(seed=1, packet_bytes=SLOT_BYTES) as net:
        sizes: dict[str, Any] = {"history_bytes": 1 << 20, "receive_bytes": 1 << 19}
        a, b = network_of(net, "ab", **sizes)
        reader, stream = Reader(b), Stream(a, count=1, size=SIZE)
        stream.message = _numbered  # type: ignore[method-assign]
        assert net.run(5_000_000, until=lambda: stream.push() and reader.take())
        [image] = b.engine.images_by_id.values()
        ring = image.mapped.array
        race = Race(ring, b.engine.bells)
        race.shared[S_READ : S_READ + 8].view(np.int64)[0] = 1
        r = reader_of(ring, tethered=True, position=1)
        race.start(read_messages, ring, r, EMPTY, _out(), SIZE, 400)
        stream.count = 400

        def done() -> bool:
            pushed = stream.push(4)
            reader.take()
            return pushed and race.word(S_READ) >= 400

        arrived = net.run(60_000_000, until=done)
        race.stop()
        assert arrived
        assert race.word(S_WRONG) == 0


def _numbered(i: int) -> bytes:
    words = np.arange(SIZE // 8, dtype=np.uint64) + np.uint64((i * MIX) & ((1 << 64) - 1))
    return words.tobytes()


def test_a_repair_is_the_packet_that_was_asked_for() -> None:
    """Beside the writer, which takes slots of history for new packets."""
    with Network(seed=2, packet_bytes=SLOT_BYTES) as net:
        sizes: dict[str, Any] = {"history_bytes": SLOTS * SLOT_BYTES, "receive_bytes": 1 << 19}
        a, b = network_of(net, "ab", flow="rate", **sizes)
        Reader(b)
        net.run(1000)
        stream = Stream(a, count=0, size=SIZE)
        publisher, wrong, repairs = stream.publisher, [0], [0]
        session, topic = publisher.session, int(b.engine.topic_by_name["t"].wire_id)

        def look(packet: Packet) -> bool:
            if packet.is_resent:
                repairs[0] += 1
                at = wire.PACKET_HEADER_BYTES + wire.MESSAGE_HEADER_BYTES
                wrong[0] += packet.data[at : at + SIZE] != _numbered(packet.seq)
            return True

        net.intercept(look)
        [publication] = a.engine.pubs.values()
        ring = publication.mapped.array
        race = Race(ring, a.engine.bells)
        source = np.zeros(SIZE, dtype=np.uint8)
        race.start(write_messages, ring, a.engine.bells, writer.writer_state(ring), source, 0, 1500)

        def ask() -> bool:
            head = race.word(S_WRITTEN)
            nak = packets.nak(
                [(max(head - SLOTS, 0), SLOTS)], session=session, topic=topic, source=9
            )
            net.switch.inject(a.id, nak, control=True)
            return head >= 1500

        ended = net.run(60_000_000, until=ask)
        race.stop()
        assert ended
        assert repairs[0] > 20
        assert wrong[0] == 0


@pytest.mark.long
def test_a_repair_is_never_part_of_another_packet(tmp_path: Path, eventually: Eventually) -> None:
    """The writer takes the very slot that is copied.

    A copy that began before is ahead of it, unless its thread has to wait amid it: so there are
    more threads than cores.
    """
    ring, bells = rings_of(tmp_path)
    race, source = Race(ring, bells), np.zeros(SIZE, dtype=np.uint8)
    senders = [Sender(np.zeros(SLOT_BYTES, dtype=np.uint8)) for _ in range(5)]
    fields = [(name, np.int64) for name in ("slots", "slot_bytes", "slots_at")]
    pubs = np.array([(SLOTS, SLOT_BYTES, lay.slots_at(SLOTS))], dtype=fields)
    race.shared[S_STOP] = 1
    repair_often(race.shared, senders[0], pubs, ring, SIZE)
    race.shared[S_STOP] = 0
    race.start(write_messages, ring, bells, writer.writer_state(ring), source, 0, 1 << 40)
    for sender in senders:
        race.start(repair_often, sender, pubs, ring, SIZE)
    eventually(lambda: race.word(S_READ) >= REPAIRS, "repairs", timeout_s=60.0)
    race.stop()
    assert race.word(S_WRONG) == 0
