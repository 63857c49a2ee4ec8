"""From an adapter to a durable topic: a thread for each queue of the source.

A record's sequence is its offset in the source plus one, and a run is appended only when the mark
of source and queue is the mark that this mirror has seen last. Whatever dies in between, the mirror
continues at the mark: no record is lost, none is stored twice, and each queue keeps its order.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial

import numpy as np

from tidecast.errors import Closed, NotFound, PayloadTooLarge, TidecastError
from tidecast.mirror import runs
from tidecast.mirror.plan import Placing, Plan, Route, placing, plan_of
from tidecast.mirror.progress import Place, Progress, Stopped
from tidecast.mirror.retries import Retries
from tidecast.mirror.state import Saved, StateFile
from tidecast.mirror.target import LOCAL_BYTES_MAX, Target
from tidecast.mirror.threads import run_together
from tidecast.queues.adapter import Adapter, Growing, LeftOut, Receiver, Run

WAIT_S, HELD_S, LOOK_S = 0.25, 0.02, 0.5


class _Moved(Exception):
    """A mark is not the mark that was seen last: plan again."""


class Copier:
    """Copies one queue of the source. ``durable``: all below this offset is durable."""

    def __init__(
        self,
        route: Route,
        placing: Placing,
        receiver: Receiver,
        target: Target,
        progress: Progress,
        *,
        on_gap: str,
        until: int | None,
    ) -> None:
        """``until``: end when all below this offset is copied."""
        self.route, self._receiver, self._target = route, receiver, target
        self._placing = placing
        self._progress, self._on_gap, self._until = progress, on_gap, until
        self.position = self.durable = route.position
        self.end = max(receiver.latest(), route.position)
        self._acked = -1
        self._pending: deque[tuple[int, dict[int, int]]] = deque()
        self._ends: dict[int, int] = {}
        size = min(progress.bytes_at_once, target.bytes_max)
        self._buffer: Run = np.empty(size, dtype=np.uint8)
        self._retries = Retries(progress, "SourceAway")
        self.outgrown = False
        """The topic has more queues than the plan knows."""

    @property
    def where(self) -> str:
        """The queue of the source, for messages."""
        return f"queue {self.route.source} of the source"

    def copy_one(self) -> bool:
        """Copy one run, if one comes soon. True: all is copied. Raises TidecastError, Stopped."""
        if self._until is not None and self.position >= self._until:
            return True
        self._progress.check()
        try:
            self._step()
        except NotFound as problem:
            self._pass_gap(problem)
        except Closed:
            raise Stopped from None
        except TidecastError as problem:
            if not problem.retryable:
                raise
            self._retries.wait(problem)
        else:
            self._retries.end()
        if self.durable > self._acked:
            self._receiver.ack(self.durable)
            self._acked = self.durable
        return False

    def _step(self) -> None:
        got = self._receiver.receive(self.position, self._buffer, WAIT_S)
        self.end = max(self.end, got.end, got.next_token)
        if got.need:
            self._buffer = np.empty(got.need, dtype=np.uint8)
            return
        if got.bytes:
            self._place(self._buffer[: got.bytes])
            self._pending.append((got.next_token, dict(self._ends)))
        if got.left_out is not None:
            self._leave_out(got.left_out)
        self.position = got.next_token

    def _leave_out(self, about: LeftOut, remedy: str = "") -> None:
        """Report records that are not copied, or raise PayloadTooLarge."""
        text = (
            f"{self.where}: offset {about.first} ({about.records} records, {about.bytes} bytes) "
            f"cannot be copied: {about.reason}"
        )
        if self._on_gap == "stop":
            raise PayloadTooLarge(f"{text}{remedy}")
        self._progress.count(left_out=about.records)
        self._progress.tell(
            "RecordsLeftOut",
            text,
            queue=self.route.source,
            first=about.first,
            end=about.end,
            records=about.records,
            bytes=about.bytes,
            reason=about.reason,
        )

    def _pass_gap(self, problem: NotFound) -> None:
        oldest = self._receiver.earliest()
        if oldest <= self.position:
            raise problem
        gone = oldest - self.position
        self._progress.count(gone=gone)
        self._progress.tell(
            "RecordsGone",
            f"{self.where} deleted offsets {self.position} to {oldest - 1} before they were copied",
            queue=self.route.source,
            first=self.position,
            end=oldest,
        )
        if self._on_gap == "stop":
            raise problem
        self.position = oldest

    # --- arrivals --------------------------------------------------------------------------------

    def _place(self, run: Run) -> None:
        source = self.route.source
        fixed = self._placing.fixed(source)
        limit, at_once = self._target.bytes_max, self._progress.records_at_once
        whole = runs.first_offset(run) >= self.position and run.size <= limit
        if fixed is not None and whole:
            made, last = runs.numbered(run)  # it is sound
            count = runs.records_in(made)
            if count <= at_once:
                self._append(fixed, count, last, made.tobytes())
                return
        for fitting, large in runs.parted(run, self.position, limit):
            for first in range(0, len(fitting), at_once):
                self._place_some(fitting[first : first + at_once])
            if large is not None:
                self._pass_large(large)

    def _place_some(self, records: list[runs.Placed]) -> None:
        """Append records, and continue behind them."""
        queue_of = partial(self._placing.queue_of, self.route.source)
        for queue, placed in runs.split(records, queue_of).items():
            fresh = [one for one in placed if one[0] >= self.route.marks[queue]]
            self._progress.count(repeated=len(placed) - len(fresh))
            for count, last, part in runs.packed(fresh, self._target.bytes_max):
                self._append(queue, count, last, part)
        behind = records[-1][0] + 1
        self._pending.append((behind, dict(self._ends)))  # before the position: see `note_durable`
        self.position = behind

    def _pass_large(self, about: LeftOut) -> None:
        """Leave out a record that the topic cannot get; before it all is appended."""
        remedy = "pass the record with --on-gap report"
        if self._target.bytes_max < LOCAL_BYTES_MAX:
            most = runs.record_max(LOCAL_BYTES_MAX)
            remedy += f", or run the mirror beside the engine, without --server: {most} bytes"
        self._pending.append((about.first, dict(self._ends)))
        self.position = about.first
        self._leave_out(about, f": {remedy}")

    def _append(self, queue: int, count: int, last: int, run: bytes) -> None:
        after = self.route.marks[queue]
        self._progress.take(count)
        while True:
            answer = self._target.append(self.route.source, queue, after, run)
            if not answer["held"]:
                break
            self._progress.wait(HELD_S)
        mark = int(answer["mark"])
        if mark != last:  # equal but not appended: it was, and that answer was lost
            self._progress.tell(
                "MarkMoved",
                f"{self.where}: the topic is at sequence {mark}, not at {after}: it lost what was "
                "not durable, or another mirror of this name runs",
                queue=self.route.source,
                mark=mark,
                after=after,
            )
            raise _Moved
        self._progress.count(records=count, bytes=len(run))
        self.route.marks[queue] = mark
        self._ends[queue] = int(answer["end"])
        self.outgrown = int(answer["queues"]) > self._placing.queues

    def note_durable(self, durable: list[int]) -> None:
        """The offset up to where each queue of the topic is durable. From another thread."""
        reached = self.position  # before the pending records are looked at
        while self._pending:
            position, ends = self._pending[0]
            if any(durable[queue] < end for queue, end in ends.items()):
                return
            self.durable = max(self.durable, position)
            self._pending.popleft()
        self.durable = max(self.durable, reached)


class InboundMirror:
    """A mirror from an adapter to a durable topic. `run` until it is over or is stopped."""

    def __init__(
        self,
        adapter: Adapter,
        target: Target,
        state: StateFile,
        progress: Progress,
        *,
        source: str,
        place: str = "auto",
        start: str = "earliest",
        on_gap: str = "report",
        follow: bool = True,
    ) -> None:
        """``source``: its name, without secrets, for the state file."""
        self._adapter, self._target, self._state = adapter, target, state
        self._progress, self._source = progress, source
        self._place, self._start, self._on_gap = place, start, on_gap
        self._follow = follow
        self._copiers: list[Copier] = []
        self._placing = Placing("queue", 1)
        self._receivers: list[Receiver] = []
        self._problem: BaseException | None = None
        self._again, self._watched_s = threading.Event(), 0.0

    def plan(self) -> Plan:
        """Where to copy from and to; nothing is changed. Raises TidecastError, Stopped."""
        sources = self._adapter.queues
        for receiver in self._receivers:
            receiver.close()
        self._receivers = [self._adapter.receiver(queue) for queue in range(sources)]
        found = self._target.marks(sources)
        saved = self._state.load()
        if saved is not None:
            self._state.check(saved.source, saved.topic, (self._source, self._target.topic))
        now = placing(self._place, sources, int(found["queues"]))
        return plan_of(self._receivers, found["marks"], now, saved, self._start, self._target.topic)

    def run(self, look: Callable[[], None] = lambda: None) -> None:
        """Copy. ``look``: called twice a second. Raises TidecastError, Stopped."""
        while True:
            self._again.clear()
            plan = self.plan()
            self._tell(plan)
            self._begin(plan)
            self.save()
            self._run_threads(look)
            if self._problem is not None:
                raise self._problem
            self._progress.check()
            if not self._again.is_set():
                self._settle(look)
                if not plan.repairs:
                    return
            self._progress.wait(HELD_S)

    def _begin(self, plan: Plan) -> None:
        self._placing, self._copiers = plan.placing, []
        for route in plan.routes:
            receiver = self._receivers[route.source]
            until = None if self._follow else receiver.latest()
            if plan.repairs:
                until = max(route.marks, default=0)
            self._copiers.append(
                Copier(
                    route,
                    plan.placing,
                    receiver,
                    self._target,
                    self._progress,
                    on_gap=self._on_gap,
                    until=until,
                )
            )

    def _tell(self, plan: Plan) -> None:
        how = "queue to queue" if plan.placing.place == "queue" else "by key"
        sources, queues = len(plan.routes), plan.placing.queues
        self._progress.tell(
            "Placed",
            f"{sources} queues of the source, {queues} of {self._target.topic}: records are placed "
            f"{how}",
            place=plan.placing.place,
            sources=sources,
            queues=queues,
        )

    def _run_threads(self, look: Callable[[], None]) -> None:
        halted = self._progress.stopping
        self._watched_s = time.monotonic()

        def watch() -> None:
            if not halted.is_set():
                self._look(look)
            self._watch_source()

        jobs = {f"mirror-{each.route.source}": partial(self._copy, each) for each in self._copiers}
        run_together(jobs, watch, every_s=LOOK_S, halt=halted.set)

    def _watch_source(self) -> None:
        adapter, now_s = self._adapter, time.monotonic()
        if not isinstance(adapter, Growing) or now_s - self._watched_s < adapter.refresh_s:
            return
        self._watched_s = now_s
        try:
            adapter.refresh()
        except TidecastError as problem:
            self._progress.tell("SourceAway", str(problem))
        if adapter.queues > len(self._copiers):
            self._again.set()

    def _copy(self, copier: Copier) -> None:
        try:
            while not self._again.is_set() and not copier.copy_one():
                if copier.outgrown:
                    self._again.set()
        except Stopped:
            pass
        except _Moved:
            self._again.set()
        except BaseException as problem:  # noqa: BLE001 - `run` raises it
            self._problem = self._problem or problem
            self._progress.stopping.set()

    def _look(self, look: Callable[[], None]) -> None:
        found = self._target.marks(1)
        for copier in self._copiers:
            copier.note_durable(found["durable"])
        self._progress.counts.lag = sum(max(0, c.end - c.position) for c in self._copiers)
        self.save()
        look()

    def _settle(self, look: Callable[[], None]) -> None:
        """All is copied: wait until it is durable."""
        while True:
            self._look(look)
            if all(copier.durable >= copier.position for copier in self._copiers):
                return
            self._progress.wait(HELD_S)

    def places(self) -> list[Place]:
        """How far each queue of the source is. From any thread."""
        return [Place(c.route.source, c.position, c.durable, c.end) for c in self._copiers]

    def end_of(self, source: int) -> int:
        """The end of a queue of the source. Raises TidecastError."""
        return self._receivers[source].latest()

    def save(self) -> None:
        """Write the state file."""
        now = self._placing
        self._state.save(
            Saved(
                source=self._source,
                topic=self._target.topic,
                place=now.place,
                queues=now.queues,
                starts={c.route.source: c.route.began for c in self._copiers},
                durable={c.route.source: c.durable for c in self._copiers},
            )
        )

    def close(self) -> None:
        """End all waits, and close."""
        for receiver in self._receivers:
            receiver.close()
