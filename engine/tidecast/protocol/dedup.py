"""Producers of a durable topic: epochs, fencing, and the last sequence of each in each queue.

A sequence at or below a producer's last one in a queue is a duplicate there: records of one
producer reach a queue in order, and a re-sent record is routed to the queue it went to before.
The table is rebuilt from the logs (a snapshot a segment, then the batches behind it), so it is
persisted with the records themselves. See docs/DURABLE.md.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from tidecast.errors import ConfigError, Conflict, SequenceGap
from tidecast.layout import segment as lay

PRODUCERS_MAX = 10_000
"""Producers a topic remembers."""
SEQ_MAX = 1 << 62
_NAMED = 1 << 62
_ANONYMOUS_TTL_NS = 3_600_000_000_000
"""Producers without a name are forgotten an hour after their last message."""
_ENTRY = struct.Struct("<QQqqq")
Checksum = Callable[[bytes], int]
NOTHING: Mapping[int, int] = {}


def producer_id(name: str) -> int:
    """The id of a named producer: bit 62 is set, so it is none of those that are random."""
    digest = hashlib.blake2b(name.encode(), digest_size=8, person=b"tidecast-produce").digest()
    return (int.from_bytes(digest, "little") & (_NAMED - 1)) | _NAMED


@dataclass(slots=True)
class Producer:
    """One producer. ``marks``: int64[queues], its last sequence in each queue."""

    id: int
    marks: np.ndarray
    epoch: int = 0
    acked_seq: int = 0
    seen_ns: int = 0
    sessions: int = 0
    """Sessions that are open; a producer with one is never forgotten."""
    torn_seq: int = 0
    """A crash left some up to this one in the log and others not: they are still to come."""
    met: bool = False
    """A session of it was opened since the topic was."""

    @property
    def last_seq(self) -> int:
        """Its highest sequence in any queue."""
        return max(int(self.marks.max()), self.acked_seq)

    @property
    def named(self) -> bool:
        """It was opened by a name."""
        return bool(self.id & _NAMED)


@dataclass(slots=True)
class Session:
    """What a producer is told when it opens."""

    producer: Producer
    epoch: int
    first_seq: int
    acked_seq: int
    last_seq: int
    known: bool


@dataclass(slots=True)
class ProducerTable:
    """The producers of one topic."""

    queues: int
    producers_max: int = PRODUCERS_MAX
    ttl_ns: int = 604_800_000_000_000
    known: dict[int, Producer] = field(default_factory=dict)
    expired: int = 0
    granted: dict[int, int] = field(default_factory=dict)
    """Epochs by producer that were granted and may not be in the log yet."""
    before: dict[tuple[int, int], int] = field(default_factory=dict)
    """By queue and producer: its last sequence before the segment that the queue's log begins."""

    def _get(self, producer: int) -> Producer:
        found = self.known.get(producer)
        if found is None:
            marks = np.zeros(self.queues, dtype=np.int64)
            found = self.known[producer] = Producer(producer, marks)
        return found

    # --- from the log -----------------------------------------------------------------------------

    def learn(
        self, queue: int, producers: np.ndarray, epochs: np.ndarray, last_seqs: np.ndarray,
        acked_seqs: np.ndarray, times_ns: np.ndarray,
    ) -> None:  # fmt: skip
        """Take in batches of a queue's log, a row each."""
        for each in np.unique(producers).tolist():
            if each == 0:
                continue
            rows = producers == each
            found = self._get(each)
            found.marks[queue] = max(int(found.marks[queue]), int(last_seqs[rows].max()))
            found.epoch = max(found.epoch, int(epochs[rows].max()))
            found.acked_seq = max(found.acked_seq, int(acked_seqs[rows].max()))
            found.seen_ns = max(found.seen_ns, int(times_ns[rows].max()))

    def snapshot(
        self, queue: int, checksum: Checksum, waiting: Mapping[int, int] = NOTHING
    ) -> bytes:
        """What is known of a queue's producers, for the beginning of a segment.

        ``waiting``: first sequence of each producer that was read and is not yet in the log: a
        mark must not be persisted before its effect.
        """
        return _packed(
            [
                (p.id, p.epoch, min(int(p.marks[queue]), waiting.get(p.id, SEQ_MAX) - 1),
                 p.acked_seq, p.seen_ns)
                for p in self.known.values()
            ],
            checksum,
        )  # fmt: skip

    def load(self, queue: int, raw: bytes, checksum: Checksum) -> bool:
        """Take in a snapshot. False: it is none, or damaged."""
        entries = _unpacked(raw, checksum)
        for each, epoch, last, acked, seen in entries or []:
            found = self._get(each)
            found.marks[queue] = max(int(found.marks[queue]), last)
            self.before[queue, each] = last
            found.epoch, found.acked_seq = max(found.epoch, epoch), max(found.acked_seq, acked)
            found.seen_ns = max(found.seen_ns, seen)
        return entries is not None

    def grants(self, session: Session, checksum: Checksum) -> bytes:
        """What must be on disk before a session's epoch is told: this grant, and earlier ones."""
        self.granted[session.producer.id] = session.epoch
        self.granted = {each: n for each, n in self.granted.items() if each in self.known}
        known = [(self.known[each], epoch) for each, epoch in self.granted.items()]
        return _packed([(p.id, n, 0, p.acked_seq, p.seen_ns) for p, n in known], checksum)

    def load_grants(self, raw: bytes, checksum: Checksum) -> bool:
        """Take in what `grants` gave. False: it is none, or damaged."""
        entries = _unpacked(raw, checksum)
        for each, epoch, _, acked, seen in entries or []:
            found, self.granted[each] = self._get(each), epoch
            found.epoch, found.acked_seq = max(found.epoch, epoch), max(found.acked_seq, acked)
            found.seen_ns = max(found.seen_ns, seen)
        return entries is not None

    # --- sessions ---------------------------------------------------------------------------------

    def open(self, producer: int, first_seq: int | None, now_ns: int) -> Session:
        """Begin a session: a new epoch, which fences the ones before. All they sent is in the log.

        ``first_seq``: the sequence it begins with; None: behind the last one that is known. What
        it repeats is dropped. Raises SequenceGap when it would leave one out, ConfigError,
        Conflict when there are too many producers.
        """
        if first_seq is not None and not 1 <= first_seq <= SEQ_MAX:
            raise ConfigError(f"first_seq: {first_seq}: allowed 1..{SEQ_MAX}")
        found = self.known.get(producer)
        known = found is not None
        if found is None:
            self._make_room()
            found = self._get(producer)
            found.acked_seq = 0 if first_seq is None else first_seq - 1
        last = found.last_seq
        due = last + 1
        if first_seq is None:
            first_seq = due
        if first_seq > due:
            raise SequenceGap(
                f"first_seq: {first_seq}: {due} is due: sequences of a producer have no gaps", due
            )
        found.epoch += 1
        found.seen_ns = now_ns
        found.sessions += 1
        found.met = True
        return Session(found, found.epoch, first_seq, min(found.acked_seq, last), last, known)

    def close(self, producer: Producer, now_ns: int) -> None:
        """A session is over, and drained."""
        producer.sessions = max(0, producer.sessions - 1)
        producer.seen_ns = now_ns

    def _make_room(self) -> None:
        if len(self.known) < self.producers_max:
            return
        idle = [p for p in self.known.values() if p.sessions == 0]
        if not idle:
            raise Conflict(
                f"the topic has {self.producers_max} producers with open sessions, the most there "
                "may be"
            )
        oldest = min(idle, key=lambda p: (p.named, p.seen_ns))
        del self.known[oldest.id]
        self.expired += 1

    def expire(self, now_ns: int) -> list[Producer]:
        """Forget producers that were silent for too long. Never one with an open session."""
        anonymous_ns = min(self.ttl_ns, _ANONYMOUS_TTL_NS)
        gone = [
            p for p in self.known.values()
            if p.sessions == 0 and now_ns - p.seen_ns > (self.ttl_ns if p.named else anonymous_ns)
        ]  # fmt: skip
        for each in gone:
            del self.known[each.id]
        self.expired += len(gone)
        return gone

    def grow(self, queues: int) -> None:
        """There are more queues now. In the new ones, all that was sent so far is a duplicate.

        To be called while everything that was sent is in the log.
        """
        for each in self.known.values():
            more = np.full(queues - self.queues, each.last_seq, dtype=np.int64)
            each.marks = np.concatenate([each.marks, more])
        self.queues = queues


def _packed(entries: list[tuple[int, int, int, int, int]], checksum: Checksum) -> bytes:
    body = b"".join(_ENTRY.pack(*entry) for entry in entries)
    return struct.pack("<QII", lay.PRODUCERS_MAGIC, len(entries), checksum(body)) + body


def _unpacked(raw: bytes, checksum: Checksum) -> list[tuple[int, ...]] | None:
    if len(raw) < lay.PRODUCERS_HEADER_BYTES:
        return None
    magic, count, crc = struct.unpack_from("<QII", raw)
    body = raw[lay.PRODUCERS_HEADER_BYTES :]
    if magic != lay.PRODUCERS_MAGIC or len(body) != count * lay.PRODUCER_BYTES:
        return None
    return list(_ENTRY.iter_unpack(body)) if crc == checksum(body) else None
