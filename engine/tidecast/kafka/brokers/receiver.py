"""Reads one partition at the requested offsets, and never fetches records that it has.

The next answer is requested while the records of an answer are delivered. A Fetch waits at the
broker for the next record; when another offset is wanted meanwhile, a second connection fetches it.
Records are kept until a reader has passed their answer, two answers at most, so a pause of a reader
costs no byte.
"""

from __future__ import annotations

import contextlib
import threading
import time

from tidecast.connections.retries import Outage
from tidecast.errors import (
    AuthError,
    Closed,
    ConfigError,
    ConnectionLost,
    CorruptLog,
    NotFound,
    StorageError,
    TidecastError,
)
from tidecast.kafka.brokers.cluster import MOVES, Cluster, error_of
from tidecast.kafka.brokers.connection import Link, code_name
from tidecast.kafka.brokers.fetched import Decoder, Fetched
from tidecast.kafka.codes import Code
from tidecast.kafka.schemas import tables
from tidecast.kafka.wire import Struct
from tidecast.queues.adapter import Received, Run

FETCH_WAIT_MS = 500
"""How long a broker keeps a Fetch when there is no record."""
PATIENCE_S = 10.0
"""So long a partition may be without a leader before that is an error."""
KEPT_MAX, LINKS_MAX = 2, 2
_EARLIEST, _LATEST = -2, -1
_COMMITTED = 1
_CLOSE_S = 5.0


class KafkaReceiver:
    """See `tidecast.queues.adapter.Receiver`."""

    def __init__(self, cluster: Cluster, partition: int) -> None:
        self._cluster, self.partition = cluster, partition
        self._where = f"{cluster.topic}/{partition}"
        self._links: list[Link] = []
        self._kept: list[Fetched] = []
        self._decoder = Decoder()
        self._closing, self._busy = threading.Event(), threading.Lock()
        self._outage = Outage(PATIENCE_S)
        self._acked = -1
        self._was_linked = False
        self.fetches = self.records = self.bytes = self.errors = self.reconnects = 0
        """See `Counts`."""
        self.behind, self.end = -1, 0
        """The offset behind the last record read, -1: nothing yet; the newest known end."""

    @property
    def queue(self) -> int:
        """The number of the partition."""
        return self.partition

    @property
    def is_closed(self) -> bool:
        """It receives nothing more."""
        return self._closing.is_set()

    # --- receiving --------------------------------------------------------------------------------

    def receive(self, token: int, buffer: Run, timeout_s: float) -> Received:
        """See `Receiver.receive`."""
        deadline = time.monotonic() + timeout_s
        with self._busy:
            while not self._closing.is_set():
                held = next((one for one in self._kept if one.covers(token)), None)
                try:
                    if held is not None:
                        return self._noted(held.receive(token, buffer, self._decoder))
                    if not self._fetch(token, deadline):
                        return self._noted(Received(0, token))
                except (StorageError, CorruptLog, AuthError, ConfigError):
                    self.errors += 1
                    raise
        raise Closed(f"{self._where}: receive after close")

    def _noted(self, got: Received) -> Received:
        if not got.need:
            self.behind = got.next_token
        return got

    def _fetch(self, token: int, deadline: float) -> bool:
        """Fetch from ``token`` on; False: nothing came in time. Raises TidecastError."""
        try:
            link = self._link_for(token)
            answer = link.answer(max(0.0, deadline - time.monotonic()))
            if answer is None:
                return False
            if link.is_cut:
                self._drop(link)
            found = self._take(token, answer, deadline, is_cut=link.is_cut)
        except ConnectionLost as problem:
            return self._wait(problem, deadline)
        if found and self._kept and self._kept[0].token == token:
            self._ask_ahead(link, self._kept[0])
        return found

    def _ask_ahead(self, link: Link, taken: Fetched) -> None:
        """Ask for the records that follow an answer while its records are delivered.

        Their answer stays in the connection until a reader needs it. At the end of the partition
        the reader asks by itself.
        """
        token = taken.behind
        known = token >= taken.end or any(one.covers(token) for one in self._kept)
        if (
            link.is_cut
            or known
            or link.asked is not None
            or any(one.asked == token for one in self._links)
        ):
            return
        with contextlib.suppress(ConnectionLost):  # the next receive finds it, and waits
            link.send(
                tables.FETCH,
                self._request(token, self._cluster.leader(self.partition).epoch),
                token,
            )

    def _link_for(self, token: int) -> Link:
        """The connection over which ``token`` is asked for, now or already."""
        for link in self._links:
            if link.asked == token:
                return link
        leader = self._cluster.leader(self.partition)
        for link in [one for one in self._links if one.address != leader.address]:
            self._drop(link)
        free = next((one for one in self._links if one.asked is None), None)
        if free is None and len(self._links) == LINKS_MAX:
            self._drop(self._links[0])
        if free is None:
            free = self._cluster.connect(leader.address)
            self.reconnects += self._was_linked and not self._links
            self._was_linked = True
            self._links.append(free)
        free.send(tables.FETCH, self._request(token, leader.epoch), token)
        return free

    def _request(self, token: int, epoch: int) -> Struct:
        size = self._cluster.source.fetch_bytes
        partition = {
            "partition": self.partition,
            "fetch_offset": token,
            "partition_max_bytes": size,
            "current_leader_epoch": epoch,
            "log_start_offset": -1,
        }
        return {
            "replica_id": -1,
            "max_wait_ms": FETCH_WAIT_MS,
            "min_bytes": 1,
            "max_bytes": size,
            "isolation_level": _COMMITTED,
            "session_epoch": -1,
            "topics": [{"topic": self._cluster.topic, "partitions": [partition]}],
        }

    def _take(self, token: int, answer: Struct, deadline: float, *, is_cut: bool) -> bool:
        try:
            row = answer["responses"][0]["partitions"][0]
        except IndexError:
            row = {"error_code": answer.get("error_code") or Code.UNKNOWN_SERVER_ERROR}
        code = int(row["error_code"])
        if code == Code.OFFSET_OUT_OF_RANGE:
            self._raise_out_of_range(token)
        if code in MOVES:
            return self._wait(ConnectionLost(f"{self._where}: {code_name(code)}"), deadline)
        if code:
            raise error_of(code, self._where)
        self._outage.end()
        self.end = max(self.end, row["last_stable_offset"])
        if row["records"] is None or not len(row["records"]):
            return time.monotonic() < deadline
        where = f"{self._where} at {self._cluster.leader(self.partition).address}"
        aborted = row["aborted_transactions"] or ()
        end = row["last_stable_offset"]
        fresh = Fetched(where, token, row["records"], aborted, end, is_cut=is_cut)
        self.fetches += 1
        self.records += fresh.records
        self.bytes += fresh.bytes
        self._kept = [fresh, *self._kept][:KEPT_MAX]
        return True

    def _raise_out_of_range(self, token: int) -> None:
        oldest, end = self.earliest(), self.latest()
        if token < oldest:
            raise NotFound(f"{self._where}: offset {token} is deleted: the oldest is {oldest}")
        raise StorageError(
            f"{self._where}: offset {token} is behind the end, {end}: the broker lost records "
            "(an unclean election?): seek the subscription"
        )

    def _wait(self, problem: TidecastError, deadline: float) -> bool:
        """The leader is away: give it time. Raises ConnectionLost when it has had enough."""
        now = time.monotonic()
        self.errors += 1
        for link in list(self._links):
            self._drop(link)
        self._outage.note(problem, now)
        if self._closing.wait(self._outage.pause_s(deadline - now)):
            return True  # the caller looks why
        with contextlib.suppress(ConnectionLost):
            self._cluster.refresh()
        return time.monotonic() < deadline

    def _drop(self, link: Link) -> None:
        link.close()
        self._links.remove(link)

    # --- offsets ----------------------------------------------------------------------------------

    def _offset(self, timestamp: int) -> int:
        """The offset in ListOffsets of a time in ms, or of _EARLIEST, _LATEST; -1: none."""
        row = {"partition_index": self.partition, "timestamp": timestamp}
        body = {
            "replica_id": -1,
            "isolation_level": _COMMITTED,
            "topics": [{"name": self._cluster.topic, "partitions": [row]}],
        }
        if self._closing.is_set():
            raise Closed(f"{self._where}: used after close")
        found = self._cluster.ask_leader(
            self.partition, tables.LIST_OFFSETS, body, ["topics", "partitions"]
        )
        return int(found["offset"])

    def earliest(self) -> int:
        """The oldest offset that is kept."""
        return self._offset(_EARLIEST)

    def latest(self) -> int:
        """The offset behind the last that is committed: of the next record, or later."""
        self.end = found = self._offset(_LATEST)
        return found

    def at_time(self, time_ns: int) -> int:
        """See `Receiver.at_time`; Kafka counts in ms."""
        found = self._offset(max(0, -(-time_ns // 1_000_000)))
        return self.latest() if found < 0 else found

    def ack(self, token: int) -> None:
        """Commit the offset, if the source names a group: Kafka's tools show the lag then."""
        group = self._cluster.source.group
        if not group or token <= self._acked:
            return
        row = {
            "partition_index": self.partition,
            "committed_offset": token,
            "committed_leader_epoch": -1,
            "committed_metadata": "",
        }
        body = {
            "group_id": group,
            "generation_id": -1,
            "member_id": "",
            "retention_time_ms": -1,
            "topics": [{"name": self._cluster.topic, "partitions": [row]}],
        }
        answer = self._cluster.ask_coordinator(group, tables.OFFSET_COMMIT, body)
        code = int(answer["topics"][0]["partitions"][0]["error_code"])
        if code in MOVES:
            self._cluster.forget_coordinator()
            raise ConnectionLost(f"{self._where}: offset of group {group}: {code_name(code)}")
        if code:
            raise error_of(code, f"{self._where}: offset of group {group}")
        self._acked = token

    def close(self) -> None:
        """See `Receiver.close`."""
        self._closing.set()
        for link in list(self._links):
            link.wake()
        if self._busy.acquire(timeout=_CLOSE_S):
            try:
                for link in list(self._links):
                    self._drop(link)
                self._kept.clear()
            finally:
                self._busy.release()
