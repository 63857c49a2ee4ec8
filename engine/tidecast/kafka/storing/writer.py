"""Writes one partition: in order, each record once, stored by all replicas that are in sync.

One batch is under way at a time. Until it is answered it is sent again, byte by byte the same, over
as many connections and leaders as it takes: the broker drops batches that it has, by their
sequences.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

from tidecast.connections.retries import Attempts
from tidecast.errors import (
    Closed,
    ConnectionLost,
    Fenced,
    PayloadTooLarge,
    SequenceGap,
    StorageError,
    TidecastError,
)
from tidecast.kafka.brokers.cluster import MOVES, Cluster, error_of
from tidecast.kafka.brokers.connection import Link, code_name
from tidecast.kafka.codes import Code
from tidecast.kafka.schemas import tables
from tidecast.kafka.storing.batches import SEQUENCES, Batch, Encoder, Identity
from tidecast.kafka.storing.notes import Mark
from tidecast.kafka.wire import Struct
from tidecast.queues.adapter import LeftOut, Run

BATCH_BYTES = 900_000
"""Below the default limit of brokers (``message.max.bytes``: 1,048,588)."""
TIMEOUT_MS, PATIENCE_S = 5_000, 10.0
"""How long a broker waits for its replicas; how long a batch is sent again before an error."""
_SLACK_S = 5.0
_ALL = -1
_FENCED = frozenset({Code.INVALID_PRODUCER_EPOCH, Code.PRODUCER_FENCED})
_LOST = frozenset({Code.OUT_OF_ORDER_SEQUENCE_NUMBER, Code.UNKNOWN_PRODUCER_ID})


def transactional_id(topic: str, owner: str, node: str) -> str:
    """The id under which a topic of the cluster is written.

    Without an ``owner`` each node keeps the messages published on it, under an id of its own.
    """
    return f"tidecast/{topic}" if owner else f"tidecast/{topic}/{node}"


_UNFIT = {
    Code.MESSAGE_TOO_LARGE: "",
    Code.INVALID_TIMESTAMP: "see message.timestamp.before.max.ms and .after.max.ms of the topic",
    Code.INVALID_RECORD: "a topic that is compacted takes no record without a key",
}
"""Codes for a batch with a record that the topic does not take, and the remedy."""


class _Unfit(Exception):
    """The topic does not take a record of a batch. ``code``: why."""

    def __init__(self, code: Code) -> None:
        super().__init__()
        self.code = code


class PartitionWriter:
    """See module. For one thread; `close` may come from another.

    ``identity``: the writer, and the next sequence. ``behind``: see `write`. ``offset``: of the
    first record of the newest batch, -1: not known. ``records``, ``bytes``, ``batches``: stored.
    ``mark``: the newest place in log and partition of which all before is stored.
    ``errors``: failures that were tried again. ``duplicates``: batches that the broker had already.
    ``refused``: the record that the topic does not take, of a `write` that raised for it; the next
    one may begin behind it.
    """

    def __init__(
        self,
        cluster: Cluster,
        partition: int,
        identity: Identity,
        *,
        batch_bytes: int = BATCH_BYTES,
        batch_records: int = SEQUENCES,
        patience_s: float = PATIENCE_S,
        log: int = 0,
        pace: Callable[[int], None] | None = None,
    ) -> None:
        """``log``: id of the log that the records are of. Raises ConfigError.

        ``pace(records)``: waits until so many records may be sent, or raises.
        """
        self._cluster, self.partition, self.identity = cluster, partition, identity
        self._where = f"{cluster.topic}/{partition}"
        self._encoder = Encoder(batch_bytes, log, batch_records)
        self._patience_s = patience_s
        self._doubtful: Batch | None = None
        self._pace = pace
        self._link: Link | None = None
        self._closing, self._busy = threading.Event(), threading.Lock()
        self.behind, self.offset = 0, -1
        self.mark: Mark | None = None
        self.refused: LeftOut | None = None
        self.records = self.bytes = self.batches = self.errors = self.duplicates = 0

    def write(self, run: Run, token: int) -> int:
        """Store the records of a run from ``token`` on; the token behind them.

        When it raises, `behind` is the token behind all that is known to be stored. A retryable
        error (ConnectionLost, StorageError) may leave a batch in doubt: call again with a run that
        holds `behind`, which resolves that batch first.

        Raises Fenced when a newer epoch has written, SequenceGap when the broker lost acknowledged
        records, AuthError, Closed; with `refused` PayloadTooLarge and StorageError.
        """
        with self._busy:
            self.behind, self.refused = token, None
            while not self._closing.is_set():
                batch = self._doubtful or self._next(run)
                if batch is None:
                    return self.behind
                if self._doubtful is None and self._pace is not None:
                    self._pace(batch.records)
                self._doubtful = batch
                try:
                    self._store(batch)
                except _Unfit as unfit:
                    self._doubtful = None
                    is_large = unfit.code == Code.MESSAGE_TOO_LARGE
                    smaller = self._encoder.halve if is_large else self._encoder.separate
                    if not smaller(batch):
                        raise self._refusal(len(batch.data), unfit.code) from None
        raise Closed(f"{self._where}: write after close")

    def _next(self, run: Run) -> Batch | None:
        try:
            return self._encoder.encode(run, self.behind, self.identity)
        except PayloadTooLarge as problem:
            self._note_refused(0, str(problem))
            raise

    def _note_refused(self, size: int, reason: str) -> None:
        self.refused = LeftOut(self.behind, self.behind + 1, 1, size, reason)

    def _refusal(self, size: int, code: Code) -> TidecastError:
        """The error for a record that the topic does not take."""
        if code != Code.MESSAGE_TOO_LARGE:
            reason = f"{code_name(code)}: {_UNFIT[code]}"
            self._note_refused(size, reason)
            return StorageError(f"{self._where}: record {self.behind}: {reason}")
        limit = None
        with contextlib.suppress(TidecastError):  # the user may have no right to ask
            limit = self._cluster.setting("max.message.bytes")
        reason = (
            f"a record of {size} bytes with its batch is more than the topic takes"
            f"{f' ({limit})' if limit else ''}: raise its max.message.bytes"
        )
        self._note_refused(size, reason)
        return PayloadTooLarge(f"{self._where}: {reason}")

    def _store(self, batch: Batch) -> None:
        attempts = Attempts(self._patience_s, self._pause)
        while True:
            try:
                row = self._ask(batch)
                code = int(row["error_code"])
                if code in (Code.NONE, Code.DUPLICATE_SEQUENCE_NUMBER):
                    self._note_stored(batch, row, code)
                    return
                if code not in MOVES:
                    self._refuse(code)
                problem: TidecastError = ConnectionLost(f"{self._where}: {code_name(code)}")
            except ConnectionLost as lost:
                problem = lost
            self.errors += 1
            self._pause(0.0)  # raises when it is closed, also when no time is left
            self._hang_up()
            attempts.wait(problem)
            with contextlib.suppress(ConnectionLost):
                self._cluster.refresh()

    def _pause(self, seconds: float) -> None:
        if self._closing.wait(seconds):
            raise Closed(f"{self._where}: write after close")

    def _ask(self, batch: Batch) -> Struct:
        """The leader's verdict. Raises ConnectionLost."""
        leader = self._cluster.leader(self.partition)
        if self._link is not None and self._link.address != leader.address:
            self._hang_up()
        if self._link is None:
            self._link = self._cluster.connect(leader.address)
        body = {
            "acks": _ALL,
            "timeout_ms": TIMEOUT_MS,
            "topics": [
                {
                    "name": self._cluster.topic,
                    "partitions": [{"index": self.partition, "records": batch.data}],
                }
            ],
        }
        answer = self._link.ask(tables.PRODUCE, body, TIMEOUT_MS / 1000 + _SLACK_S)
        try:
            row: Struct = answer["responses"][0]["partition_responses"][0]
        except IndexError:
            raise StorageError(f"{self._where}: the answer to Produce lacks it") from None
        return row

    def _note_stored(self, batch: Batch, row: Struct, code: int) -> None:
        self._doubtful = None
        self.identity = self.identity.behind(batch.records)
        self.behind = batch.behind
        self.offset = int(row["base_offset"])
        if self.offset >= 0:
            self.mark = Mark(batch.behind, self.identity.sequence, self.offset + batch.records)
        self.duplicates += code == Code.DUPLICATE_SEQUENCE_NUMBER
        self.records += batch.records
        self.bytes += len(batch.data)
        self.batches += 1

    def _refuse(self, code: int) -> None:
        """Raise the error of a code that no retry cures."""
        if code in _UNFIT:
            raise _Unfit(Code(code))
        text = f"{self._where}: {code_name(code)}"
        if code in _FENCED:
            raise Fenced(f"{text}: another writer has taken the partition over")
        if code in _LOST:
            raise SequenceGap(
                f"{text}: the brokers lost records that they had acknowledged (an unclean "
                "election?), or forgot the producer",
                self.identity.sequence,
            )
        raise error_of(code, self._where)

    def _hang_up(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None

    def close(self) -> None:
        """End a write that waits, hang up. Idempotent."""
        self._closing.set()
        link = self._link
        if link is not None:
            link.wake()
        with self._busy:
            self._hang_up()
