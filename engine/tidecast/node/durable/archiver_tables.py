"""Filling the archiver's records: topics, queues, and the rings it reads."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tidecast.agents.archiver import state as ast
from tidecast.buffers.ring_file import (
    RingInfo,
    add_consumer,
    describe,
    messages_between,
    remove_consumer,
)
from tidecast.errors import SharedMemoryError, TidecastError
from tidecast.layout import packet as wire
from tidecast.layout import ring as lay
from tidecast.layout import segment as seg
from tidecast.native.mapped import Bytes, MappedFile
from tidecast.native.memory import address
from tidecast.native.packing import pack_into, unpack_from
from tidecast.node.durable.archiver import ArchiverRuntime
from tidecast.node.durable.topic import DurableTopic
from tidecast.node.state import ARCHIVER_SUBSCRIPTION
from tidecast.protocol.dedup import Producer

OVER = (lay.ACK_FENCED, lay.ACK_REFUSED, lay.ACK_ENDED)
"""States of a session that is over: nothing more of its ring is taken."""


@dataclass(slots=True)
class Source:
    """A ring that the archiver reads. ``publication``: its id at the node; 0: a leftover."""

    slot: int
    topic: str
    producer: Producer
    epoch: int
    session: int
    mapped: MappedFile
    publication: int
    first_count: int = 0
    """Messages that were durable when the archiver took it over."""
    image: int = 0
    """Id of the image that it is, if its publisher is on another ctx."""
    left: bool = False
    """Its publisher was gone before it was read: its messages are repeated."""

    def belong_to(self, publication: int) -> None:
        """It is the ring of a publication of this node."""
        self.publication = publication

    def receive(self, image: int, *, left: bool) -> None:
        """It is an image; ``left``: its publisher was gone already."""
        self.image, self.left = image, left

    def orphan(self) -> None:
        """A dead engine left it."""
        self.left = True


def _policy(topic: DurableTopic) -> int:
    """With a lease a record is durable only behind a sync that confirms the owner."""
    policy = ast.SYNC_NAMES[topic.config.fsync]
    return ast.SYNC_BATCH if topic.owner and policy == ast.SYNC_NONE else policy


def _free(records: np.ndarray, what: str) -> int:
    free = np.flatnonzero(records["active"] == 0)
    if free.size == 0:
        raise SharedMemoryError(f"an engine archives at most {records.size} {what}")
    return int(free[0])


def fill(record: Any, values: dict[str, Any]) -> None:
    """Set fields of a record."""
    for field, value in values.items():
        record[field] = value


class ArchiverTables:
    """The tables that the archiver reads, kept alive. Methods run between two duty cycles."""

    def __init__(self, runtime: ArchiverRuntime) -> None:
        self.state = runtime.state
        self._kept: dict[tuple[str, int], Any] = {}

    # --- topics and queues ------------------------------------------------------------------------

    def add_topic(self, topic: DurableTopic, rows: list[int]) -> None:
        """Give a topic and its queues their records. ``rows``: counter rows of its queues."""
        S = self.state
        slot = _free(S.topics, "durable topics")
        S.topics[slot] = np.zeros((), dtype=ast.TOPIC)
        fill(S.topics[slot], {"index": slot, "first_source": -1, "owner": topic.owner})
        topic.slot = slot
        self._kept["map", slot] = np.zeros(0, dtype=np.int64)
        self.set_queues(topic, rows)
        self.set_policy(topic)
        S.index[int(S.misc[ast.M_TOPICS])] = slot
        S.misc[ast.M_TOPICS] += 1
        if topic.is_stored:  # its log may be ahead of the storage: no ring is acked before
            numbers = self.queue_numbers(topic)
            S.queues["dirty"][numbers] = 1
            fill(S.topics[slot], {"stored": 1, "dirty_ns": 1})
        S.topics[slot]["active"] = 1

    def set_policy(self, topic: DurableTopic) -> None:
        """Set the fields that may change while it runs."""
        fill(
            self.state.topics[topic.slot],
            {
                "policy": _policy(topic),
                "interval_ns": int(topic.config.fsync_interval_ms * 1e6),
            },
        )

    def await_write(self, topic: DurableTopic) -> None:
        """Report the next write to a topic without syncs by `E_WROTE`, once. From any thread."""
        self.state.topics[topic.slot]["awaited"] = 1

    def take_awaited(self, topic: DurableTopic) -> bool:
        """Is a write to the topic awaited? It was just written to, between two duty cycles."""
        record = self.state.topics[topic.slot]
        found = bool(record["awaited"]) and int(record["policy"]) == ast.SYNC_NONE
        record["awaited"] = 0
        return found

    def set_queues(self, topic: DurableTopic, rows: list[int]) -> None:
        """Records for queues that have none yet, and the map that leads to all of them."""
        S, slot = self.state, topic.slot
        numbers: list[int] = self._kept["map", slot].tolist()
        for log, row in zip(topic.logs[len(numbers) :], rows, strict=True):
            number = _free(S.queues, "queues")
            buffer = np.zeros(ast.QUEUE_BUFFER_BYTES, dtype=np.uint8)
            self._kept["buffer", number], self._kept["log", number] = buffer, log
            S.queues[number] = np.zeros((), dtype=ast.QUEUE)
            fill(
                S.queues[number],
                {
                    "index": number,
                    "topic": slot,
                    "log_address": address(log.state.words),
                    "buffer_address": address(buffer),
                    "buffer_bytes": buffer.size,
                    "open_at": -1,
                    "next_token": log.next_token,
                    "row": row,
                    "active": 1,
                },
            )
            numbers.append(number)
        table = topic.map.table()
        numbers_of = np.array(numbers, dtype=np.int64)
        self._kept["map", slot], self._kept["table", slot] = numbers_of, table
        fill(
            S.topics[slot],
            {
                "queues": len(numbers),
                "map_address": address(numbers_of),
                "table_address": address(table),
            },
        )

    def queue_numbers(self, topic: DurableTopic) -> list[int]:
        """Rows of a topic's queues at the archiver."""
        found: list[int] = self._kept["map", topic.slot].tolist()
        return found

    def counter_rows(self, topic: DurableTopic) -> np.ndarray:
        """Rows of counters of a topic's queues, int64[queues]."""
        rows: np.ndarray = self.state.queues["row"][self._kept["map", topic.slot]]
        return rows

    def waiting_in(self, number: int) -> dict[int, int]:
        """First sequence of each producer in a queue's buffer, which is not in the log yet."""
        buffer, at = self._kept["buffer", number], 0
        found: dict[int, int] = {}
        while at < int(self.state.queues[number]["used"]):
            (length,) = unpack_from("<I", buffer, at + seg.BATCH_LENGTH_AT)
            (producer,) = unpack_from("<q", buffer, at + seg.BATCH_PRODUCER_AT)
            (first,) = unpack_from("<q", buffer, at + seg.BATCH_BASE_SEQ_AT)
            found[producer] = min(found.get(producer, first), first)
            at += length
        return found

    def grow_buffer(self, number: int, need: int) -> None:
        """A longer buffer for a queue whose next message does not fit; its buffer is empty."""
        size = max(ast.QUEUE_BUFFER_BYTES, 1 << (need - 1).bit_length())
        buffer = self._kept["buffer", number] = np.zeros(size, dtype=np.uint8)
        fill(
            self.state.queues[number],
            {"buffer_address": address(buffer), "buffer_bytes": size, "grow_bytes": 0},
        )

    def note_suspect(self, topic: DurableTopic, queue: int, now_ns: int) -> None:
        """A sync of a queue failed within a cycle: the next one stores its segment again."""
        record, number = self.state.topics[topic.slot], self.queue_numbers(topic)[queue]
        self.state.queues[number]["dirty"] = record["suspect"] = 1
        record["dirty_ns"] = record["dirty_ns"] or now_ns

    def remove_topic(self, topic: DurableTopic) -> None:
        """Forget a topic; its sources were removed before."""
        S, slot = self.state, topic.slot
        for number in self.queue_numbers(topic):
            S.queues[number]["active"] = 0
            del self._kept["buffer", number], self._kept["log", number]
        count = int(S.misc[ast.M_TOPICS])
        place = int(np.flatnonzero(S.index[:count] == slot)[0])
        S.index[place] = S.index[count - 1]
        S.misc[ast.M_TOPICS] = count - 1
        S.topics[slot]["active"] = 0
        del self._kept["map", slot], self._kept["table", slot]
        topic.slot = -1

    # --- sources ----------------------------------------------------------------------------------

    def add_source(
        self,
        topic: DurableTopic,
        mapped: MappedFile,
        producer: Producer,
        epoch: int,
        first_seq: int,
        about: RingInfo,
        consumer: int,
        *,
        of_engine: bool = False,
    ) -> int:
        """Let the archiver read a ring, from the place of its ack record on."""
        S, ring = self.state, mapped.array
        slot = _free(S.sources, "publications of durable topics")
        seq, at, count = ack_record(ring, about)
        S.sources[slot] = np.zeros((), dtype=ast.SOURCE)
        fill(
            S.sources[slot],
            {
                "index": slot,
                "next": S.topics[topic.slot]["first_source"],
                "ring_address": address(ring),
                "ring_bytes": ring.size,
                "slots": about.slots,
                "slot_bytes": about.slot_bytes,
                "slots_at": lay.slots_at(about.slots),
                "consumer": consumer,
                "first_seq": first_seq,
                "producer": producer.id,
                "epoch": epoch,
                "active": 1,
                "of_engine": of_engine,
            },
        )
        for prefix in ("", "a_", "p_", "d_"):
            fill(S.sources[slot], {f"{prefix}seq": seq, f"{prefix}at": at, f"{prefix}count": count})
        self._kept["source", slot] = mapped
        self.set_marks(slot, producer)
        S.topics[topic.slot]["first_source"] = slot
        return slot

    def set_marks(self, slot: int, producer: Producer) -> None:
        """The producer's marks are a new array."""
        self._kept["marks", slot] = producer.marks
        fill(
            self.state.sources[slot],
            {"marks_address": address(producer.marks), "marks": producer.marks.size},
        )

    def note_acked(self, topic: DurableTopic) -> None:
        """Write the acked sequences into the table of producers, before a snapshot of it."""
        S = self.state
        slot = int(S.topics[topic.slot]["first_source"])
        while slot >= 0:
            record = S.sources[slot]
            known = topic.producers.known.get(int(record["producer"]))
            if known is not None:
                known.ack(int(record["first_seq"] + record["d_count"]) - 1)
            slot = int(record["next"])

    def remove_source(self, topic: DurableTopic, slot: int, *, keep_entry: bool = False) -> None:
        """The archiver reads a ring no more. ``keep_entry``: its entry still holds it."""
        S = self.state
        before, at = -1, int(S.topics[topic.slot]["first_source"])
        while at != slot:
            before, at = at, int(S.sources[at]["next"])
        following = S.sources[slot]["next"]
        if before < 0:
            S.topics[topic.slot]["first_source"] = following
        else:
            S.sources[before]["next"] = following
        if not keep_entry:
            remove_consumer(self._kept["source", slot].array, int(S.sources[slot]["consumer"]))
        S.sources[slot]["active"] = 0
        del self._kept["source", slot], self._kept["marks", slot]


def begin_ring(
    ring: Bytes,
    *,
    producer: int,
    epoch: int,
    first_seq: int,
    doorbell: int,
    record: tuple[int, int, int] | None = None,
    line: int = 0,
    after: int = 0,
) -> int:
    """Make a new ring that of a producer's session; the archiver's consumer entry.

    ``record``: up to where it is durable, else to its first packet. ``line``, ``after``: see
    `session_order.Claim`.
    """
    (first,) = unpack_from("<q", ring, lay.FIRST_AT)
    record = record or (first, wire.PACKET_HEADER_BYTES, 0)
    pack_into("<qq", ring, lay.PRODUCER_AT, producer, first_seq)
    pack_into("<qII", ring, lay.EPOCH_AT, epoch, line, after)
    pack_into("<qq", ring, lay.ACK_ARMED_AT, 0, doorbell)
    pack_into("<qqq", ring, lay.ACK_RECORDS_AT, *record)
    pack_into("<qq", ring, lay.DURABLE_AT, record[2], record[2])
    return add_consumer(
        ring,
        position=record[0],
        client=0,
        doorbell=lay.DOORBELL_ARCHIVER,
        subscription=ARCHIVER_SUBSCRIPTION,
        tethered=True,
    )


def ack_record(ring: Bytes, about: RingInfo) -> tuple[int, int, int]:
    """(packet, offset in it, messages before) up to which a ring is durable; checked."""
    (version,) = unpack_from("<q", ring, lay.ACK_VERSION_AT)
    seq, at, count = unpack_from(
        "<qqq", ring, lay.ACK_RECORDS_AT + (version & 1) * lay.ACK_RECORD_BYTES
    )
    sound = (
        max(about.first, about.head - about.slots) <= seq <= about.head
        and wire.PACKET_HEADER_BYTES <= at <= about.slot_bytes
        and count >= 0
    )
    if not sound:
        raise SharedMemoryError(f"a damaged ring: durable up to packet {seq}, offset {at}")
    return seq, at, count


def ring_session(ring: Bytes) -> tuple[int, int, int]:
    """(producer id, epoch, first sequence) of a ring; producer 0: not of a durable topic."""
    producer, first_seq = unpack_from("<qq", ring, lay.PRODUCER_AT)
    (epoch,) = unpack_from("<q", ring, lay.EPOCH_AT)
    return producer, epoch, first_seq


def unacked(ring: Bytes, slots: int) -> bool:
    """A ring holds unacked messages, and its session is not over."""
    return unpack_from("<q", ring, lay.ACK_STATE_AT)[0] not in OVER and holds_more(ring, slots)


def holds_more(ring: Bytes, slots: int) -> bool:
    """A ring holds unacked messages."""
    (version,) = unpack_from("<q", ring, lay.ACK_VERSION_AT)
    record = lay.ACK_RECORDS_AT + (version & 1) * lay.ACK_RECORD_BYTES
    seq, at, _ = unpack_from("<qqq", ring, record)
    closed, end = unpack_from("<qq", ring, lay.CLOSED_AT)
    if closed and seq >= end:
        return False  # messages that its writer has added since are not part of it
    (word,) = unpack_from("<q", ring, lay.HEADER_BYTES + (seq & (slots - 1)) * 8)
    holds = word >> lay.SEQ_SHIFT == seq & lay.SEQ_MASK
    state, length = (word >> lay.STATE_SHIFT) & 0xFF, word & lay.CONTROL_LENGTH_MASK
    return bool(holds and (state == lay.SEALED or (state == lay.OPEN and length > at)))


def holds_unacked(path: Path) -> bool:
    """A file is the ring of a durable topic's producer, with messages that are not acked."""
    try:
        mapped = MappedFile.open(path)
        about = describe(mapped.array)
    except TidecastError:
        return False
    return ring_session(mapped.array)[0] != 0 and unacked(mapped.array, about.slots)


@dataclass(frozen=True, slots=True)
class UnackedRing:
    """A ring with messages that are not acked. ``bytes``: of these messages."""

    topic: str
    producer: str
    session: int
    messages: int
    bytes: int
    file: str


def describe_unacked(mapped: MappedFile) -> UnackedRing | None:
    """The messages of a durable topic's ring behind its acks; None: none, or not such a ring.

    Raises SharedMemoryError when it is damaged.
    """
    ring, about = mapped.array, describe(mapped.array)
    producer, _, _ = ring_session(ring)
    if not producer or not unacked(ring, about.slots):
        return None
    seq, at, _ = ack_record(ring, about)
    held = messages_between(ring, about, seq, about.head + 1, at)
    return UnackedRing(
        about.topic_name,
        f"{producer:x}",
        about.session,
        held.messages,
        held.bytes,
        str(mapped.path),
    )


__all__ = [
    "ARCHIVER_SUBSCRIPTION",
    "OVER",
    "ArchiverTables",
    "Source",
    "UnackedRing",
    "ack_record",
    "begin_ring",
    "describe",
    "describe_unacked",
    "holds_more",
    "holds_unacked",
    "ring_session",
    "unacked",
]
