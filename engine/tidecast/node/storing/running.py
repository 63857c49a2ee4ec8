"""A storage that is written by threads: one for each queue, one for the topic, one for its files.

The topic's thread begins a run, which fences the writer before and finds the end of its records. It
begins again after a failure that no repetition of a write cures. A `SpoolStorage` of Kafka or of
JetStream makes the parts of a run. See docs/adr/0041.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Protocol

import numpy as np

from tidecast.api.connecting import Backoff
from tidecast.errors import Closed, ConnectionLost, Fenced, StorageError, TidecastError
from tidecast.log.queue_log import LogReader
from tidecast.native.mapped import Bytes
from tidecast.node.storing.spool import Spool

_log = logging.getLogger("tidecast.node")
AGAIN_S_MAX = 30.0
"""The longest wait before a next try: only a change of settings helps, and each try fences."""
NOTE_S = 5.0
"""Marks are noted so often: the next writer counts from there."""
RENEW_S = 86_400.0
"""A coordinator of Kafka forgets a transactional id after a week of silence."""
READ_BYTES = 2 << 20
JOIN_S = 5.0
COPY_S = 0.25
"""The small files of a topic are looked at so often."""
_WHOLE_TOPIC, _STATE = -1, -2


class QueueWriter(Protocol):
    """Writes a queue. ``behind``: the token behind all that is known to be stored.

    ``records``, ``bytes``: stored; ``errors``: failures that were tried again.
    """

    behind: int
    records: int
    bytes: int
    errors: int

    def write(self, run: Bytes, token: int) -> int:
        """Store the records of a run from ``token`` on; the token behind them.

        ConnectionLost: nothing is wrong but that it waits: the call may be repeated.
        """

    def close(self) -> None:
        """End a write that waits. Idempotent."""


class FileWriter(Protocol):
    """Writes the small files of a topic."""

    def copy_files(self, directory: Path) -> None:
        """Write the files that have changed."""

    def close(self) -> None:
        """Idempotent."""


class Run(ABC):
    """Writers that are not fenced. ``ended``: they stop; ``problem``: the reason.

    ``tokens``: where each queue begins; ``state``: None without small files.
    """

    def __init__(
        self, tokens: list[int], writers: list[QueueWriter], state: FileWriter | None
    ) -> None:
        self.tokens, self.writers, self.state = tokens, writers, state
        self.ended = threading.Event()
        self.copy_now = threading.Event()
        """The pause between two copies of the small files ends."""
        self.problem: tuple[int, TidecastError] | None = None

    def fail(self, queue: int, problem: TidecastError) -> None:
        """End the run. The first problem counts, but a fence replaces it."""
        if self.problem is None or isinstance(problem, Fenced):
            self.problem = queue, problem
        self.end()

    def end(self) -> None:
        """Have the writers stop."""
        self.ended.set()
        self.copy_now.set()

    @abstractmethod
    def save(self, directory: Path) -> None:
        """Note on disk how far it has come, if that has changed. Raises StorageError."""


class SpoolStorage(ABC):
    """See module. `start` and `close`, once each."""

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._copied = threading.Condition(self._lock)
        self._copies_begun = self._copies = 0
        """Of the topic's small files; the newest that is done."""
        self._run: Run | None = None
        self._problems: dict[int, str] = {}
        """By queue, or _WHOLE_TOPIC: why it takes nothing."""
        self._thread = threading.Thread(
            target=self._main, name=f"storage-{spool.topic}", daemon=True
        )

    # --- parts of a run ---------------------------------------------------------------------------

    @abstractmethod
    def _warm_up(self) -> None:
        """Compile or load the kernels."""

    @abstractmethod
    def _begin(self) -> Run:
        """Fence the writer before, find the end of its records, note where this writer begins."""

    @abstractmethod
    def _hang_up(self) -> None:
        """Nothing is sent from here on, however long a thread still waits. From any thread."""

    def _check_open(self) -> None:
        if self._closing.is_set():
            raise Closed(f"topic {self._spool.topic}: its storage is closed")

    def start(self) -> None:
        """Begin; does not wait for other systems."""
        self._thread.start()

    def close(self) -> None:
        """End: the next writer stores the rest. Idempotent.

        No request leaves any more when this returns, also when a server does not answer: a fence
        would end a writer that begins on another node meanwhile.
        """
        self._closing.set()
        with self._lock:
            run = self._run
        if run is not None:
            run.end()
        self._hang_up()
        self._spool.wake()
        if self._thread.is_alive():
            self._thread.join(JOIN_S)

    # --- the topic's thread -----------------------------------------------------------------------

    def _main(self) -> None:
        self._warm_up()
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

    def _note_begin(self, run: Run) -> None:
        for queue, token in enumerate(run.tokens):
            self._spool.note_stored(queue, token)
            if token >= self._spool.synced(queue):
                self._clear_problem(queue)
        self._clear_problem(_WHOLE_TOPIC)

    def _serve(self, run: Run) -> tuple[int, TidecastError] | None:
        """Write until something fails (the queue, and why), it is closed, or it is renewed."""
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
        for _ in range(int(RENEW_S / NOTE_S)):
            if run.ended.wait(NOTE_S):
                break
            self._note(run)
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
            self._note(run)
        return run.problem

    def _note(self, run: Run) -> None:
        """Note the marks of a run. A disk that refuses keeps older marks, which are right, too."""
        with contextlib.suppress(StorageError):
            run.save(self._spool.directory)

    # --- the thread of the small files ------------------------------------------------------------

    def _copy(self, run: Run) -> None:
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
        """Have the files as they are now in the storage, if it answers in time."""
        with self._copied:
            run, wanted = self._run, self._copies_begun + 1
            if run is None or run.state is None:
                return
            run.copy_now.set()
            self._copied.wait_for(lambda: self._copies >= wanted or run.ended.is_set(), timeout_s)

    # --- a queue's thread -------------------------------------------------------------------------

    def _write_queue(self, run: Run, queue: int) -> None:
        token, buffer = run.tokens[queue], np.empty(READ_BYTES, dtype=np.uint8)
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

    def _store(self, run: Run, queue: int, block: Bytes, token: int) -> int:
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

    # --- reports ----------------------------------------------------------------------------------

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
