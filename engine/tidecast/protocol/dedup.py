"""Producers of a durable topic: epochs, fencing, and the last sequence of each in each queue.

A sequence at or below a producer's last sequence in a queue is a duplicate there: records of a
producer reach a queue in order, and a record that is sent again goes to the same queue as before.
The table is rebuilt from the logs (the snapshot at a segment's begin, then the batches behind it),
so it is persisted with the records themselves. See docs/DURABLE.md.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from tidecast.errors import ConfigError, Conflict, SequenceGap
from tidecast.layout import segment as lay

PRODUCERS_MAX = 10_000
"""Producers a topic remembers."""
SEQ_MAX = 1 << 62
_NAMED = 1 << 62
PLACED = 1 << 61
"""Bit of the ids of placed producers: they count in each queue, see `Producer.placed`."""
MIRROR = PLACED | 1 << 60
"""Placed producers that have a name: those of mirrors, see `mirror_id`."""
_ANONYMOUS_TTL_NS = 3_600_000_000_000
"""Producers without a name are forgotten an hour after their last message."""
_ENTRY = struct.Struct("<QQqqq")
_GRANT = struct.Struct("<QQIIqq")
_AGE_NS, _AGE_MAX = 1_000_000, (1 << 32) - 1
"""A grant has the age of its ring in milliseconds; 0 in files of builds that did not note it."""
Checksum = Callable[[bytes], int]
NOTHING: Mapping[int, int] = {}


def producer_id(name: str) -> int:
    """The id of a named producer: bit 62 is set, so it differs from all random ids."""
    digest = hashlib.blake2b(name.encode(), digest_size=8, person=b"tidecast-produce").digest()
    return (int.from_bytes(digest, "little") & (_NAMED - 1)) | _NAMED


def is_placed(producer: int) -> bool:
    """Whether an id is that of a placed producer."""
    return producer >> 61 == 1


def mirror_id(name: str) -> int:
    """The id of the producer with which a mirror appends: a sequence is a place in its source."""
    digest = hashlib.blake2b(name.encode(), digest_size=8, person=b"tidecast-mirror").digest()
    return (int.from_bytes(digest, "little") & ((1 << 60) - 1)) | MIRROR


def is_mirror(producer: int) -> bool:
    """Whether an id is that of a mirror's producer."""
    return producer >> 60 == 3


@dataclass(slots=True)
class Producer:
    """One producer. ``marks``: int64[queues], its last sequence in each queue."""

    id: int
    marks: np.ndarray
    epoch: int = 0
    acked_seq: int = 0
    seen_ns: int = 0
    sessions: int = 0
    """Open sessions; a producer with an open session is never forgotten."""
    torn_seq: int = 0
    """After a crash some sequences up to here are not in the log, and are expected to come."""
    hole_seq: int = 0
    """Sequences up to here may be missing in the log, and no known ring has them."""
    met: bool = False
    """A session of it was opened since the topic was opened."""
    line: int = 0
    """The publisher of its newest epoch, by its first session; 0: unknown."""
    opened_ns: int = 0
    """When its newest epoch was granted; 0: unknown."""
    born_ns: int = 0
    """When its ring was created, which may be long before: it orders sessions; 0: unknown."""

    @property
    def last_seq(self) -> int:
        """Its highest sequence in any queue."""
        return max(int(self.marks.max()), self.acked_seq)

    def learn_epoch(self, epoch: int) -> None:
        """The log has batches of an epoch; it does not name the publisher of a newer epoch."""
        if epoch > self.epoch:
            self.epoch, self.line, self.opened_ns, self.born_ns = epoch, 0, 0, 0

    def ack(self, seq: int) -> None:
        """All sequences up to ``seq`` are durable in all queues."""
        self.acked_seq = max(self.acked_seq, seq)

    def note_placed(self, epoch: int, now_ns: int) -> None:
        """A placed producer has appended, with an epoch that it chose."""
        self.epoch, self.seen_ns = max(self.epoch, epoch), now_ns

    def note_torn(self) -> None:
        """Some of it up to its last sequence is missing in the log."""
        self.torn_seq = self.last_seq

    def note_whole(self) -> None:
        """The missing sequences have come."""
        self.torn_seq = 0

    def note_hole(self) -> None:
        """The missing sequences are no longer expected."""
        self.torn_seq, self.hole_seq = 0, self.torn_seq

    def note_repeated(self, first_seq: int) -> None:
        """A session begins: if it repeats missing sequences, they are expected again."""
        if first_seq <= self.hole_seq:
            self.torn_seq, self.hole_seq = self.hole_seq, 0

    @property
    def whole_seq(self) -> int:
        """All sequences up to here are in the log.

        With missing sequences: up to the lowest mark, because each queue has all its records up to
        its mark.
        """
        if max(self.torn_seq, self.hole_seq) <= self.acked_seq:
            return self.last_seq
        return max(self.acked_seq, int(self.marks.min()))

    @property
    def named(self) -> bool:
        """It was opened by a name."""
        return bool(self.id & _NAMED) or is_mirror(self.id)

    @property
    def placed(self) -> bool:
        """It chooses its queues and counts its records in each of them; it has no sessions."""
        return is_placed(self.id)


@dataclass(slots=True)
class Session:
    """The answer to a producer that opens."""

    producer: Producer
    epoch: int
    first_seq: int
    acked_seq: int
    last_seq: int
    known: bool
    line: int = 0
    """For a session without an epoch: the field of its ring's `Claim`."""
    after: int = 0


@dataclass(slots=True)
class ProducerTable:
    """The producers of one topic."""

    queues: int
    producers_max: int = PRODUCERS_MAX
    ttl_ns: int = 604_800_000_000_000
    known: dict[int, Producer] = field(default_factory=dict)
    expired: int = 0
    granted: dict[int, int] = field(default_factory=dict)
    """Granted epochs by producer, which may not be in the log yet; see `Grants`."""
    pushed_out: list[Producer] = field(default_factory=list)
    """Producers forgotten to make room since the last `expire`."""
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
        self,
        queue: int,
        producers: np.ndarray,
        epochs: np.ndarray,
        last_seqs: np.ndarray,
        acked_seqs: np.ndarray,
        times_ns: np.ndarray,
    ) -> None:
        """Take in batches of a queue's log, a row each."""
        for each in np.unique(producers).tolist():
            if each == 0:
                continue
            rows = producers == each
            found = self._get(each)
            found.marks[queue] = max(int(found.marks[queue]), int(last_seqs[rows].max()))
            found.learn_epoch(int(epochs[rows].max()))
            found.acked_seq = max(found.acked_seq, int(acked_seqs[rows].max()))
            found.seen_ns = max(found.seen_ns, int(times_ns[rows].max()))

    def snapshot(
        self, queue: int, checksum: Checksum, waiting: Mapping[int, int] = NOTHING
    ) -> bytes:
        """The known producers of a queue, for the beginning of a segment.

        ``waiting``: first sequence of each producer that was read and is not yet in the log: a
        mark must not be persisted before its effect.
        """
        return _packed(
            [
                (
                    p.id,
                    p.epoch,
                    min(int(p.marks[queue]), waiting.get(p.id, SEQ_MAX) - 1),
                    p.acked_seq,
                    p.seen_ns,
                )
                for p in self.known.values()
            ],
            checksum,
        )

    def load(self, queue: int, raw: bytes, checksum: Checksum) -> bool:
        """Take in a snapshot. False: it is none, or damaged."""
        entries = _unpacked(raw, checksum)
        for each, epoch, last, acked, seen in entries or []:
            found = self._get(each)
            found.marks[queue] = max(int(found.marks[queue]), last)
            self.before[queue, each] = last
            found.learn_epoch(epoch)
            found.acked_seq, found.seen_ns = max(found.acked_seq, acked), max(found.seen_ns, seen)
        return entries is not None

    def grant(self, session: Session) -> bytes:
        """The bytes that must be on disk before the producer gets a session's epoch."""
        self.granted[session.producer.id] = session.epoch
        return self._grant(session.producer, session.epoch)

    def grants(self) -> bytes:
        """The newest grant of each producer, for `load_grants`."""
        return b"".join(self._grant(self.known[each], n) for each, n in self.granted.items())

    def _grant(self, producer: Producer, epoch: int) -> bytes:
        opened_ns = producer.opened_ns
        age = -((producer.born_ns - opened_ns) // _AGE_NS)  # rounded up: never too young
        age = min(max(age, 0), _AGE_MAX)
        return _GRANT.pack(producer.id, epoch, producer.line, age, producer.acked_seq, opened_ns)

    def load_grants(self, raw: bytes) -> None:
        """Load the bytes of `grant`, end to end."""
        for each, epoch, line, age, acked, opened_ns in _GRANT.iter_unpack(raw):
            found = self._get(each)
            self.granted[each] = max(self.granted.get(each, 0), epoch)
            if epoch >= found.epoch:
                found.epoch, found.line, found.opened_ns = epoch, line, opened_ns
                found.born_ns = opened_ns - age * _AGE_NS
            found.acked_seq = max(found.acked_seq, acked)
            found.seen_ns = max(found.seen_ns, opened_ns)

    # --- sessions ---------------------------------------------------------------------------------

    def overtaken(self, producer: int, line: int, after: int) -> bool:
        """Whether another publisher has begun that the publisher which resumes does not know.

        ``line``: the first session of the publisher that resumes, 0: it does not resume; ``after``:
        the newest epoch that it had.
        """
        found = self.known.get(producer)
        return bool(line) and found is not None and found.epoch > after and found.line != line

    def open(
        self, producer: int, first_seq: int | None, now_ns: int, line: int = 0, born_ns: int = 0
    ) -> Session:
        """Begin a session: a new epoch, which fences earlier sessions. The log has their records.

        ``first_seq``: the sequence it begins with; None: behind the last known sequence. Repeated
        records are dropped. ``line``: see `Producer`; ``born_ns``: when its ring was created, 0:
        now. Raises SequenceGap when it would leave out a sequence, ConfigError, Conflict when there
        are too many producers.
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
        found.met, found.line, found.opened_ns = True, line, now_ns
        found.born_ns = born_ns or now_ns
        found.note_repeated(first_seq)
        return Session(found, found.epoch, first_seq, min(found.acked_seq, last), last, known)

    def resume(
        self, producer: int, epoch: int, first_seq: int, now_ns: int, line: int, born_ns: int
    ) -> Session:
        """Continue a session that has its epoch, after a restart of either side."""
        found, opened_ns = self.known.get(producer), 0
        if found is not None and found.epoch == epoch:
            opened_ns, born_ns = found.opened_ns, found.born_ns or born_ns
        session = self.open(producer, None, now_ns, line, born_ns)
        session.producer.epoch, session.producer.opened_ns = epoch, opened_ns
        session.producer.note_repeated(first_seq)
        return replace(session, epoch=epoch, first_seq=first_seq)

    def placed(self, producer: int) -> Producer:
        """A placed producer, known from now on. Raises Conflict when there are too many."""
        if producer not in self.known:
            self._make_room()
        return self._get(producer)

    def close(self, producer: Producer, now_ns: int) -> None:
        """A session is over, and drained."""
        producer.sessions = max(0, producer.sessions - 1)
        producer.seen_ns = now_ns

    def _make_room(self) -> None:
        while len(self.known) >= self.producers_max:
            idle = [p for p in self.known.values() if p.sessions == 0]
            if not idle:
                raise Conflict(
                    f"the topic has {self.producers_max} producers with open sessions, the most "
                    "there may be: close some"
                )
            oldest = min(idle, key=lambda p: (p.named, p.seen_ns))
            self._forget(oldest)
            self.pushed_out.append(oldest)

    def _forget(self, producer: Producer) -> None:
        del self.known[producer.id]
        self.granted.pop(producer.id, None)
        self.expired += 1

    def expire(self, now_ns: int) -> list[Producer]:
        """Forget producers that were silent for too long, but no mirror, and none with a session.

        The result has producers that were forgotten to make room, too.
        """
        anonymous_ns = min(self.ttl_ns, _ANONYMOUS_TTL_NS)
        gone = [
            p
            for p in self.known.values()
            if p.sessions == 0
            and now_ns - p.seen_ns > (self.ttl_ns if p.named else anonymous_ns)
            and not is_mirror(p.id)  # its place in the source is kept nowhere else
        ]
        for each in gone:
            self._forget(each)
        pushed_out, self.pushed_out = self.pushed_out, []
        return pushed_out + gone

    def configure(self, queues: int, ttl_ns: int) -> None:
        """Set the number of queues, and how long a silent producer is remembered."""
        self.queues, self.ttl_ns = queues, ttl_ns

    def grow(self, queues: int) -> None:
        """Add queues. In new queues all sequences sent so far are duplicates.

        Except for placed producers, which have sent nothing there. Call it while all sent records
        are in the log. Sequences behind a given-up hole are stored again when they are repeated,
        though an older queue may have them: a record twice is better than an acked record lost.
        """
        for each in self.known.values():
            sent = 0 if each.placed else each.whole_seq
            more = np.full(queues - self.queues, sent, dtype=np.int64)
            each.marks = np.concatenate([each.marks, more])
        self.queues = queues

    def shrink(self, queues: int, marks: dict[int, np.ndarray]) -> None:
        """Undo a growth that failed. ``marks``: the former arrays by producer, not copies."""
        for each in self.known.values():
            each.marks = marks[each.id]
        self.queues = queues


def _packed(entries: list[tuple[int, int, int, int, int]], checksum: Checksum) -> bytes:
    body = b"".join(_ENTRY.pack(*entry) for entry in entries)
    return struct.pack("<QII", lay.PRODUCERS_MAGIC, len(entries), checksum(body)) + body


def is_snapshot(raw: bytes, checksum: Checksum) -> bool:
    """Whether these bytes are a sound snapshot of producers."""
    return _unpacked(raw, checksum) is not None


def _unpacked(raw: bytes, checksum: Checksum) -> list[tuple[int, ...]] | None:
    if len(raw) < lay.PRODUCERS_HEADER_BYTES:
        return None
    magic, count, crc = struct.unpack_from("<QII", raw)
    body = raw[lay.PRODUCERS_HEADER_BYTES :]
    if magic != lay.PRODUCERS_MAGIC or len(body) != count * lay.PRODUCER_BYTES:
        return None
    return list(_ENTRY.iter_unpack(body)) if crc == checksum(body) else None
