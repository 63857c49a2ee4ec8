"""Placed appends: batches for a queue that their publisher chose, each with a verdict.

For protocols whose clients have no ring: a *run* is handed over, is appended whole or not at all,
and its verdict comes once it is written or, when asked, durable. A thread of its own hands the
runs to the archiver, all that wait at once; runs of one topic keep their order.

A *placed producer* counts its records in each queue by itself. Its epoch and sequence are one
number, ``epoch * 2^46 + count``, so the log's own memory of a producer's last sequence in a queue
(`ProducerTable`) is all that deduplication needs, also after a restart.
"""

from __future__ import annotations

import errno
import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from tidecast.agents.archiver.placed import HELD, NEEDS_ROLL, append_placed
from tidecast.errors import Conflict, NotFound, StorageError, TidecastError
from tidecast.layout.counters import QueueCounter as C
from tidecast.log.queue_log import QueueLog
from tidecast.node.durable.sources import SourceRegistry
from tidecast.node.durable.topic import DurableTopic
from tidecast.protocol.dedup import PLACED, Producer

_log = logging.getLogger("tidecast.durable")
EPOCH_SHIFT = 46
WRAP = 1 << 31
"""A placed producer's sequence is counted modulo this."""
RETRY_S = 0.02
"""A topic that waits for its disk is asked again after this long."""
LOOK_S = 0.25
"""Runs that wait for a sync are looked at so often, should their topic be gone."""
RECENT_RUNS = 5
"""Runs of each producer in each queue whose tokens are remembered, for duplicates."""
RECENT_MAX = 20_000
RUNS_MAX = 4096
"""Runs that may wait for the archiver."""
YOUNG_S = 3600
"""A producer that began more recently cannot have been forgotten for being silent."""
_BORN_SHIFT = 28


class Outcome(Enum):
    """The outcome of a run."""

    APPENDED = "appended"
    DUPLICATE = "duplicate"
    """It is in the log already; the token is -1 when it is not known any more."""
    GAP = "gap"
    """Its producer left out sequences."""
    FENCED = "fenced"
    """Its producer has appended with a newer epoch."""
    REFUSED = "refused"
    """The error has the reason; nothing was written."""


class Verdict(NamedTuple):
    """The outcome of a run: its first token, the queue's oldest one, the error if refused."""

    outcome: Outcome
    token: int = -1
    earliest: int = 0
    error: TidecastError | None = None


@dataclass(slots=True)
class Run:
    """Whole unsealed batches for one queue. ``done`` gets the verdict, in some thread, once."""

    topic: str
    queue: int
    buffer: np.ndarray
    n_bytes: int
    count: int
    done: Callable[[Verdict], None]
    durable: bool = True
    """The verdict waits until it is synced (policy `none`: written)."""
    producer: int = 0
    """0: none, nothing is deduplicated."""
    epoch: int = 0
    sequence: int = 0
    """Of the first record, modulo `WRAP`."""
    deadline_s: float = 0.0
    """On the monotonic clock: how long it may wait for the disk."""
    written: Callable[[QueueLog, int, int, int], None] | None = None
    """Gets log, owner, first token and number of the records, between two cycles of the archiver,
    once they are written, which need not be durable."""


class _Written(NamedTuple):
    """A run in the log whose verdict waits until the queue is durable up to ``end``."""

    topic: DurableTopic
    queue: int
    end: int
    verdict: Verdict
    done: Callable[[Verdict], None]


class _Recent:
    """The latest runs of one producer in one queue: (first, last, token); where they begin."""

    __slots__ = ("floor", "runs")

    def __init__(self, floor: int) -> None:
        self.floor = floor
        self.runs: deque[tuple[int, int, int]] = deque(maxlen=RECENT_RUNS)


Recents = OrderedDict[tuple[int, int], _Recent]
"""Of one topic, by queue and producer; the last used are at the end."""


def new_placed_producer(now_s: float, random_bits: int) -> int:
    """The id of a new placed producer: when it began, and 28 random bits."""
    born = int(now_s) & ((1 << 32) - 1)
    return PLACED | born << _BORN_SHIFT | random_bits & ((1 << _BORN_SHIFT) - 1)


def _is_young(producer: int, now_s: float) -> bool:
    born = producer >> _BORN_SHIFT & ((1 << 32) - 1)
    return 0 <= now_s - born < YOUNG_S


class PlacedAppends:
    """Appends runs to the queues of a node's durable topics. `start` and `stop` its thread."""

    def __init__(self, registry: SourceRegistry, *, inline: bool = False) -> None:
        """``inline``: no thread; the submitter calls `work`."""
        self._registry = registry
        self._inline = inline
        self._lock = threading.Lock()
        self._wake = threading.Condition(self._lock)
        self._waiting: deque[Run] = deque()
        self._written: list[_Written] = []
        self._recent: WeakKeyDictionary[DurableTopic, Recents] = WeakKeyDictionary()
        self._stopping = False
        self._thread = threading.Thread(target=self._main, name="placed-appends", daemon=True)

    def start(self) -> None:
        """Begin to append, and to hear of syncs."""
        self._registry.on_synced.append(self._synced)
        if not self._inline:
            self._thread.start()

    def stop(self) -> None:
        """Refuse waiting runs, and end. Idempotent."""
        with self._wake:
            self._stopping = True
            self._wake.notify_all()
        if self._thread.is_alive():
            self._thread.join()
        if self._synced in self._registry.on_synced:
            self._registry.on_synced.remove(self._synced)
        refused = Verdict(Outcome.REFUSED, error=StorageError("the engine stops"))
        with self._lock:
            left: list[Callable[[Verdict], None]] = [run.done for run in self._waiting]
            left += [written.done for written in self._written]
            self._waiting.clear()
            self._written.clear()
        for done in left:
            done(refused)

    def submit(self, run: Run) -> None:
        """Have a run appended, behind those of before. Raises Conflict when too many wait."""
        with self._wake:
            if self._stopping:
                raise StorageError("the engine stops")
            if len(self._waiting) >= RUNS_MAX:
                raise Conflict(f"{RUNS_MAX} runs wait for the archiver, the most there may be")
            self._waiting.append(run)
            self._wake.notify()

    # --- its thread -------------------------------------------------------------------------------

    def _main(self) -> None:
        while True:
            with self._wake:
                if not self._waiting and not self._stopping:
                    self._wake.wait(LOOK_S if self._written else None)
                if self._stopping:
                    return
            if self.work():
                with self._wake:
                    self._wake.wait_for(lambda: self._stopping, RETRY_S)

    def work(self) -> int:
        """Append waiting runs; how many a disk holds back."""
        with self._lock:
            runs, self._waiting = list(self._waiting), deque()
        held: list[Run] = []
        if runs:
            try:
                with self._registry.ctx.lock:
                    verdicts = self._registry.runtime.on_parked_archiver(
                        lambda: self._append_all(runs)
                    )
            except TidecastError as problem:  # the archiver does not answer: nothing was appended
                verdicts = [Verdict(Outcome.REFUSED, error=problem) for _ in runs]
            for run, verdict in zip(runs, verdicts, strict=True):
                if verdict is None:
                    held.append(run)
                else:
                    self._finish(run, verdict)
        if held:
            with self._lock:
                self._waiting.extendleft(reversed(held))
        self._complete()
        return len(held)

    def _finish(self, run: Run, verdict: Verdict) -> None:
        kept = verdict.outcome in (Outcome.APPENDED, Outcome.DUPLICATE)
        topic = self._registry.topics.get(run.topic)
        if not kept or not run.durable or topic is None:
            run.done(verdict)
            return
        end = verdict.token + run.count
        if verdict.token < 0:
            end = topic.logs[run.queue].next_token
        with self._lock:
            self._written.append(_Written(topic, run.queue, end, verdict, run.done))

    # --- between two cycles of the archiver -------------------------------------------------------

    def _append_all(self, runs: list[Run]) -> list[Verdict | None]:
        """Between two cycles: a verdict a run; None: the topic's disk holds it back."""
        held: set[str] = set()
        found: list[Verdict | None] = []
        now_s = time.monotonic()
        for run in runs:
            verdict = None
            if run.topic not in held:
                try:
                    verdict = self._append(run)
                except TidecastError as problem:
                    verdict = Verdict(Outcome.REFUSED, error=problem)
                except Exception as problem:  # noqa: BLE001 - one run must not stop the others
                    _log.exception("a run for %s/%d failed", run.topic, run.queue)
                    why = StorageError(f"internal error: {type(problem).__name__}: {problem}")
                    verdict = Verdict(Outcome.REFUSED, error=why)
            if verdict is None and now_s >= run.deadline_s:
                why = StorageError(f"topic {run.topic}: its disk takes nothing", errno.EAGAIN)
                verdict = Verdict(Outcome.REFUSED, error=why)
            elif verdict is None:
                held.add(run.topic)
            found.append(verdict)
        return found

    def _append(self, run: Run) -> Verdict | None:
        durable = self._registry
        topic = durable.topics.get(run.topic)
        if topic is None or topic.slot < 0 or run.queue >= len(topic.logs):
            raise NotFound(f"{run.topic}/{run.queue}: its queue is not kept here")
        log = topic.logs[run.queue]
        earliest, seq, producer = log.earliest_token, 1, None
        if run.producer:
            producer = topic.producers.placed(run.producer)
            answer = self._check(topic, run, producer)
            if isinstance(answer, Outcome):
                return Verdict(answer, self._known_token(topic, run, producer), earliest)
            seq = answer
        token = write_run(durable, topic, run, seq)
        if token is None:
            return None
        if run.written is not None:
            run.written(log, topic.owner, token, run.count)
        if producer is not None:
            producer.marks[run.queue] = seq + run.count - 1
            producer.note_placed(run.epoch + 1, durable.ctx.wall_ns())
            self._note(topic, run, seq, token)
        return Verdict(Outcome.APPENDED, token, earliest)

    # --- duplicates -------------------------------------------------------------------------------

    def _note(self, topic: DurableTopic, run: Run, seq: int, token: int) -> None:
        recents = self._recent.setdefault(topic, OrderedDict())
        key = (run.queue, run.producer)
        found = recents.setdefault(key, _Recent(seq))
        found.runs.append((seq, seq + run.count - 1, token))
        recents.move_to_end(key)
        while len(recents) > RECENT_MAX:
            recents.popitem(last=False)

    def _recent_of(self, topic: DurableTopic, run: Run) -> _Recent | None:
        recents = self._recent.get(topic)
        return None if recents is None else recents.get((run.queue, run.producer))

    def _known_token(self, topic: DurableTopic, run: Run, producer: Producer) -> int:
        recent = self._recent_of(topic, run)
        first = sequence_before(int(producer.marks[run.queue]), run.sequence)
        for start, end, token in recent.runs if recent is not None else ():
            if start == first and end == first + run.count - 1:
                return token
        return -1

    def _check(self, topic: DurableTopic, run: Run, producer: Producer) -> int | Outcome:
        """The sequence that a run's first record gets, or why it gets none."""
        mark = int(producer.marks[run.queue])
        base = run.epoch << EPOCH_SHIFT
        if mark == 0:
            self._recent.get(topic, OrderedDict()).pop((run.queue, run.producer), None)
            if run.sequence and _is_young(run.producer, self._registry.ctx.wall_ns() / 1e9):
                return Outcome.GAP
            return base + run.sequence + 1
        if base < mark >> EPOCH_SHIFT << EPOCH_SHIFT:
            return Outcome.FENCED
        if base > mark:
            return Outcome.GAP if run.sequence else base + 1
        count = mark - base
        if run.sequence == count % WRAP:
            return mark + 1
        if (run.sequence - count) % WRAP < WRAP // 2:
            return Outcome.GAP
        first = sequence_before(mark, run.sequence)
        recent = self._recent_of(topic, run)
        floor = recent.floor if recent is not None else base + 1
        if first < floor or first + run.count - 1 > mark:
            return Outcome.GAP
        return Outcome.DUPLICATE

    # --- syncs ------------------------------------------------------------------------------------

    def _synced(self, topic: DurableTopic) -> None:
        """In the thread that syncs."""
        del topic
        self._complete()

    def _complete(self) -> None:
        """Give the verdicts of runs that are durable now, and of runs whose queue is gone."""
        with self._lock:
            waiting, self._written = self._written, []
        left: list[_Written] = []
        for written in waiting:
            topic, queue = written.topic, written.queue
            gone = self._registry.topics.get(topic.config.name) is not topic
            if gone or queue >= len(topic.logs):
                problem = NotFound(f"{topic.config.name}/{queue}: its queue is not kept here")
                written.done(Verdict(Outcome.REFUSED, error=problem))
            elif topic.logs[queue].durable_token < written.end:
                left.append(written)
            elif topic.owned:  # checked behind the sync: no other owner has taken over
                written.done(written.verdict)
            else:
                left.append(written)  # the node gives the topic up, and then it is gone
        with self._lock:
            self._written = left + self._written


def sequence_before(mark: int, sequence: int) -> int:
    """The number, at most ``mark``, of a record whose sequence is known modulo `WRAP`."""
    count = mark & ((1 << EPOCH_SHIFT) - 1)
    return mark - (count - 1 - sequence) % WRAP


def write_run(durable: SourceRegistry, topic: DurableTopic, run: Run, seq: int) -> int | None:
    """Write a run between two cycles of the archiver: first token, None: the disk holds it back.

    ``seq``: of its first record; below 0: its batches have sequences. Raises StorageError.
    """
    runtime = durable.runtime
    number = durable.tables.queue_numbers(topic)[run.queue]
    token = HELD
    for _ in range(2):
        token = int(
            append_placed(
                runtime.state.words,
                number,
                run.buffer,
                run.n_bytes,
                run.producer,
                run.epoch + 1,
                seq,
                durable.ctx.clock_ns(),
                durable.ctx.wall_ns(),
            )
        )
        if token != NEEDS_ROLL:
            break
        durable.tables.note_acked(topic)
        try:
            topic.roll(run.queue, durable.ctx.wall_ns(), {})
        except StorageError:
            if not topic.logs[run.queue].suspect:
                raise
            durable.tables.note_suspect(topic, run.queue, durable.ctx.clock_ns())
            return None
        runtime.state.queues[number]["dirty"] = 1
        row = durable.rows[run.topic, run.queue]
        durable.ctx.counters.values[row, C.SEGMENTS_ROLLED] += 1
    if token == HELD:
        return None
    if token < 0:
        raise StorageError(f"{run.topic}/{run.queue}: the disk refuses", -token)
    return token


def warm_up() -> None:
    """Compile or load the kernel, before the archiver needs it."""
    from numba import typeof

    words, raw = np.zeros(8, dtype=np.int64), np.zeros(8, dtype=np.uint8)
    append_placed.compile(tuple(typeof(each) for each in (words, 0, raw, *[0] * 6)))
