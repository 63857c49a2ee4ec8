"""From a durable topic to a topic on Kafka: a thread for each queue.

One idempotent producer of the mirror's name writes. A mark of each queue on disk has the offset
from which its batches are counted when the mirror begins again: so the partitions themselves show
how far the copy is, whatever was killed. See docs/adr/0052.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from tidecast.api.connecting import Backoff
from tidecast.config.sources.kafka import KafkaSource
from tidecast.errors import (
    Closed,
    ConfigError,
    ConnectionLost,
    Fenced,
    NotFound,
    SequenceGap,
    StorageError,
    TidecastError,
)
from tidecast.kafka.brokers.cluster import Cluster
from tidecast.kafka.storing.batches import NO_NOTES, Identity, warm_up
from tidecast.kafka.storing.fencing import count_stored, end_offset, fence
from tidecast.kafka.storing.notes import Mark
from tidecast.kafka.storing.writer import PartitionWriter
from tidecast.layout import segment as lay
from tidecast.log.files import queue_directory
from tidecast.log.queue_files import QueueFiles
from tidecast.log.reading.range_scan import LOST, RangeScan, Wanted
from tidecast.log.reading.select import W_AT
from tidecast.mirror.progress import Place, Progress, Stopped
from tidecast.mirror.retries import Retries
from tidecast.mirror.state import StateFile, Stored
from tidecast.mirror.target import Target
from tidecast.mirror.threads import run_together
from tidecast.queues.adapter import Run

LOOK_S, WAIT_S = 0.2, 0.5
RENEW_S = 86_400.0
"""A coordinator forgets a transactional id after a week of silence: it is renewed long before."""
FOLDER = "mirrors/kafka"
"""Of the data directory, for state files."""
_NOBODY = -1


class _PositionsLost(Exception):
    """The brokers have lost or forgotten records: count again."""


def whole_batches(block: Run, end: int) -> tuple[Run, int]:
    """The batches of a block below offset ``end``, and their first offset; -1: there are none."""
    at, first = 0, -1
    while at < block.size:
        head: Any = block[at : at + lay.BATCH_HEADER_BYTES]
        base = int(head[lay.BATCH_BASE_TOKEN_AT :][:8].view("<i8")[0])
        if base >= end:
            break
        first = base if first < 0 else first
        at += int(head[lay.BATCH_LENGTH_AT :][:4].view("<u4")[0])
    return block[:at], first


class Writing:
    """Copies one queue to its partition, from ``mark`` on. ``end``: all below may be copied."""

    def __init__(
        self,
        queue: int,
        mark: Mark,
        writer: PartitionWriter,
        out: OutboundMirror,
        *,
        until: int | None,
    ) -> None:
        """``until``: end when all below this offset is copied."""
        self.queue, self.token, self.mark, self.end = queue, mark.token, mark, mark.token
        self.writer, self._out, self._until = writer, out, until
        self._gone = 0
        self._grown = threading.Condition()

    def set_end(self, end: int) -> None:
        """The queue is durable up to this offset. From another thread."""
        with self._grown:
            self.end = max(self.end, end)
            self._grown.notify_all()

    def current(self) -> Mark:
        """The newest mark. From another thread."""
        found = self.writer.mark
        return self.mark if found is None or found.token < self.mark.token else found

    def run(self) -> None:
        """Copy until all is copied. Raises TidecastError, Stopped, _PositionsLost."""
        progress = self._out.progress
        while self._until is None or self.token < self._until:
            progress.check()
            self._out.check()
            with self._grown:
                if self.end <= self.token:
                    self._grown.wait(WAIT_S)
                    continue
                end = self.end if self._until is None else min(self.end, self._until)
            before = self.token
            self._copy(end)
            if self.token == before:  # nothing below the end can be read yet
                self._out.progress.wait(WAIT_S)

    def _copy(self, end: int) -> None:
        for block in self._blocks(end):
            run, first = whole_batches(block, end)
            if first < 0:
                return
            if first > self.token:
                self._pass_gap(first)
            self._store(run)

    def _blocks(self, end: int) -> Iterator[Run]:
        def lost(what: str, about: dict[str, Any]) -> None:
            if what == LOST:
                self._gone = int(about["end"])

        out = self._out
        scan = RangeScan(
            queue_directory(out.data_dir, out.topic, self.queue),
            out.topic,
            self.queue,
            Wanted(self.token, end),
            fail_on_data_loss=False,
            report=lost,
            block_bytes=out.progress.bytes_at_once,
        )
        for block, _ in scan:
            self._out.check()
            yield block[: int(scan.selector.w[W_AT])]
        if self._gone > self.token:  # all that there was to copy
            self._pass_gap(self._gone)

    def _pass_gap(self, oldest: int) -> None:
        out, gone = self._out, oldest - self.token
        out.progress.count(gone=gone)
        out.progress.tell(
            "RecordsGone",
            f"queue {self.queue} of {out.topic} deleted offsets {self.token} to {oldest - 1} "
            "before they were copied",
            queue=self.queue,
            first=self.token,
            end=oldest,
        )
        if out.on_gap == "stop":
            raise NotFound(
                f"{out.topic}/{self.queue}: offsets {self.token} to {oldest - 1} are gone"
            )
        self._pass(oldest, end_offset(out.cluster, self.queue))

    def _leave_out(self, refusal: TidecastError) -> ConnectionLost | None:
        """Pass the record that was refused; why that has to wait. Raises any other refusal."""
        out, about = self._out, self.writer.refused
        if about is None:
            raise refusal
        text = (
            f"queue {self.queue} of {out.topic}: offset {about.first} ({about.bytes} bytes) cannot "
            f"be copied: {about.reason}"
        )
        if out.on_gap == "stop":
            raise type(refusal)(f"{text}, or pass the record with --on-gap report") from None
        try:
            place = end_offset(out.cluster, self.queue)
        except ConnectionLost as lost:
            return lost
        out.progress.count(left_out=1)
        out.progress.tell(
            "RecordsLeftOut",
            text,
            queue=self.queue,
            first=about.first,
            end=about.end,
            records=about.records,
            bytes=about.bytes,
            reason=about.reason,
        )
        self._pass(about.end, place)
        return None

    def _pass(self, token: int, place: int) -> None:
        """Continue at a token. Nothing is in doubt: it counts behind the partition's end."""
        self.mark = Mark(token, self.writer.identity.sequence, place)
        self.token = token
        self._out.save()

    def _store(self, run: Run) -> None:
        progress = self._out.progress
        retries = Retries(progress, "TargetAway")
        while True:
            before = self.writer.records, self.writer.bytes
            problem: ConnectionLost | None = None
            try:
                self.token = self.writer.write(run, self.token)
            except ConnectionLost as lost:
                problem, self.token = lost, self.writer.behind
            except SequenceGap as lost:
                raise _PositionsLost(str(lost)) from None
            except TidecastError as refusal:
                self.token = self.writer.behind
                problem = self._leave_out(refusal)
                if problem is None:
                    continue
            finally:
                progress.count(
                    records=self.writer.records - before[0], bytes=self.writer.bytes - before[1]
                )
            if problem is None:
                return
            retries.note(problem, queue=self.queue)  # the writer has waited
            progress.check()


class OutboundMirror:
    """A mirror from a durable topic to Kafka. `run` until it is over or is stopped."""

    def __init__(
        self,
        source: Target,
        data_dir: Path,
        kafka: KafkaSource,
        state: StateFile,
        progress: Progress,
        *,
        start: str = "earliest",
        on_gap: str = "report",
        follow: bool = True,
    ) -> None:
        """``source``: the engine of ``data_dir``, which keeps the topic."""
        self._source, self.data_dir, self.topic = source, data_dir, source.topic
        self._kafka, self._state, self.progress = kafka, state, progress
        self.on_gap, self._start, self._follow = on_gap, start, follow
        self._cluster: Cluster | None = None
        self._who = Identity(_NOBODY, 0)
        self._writing: list[Writing] = []
        self._saved: Stored | None = None
        """The state in the file, as `save` wrote it."""
        self._lock = threading.Lock()
        self._again, self._problem = threading.Event(), list[BaseException]()

    @property
    def cluster(self) -> Cluster:
        """The cluster; there while `run` runs."""
        assert self._cluster is not None
        return self._cluster

    @property
    def name(self) -> str:
        """The topic of the cluster, with its servers, as the state file has it."""
        return f"{self._kafka.servers}/{self._kafka.topic}"

    def check(self) -> None:
        """Raise Stopped when another queue has failed, or the mirror begins again."""
        if self._again.is_set() or self._problem:
            raise Stopped

    # --- where to continue ------------------------------------------------------------------------

    def saved(self) -> Stored | None:
        """The state before. Raises ConfigError when it is that of another mirror."""
        found = self._state.load_stored()
        if found is not None:
            self._state.check(found.topic, found.target, (self.topic, self._kafka.topic))
        return found

    def begin(self) -> list[Mark]:
        """Fence the run before and count its records: where to continue. Raises TidecastError."""
        durable = self._durable()
        saved = self.saved()
        if saved is None:
            starts = [self._first(queue, end) for queue, end in enumerate(durable)]
            saved = Stored(
                topic=self.topic,
                target=self._kafka.topic,
                producer=_NOBODY,
                epoch=0,
                marks=[Mark(token, 0, 0) for token in starts],
            )
            self._state.save(saved)  # before the fence: a run that was is never unknown
        self._open(len(durable))
        who = fence(self.cluster, f"tidecast-mirror/{self._state.name}")
        marks = [self._mark(saved, queue, end) for queue, end in enumerate(durable)]
        self._who = who
        self._state.save(self._stored(marks))
        return marks

    def _durable(self) -> list[int]:
        found: list[int] = self._source.marks(1)["durable"]
        return found

    def _first(self, queue: int, end: int) -> int:
        if self._start == "latest":
            return end
        return QueueFiles(self.data_dir, self.topic, queue).earliest_token()

    def _open(self, queues: int) -> None:
        self._hang_up()
        self._cluster = Cluster(self._kafka, create=queues)
        if self._cluster.partitions != queues:
            raise ConfigError(
                f"--to: {self._kafka.topic} has {self._cluster.partitions} partitions: allowed are "
                f"{queues}, as many as {self.topic} has queues"
            )

    def _mark(self, saved: Stored, queue: int, end: int) -> Mark:
        """Where a queue continues, counted from the mark before."""
        place = end_offset(self.cluster, queue)
        if queue >= len(saved.marks):  # a queue that was added
            return Mark(QueueFiles(self.data_dir, self.topic, queue).earliest_token(), 0, place)
        token, sequence, offset = saved.marks[queue]
        if saved.producer != _NOBODY:
            before = Identity(saved.producer, saved.epoch, sequence)
            count, place = count_stored(self.cluster, queue, before, offset)
            token += count
        if token > end:
            raise StorageError(
                f"{self.topic}/{queue}: the mirror has copied it up to offset {token}, and it ends "
                f"at {end}: it lost records, or was recreated. Give the mirror another name"
            )
        return Mark(token, 0, place)

    def _stored(self, marks: list[Mark]) -> Stored:
        return Stored(
            topic=self.topic,
            target=self._kafka.topic,
            producer=self._who.producer,
            epoch=self._who.epoch,
            marks=marks,
        )

    # --- the run ----------------------------------------------------------------------------------

    def run(self, look: Callable[[], None] = lambda: None) -> None:
        """Copy. ``look``: called several times a second. Raises TidecastError, Stopped."""
        warm_up()
        backoff = Backoff()
        while True:
            self._again.clear()
            marks = self._begin_patiently()
            self._tell(len(marks))
            if not self._serve(marks, look):
                return
            self.progress.wait(backoff.next_s())

    def _begin_patiently(self) -> list[Mark]:
        retries = Retries(self.progress, "TargetAway")
        while True:
            try:
                return self.begin()
            except ConnectionLost as problem:
                retries.wait(problem)

    def _tell(self, queues: int) -> None:
        self.progress.tell(
            "Placed",
            f"{queues} queues of {self.topic} to the partitions of {self.name}",
            place="queue",
            queues=queues,
        )

    def _serve(self, marks: list[Mark], look: Callable[[], None]) -> bool:
        """Copy all queues. True: begin again."""
        ends = self._durable()
        with self._lock:
            self._writing = [
                Writing(
                    queue,
                    mark,
                    PartitionWriter(
                        self.cluster,
                        queue,
                        self._who,
                        batch_records=self.progress.records_at_once,
                        pace=self.progress.take,
                        log=NO_NOTES,
                    ),
                    self,
                    until=None if self._follow else ends[queue],
                )
                for queue, mark in enumerate(marks)
            ]
        renew_s = time.monotonic() + RENEW_S

        def watch() -> None:
            self._look(look)
            if time.monotonic() > renew_s:
                self._again.set()

        jobs = {f"mirror-{each.queue}": partial(self._write, each) for each in self._writing}
        try:
            run_together(
                jobs, watch, every_s=LOOK_S, halt=self._again.set, release=self._release_writers
            )
        finally:
            for each in self._writing:
                each.writer.close()
            self.save()
        if self._problem:
            raise self._problem[0]
        self.progress.check()
        return self._again.is_set()

    def _release_writers(self) -> None:
        """Writers that wait for a broker end at once, unless all was copied."""
        if self._again.is_set() or self._problem or self.progress.stopping.is_set():
            for each in self._writing:
                each.writer.close()

    def _write(self, writing: Writing) -> None:
        try:
            writing.run()
        except (Stopped, Closed):
            pass
        except _PositionsLost as problem:
            self.progress.tell("CountedAnew", f"{problem}", queue=writing.queue)
            self._again.set()
        except Fenced as problem:
            self._problem.append(Fenced(f"{problem}: does another mirror of this name run?"))
        except BaseException as problem:  # noqa: BLE001 - `run` raises it
            self._problem.append(problem)

    def _look(self, look: Callable[[], None]) -> None:
        durable = self._durable()
        if len(durable) > len(self._writing):
            raise ConfigError(
                f"--to: {self._kafka.topic} has {len(self._writing)} partitions, and {self.topic} "
                f"has {len(durable)} queues now: add partitions, and begin again"
            )
        for each, end in zip(self._writing, durable, strict=True):
            each.set_end(end)
        lag = sum(max(0, each.end - each.current().token) for each in self._writing)
        self.progress.counts.lag = lag
        self.save()
        look()

    def save(self) -> None:
        """Write the marks, durably, unless the file has them."""
        with self._lock:
            if not self._writing:
                return
            stored = self._stored([each.current() for each in self._writing])
            if stored != self._saved:
                self._state.save(stored)
                self._saved = stored

    def places(self) -> list[Place]:
        """How far each queue is. From any thread."""
        with self._lock:
            found = [(each.queue, each.current().token, each.end) for each in self._writing]
        return [Place(queue, token, token, max(token, end)) for queue, token, end in found]

    def rows(self) -> list[dict[str, Any]]:
        """The plan, of each queue; nothing is changed. The position is that of the last mark."""
        saved = self.saved()
        rows = []
        for queue, end in enumerate(self._durable()):
            known = saved is not None and queue < len(saved.marks)
            position = saved.marks[queue].token if saved and known else self._first(queue, end)
            rows.append(
                {
                    "source": queue,
                    "queue": queue,
                    "position": position,
                    "end": end,
                    "records": max(0, end - position),
                }
            )
        return rows

    def _hang_up(self) -> None:
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None

    def close(self) -> None:
        """End all waits, and close."""
        with suppress(TidecastError):
            self._hang_up()
