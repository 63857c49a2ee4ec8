"""The adapter protocol: how a topic's queues are read and written, in whatever system they are.

Adapters read and write *runs*: whole record batches end to end in one buffer, in the layout of
`tidecast.layout.segment`. The engine's cache takes a run unchanged, from its own log or from any
adapter. `pack` makes a run from records, `unpack` returns its records, `fit` cuts it to a buffer.
docs/ADAPTERS.md has a complete adapter of one page, and `tidecast.queues.conformance` the checks
that each adapter must pass.

A *token* is a record's place in its queue: below 2^62, ascending by one within a batch. Between two
batches there may be *holes*: tokens that no record has, nor ever gets (markers of transactions,
compaction, deleted messages). A cursor passes a hole as if its records were acknowledged. Only one
thread may use a receiver or a sender; `close` may come from another thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import msgspec
import numpy as np

from tidecast.errors import Closed, CorruptLog, Fenced, NotFound
from tidecast.layout import segment as lay
from tidecast.log import batch
from tidecast.log.building import BatchBuilder, check, record_table, records
from tidecast.log.queue_log import QueueLog
from tidecast.native.jit import held_kernel
from tidecast.native.memory import load_i64, load_u32, store_u32
from tidecast.queues.mapper import hash_of

__all__ = [
    "Adapter", "Counting", "Counts", "Direction", "EmbeddedAdapter", "Growing", "LeftOut",
    "Received", "Receiver", "Record", "Sender", "fit", "pack", "restamp", "unpack",
]  # fmt: skip

PACK_RECORDS, PACK_BYTES = 1000, 1 << 20
"""Records, and bytes, at which `pack` ends a batch."""
POLL_S = 0.005
"""How often a waiting receiver checks for records that another thread's kernel appended."""
Run = np.ndarray[Any, np.dtype[np.uint8]]


class Direction(Enum):
    """The abilities of an adapter."""

    READ = "read"
    WRITE = "write"
    BOTH = "both"


class LeftOut(NamedTuple):
    """Records [first, end) of a queue that Tidecast cannot hold: they are passed, and reported.

    ``records``: how many; ``bytes``: their size in their system; ``reason``: why Tidecast cannot
    hold them, with the size and the limit.
    """

    first: int
    end: int
    records: int
    bytes: int
    reason: str


class Received(NamedTuple):
    """The result of a receive. ``bytes`` 0: nothing came in time, which is not an error.

    ``next_token``: behind the last record. Without bytes: the requested token, or a later token
    when no record is before it. ``need``: the next batch needs a buffer of so many bytes. ``end``:
    the result of `Receiver.latest`, if it is known already. ``left_out``: these records are the
    next, and end before ``next_token``; there are no bytes then.
    """

    bytes: int
    next_token: int
    need: int = 0
    end: int = -1
    left_out: LeftOut | None = None


class Record(NamedTuple):
    """One record. ``key`` None and b"" are different keys; ``time_ns``: since 1970."""

    payload: bytes
    key: bytes | None = None
    headers: Mapping[str, Any] | None = None
    time_ns: int = 0


class Receiver(Protocol):
    """Reads a queue from any token; several receivers may read the same queue."""

    def receive(self, token: int, buffer: Run, timeout_s: float) -> Received:
        """Read whole batches into ``buffer``, from the batch with ``token`` on, or the next batch.

        Waits up to ``timeout_s`` for the first record, and not for more. A record that a run cannot
        hold is reported by itself: `Received.left_out`. Raises NotFound when ``token`` is no longer
        kept, a retryable error when trying again can help, Closed.
        """

    def ack(self, token: int) -> None:
        """All records below ``token`` are completed and may be deleted. An older ack does nothing.

        Tidecast keeps its own positions and reads by token after a restart: acks are only for
        sources that delete acked records, or bill the records that they keep.
        """

    def earliest(self) -> int:
        """The oldest token that is kept."""

    def latest(self) -> int:
        """The token that the next record will get."""

    def at_time(self, time_ns: int) -> int:
        """The first token in a batch with a record not older than this; `latest` without one."""

    def close(self) -> None:
        """End a `receive` that waits, free all. Idempotent."""


class Sender(Protocol):
    """Writes one queue, with the owner epoch that `Adapter.sender` got."""

    def append(self, run: Run) -> int:
        """Append a run, all or nothing; the token of its first record.

        The run's own tokens are void: the queue gives new ones. Producer, epoch, sequences and
        time-stamps are kept. Raises Fenced when the queue has met a higher owner epoch, a retryable
        error when nothing was appended and trying again can help.
        """

    def sync(self) -> int:
        """Make appended records durable. Returns a token: all records below it are durable."""

    def close(self) -> None:
        """Free all. Idempotent."""


class Adapter(Protocol):
    """The queues of one topic, in whatever system they are."""

    name: str
    direction: Direction
    rewindable: bool
    """Whether a receiver may read tokens below an acked token."""

    @property
    def queues(self) -> int:
        """Number of queues. The number of a `Growing` adapter may rise."""

    def receiver(self, queue: int) -> Receiver:
        """A receiver of a queue. Raises NotFound without such a queue."""

    def sender(self, queue: int, owner: int) -> Sender:
        """A sender to a queue; ``owner``: our lease's epoch. Raises NotFound, Fenced."""

    def close(self) -> None:
        """Close it with all its receivers and senders. Idempotent."""


@runtime_checkable
class Growing(Protocol):
    """An adapter whose system may add queues while it is open, behind the present queues."""

    refresh_s: float
    """Seconds between two calls of `refresh`."""

    def refresh(self) -> None:
        """Ask the system for the number of `queues`. May wait; any thread. Raises TidecastError."""


@dataclass(frozen=True, slots=True)
class Counts:
    """The figures of an adapter since it was created; ``lag`` is a gauge. See `AdapterCounter`."""

    fetches: int = 0
    records: int = 0
    bytes: int = 0
    errors: int = 0
    reconnects: int = 0
    lag: int = 0


@runtime_checkable
class Counting(Protocol):
    """An adapter that counts."""

    def counted(self) -> Counts:
        """Of all its receivers together; from any thread, without waiting."""


# --- runs ---------------------------------------------------------------------------------------
def pack(
    given: Iterable[Record],
    first_token: int = 0,
    *,
    producer: int = 0,
    epoch: int = 0,
    base_seq: int = 1,
    now_ns: int = 0,
) -> Run:
    """A run of sealed batches from records, with tokens from ``first_token`` on."""
    builder, token, seq = BatchBuilder(1 << 16), first_token, base_seq
    count = size = 0
    for record in given:
        if count == PACK_RECORDS or size >= PACK_BYTES:
            token, count = builder.seal(token, now_ns), 0
        if not count:
            builder.begin(producer=producer, epoch=epoch, base_seq=seq)
            size = 0
        headers = None if record.headers is None else msgspec.msgpack.encode(record.headers)
        builder.add(
            record.payload,
            key=record.key,
            headers=headers,
            time_ns=record.time_ns or now_ns,
            key_hash=hash_of(record.key or b""),
            seq=seq,
        )
        count, seq, size = count + 1, seq + 1, size + len(record.payload)
    if count:
        builder.seal(token, now_ns)
    return builder.buffer[: builder.used].copy()


def unpack(run: Run) -> list[tuple[int, Record]]:
    """The records of a run, each with its token. Raises CorruptLog when it is not sound."""
    table, found, at, raw = record_table(), [], 0, run.tobytes()
    while at < run.size:
        length = int(check(run, at, run.size))
        rows = int(records(run, at, run.size, table, 0)) if length > 0 else length
        if rows < 0:
            raise CorruptLog(f"run: batch at byte {at}: {batch.CAUSES[rows]}")
        found += [(row[batch.O_TOKEN], _record(raw, row)) for row in table[:rows].tolist()]
        at += length
    return found


def _record(raw: bytes, row: list[int]) -> Record:
    def part(at: int, n: int) -> bytes | None:
        return raw[row[at] : row[at] + row[n]] if row[at] >= 0 else None

    headers = part(batch.O_HEADERS_AT, batch.O_HEADERS_N)
    return Record(
        part(batch.O_PAYLOAD_AT, batch.O_PAYLOAD_N) or b"",
        part(batch.O_KEY_AT, batch.O_KEY_N),
        None if headers is None else msgspec.msgpack.decode(headers),
        row[batch.O_TIME],
    )


@held_kernel
def fit_run(run, token, room, out):
    at, first, end, found = 0, -1, 0, token
    while at < run.size:
        length = batch.check_batch(run, at, run.size)
        if length < 0:
            return length
        behind = load_i64(run, at + lay.BATCH_BASE_TOKEN_AT)
        behind += load_u32(run, at + lay.BATCH_COUNT_AT)
        if behind > token:
            if first < 0:
                first = end = at
                out[3] = length
            if at + length - first > room:
                break
            end, found = at + length, behind
        at += length
    out[0], out[1], out[2] = max(first, 0), end, found
    return 0


def fit(run: Run, token: int, buffer: Run) -> Received:
    """Copy whole batches of ``run`` to ``buffer``, from the batch with ``token``, or the next.

    Returns the result of a `Receiver.receive`. Raises CorruptLog when the run is damaged.
    """
    out = np.zeros(4, dtype=np.int64)
    status = int(fit_run(run, token, buffer.size, out))
    if status < 0:
        raise CorruptLog(f"run for token {token}: {batch.CAUSES[status]}")
    first, end, behind, length = out.tolist()
    if end == first and length:
        return Received(0, token, need=length)
    buffer[: end - first] = run[first:end]
    return Received(end - first, behind)


@held_kernel
def restamp_run(run, token, owner, append_time):
    at = 0
    while at < run.size:
        length = batch.check_batch(run, at, run.size)
        if length < 0:
            return length
        store_u32(run, at + lay.BATCH_OWNER_AT, owner)
        token = batch.seal_batch(run, at, at + length, token, append_time)
        at += length
    return token


def restamp(run: Run, token: int, owner: int, append_time_ns: int) -> int:
    """Give the batches of a run, in place, tokens from ``token`` on, and their owner.

    The token behind it. Raises CorruptLog when the run is not sound; nothing may be appended then.
    """
    behind = int(restamp_run(run, token, owner, append_time_ns))
    if behind < 0:
        raise CorruptLog(f"run to append: {batch.CAUSES[behind]}")
    return behind


# --- embedded -----------------------------------------------------------------------------------
class EmbeddedAdapter:
    """The engine's own logs, one directory a queue, as an adapter.

    The engine's archiver and puller use the same logs with their own kernels; this adapter is for
    Python: tools, tests, and programs without an engine.
    """

    name, direction, rewindable = "embedded", Direction.BOTH, True

    def __init__(self, logs: Iterable[QueueLog]) -> None:
        self._logs = list(logs)
        self.queues = len(self._logs)
        self._shared = [_Shared(_newest_owner(log)) for log in self._logs]
        self._parts: list[Receiver | Sender] = []

    @classmethod
    def open(
        cls, directory: Path, *, topic: str, queues: int, fsync: str = "interval", **options: Any
    ) -> EmbeddedAdapter:
        """Open ``queues`` logs in ``directory``/0, 1, ...; ``options`` as of `QueueLog.open`."""
        logs: list[QueueLog] = []
        try:
            for q in range(queues):
                at = directory / str(q)
                logs.append(QueueLog.open(at, topic=topic, queue=q, fsync=fsync, **options))
        except BaseException:
            for log in logs:
                log.close()
            raise
        return cls(logs)

    def receiver(self, queue: int) -> EmbeddedReceiver:
        """A receiver of a queue."""
        part = EmbeddedReceiver(self._log(queue), self._shared[queue])
        self._parts.append(part)
        return part

    def sender(self, queue: int, owner: int) -> EmbeddedSender:
        """A sender to a queue."""
        part = EmbeddedSender(self._log(queue), self._shared[queue], owner)
        self._parts.append(part)
        return part

    def _log(self, queue: int) -> QueueLog:
        if not 0 <= queue < self.queues:
            raise NotFound(f"queue: {queue}: there are {self.queues}, from 0 on")
        return self._logs[queue]

    def close(self) -> None:
        """Close it with all its receivers, senders and logs. Idempotent."""
        for part in self._parts:
            part.close()
        self._parts.clear()
        for log in self._logs:
            log.close()


class _Shared:
    """Shared by receivers and senders of one log: wake-ups, and the highest owner epoch met."""

    def __init__(self, owner: int) -> None:
        self.grown = threading.Condition()
        self.owner = owner


class EmbeddedReceiver:
    """Reads one log."""

    def __init__(self, log: QueueLog, shared: _Shared) -> None:
        self._log, self._grown = log, shared.grown
        self._reader = log.reader()
        self._closed = False
        self.acked = 0
        """All records below are completed: retention may delete them."""

    def receive(self, token: int, buffer: Run, timeout_s: float) -> Received:
        """See `Receiver.receive`."""
        deadline = time.monotonic() + timeout_s
        while True:
            with self._grown:
                if self._closed:
                    raise Closed("receive after close")
                try:
                    n = self._reader.read_block(token, buffer)
                except ValueError:
                    return Received(0, token, need=self._reader.need)
                if n:
                    return Received(n, self._reader.next_token)
                left = deadline - time.monotonic()
                if left <= 0:
                    return Received(0, token)
                self._grown.wait(min(left, POLL_S))

    def ack(self, token: int) -> None:
        """See `Receiver.ack`."""
        self.acked = max(self.acked, token)

    def earliest(self) -> int:
        """The oldest token that is kept."""
        return self._log.earliest_token

    def latest(self) -> int:
        """The token that the next record will get."""
        return self._log.next_token

    def at_time(self, time_ns: int) -> int:
        """See `Receiver.at_time`."""
        return self._log.token_at_time(time_ns)

    def close(self) -> None:
        """See `Receiver.close`."""
        with self._grown:
            if not self._closed:
                self._closed = True
                self._reader.close()
            self._grown.notify_all()


class EmbeddedSender:
    """Appends to one log, as its only writer: never beside an archiver on the same queue."""

    def __init__(self, log: QueueLog, shared: _Shared, owner: int) -> None:
        self._log, self._shared, self.owner = log, shared, owner
        self._closed = False
        self._check_owner()
        shared.owner = owner

    def _check_owner(self) -> None:
        if self._shared.owner > self.owner:
            raise Fenced(
                f"{self._log.topic}/{self._log.queue}: owner epoch {self.owner}: the log has met "
                f"{self._shared.owner}: another owner has taken over; acquire the lease again"
            )

    def append(self, run: Run) -> int:
        """See `Sender.append`."""
        if self._closed:
            raise Closed("append after close")
        with self._shared.grown:
            self._check_owner()
            first, now_ns = self._log.next_token, time.time_ns()
            stamped = run.copy()
            restamp(stamped, first, self.owner, now_ns)
            self._log.append(stamped, stamped.size, now_ns)
            self._shared.grown.notify_all()
        return first

    def sync(self) -> int:
        """See `Sender.sync`."""
        durable = self._log.sync()
        with self._shared.grown:
            self._shared.grown.notify_all()
        return durable

    def close(self) -> None:
        """See `Sender.close`. The log stays open: it is the adapter's."""
        self._closed = True


def _newest_owner(log: QueueLog) -> int:
    """Owner epoch of a log's newest batch; 0 when it is empty."""
    token = log.next_token
    if token == log.earliest_token:
        return 0
    if log.durable_token < token and log.fsync == "batch":
        log.sync()
    reader, room = log.reader(), np.zeros(1 << 16, dtype=np.uint8)
    try:
        try:
            reader.read_block(token - 1, room)
        except ValueError:
            room = np.zeros(reader.need, dtype=np.uint8)
            reader.read_block(token - 1, room)
    finally:
        reader.close()
    return int.from_bytes(room[lay.BATCH_OWNER_AT :][:4].tobytes(), "little")
