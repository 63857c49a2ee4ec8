"""Queues that an adapter keeps, as an engine reads them: a thread a queue asks the adapter.

The puller never waits for it: it asks for a block, and serves other queues until that is here.
When nothing more comes the thread waits at the end of the queue, and wakes the puller by itself.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from tidecast.errors import Closed, NotFound, StorageError, TidecastError
from tidecast.log.batch import CAUSES
from tidecast.log.building import check
from tidecast.native.mapped import Bytes
from tidecast.queues.adapter import Adapter, LeftOut, Received, Receiver
from tidecast.queues.records import head_of
from tidecast.queues.sources import Fetched

FETCH_S, WATCH_S, RETRY_S, NEXT_S = 0.1, 0.05, 1.0, 0.02
"""How long a receive may wait for a block that is wanted, and for the next record at the end; how
long nothing is asked after an error; how long a reader that has more to read may take to ask."""
TOKEN_MAX = 1 << 62
LEFT_OUT_KEPT_MAX = 4096
"""Number of left-out records that are remembered for each queue, and not reported again."""
_JOIN_S = 5.0


class AttachedQueue:
    """Queries about one queue besides its records; from any thread, one after the other.

    The constructor raises the adapter's error when the adapter does not know where the queue begins
    and ends: positions are compared with these bounds.
    """

    fsync, bytes, segments = "none", 0, ()

    def __init__(
        self,
        adapter: Adapter,
        number: int,
        on_growth: Callable[[], None],
        on_left_out: Callable[[LeftOut], None],
    ) -> None:
        """``on_left_out``: called once for records that the adapter left out, in any thread."""
        self.adapter, self.queue, self.on_growth = adapter, number, on_growth
        self._on_left_out = on_left_out
        self._known: dict[int, None] = {}
        self._left_out = threading.Lock()
        self.left_out = 0
        """Records that the adapter left out."""
        self._receiver: Receiver = _asked(adapter.receiver, number)
        self._lock = threading.Lock()
        try:
            self._bounds = [_asked(self._receiver.earliest), _asked(self._receiver.latest)]
        except BaseException:
            self.close()
            raise
        self._acked = 0

    @property
    def earliest_token(self) -> int:
        """The oldest token that is kept; the last known token while the adapter fails."""
        return self._bound(0, self._receiver.earliest)

    @property
    def next_token(self) -> int:
        """The token that the next record will get; the last known token while the adapter fails."""
        return self._bound(1, self._receiver.latest)

    durable_token = next_token

    def _bound(self, which: int, ask: Callable[[], int]) -> int:
        with self._lock, contextlib.suppress(TidecastError):
            self._bounds[which] = _asked(ask)
        return self._bounds[which]

    def token_at_time(self, time_ns: int) -> int:
        """The first token in a batch with a record not older than this. Raises TidecastError."""
        with self._lock:
            return int(_asked(self._receiver.at_time, time_ns))

    def acked(self, token: int) -> None:
        """No subscription needs records before ``token``: ack them at the adapter."""
        if token > self._acked:
            with self._lock, contextlib.suppress(TidecastError):
                _asked(self._receiver.ack, token)
                self._acked = token

    def read_now(self, token: int, buffer: Bytes) -> Fetched:
        """Read a block, and wait for it. Raises TidecastError."""
        with self._lock:
            return fetched(self._receiver, token, buffer, self.note_left_out)

    def note_left_out(self, about: LeftOut) -> None:
        """Count and report records that the adapter left out, unless they were reported before."""
        with self._left_out:
            if about.first in self._known:
                return
            self._known[about.first] = None
            if len(self._known) > LEFT_OUT_KEPT_MAX:
                del self._known[next(iter(self._known))]
            self.left_out += about.records
        self._on_left_out(about)

    def close(self) -> None:
        """Hang up. Idempotent."""
        self._receiver.close()

    def source(self) -> AdapterSource:
        """For the puller."""
        return AdapterSource(self)


def fetched(
    receiver: Receiver, token: int, buffer: Bytes, note_left_out: Callable[[LeftOut], None]
) -> Fetched:
    """The result of a receive, or the oldest records when those are gone. Raises TidecastError."""
    oldest = 0
    try:
        got = _received(receiver, token, buffer, FETCH_S)
    except NotFound:
        oldest = int(_asked(receiver.earliest))
        if oldest <= token:
            raise StorageError(
                f"the adapter: token {token} is not found, and the oldest is {oldest}"
            ) from None
        token = oldest
        got = _received(receiver, token, buffer, FETCH_S)
    if got.need:
        return Fetched(0, token, got.need, oldest)
    if got.bytes:
        _check_run(buffer, got, token)
    if got.left_out is not None:
        note_left_out(got.left_out)
    end = token
    if got.next_token > token:
        end = max(got.next_token, got.end if got.end >= 0 else int(_asked(receiver.latest)))
    return Fetched(got.bytes, end, 0, oldest, got.next_token)


def _asked(call: Callable[..., Any], *arguments: Any) -> Any:
    """The adapter's answer. Raises TidecastError."""
    try:
        return call(*arguments)
    except TidecastError:
        raise
    except Exception as problem:  # the code of others must not end a thread of ours
        raise StorageError(f"the adapter: {type(problem).__name__}: {problem}") from problem


def _received(receiver: Receiver, token: int, buffer: Bytes, timeout_s: float) -> Received:
    got = _asked(receiver.receive, token, buffer, timeout_s)
    if (
        not isinstance(got, Received)
        or not 0 <= got.bytes <= buffer.size
        or got.need < 0
        or not token <= got.next_token <= TOKEN_MAX
        or (got.left_out is not None and not _makes_sense(got, got.left_out, token))
    ):
        raise StorageError(f"the adapter: it received {got!r} from {token} in {buffer.size} bytes")
    return got


def _makes_sense(got: Received, about: object, token: int) -> bool:
    return (
        isinstance(about, LeftOut)
        and not got.bytes
        and not got.need
        and 0 <= about.first < about.end
        and token < about.end == got.next_token
        and 1 <= about.records <= about.end - about.first
        and about.bytes >= 0
    )


def _check_run(buffer: Bytes, got: Received, token: int) -> None:
    """Checksums, and the order of tokens, are checked once: where bytes come in."""
    at, behind = 0, -1
    while at < got.bytes:
        length = int(check(buffer, at, got.bytes))
        if length < 0:
            raise StorageError(f"the adapter: batch at byte {at} of a run: {CAUSES[length]}")
        base, count = head_of(buffer, at)
        if not behind <= base <= TOKEN_MAX or base + count <= token:
            raise StorageError(
                f"the adapter: a batch of {count} from token {base} follows {max(behind, token)}: "
                "tokens must ascend"
            )
        at, behind = at + length, base + count
    if behind != got.next_token:
        raise StorageError(
            f"the adapter: it received up to token {behind} and names {got.next_token} as the next"
        )


def _watched(answer: Fetched, end: int) -> tuple[int, float]:
    """(end of the queue to watch for growth, -1: none; seconds to wait for a job before).

    ``end``: the end watched so far. A watch delays the next job, so a reader that is not at the end
    begins no watch, and delays the watch of another reader.
    """
    if answer.need_bytes:
        return -1, 0.0
    at_end = answer.next_token >= answer.end
    if end < 0 and not at_end:
        return -1, 0.0
    return answer.end, 0.0 if at_end else NEXT_S


class AdapterSource:
    """See `tidecast.queues.sources.Source`."""

    holes = True

    def __init__(self, of: AttachedQueue) -> None:
        self._of = of
        self._receiver = of.adapter.receiver(of.queue)
        self._jobs: queue.SimpleQueue[tuple[int, int] | None] = queue.SimpleQueue()
        self._answer: Fetched | TidecastError | None = None
        self._block = np.empty(0, dtype=np.uint8)
        self._target = self._block
        self._thread: threading.Thread | None = None

    def here(self) -> None:
        """None: no kernel can read an adapter."""

    def read(self, token: int, buffer: Bytes) -> None:
        """See `Source`: the answer comes by `poll`."""
        self._target, self._answer = buffer, None
        if self._thread is None:
            name = f"tidecast-adapter-{self._of.queue}"
            self._thread = threading.Thread(target=self._run, name=name, daemon=True)
            self._thread.start()
        self._jobs.put((token, buffer.size))

    def read_now(self, token: int, buffer: Bytes) -> Fetched:
        """See `Source`."""
        return self._of.read_now(token, buffer)

    def damage(self) -> None:
        """None: the next answer of the adapter may be sound."""

    def poll(self, now_ns: int) -> Fetched | None:
        """See `Source`. Raises the adapter's error."""
        del now_ns
        answer = self._answer
        if answer is None:
            return None  # the thread may answer at this moment: leave `_answer` as it is
        self._answer = None
        if isinstance(answer, TidecastError):
            raise answer
        self._target[: answer.used] = self._block[: answer.used]
        return answer

    def close(self) -> None:
        """End the thread. Idempotent."""
        self._jobs.put(None)
        self._receiver.close()
        if self._thread is not None:
            self._thread.join(_JOIN_S)
            self._thread = None

    # --- the thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        end, pause_s = -1, 0.0
        while True:
            job: tuple[int, int] | None = None
            try:
                job = self._jobs.get(block=end < 0 or pause_s > 0, timeout=pause_s or None)
                if job is None:
                    return
            except queue.Empty:
                pass
            pause_s = 0.0
            try:
                if job is None:
                    end = -1 if self._grew(end) else end
                else:
                    answer = self._fetch(*job)
                    end, pause_s = _watched(answer, end)
                    self._answer = answer
            except Closed:
                return
            except TidecastError as problem:
                pause_s = RETRY_S
                if job is not None:
                    self._answer, end, pause_s = problem, -1, 0.0

    def _fetch(self, token: int, room: int) -> Fetched:
        if self._block.size < room:
            self._block = np.empty(room, dtype=np.uint8)
        return fetched(self._receiver, token, self._block[:room], self._of.note_left_out)

    def _grew(self, end: int) -> bool:
        got = _received(self._receiver, end, self._block[:1], WATCH_S)
        if got.bytes or got.need or got.next_token > end:
            self._of.on_growth()
            return True
        return False
