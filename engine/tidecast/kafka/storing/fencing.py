"""The epoch of a writer: brokers refuse batches of an older epoch, wherever they are.

Raising the epoch of a transactional id is not enough: a partition learns of it with the first batch
of the new epoch, and takes those of the old one until then. So a transaction without records is
aborted: its marker, which no consumer sees, brings the new epoch to each partition.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from tidecast.connections.retries import Attempts
from tidecast.errors import ConnectionLost, StorageError, TidecastError
from tidecast.kafka.brokers.cluster import MOVES, Cluster, error_of
from tidecast.kafka.brokers.connection import code_name
from tidecast.kafka.codes import Code
from tidecast.kafka.record_kernels import BATCH_BYTES
from tidecast.kafka.records import CONTROL, HEADER, BatchHead
from tidecast.kafka.schemas import tables
from tidecast.kafka.storing.batches import SEQUENCES, Identity
from tidecast.kafka.wire import Struct

PATIENCE_S = 30.0
TRANSACTION_MS = 10_000
"""A transaction whose engine died between its begin and its end is aborted after it."""
FETCH_BYTES, FETCH_WAIT_MS = 4 << 20, 100
_LENGTH_AT = 12
_LATEST, _EARLIEST = -1, -2
_WAITS = MOVES | {Code.CONCURRENT_TRANSACTIONS}


class _Asking:
    """Questions to the coordinator of a transactional id, for PATIENCE_S all together."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self._cluster, self._name = cluster, name
        self._attempts = Attempts(PATIENCE_S, cluster.pause)

    def ask(self, key: int, body: Struct) -> Struct:
        """The answer without an error. Raises ConnectionLost, AuthError, StorageError."""
        while True:
            try:
                at = self._cluster.find_coordinator(self._name, of_transactions=True)
                found = self._cluster.ask(at, key, body)
                code = self._code(key, found)
                if not code:
                    return found
                what = f"{tables.KNOWN[key].name} of transactional id {self._name}"
                if code not in _WAITS:
                    raise error_of(code, what)
                problem: TidecastError = ConnectionLost(f"{what}: {code_name(code)}")
            except ConnectionLost as lost:
                problem = lost
            self._attempts.wait(problem)

    @staticmethod
    def _code(key: int, found: Struct) -> int:
        if key != tables.ADD_PARTITIONS_TO_TXN:
            return int(found["error_code"])
        rows = [row for one in found["results"] for row in one["results_by_partition"]]
        return next(
            (int(one["partition_error_code"]) for one in rows if one["partition_error_code"]), 0
        )


def fence(cluster: Cluster, name: str, beside: Sequence[Cluster] = ()) -> Identity:
    """A new epoch for all partitions of the cluster's topic, under a transactional id.

    ``beside``: other topics whose partitions the same writer writes. The writer before is refused
    from now on. Raises ConnectionLost, AuthError, StorageError; then nothing of the new epoch is
    written, and the call may be repeated.
    """
    asking = _Asking(cluster, name)
    begin = {"transactional_id": name, "transaction_timeout_ms": TRANSACTION_MS}
    found = asking.ask(tables.INIT_PRODUCER_ID, begin)
    who = {
        "transactional_id": name,
        "producer_id": found["producer_id"],
        "producer_epoch": found["producer_epoch"],
    }
    topics = [
        {"name": each.topic, "partitions": list(range(each.partitions))}
        for each in (cluster, *beside)
    ]
    asking.ask(tables.ADD_PARTITIONS_TO_TXN, who | {"topics": topics})
    asking.ask(tables.END_TXN, who | {"committed": False})
    found = asking.ask(tables.INIT_PRODUCER_ID, begin)  # it waits for all markers
    return Identity(int(found["producer_id"]), int(found["producer_epoch"]))


def end_offset(cluster: Cluster, partition: int) -> int:
    """The offset behind the last record or marker. Raises ConnectionLost, StorageError."""
    return _offset_at(cluster, partition, _LATEST)


def earliest_offset(cluster: Cluster, partition: int) -> int:
    """The offset of the oldest record that is kept. Raises ConnectionLost, StorageError."""
    return _offset_at(cluster, partition, _EARLIEST)


def _offset_at(cluster: Cluster, partition: int, time_ms: int) -> int:
    row = {"partition_index": partition, "timestamp": time_ms}
    body = {
        "replica_id": -1,
        "isolation_level": 0,
        "topics": [{"name": cluster.topic, "partitions": [row]}],
    }
    found = cluster.ask_leader(partition, tables.LIST_OFFSETS, body, ["topics", "partitions"])
    return int(found["offset"])


def count_stored(cluster: Cluster, partition: int, writer: Identity, since: int) -> tuple[int, int]:
    """(records that a writer has stored, the offset behind the partition's last record).

    ``writer``: with the sequence that was next at offset ``since``, from which on its batches are
    looked for. To be called behind `fence`: nothing of it comes later. Raises ConnectionLost,
    StorageError.
    """
    where, at, due = f"{cluster.topic}/{partition}", since, writer.sequence
    deadline = time.monotonic() + PATIENCE_S
    count = 0
    while True:
        row = fetch(cluster, partition, at)
        records, end = row["records"], int(row["high_watermark"])
        before = at
        for head, _ in whole_batches(records):
            at = max(at, head.base_offset + head.last_offset_delta + 1)
            ours = (head.producer_id, head.producer_epoch) == writer[:2]
            if head.attributes & CONTROL or not ours or head.base_offset < since:
                continue
            if head.base_sequence != due:
                raise StorageError(
                    f"{where}: offset {head.base_offset}: sequence {head.base_sequence} of producer"
                    f" {writer.producer}, and {due} is due: another program writes under its id?"
                )
            count += head.last_offset_delta + 1
            due = (due + head.last_offset_delta + 1) % SEQUENCES
        if at >= end:
            return count, end
        if at == before and time.monotonic() >= deadline:
            raise StorageError(f"{where}: nothing comes at offset {at}, and {end} is its end")


def whole_batches(records: memoryview | None) -> list[tuple[BatchHead, memoryview]]:
    """The whole batches of an answer, with their headers. Raises StorageError."""
    found, at, size = list[tuple[BatchHead, memoryview]](), 0, len(records or b"")
    while records is not None and size - at >= BATCH_BYTES:
        head = BatchHead(*HEADER.unpack_from(records, at))
        length = head.batch_length + _LENGTH_AT
        if length < BATCH_BYTES or head.last_offset_delta < 0 or head.base_offset < 0:
            raise StorageError(f"offset {head.base_offset}: a batch of {length} bytes")
        if length > size - at:
            break
        found.append((head, memoryview(records)[at : at + length]))
        at += length
    return found


def fetch(cluster: Cluster, partition: int, offset: int) -> Struct:
    """The answer about a partition: records from an offset on, some MiB at most."""
    row = {
        "partition": partition,
        "fetch_offset": offset,
        "partition_max_bytes": FETCH_BYTES,
        "current_leader_epoch": -1,
        "log_start_offset": -1,
    }
    body = {
        "replica_id": -1,
        "max_wait_ms": FETCH_WAIT_MS,
        "min_bytes": 1,
        "max_bytes": FETCH_BYTES,
        "isolation_level": 0,
        "session_epoch": -1,
        "topics": [{"topic": cluster.topic, "partitions": [row]}],
    }
    return cluster.ask_leader(partition, tables.FETCH, body, ["responses", "partitions"])


__all__ = [
    "count_stored",
    "earliest_offset",
    "end_offset",
    "fence",
    "fetch",
    "whole_batches",
]
