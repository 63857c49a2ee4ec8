"""Messages and batches of a durable consumer: views into its ring, settled one by one or at once.

An ack is written into shared memory without a wait, so the blocking and the asyncio client share
the methods: a program may await their result, and need not.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Generator, Iterator
from itertools import repeat
from typing import Any, Protocol

import msgspec
import numpy as np

from tidecast import codecs
from tidecast.buffers import member_ring
from tidecast.client.columns.received import HeaderForm
from tidecast.client.columns.records import StoredRecord, StoredRecords
from tidecast.client.core.outgoing import reject
from tidecast.client.kernels import objects
from tidecast.errors import Closed
from tidecast.layout import member as member_layout
from tidecast.native.memory import address

COLLECTED_MAX = 256
"""Acks of single messages are sent when there are so many."""
SECONDS_MAX = 7 * 24 * 3600
"""As `agents.puller.NAK_DELAY_NS_MAX`."""


def check_seconds(field: str, value: Any) -> float:
    """A time that the engine keeps. Raises ConfigError."""
    if not isinstance(value, (int, float)) or not 0 <= value <= SECONDS_MAX:
        raise reject(field, value, f"are 0 to {SECONDS_MAX} seconds")
    return float(value)


class _Done:
    """Something that is done already: awaiting it takes no time."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, None, None]:
        return
        yield  # makes this a generator


DONE = _Done()


class Token(msgspec.Struct, frozen=True, order=True):
    """Where a record lies: a sequence in a queue of a topic."""

    topic: str
    queue: int
    sequence: int


class Acks(Protocol):
    """Collects acks of single messages."""

    def note(self, batch: DurableBatch) -> None:
        """A batch has its first ack, or as many as are sent together."""


class Acknowledger(Protocol):
    """The consumer of a batch, as its messages need it."""

    pattern: str
    generation: int

    @property
    def moved(self) -> int:
        """Changes whenever a seek takes deliveries back."""

    @property
    def refuses(self) -> bool:
        """Deliveries of some keys must be given back."""

    @property
    def assembly(self) -> np.ndarray[Any, Any]:
        """Where large messages are put together."""

    @property
    def collector(self) -> Acks:
        """Acks that are not sent."""

    def codec_for(self, topic: str) -> codecs.Codec | None:
        """The codec for records of a topic."""

    def cursor(self, word: int) -> tuple[str, int]:
        """(topic, queue) of a cursor as frames call it."""

    def ack_runs(self, runs: Any, generation: int) -> None:
        """Ack whole runs."""

    def put(
        self,
        kind: int,
        cursor: int,
        token: int,
        time_ns: int,
        reason: str,
        key_hash: int,
        generation: int,
    ) -> None:
        """Settle one record."""

    def is_past(self, generation: int) -> bool:
        """Is a batch of this generation of a member that is gone?"""

    def holds_back(self, cursor: int, key_hash: int, acks_seen: int) -> bool:
        """Must a delivery be given back because its key was refused after it was written?"""


class DurableMessage(StoredRecord["DurableBatch"], frozen=True, gc=False, eq=False):
    """One delivery of a record. ``data`` is yours; the other fields last until the next batch.

    Settle it once: `ack`, `nak`, `term`; `extend` asks for more time.
    """

    @property
    def batch(self) -> DurableBatch:
        """The batch that it is of."""
        return self._batch

    @property
    def token(self) -> Token:
        """Where it lies."""
        return self._batch.token(self._row)

    @property
    def topic(self) -> str:
        """Name of the topic."""
        return self._batch.topic_of(self._row)

    @property
    def attempts(self) -> int:
        """How often it was delivered, this time included."""
        return self._batch.numbers_of(self._row)[member_ring.RUN_ATTEMPTS]

    @property
    def value(self) -> Any:
        """The payload, decoded by the codec of the consumer, or of its connection.

        Raises CodecError.
        """
        topic = self.topic
        return codecs.decode(self._batch.consumer.codec_for(topic), self.data, topic)

    def ack(self) -> _Done:
        """It is done with; sent together with others, see `consumer_acks`."""
        batch = self._batch
        rows = batch.acked
        rows.append(self._row)
        if not batch.noted or len(rows) >= COLLECTED_MAX:
            batch.noted = True
            batch.consumer.collector.note(batch)
        return DONE

    def nak(self, delay: float = 0.0) -> _Done:
        """Deliver it again, after ``delay`` seconds. Later records of its key wait for it.

        Raises ConfigError for a delay that is not 0 to 604,800 s (a week).
        """
        return self._batch.acknowledge(self._row, member_layout.NAK, check_seconds("delay", delay))

    def extend(self, seconds: float | None = None) -> _Done:
        """Give me ``seconds`` from now on for it, up to a week; None: `ack_wait` once more."""
        asked = 0.0 if seconds is None else check_seconds("seconds", seconds)
        return self._batch.acknowledge(self._row, member_layout.EXTEND, asked)

    def term(self, reason: str = "") -> _Done:
        """Never again: into the dead-letter topic, if the subscription has one."""
        return self._batch.acknowledge(self._row, member_layout.TERM, 0.0, str(reason))

    @property
    def held_back(self) -> bool:
        """Was an earlier record of its key refused since? Then it comes again, behind that record.

        So does a record without an ack that an engine delivered which is gone.
        """
        return self._batch.held_back(self._row)

    def give_back(self) -> _Done:
        """It was not worked at: deliver it again, this was no attempt."""
        return self._batch.acknowledge(self._row, member_layout.RETURN)

    def copy(self) -> DurableMessage:
        """The same delivery with fields of its own: it lives as long as you like."""
        return self._batch.copy_of(self._row, self.data)

    def __repr__(self) -> str:
        return f"DurableMessage(token={self.token!r}, size={self.size}, attempts={self.attempts})"


class DurableBatch(StoredRecords):
    """Deliveries taken together, in place. Valid until the next batch is taken."""

    __slots__ = (
        "_numbers",
        "_runs",
        "_starts",
        "acked",
        "consumer",
        "generation",
        "moved",
        "noted",
    )

    def __init__(
        self, consumer: Acknowledger, memory: np.ndarray[Any, Any], rows: Any, runs: Any, moved: int
    ) -> None:
        super().__init__(memory, rows)
        self.moved = moved
        """The value of `Acknowledger.moved` before it was taken."""
        self.consumer, self._runs = consumer, runs
        self.generation = consumer.generation
        self._starts: list[int] | None = None
        self._numbers: list[list[int]] | None = None
        self.acked: list[int] = []
        """Rows that are acked one by one and not sent, see `consumer.acks`. Any thread adds."""
        self.noted = False
        """The collector knows that there are some."""

    def __repr__(self) -> str:
        return f"<DurableBatch of {self._n} messages from {self.consumer.pattern}>"

    def __iter__(self) -> Iterator[DurableMessage]:
        return iter(self.messages)

    @property
    def messages(self) -> list[DurableMessage]:
        """All messages. `to_arrow` gives columns."""
        return list(map(DurableMessage, self.payloads(), repeat(self), range(self._n)))

    def values(self) -> list[Any]:
        """The payloads, decoded by the codec of the consumer or its connection.

        Raises CodecError.
        """
        topics = [each.topic for each in self.tokens()]
        found = {topic: self.consumer.codec_for(topic) for topic in set(topics)}
        return [
            codecs.decode(found[topic], data, topic)
            for topic, data in zip(topics, self.payloads(), strict=True)
        ]

    def to_record_batch(self, *, headers: HeaderForm = "map") -> Any:
        """An Arrow record batch, a copy: payload, key, headers, timestamp, deliver_at, and more.

        That is topic, queue, offset, attempts. `publish_batch` takes it. ``headers``: ``map``, of
        text to bytes (whole numbers as decimal text), or ``raw``, the MessagePack bytes as they
        were published. Raises ConfigError, Closed.
        """
        import pyarrow as pa

        found = self.fields()
        runs, rows = self._runs, np.arange(self._n)
        of = runs[np.searchsorted(runs[:, member_ring.RUN_ROW], rows, side="right") - 1]
        words, which = np.unique(of[:, member_ring.RUN_CURSOR], return_inverse=True)
        cursors = [self.consumer.cursor(int(word)) for word in words]
        names = sorted({topic for topic, _ in cursors})
        numbers = np.array([names.index(topic) for topic, _ in cursors], dtype=np.int32)
        queues = np.array([queue for _, queue in cursors], dtype=np.int32)
        where = {
            "topic": pa.DictionaryArray.from_arrays(numbers[which], pa.array(names, pa.string())),
            "queue": pa.array(queues[which]),
            "offset": pa.array(of[:, member_ring.RUN_TOKEN] + rows - of[:, member_ring.RUN_ROW]),
            "attempts": pa.array(of[:, member_ring.RUN_ATTEMPTS].astype(np.int32)),
        }
        return found.record_batch(self.to_arrow(), headers, where, self.consumer.pattern)

    def tokens(self) -> list[Token]:
        """Where each lies."""
        return [self.token(row) for row in range(self._n)]

    def ack(self) -> _Done:
        """All of it is done with; ranges, so it costs next to nothing."""
        if self._n:
            self.consumer.ack_runs(self._runs, self.generation)
        return DONE

    def acknowledge(self, row: int, kind: int, seconds: float = 0.0, reason: str = "") -> _Done:
        """Settle one message of the batch; may be done later too, from any thread."""
        run = self.numbers_of(row)
        token = run[member_ring.RUN_TOKEN] + row - run[member_ring.RUN_ROW]
        hashed = self._key_hash(row) if kind in (member_layout.NAK, member_layout.RETURN) else -1
        self.consumer.put(
            kind,
            run[member_ring.RUN_CURSOR],
            token,
            int(seconds * 1e9),
            reason,
            hashed,
            self.generation,
        )
        return DONE

    def held_back(self, row: int) -> bool:
        """Was an earlier record of this key refused since this one was delivered?

        Deliveries of an engine, or to a member, that is gone come again: they are held back, too.
        """
        if self.consumer.is_past(self.generation):
            return True
        if not self.consumer.refuses:
            return False
        run = self.numbers_of(row)
        seen = run[member_ring.RUN_ACKS_SEEN]
        return self.consumer.holds_back(run[member_ring.RUN_CURSOR], self._key_hash(row), seen)

    def only(self, rows: list[int]) -> DurableBatch:
        """The same batch with these rows alone."""
        runs = []
        for k, row in enumerate(rows):
            run = self.run_of(row).copy()
            run[member_ring.RUN_TOKEN] += row - run[member_ring.RUN_ROW]
            run[member_ring.RUN_COUNT], run[member_ring.RUN_ROW] = 1, k
            runs.append(run)
        rest = DurableBatch(
            self.consumer, self._memory, self._rows[rows], np.array(runs), self.moved
        )
        rest.generation = self.generation
        return rest

    def taken_back(self, row: int, ring: Any) -> bool:
        """Has the engine taken the delivery back since it was taken out of ``ring``?"""
        at = int(self.run_of(row)[member_ring.RUN_FRAME]) + member_layout.FRAME_KIND_AT
        return bool(ring[at] == member_layout.FRAME_PAD)

    def take_acked(self) -> list[int]:
        """Take the rows that were acked one by one.

        A thread that adds a row behind the taken ones finds `noted` false, and notes the batch.
        """
        self.noted = False
        n = len(self.acked)
        rows = self.acked[:n]
        del self.acked[:n]
        return rows

    def start_walk(self, words: Any, *keep: Any) -> Callable[[], DurableMessage | None] | None:
        """A function that gives message by message: `objects.message_walk`. Fills in the batch."""
        rows = self._rows
        words[objects.WALK_ROWS], words[objects.WALK_TABLE_AT] = self._n, address(rows)
        words[objects.WALK_ROW_BYTES] = rows.strides[0]
        words[objects.WALK_BASE] = address(self._memory)
        return objects.message_walk(DurableMessage, words, self, rows, self._memory, *keep)

    def lay_out(self, rows: Any, runs: Any) -> tuple[int, int]:
        """Copy the places of its messages into tables of `member_ring.take`: (rows, runs)."""
        rows[: self._n], runs[: len(self._runs)] = self._rows, self._runs
        return self._n, len(self._runs)

    @property
    def assembled(self) -> bool:
        """It is one large message, put together from pieces outside the ring."""
        return self._n == 1 and self._memory is self.consumer.assembly

    @property
    def acks_seen(self) -> int:
        """The engine had read our acks up to here when it wrote the first of these."""
        return int(self._runs[0, member_ring.RUN_ACKS_SEEN])

    @property
    def runs(self) -> Any:
        """Its runs, see `member_ring.RUN_*`."""
        return self._runs

    @property
    def positions(self) -> list[int]:
        """Positions, each of which marks one message as taken."""
        found: list[int] = self._rows[:, member_ring.ROW_POSITION].tolist()
        return found

    def position(self, row: int) -> int:
        """The position that marks message ``row``, and all before it, as taken."""
        return int(self._rows[row, member_ring.ROW_POSITION])

    # --- one message ------------------------------------------------------------------------------

    def run_of(self, row: int) -> Any:
        """The run that a row belongs to."""
        return self._runs[0] if len(self._runs) == 1 else self._runs[self._run_at(row)]

    def numbers_of(self, row: int) -> list[int]:
        """The run that a row belongs to, as numbers of Python."""
        runs = self._numbers
        if runs is None:
            runs = self._numbers = self._runs.tolist()
        return runs[0] if len(runs) == 1 else runs[self._run_at(row)]

    def _run_at(self, row: int) -> int:
        if self._starts is None:
            self._starts = self._runs[:, member_ring.RUN_ROW].tolist()
        return bisect_right(self._starts, row) - 1

    def topic_of(self, row: int) -> str:
        """The topic of message ``row``."""
        return self.consumer.cursor(self.numbers_of(row)[member_ring.RUN_CURSOR])[0]

    def token(self, row: int) -> Token:
        """Where message ``row`` lies."""
        run = self.numbers_of(row)
        topic, queue = self.consumer.cursor(run[member_ring.RUN_CURSOR])
        return Token(topic, queue, run[member_ring.RUN_TOKEN] + row - run[member_ring.RUN_ROW])

    def _key_hash(self, row: int) -> int:
        return int(self._rows[row, member_ring.ROW_KEY_HASH])

    def copy_of(self, row: int, data: bytes) -> DurableMessage:
        """Message ``row``, whose payload is ``data``, with memory of its own."""
        self._check()
        start, n, at, position, key_hash = self._rows[row].tolist()
        raw = self._view[at : start + n].tobytes()
        run = self.numbers_of(row).copy()
        run[member_ring.RUN_TOKEN] += row - run[member_ring.RUN_ROW]
        run[member_ring.RUN_COUNT], run[member_ring.RUN_ROW] = 1, 0
        kept = KeptBatch(
            self.consumer, raw, [start - at, n, 0, position, key_hash], run, self.moved
        )
        kept.generation = self.generation  # it was delivered then
        return DurableMessage(data, kept, 0)

    def _check(self) -> None:
        if self._n and self.generation != self.consumer.generation:
            raise Closed(
                f"{self.consumer.pattern}: this batch is over, a later one was taken: use copy() "
                "or payloads() on what must live longer"
            )


class KeptBatch(DurableBatch):
    """One message with memory of its own. Its tables are made when they are asked for."""

    __slots__ = ("_raw", "_row")

    def __init__(
        self, consumer: Acknowledger, raw: bytes, row: list[int], run: list[int], moved: int
    ) -> None:
        self.consumer, self.moved, self.generation = consumer, moved, consumer.generation
        self._raw, self._row, self._numbers = raw, row, [run]
        self._view, self._n = memoryview(raw), 1
        self._loaded = self._starts = None
        self.acked, self.noted = [], False

    def __getattr__(self, name: str) -> Any:
        if name == "_memory":
            self._memory = np.array(np.frombuffer(self._raw, dtype=np.uint8))
        elif name == "_rows":
            self._rows = np.array([self._row], dtype=np.int64)
        elif name == "_runs":
            self._runs = np.array(self._numbers, dtype=np.int64)
        else:
            raise AttributeError(name)
        return getattr(self, name)

    def _record_at(self, row: int) -> int:
        del row  # there is but one
        return 0

    def _key_hash(self, row: int) -> int:
        del row
        return self._row[member_ring.ROW_KEY_HASH]

    def _check(self) -> None:
        return


class EmptyDurableBatch(DurableBatch):
    """The result of `fetch` when nothing came."""

    __slots__ = ()

    def __init__(self, consumer: Acknowledger) -> None:
        empty = np.zeros((0, member_ring.ROW_FIELDS), dtype=np.int64)
        super().__init__(
            consumer,
            np.zeros(0, dtype=np.uint8),
            empty,
            np.zeros((0, member_ring.RUN_FIELDS), dtype=np.int64),
            consumer.moved,
        )

    def _check(self) -> None:
        return
