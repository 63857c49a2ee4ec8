"""Kafka as the storage of a durable topic: what its logs have synced is written to partitions.

Each queue has a partition and a thread. The topic has one more: it opens the cluster, fences the
writer before, counts what that one had stored, and begins again when something fails that no
repetition of a batch cures. See docs/adr/0041.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import threading
import time

import numpy as np

from tidecast.api.connecting import Backoff
from tidecast.config.kafka import storage_source
from tidecast.errors import (
    Closed,
    ConfigError,
    ConnectionLost,
    Fenced,
    StorageError,
    TidecastError,
)
from tidecast.kafka.brokers.cluster import Cluster
from tidecast.kafka.producing.batches import Identity, warm_up
from tidecast.kafka.producing.fencing import count_stored, end_offset, fence
from tidecast.kafka.producing.notes import FILE_NAME, Mark, Notes, load_notes, remedy, save_notes
from tidecast.kafka.producing.state import Head, StateWriter, open_state, read_state
from tidecast.kafka.producing.writer import PartitionWriter, transactional_id
from tidecast.kafka.schemas import tables
from tidecast.log.queue_log import LogReader
from tidecast.native.mapped import Bytes
from tidecast.node.storing.spool import Spool

_log = logging.getLogger("tidecast.kafka")
PATIENCE_S = 2.0
"""So long a batch is sent again before the wait is reported; then it is sent on."""
AGAIN_S_MAX = 30.0
"""The longest wait before a next try: only a change of settings helps, and each try fences."""
NOTE_S = 5.0
"""Marks are noted so often: the next writer counts from there."""
RENEW_S = 86_400.0
"""A coordinator forgets a transactional id after a week of silence: it is renewed long before."""
READ_BYTES = 2 << 20
JOIN_S = 5.0
_WHOLE_TOPIC, _STATE = -1, -2
COPY_S = 0.25
"""The small files of a topic are looked at so often."""
_TOPIC_RESOURCE = 2


class _Run:
    """Writers under one epoch. ``ended``: they stop; ``problem``: what stopped them."""

    def __init__(
        self,
        cluster: Cluster,
        who: Identity,
        marks: list[Mark],
        log: int,
        state: StateWriter | None,
    ) -> None:
        self.cluster, self.who, self.marks = cluster, who, marks
        self.log, self.state = log, state
        self.ended = threading.Event()
        self.copy_now = threading.Event()
        """The pause between two copies of the small files ends."""
        self.problem: tuple[int, TidecastError] | None = None
        self.writers = [
            PartitionWriter(cluster, queue, who, patience_s=PATIENCE_S, log=log)
            for queue in range(len(marks))
        ]

    def fail(self, queue: int, problem: TidecastError) -> None:
        """End the run. The first problem counts, but a fence is the one that matters."""
        if self.problem is None or isinstance(problem, Fenced):
            self.problem = queue, problem
        self.end()

    def end(self) -> None:
        """Have the writers stop."""
        self.ended.set()
        self.copy_now.set()

    def notes(self) -> Notes:
        """How far it has come."""
        return Notes(
            topic=self.cluster.topic,
            producer=self.who.producer,
            epoch=self.who.epoch,
            log=self.log,
            queues=[
                writer.mark or mark for writer, mark in zip(self.writers, self.marks, strict=True)
            ],
        )


class KafkaStorage:
    """See module. `start` and `close`, once each."""

    def __init__(self, spool: Spool) -> None:
        """Raises ConfigError."""
        self._spool = spool
        self._source = storage_source(spool.storage)
        self.transactional_id = transactional_id(self._source.topic, spool.owner, spool.node)
        self._mine: set[tuple[int, int]] = set()
        """Producer ids and epochs that this engine has had."""
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._clusters: list[Cluster] = []
        """Of the run, or of its begin."""
        self._copied = threading.Condition(self._lock)
        self._copies_begun = self._copies = 0
        """Of the topic's small files; the newest that is done."""
        self._run: _Run | None = None
        self._problems: dict[int, str] = {}
        """By queue, or _WHOLE_TOPIC: why it takes nothing."""
        self._thread = threading.Thread(
            target=self._main, name=f"storage-{spool.topic}", daemon=True
        )

    def start(self) -> None:
        """Begin; does not wait for the cluster."""
        self._thread.start()

    def close(self) -> None:
        """End: what is not stored yet is stored by the next writer. Idempotent.

        No request leaves any more when this returns, also when a broker does not answer: a fence
        would end a writer that begins on another node meanwhile.
        """
        self._closing.set()
        with self._lock:
            run, clusters = self._run, list(self._clusters)
        if run is not None:
            run.end()
        for each in clusters:
            each.close()  # nothing is sent from here on, however long the thread still waits
        self._spool.wake()
        if self._thread.is_alive():
            self._thread.join(JOIN_S)

    # --- the topic's thread -----------------------------------------------------------------------

    def _main(self) -> None:
        warm_up()
        backoff, refused = Backoff(), 0
        while not self._closing.is_set():
            queue, problem = _WHOLE_TOPIC, self._attempt_begin()
            if problem is None:
                assert self._run is not None
                run = self._run
                found = self._serve(run)
                if any(writer.records for writer in run.writers):
                    backoff.clear()
                    refused = 0
                if found is None:
                    continue
                queue, problem = found
            if self._closing.is_set():
                return
            if isinstance(problem, Fenced):
                self._note_fenced(problem)
                self._closing.wait()
                return
            self._note_problem(queue, str(problem))
            wait_s = backoff.next_s()
            if not isinstance(problem, ConnectionLost):
                wait_s, refused = min(AGAIN_S_MAX, wait_s * 2**refused), min(refused + 1, 8)
            self._closing.wait(wait_s)

    def _note_fenced(self, problem: Fenced) -> None:
        if self._spool.leased:
            self._spool.waits(str(problem), final=True)
            self._spool.lost(str(problem))
        else:
            self._spool.waits(f"{problem}; restart this engine to take the topic back", final=True)

    def _attempt_begin(self) -> TidecastError | None:
        try:
            run = self._begin()
            with self._lock:
                self._run = run
                if self._closing.is_set():
                    run.end()
            self._note_begin(run)
        except TidecastError as problem:
            return problem
        except Exception as problem:  # noqa: BLE001 - a defect is reported, and tried again
            _log.exception("topic %s: its storage cannot begin", self._spool.topic)
            return StorageError(f"internal error: {type(problem).__name__}: {problem}")
        return None

    def _note_begin(self, run: _Run) -> None:
        for queue, mark in enumerate(run.marks):
            self._spool.note_stored(queue, mark.token)
            if mark.token >= self._spool.synced(queue):
                self._clear_problem(queue)
        self._clear_problem(_WHOLE_TOPIC)

    def _begin(self) -> _Run:
        """Fence the writer before, count what it had stored, note where this one begins."""
        spool = self._spool
        before = load_notes(spool.directory)
        self._check_notes(before)
        with self._lock:
            self._clusters = []
        try:
            cluster = Cluster(self._source, create=spool.queues, begun=self._keep)
            self._check_topic(cluster)
            beside = [open_state(self._source, self._keep)] if spool.owner else []
            who = fence(cluster, self.transactional_id, beside)
            state = self._take_state(beside[0], who, before) if beside else None
            marks = [self._find_mark(cluster, queue, before) for queue in range(spool.queues)]
            log = before.log if before is not None and before.log else secrets.randbits(62) + 1
            run = _Run(cluster, who, marks, log, state)
            self._check_open()
            save_notes(spool.directory, run.notes())
            if state is not None:
                head = Head(
                    log=log,
                    producer=who.producer,
                    epoch=who.epoch,
                    queues=spool.queues,
                    node=spool.node,
                )
                state.write_head(head)
                state.copy_files(spool.directory)
        except BaseException:
            self._hang_up()
            raise
        return run

    def _take_state(self, beside: Cluster, who: Identity, before: Notes | None) -> StateWriter:
        """The state on the cluster; of a leased topic it has to be of this log's last writer.

        Else another engine has kept the topic since: its records are not in this log.
        """
        kept = read_state(beside, self._closing.is_set)
        if before is not None:
            self._mine.add((before.producer, before.epoch))
        head = kept.head
        if self._spool.leased and head is not None and head.writer not in self._mine:
            raise Fenced(
                f"topic {beside.topic}: node {head.node} has kept topic {self._spool.topic} since, "
                f"with epoch {head.epoch} of producer {head.producer}"
            )
        self._mine.add((who.producer, who.epoch))
        return StateWriter(beside, who, kept)

    def _keep(self, cluster: Cluster) -> None:
        with self._lock:
            self._check_open()
            self._clusters.append(cluster)

    def _hang_up(self) -> None:
        for each in self._clusters:
            each.close()

    def _check_open(self) -> None:
        if self._closing.is_set():
            raise Closed(f"topic {self._spool.topic}: its storage is closed")

    def _check_notes(self, before: Notes | None) -> None:
        if before is None:
            return
        spool, path = self._spool, self._spool.directory / FILE_NAME
        if before.topic != self._source.topic or len(before.queues) != spool.queues:
            raise ConfigError(
                f"storage: {self._source.topic}: the log of topic {spool.topic} was written to "
                f"{before.topic} with {len(before.queues)} partitions so far: allowed is that "
                f"topic. {remedy(path)}"
            )

    def _check_topic(self, cluster: Cluster) -> None:
        queues, name = self._spool.queues, cluster.topic
        if cluster.partitions != queues:
            raise ConfigError(
                f"queues: {queues}: topic {name} of {self._source.servers} has "
                f"{cluster.partitions} partitions: allowed {cluster.partitions}"
            )
        wanted = {
            "resource_type": _TOPIC_RESOURCE,
            "resource_name": name,
            "configuration_keys": ["cleanup.policy"],
        }
        body = {"resources": [wanted], "include_synonyms": False, "include_documentation": False}
        found = cluster.ask_any(tables.DESCRIBE_CONFIGS, body)["results"]
        policies = [one["value"] or "" for row in found for one in row["configs"] or ()]
        if any("compact" in policy for policy in policies):
            raise ConfigError(
                f"cleanup.policy of topic {name} of {self._source.servers}: {policies[0]}: allowed "
                "delete: compaction removes records that were acknowledged"
            )

    def _find_mark(self, cluster: Cluster, queue: int, before: Notes | None) -> Mark:
        """Where this writer begins."""
        spool = self._spool
        if before is None:
            return Mark(spool.earliest(queue), 0, end_offset(cluster, queue))
        token, sequence, offset = before.queues[queue]
        one = Identity(before.producer, before.epoch, sequence)
        try:
            count, end = count_stored(cluster, queue, one, offset)
        except StorageError as problem:
            raise StorageError(
                f"{cluster.topic}/{queue}: it is not known how far the log is stored, from offset "
                f"{offset} on: {problem}. {remedy(spool.directory / FILE_NAME)}"
            ) from None
        if token + count > spool.synced(queue):
            raise StorageError(
                f"{cluster.topic}/{queue}: has {token + count} records of the log, which has "
                f"{spool.synced(queue)}: the log lost records. Restore it, or delete the topic"
            )
        return Mark(token + count, 0, end)

    def _serve(self, run: _Run) -> tuple[int, TidecastError] | None:
        """Write until something fails (the queue, and why), it is closed, or the id is renewed."""
        threads = [
            threading.Thread(
                target=self._write_queue,
                args=(run, queue),
                daemon=True,
                name=f"storage-{self._spool.topic}-{queue}",
            )
            for queue in range(len(run.writers))
        ]
        if run.state is not None:
            name = f"storage-{self._spool.topic}-state"
            copying = threading.Thread(target=self._copy, args=(run,), daemon=True, name=name)
            threads.append(copying)
        for each in threads:
            each.start()
        renew_s, noted = time.monotonic() + RENEW_S, run.notes()
        while not run.ended.wait(NOTE_S) and time.monotonic() < renew_s:
            noted = self._note(run, noted)
        run.end()
        self._spool.wake()
        for writer in run.writers:
            writer.close()
        if run.state is not None:
            run.state.close()
        for each in threads:
            each.join()
        with self._lock:
            self._run = None
        self._hang_up()
        with contextlib.suppress(Closed):
            self._note(run, noted)
        return run.problem

    def _note(self, run: _Run, noted: Notes) -> Notes:
        """Note the marks of a run. A disk that refuses keeps older ones, which are right, too."""
        fresh = run.notes()
        if fresh != noted:
            with contextlib.suppress(StorageError):
                save_notes(self._spool.directory, fresh)
        return fresh

    # --- the thread of the state ------------------------------------------------------------------

    def _copy(self, run: _Run) -> None:
        """Copy the topic's small files whenever they have changed."""
        assert run.state is not None
        try:
            while not run.ended.is_set():
                run.copy_now.clear()
                with self._lock:
                    due = self._copies_begun = self._copies_begun + 1
                try:
                    run.state.copy_files(self._spool.directory)
                    self._clear_problem(_STATE)
                    with self._lock:
                        self._copies = due
                        self._copied.notify_all()
                except ConnectionLost as problem:
                    self._note_problem(_STATE, str(problem))
                    run.ended.wait(COPY_S)
                    continue
                if not run.ended.is_set():
                    run.copy_now.wait(COPY_S)
        except Closed:
            pass
        except TidecastError as problem:
            run.fail(_STATE, problem)
        except Exception as problem:  # noqa: BLE001 - as below
            _log.exception("topic %s: its state cannot be stored", self._spool.topic)
            run.fail(_STATE, StorageError(f"internal error: {type(problem).__name__}: {problem}"))

    def settle(self, timeout_s: float) -> None:
        """Have the files as they are now on the cluster, if it answers in time."""
        with self._copied:
            run, wanted = self._run, self._copies_begun + 1
            if run is None or run.state is None:
                return
            run.copy_now.set()
            self._copied.wait_for(lambda: self._copies >= wanted or run.ended.is_set(), timeout_s)

    # --- a queue's thread -------------------------------------------------------------------------

    def _write_queue(self, run: _Run, queue: int) -> None:
        token, buffer = run.marks[queue].token, np.empty(READ_BYTES, dtype=np.uint8)
        reader: LogReader | None = None
        try:
            reader = self._spool.reader(queue)
            while not run.ended.is_set():
                if self._spool.wait(queue, token) <= token:
                    continue
                try:
                    n = reader.read_block(token, buffer)
                except ValueError:
                    buffer = np.empty(reader.need, dtype=np.uint8)
                    continue
                if n:
                    token = self._store(run, queue, buffer[:n], token)
        except Closed:
            pass
        except TidecastError as problem:
            run.fail(queue, problem)
        except Exception as problem:  # noqa: BLE001 - as above
            _log.exception("topic %s: queue %d cannot be stored", self._spool.topic, queue)
            text = f"internal error: {type(problem).__name__}: {problem}"
            run.fail(queue, StorageError(text))
        finally:
            if reader is not None:
                reader.close()

    def _store(self, run: _Run, queue: int, block: Bytes, token: int) -> int:
        """Store a block from a token on, however long it takes; the token behind it."""
        writer, spool = run.writers[queue], self._spool
        while True:
            before = writer.records, writer.bytes, writer.errors
            problem: TidecastError | None = None
            try:
                token = writer.write(block, token)
            except ConnectionLost as lost:
                problem, token = lost, writer.behind
            finally:
                after = writer.records, writer.bytes, writer.errors
                spool.count(queue, *(b - a for a, b in zip(before, after, strict=True)))
                spool.note_stored(queue, writer.behind)
            if problem is None:
                self._clear_problem(queue)
                return token
            self._note_problem(queue, str(problem))

    # --- what is reported -------------------------------------------------------------------------

    def _note_problem(self, queue: int, detail: str) -> None:
        with self._lock:
            self._problems[queue] = detail
        self._spool.waits(detail)

    def _clear_problem(self, queue: int) -> None:
        with self._lock:
            self._problems.pop(queue, None)
            waits = bool(self._problems)
        if not waits:
            self._spool.back()
