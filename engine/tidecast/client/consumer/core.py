"""A durable consumer, the part that never waits: it takes deliveries and settles them.

The blocking and the asyncio consumer add the waiting. A consumer is a member of a named
subscription: the engine hands it records of the queues (or keys) that are its share, up to
``max_in_flight`` of them, and takes back records that it does not ack in time.
"""

from __future__ import annotations

import contextlib
import inspect
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from tidecast import codecs
from tidecast.api.link import ConsumerGrant, ConsumerOptions, Link
from tidecast.api.renamed import CURSORS_ACTION
from tidecast.api.start import Start, Time, Tokens, start_of
from tidecast.api.words import AckWhen, Outcome
from tidecast.buffers import member_ring
from tidecast.client.consumer.acks import Collected, Collector, runs_of
from tidecast.client.consumer.message import (
    COLLECTED_MAX,
    DurableBatch,
    DurableMessage,
    check_seconds,
)
from tidecast.client.core.errors import mapping, with_near
from tidecast.client.core.outgoing import reject
from tidecast.client.kernels import objects
from tidecast.client.links.open import load_kernels
from tidecast.client.waiting import Backoff, Deadline
from tidecast.errors import (
    Closed,
    ConnectionLost,
    ForkedProcess,
    NotFound,
    SharedMemoryError,
    TidecastError,
)
from tidecast.layout import member as member_layout
from tidecast.native.mapped import MappedFile
from tidecast.native.memory import address

if TYPE_CHECKING:
    from tidecast.client.core.connection import ConnectionCore

FETCH_MAX = 65_536
ITERATE_MESSAGES = 256
RUNS_MAX = 4096
ACK_PATIENCE_S = 10.0
UNSENT_MAX = 1 << 17
REFUSED_MAX = 1 << 16
"""Keys whose refusal is remembered. It matters while deliveries of before are under way, at most
`max_in_flight`; of some keys nothing ever comes again, so the oldest give way."""
_NOT_SENT = 1 << 62
_Ack = tuple[int, int, int, int, int, bytes, int]
"""Kind, cursor, first token, end, ns, reason, hash of the key that it refuses (or -1)."""
ACKS, ON_ERROR = get_args(AckWhen), get_args(Outcome)
OnError = Outcome | Callable[[DurableMessage, Exception], Any]
"""The fate of a message whose handler raised: one of ON_ERROR, or a function of the message and
the exception that returns one of them (or None: nak)."""
_TAKEN, _MOVED = member_layout.MEM_TAKEN_AT // 8, member_layout.MEM_MOVED_AT // 8


def start_options(start: Start | str, field: str = "start") -> dict[str, Any]:
    """A start position as `ConsumerOptions` has it. Raises ConfigError."""
    start = start_of(start)
    if isinstance(start, Time):
        if not _whole(start.time_ns):
            raise reject(field, start, "is Time(ns since 1970, a whole number)")
        return {"start": "time", "start_time_ns": start.time_ns}
    if isinstance(start, Tokens):
        given: Any = start.tokens
        numbers = [n for pair in given.items() for n in pair] if isinstance(given, dict) else [-1]
        if not all(_whole(n) for n in numbers):
            raise reject(field, start, "is Tokens({queue: sequence}), whole numbers from 0 on")
        return {"start": "tokens", "start_tokens": dict(start.tokens)}
    if isinstance(start, Start):
        return {"start": start.word}
    allowed = "Earliest(), Latest(), Time(ns), Tokens({queue: sequence}) and Start.parse(TEXT)"
    raise reject(field, start, f"are {allowed}")


def _whole(n: Any) -> bool:
    return isinstance(n, int) and not isinstance(n, bool) and 0 <= n < 1 << 63


Filter = str | Callable[[Any, Any, int], bool]
"""A text (`tidecast.queues.filters.where`), or a function of (key, value, timestamp)."""


def filter_options(link: Link, where: Filter | None) -> dict[str, Any]:
    """The filter of `ConsumerOptions`. Raises ConfigError."""
    if where is None or isinstance(where, str):
        return {"where": where}
    return {"filter_digest": link.offer_filter(where)}


CURSORS_KEPT_MAX = 4096
"""The cursors of earlier engines that a consumer remembers: kept messages name queues by them."""


class ConsumerCore:
    """One member. Taking is for one thread at a time; settling for any."""

    def __init__(
        self,
        connection: ConnectionCore,
        pattern: str,
        name: str,
        options: ConsumerOptions,
        codec: codecs.Codec | str | None,
    ) -> None:
        self.pattern, self.name = pattern, name
        self._codec = codecs.codec_of(codec)
        self.generation = 0
        self._cursors: dict[int, tuple[str, int]] = {}
        self.running = 0
        """Handlers' runs in progress."""
        self._connection, self._options = connection, options
        self._refusal: TidecastError | None = None
        self._lost = False
        self._draining = self._drained = False
        """Nothing more is handed out; and that is so for good, not only until a failed run ends."""
        self._lock = threading.Lock()
        flusher = None if connection.link.inline else connection.flusher
        self.collector = Collector(self._send_acks, self.fail, flusher)
        self._reason = np.zeros(member_layout.ACK_REASON_BYTES_MAX, dtype=np.uint8)
        self._rows = np.zeros((1024, member_ring.ROW_FIELDS), dtype=np.int64)
        self._runs = np.zeros((RUNS_MAX, member_ring.RUN_FIELDS), dtype=np.int64)
        self._assembly = np.zeros(64, dtype=np.uint8)
        self._refused: dict[tuple[int, int], int] = {}
        """By cursor and key's hash: deliveries that the engine wrote before it had read up to here
        in our acks are given back."""
        self._unsent: deque[_Ack] = deque()
        """Acks that found no room in the ring, in order."""
        self._unsent_until: Deadline | None = None
        self._rest: Iterator[DurableMessage] | None = None
        self._epoch = np.zeros(1, dtype=np.int64)
        """Changes when a kernel may not continue a walk."""
        self._walked: DurableBatch | None = None
        """The batch that is handed out by message: those from MEM_TAKEN_AT on are still to come."""
        self._current: tuple[int, frozenset[int]] = (-1, frozenset())
        """The value of `moved` when these were the subscription's cursors, as frames call them."""
        losses, grant = connection.losses, self._ask_first()
        try:
            self._attach(grant)
        except BaseException:  # it would keep its share, and take nothing
            self.leave()
            raise
        connection.add_consumer(self, losses)

    def codec_for(self, topic: str) -> codecs.Codec | None:
        """The codec for records of a topic: of this consumer, else of the connection."""
        return self._codec or self._connection.topic_codecs.of(topic)

    def _ask_first(self) -> ConsumerGrant:
        """Like `_ask`; an error about a missing topic suggests a similar name."""
        load_kernels("CONSUMER")
        try:
            return self._ask()
        except NotFound as problem:
            raise with_near(problem, self.pattern, self._connection.link) from None

    def _ask(self) -> ConsumerGrant:
        return self._connection.link.open_consumer(self.pattern, self.name, self._options)

    def _attach(self, grant: ConsumerGrant) -> None:
        self._grant = grant
        with mapping(self.pattern):
            self._file = member_ring.MemberFile.open(Path(grant.ring_path))
            self._wakes = MappedFile.open(Path(grant.wakes_path)).array
        self._ring = self._file.array
        self._words = self._ring.data[: member_layout.MEMBER_HEADER_BYTES].cast("q")
        self._state = self._file.client_state()
        earlier = dict(list(self._cursors.items())[-CURSORS_KEPT_MAX:])
        self._cursors = earlier | {word: (topic, queue) for word, topic, queue in grant.cursors}
        self._refused.clear()
        self._unsent.clear()
        self._unsent_until = None
        self._start_walking(None)
        self._current = (-1, frozenset())
        self.collector.send_within(grant.ack_wait_s)
        self.generation += 1
        self._since = self.generation
        """Batches before this are of an engine, or a member, that is gone."""

    @property
    def consumer_id(self) -> int:
        """Its id at the node."""
        return self._grant.consumer_id

    @property
    def connection(self) -> Any:
        """The connection that opened it."""
        return self._connection

    @property
    def assembly(self) -> np.ndarray[Any, Any]:
        """The buffer in which large messages are assembled."""
        return self._assembly

    @property
    def ack_wait(self) -> float:
        """Seconds that a message may take before it is delivered again."""
        return self._grant.ack_wait_s

    # --- losing and finding the engine ------------------------------------------------------------

    def lose(self) -> None:
        """The engine is away: delivered records without an ack will come again."""
        self._lost = True
        self.collector.forget()
        with self._lock:
            self._unsent.clear()

    def reopen(self) -> None:
        """Join again at the engine that is back."""
        if self._refusal is None:
            self._resume(self._ask())

    def rejoined(self, grant: ConsumerGrant) -> None:
        """The link joined again on its own: continue as the new member, if that is not done yet."""
        if grant.ring_path != self._grant.ring_path:
            self._resume(grant)

    def _resume(self, grant: ConsumerGrant) -> None:
        with self._lock:
            self._attach(grant)
            self._lost = False

    def fail(self, problem: TidecastError) -> None:
        """It receives nothing any more: the next call raises ``problem``."""
        if self._refusal is None:
            self._refusal = problem

    def forked(self) -> None:
        """This is a child process: refuse all calls."""
        self.collector = Collector(self._send_acks, self.fail, None)
        self._refusal = ForkedProcess("this consumer belongs to the parent process: connect again")

    def check(self) -> None:
        """Raise the error that stops this consumer."""
        self._connection.check()
        if self._refusal is not None:
            raise self._refusal

    @property
    def ended(self) -> bool:
        """Whether it is closed, failed or draining: then it takes no more records."""
        return self._refusal is not None or self._draining

    def stop_handing_out(self) -> None:
        """Drain: a walk over a batch ends, too; messages that it did not reach are not taken."""
        self._drained = self._draining = True  # first: a walk that begins now looks at it
        self._epoch[0] += 1

    def finished(self) -> bool:
        """Whether it takes no more records. Raises the reason, unless it was closed or drains."""
        if self._draining or isinstance(self._refusal, Closed):
            return True
        if self._refusal is not None:
            raise self._refusal
        return False

    # --- taking -----------------------------------------------------------------------------------

    def step(self, limit: int, mark: bool = True) -> DurableBatch | None:
        """The records that are there, up to ``limit``; None when there are none. Raises."""
        self.check()
        if self._lost or self._draining:
            return None
        if self._connection.rung:
            self._connection.pump()
        self.collector.flush()
        if self._unsent:
            self._send()
        if limit > len(self._rows):
            self._rows = np.zeros((min(limit, FETCH_MAX), member_ring.ROW_FIELDS), dtype=np.int64)
        with self._lock:  # the keeper may find another engine meanwhile, with another ring
            if self._lost:
                return None
            batch = self._left(limit, mark) or self._fresh(limit, mark)
        self.wake()
        if not batch:
            return None
        return self._without_refused(batch) if self._refused else batch

    def _fresh(self, limit: int, mark: bool) -> DurableBatch:
        self.generation += 1
        moved = self.moved
        n, r = self._take(limit, mark)
        if n == member_ring.HOSTILE:
            problem = SharedMemoryError(f"{self.pattern}: the deliveries' ring is damaged")
            self.fail(problem)
            raise problem
        memory = self._assembly if n == member_ring.ASSEMBLED else self._ring
        count = 1 if n == member_ring.ASSEMBLED else max(n, 0)
        return DurableBatch(self, memory, self._rows[:count].copy(), self._runs[:r].copy(), moved)

    def _left(self, limit: int, mark: bool) -> DurableBatch | None:
        """Records that a loop took and did not yield; ``mark``: up to ``limit``."""
        batch = self._walked
        if batch is None:
            return None
        self._start_walking(None)
        taken, ring = self._words[_TAKEN], self._ring
        moved = self._words[_MOVED] != batch.moved
        rows = [
            row
            for row, position in enumerate(batch.positions)
            if position > taken and not (moved and batch.taken_back(row, ring))
        ]
        if not rows:
            return None
        if not mark:
            return batch.only(rows)
        if len(rows) > limit:
            self._start_walking(batch.only(rows[limit:]))
        self._words[_TAKEN] = batch.positions[rows[:limit][-1]]
        return batch.only(rows[:limit])

    def _take(self, limit: int, mark: bool) -> tuple[int, int]:
        most = min(limit, FETCH_MAX)
        while True:
            n, r = member_ring.take(
                self._ring, self._state, self._assembly, self._rows, self._runs, most, mark
            )
            if n != member_ring.NEED_BUFFER:
                return n, r
            self._assembly = np.zeros(int(self._state[member_ring.K_TOTAL]), dtype=np.uint8)

    def _without_refused(self, batch: DurableBatch) -> DurableBatch | None:
        """Give back records whose key was refused after the engine had delivered them."""
        keep = []
        for row in range(len(batch)):
            if batch.held_back(row):
                batch.acknowledge(row, member_layout.RETURN)
            else:
                keep.append(row)
        if len(keep) == len(batch):
            return batch
        return batch.only(keep) if keep else None

    def holds_back(self, cursor: int, key_hash: int, acks_seen: int) -> bool:
        """Whether a delivery must be given back: its key was refused after it was written."""
        at = self._refused.get((cursor, key_hash))
        if at is None or key_hash < 0:
            return False
        if acks_seen > at:
            self._refused.pop((cursor, key_hash), None)
            return False
        return True

    @property
    def refuses(self) -> bool:
        """Whether deliveries of some keys must be given back."""
        return bool(self._refused)

    def forget_refused(self, acks_seen: int) -> None:
        """Forget refusals that the engine has read: it has read our acks up to ``acks_seen``."""
        for key in [key for key, at in self._refused.items() if at < acks_seen]:
            self._refused.pop(key, None)

    def _refuse(self, cursor: int, key_hash: int, at: int) -> None:
        self._epoch[0] += 1
        self._refused.pop((cursor, key_hash), None)  # the newest is the last
        self._refused[cursor, key_hash] = at
        if len(self._refused) > REFUSED_MAX:
            self._refused.pop(next(iter(self._refused)), None)

    def is_past(self, generation: int) -> bool:
        """Whether a batch of this generation belongs to an earlier membership."""
        return generation < self._since

    def mark_taken(self, position: int) -> None:
        """The user has a message now: its `ack_wait` begins."""
        self._words[_TAKEN] = position

    def arm(self) -> int | None:
        """Arm the bell. Returns its word to sleep on, or None when there is work."""
        word = self._connection.bell.word
        if self._lost:
            return word
        if member_ring.arm_client(self._ring, self._state):
            return None if not self._file.detached else word
        return word

    def walk(self, batch: DurableBatch) -> Iterator[DurableMessage]:
        """The batch's messages one by one, each marked as taken when it is handed out.

        A program may leave the loop: `step` then continues with the first message that the loop did
        not reach. A kernel hands them out until a seek, a refusal, or another call that takes.
        """
        self._start_walking(batch)
        words = np.zeros(objects.WALK_FIELDS, dtype=np.int64)
        header_at = address(self._ring)
        words[objects.WALK_EPOCH_AT] = address(self._epoch)
        words[objects.WALK_EPOCH] = self._epoch[0]
        words[objects.WALK_MOVED_AT] = header_at + 8 * _MOVED
        words[objects.WALK_MOVED] = batch.moved
        words[objects.WALK_TAKEN_AT] = header_at + 8 * _TAKEN
        by_kernel = not (self._refused or self._draining)
        step = batch.start_walk(words, self._ring, self._epoch) if by_kernel else None
        rest = self._walk_rest(batch, words)
        return rest if step is None else chain(iter(step, None), rest)

    def _start_walking(self, batch: DurableBatch | None) -> None:
        """The loop over this batch begins: an earlier loop ends."""
        self._walked = batch
        self._epoch[0] += 1

    def _walk_rest(self, batch: DurableBatch, state: Any) -> Iterator[DurableMessage]:
        """Walk over the messages that a kernel did not hand out."""
        words, ring, first = self._words, self._ring, int(state[objects.WALK_ROW])
        if self._walked is not batch or self._draining:
            return
        messages = batch.messages[first:] if first < len(batch) else []
        for row, message in enumerate(messages, first):
            if self._walked is not batch or self._draining:
                return  # something else continues it, or nothing
            if words[_MOVED] != batch.moved and batch.taken_back(row, ring):
                continue  # a seek meanwhile
            if self._refused and message.held_back:
                message.give_back()
                continue
            words[_TAKEN] = batch.position(row)
            yield message
        if self._walked is batch:
            self._walked = None

    def prefetched(self) -> DurableMessage | None:
        """The next message of the batch that a loop began, if there is any."""
        walk, self._rest = self._rest, None
        message = next(walk, None) if walk is not None and self._refusal is None else None
        if message is not None:
            self._rest = walk
        return message

    @property
    def moved(self) -> int:
        """A number that changes whenever a seek takes deliveries back."""
        return int(self._words[_MOVED])

    def overtaken(self, message: DurableMessage) -> bool:
        """Has a seek forgotten a delivery that is kept for a handler? It may come again, then.

        Asks the node once a seek.
        """
        batch, moved = message.batch, self._words[_MOVED]
        if moved == batch.moved or self._lost or batch.generation < self._since:
            return False
        known, words = self._current
        if known != moved:
            try:
                words = frozenset(word for word, _, _ in self._control(CURSORS_ACTION))
            except TidecastError:  # the engine, or the subscription, is gone: so are its acks
                return False
            self._current = (moved, words)
        return int(batch.run_of(0)[member_ring.RUN_CURSOR]) not in words

    # --- settling ---------------------------------------------------------------------------------

    def _send_acks(self, acks: Collected) -> None:
        live = [ack for ack in acks if ack[0].generation >= self._since]
        if live and self._refusal is None:
            oldest = min(batch.generation for batch, _ in live)
            count = sum(len(rows) for _, rows in acks)
            self.ack_runs(runs_of(live), oldest, wake=count >= COLLECTED_MAX)
        elif self._unsent:
            self._send()

    def flush_acks(self) -> None:
        """Send acks, if the engine takes them; else their records come again."""
        with contextlib.suppress(ConnectionLost):
            self.collector.flush()

    def ack_runs(self, runs: Any, generation: int, *, wake: bool = True) -> None:
        """Ack whole runs. Deliveries to a member that is gone are ignored.

        Not to ``wake`` the puller saves a system call: it looks every 20 ms at the latest, and is
        woken when the next messages are taken. Never waits for the engine.
        """
        with self._lock:
            if self._lost or generation < self._since:
                return
            done = 0
            if not self._unsent:
                done = int(
                    member_ring.ack_runs(self._ring, self._state, runs, 0, len(runs), self._reason)
                )
            fields = [member_ring.RUN_CURSOR, member_ring.RUN_TOKEN, member_ring.RUN_COUNT]
            for cursor, token, count in runs[done:][:, fields].tolist():
                self._unsent.append((member_layout.ACK, cursor, token, token + count, 0, b"", -1))
        if self._unsent:
            self._send()
        elif wake:
            self.wake()
        else:
            member_ring.note_member(self._wakes, self._grant.member)

    def put(
        self,
        kind: int,
        cursor: int,
        token: int,
        time_ns: int,
        reason: str,
        key_hash: int,
        generation: int,
    ) -> None:
        """Ack, nak or extend one record. A delivery to a member that is gone is ignored.

        Never waits for the engine.
        """
        self.collector.flush()
        raw = reason.encode()[: member_layout.ACK_REASON_BYTES_MAX - 2]
        with self._lock:
            if self._lost or self._refusal is not None or generation < self._since:
                return
            if key_hash >= 0:
                self._refuse(cursor, key_hash, _NOT_SENT)
            self._unsent.append((kind, cursor, token, token + 1, time_ns, raw, key_hash))
        self._send()

    def _send(self) -> None:
        """Write waiting acks into their ring; acks that find no room follow within 10 ms.

        Raises ConnectionLost when the engine reads none of it for ACK_PATIENCE_S.
        """
        while (waits := self._write_some()) and self._connection.link.inline:
            self._connection.link.work()
        if waits:
            self.collector.watch()

    def _write_some(self) -> int:
        """Write waiting acks. Returns how many still wait."""
        with self._lock:
            while self._unsent and self._write(*self._unsent[0]):
                self._unsent.popleft()
            waits = len(self._unsent)
            if not waits:
                self._unsent_until = None
            elif self._unsent_until is None:
                self._unsent_until = Deadline(ACK_PATIENCE_S, self._connection.link.now_s)
            late = self._unsent_until is not None and self._unsent_until.passed
        self.wake()
        if late or waits > UNSENT_MAX:
            raise ConnectionLost(
                f"{self.pattern}: the engine took no acks for {ACK_PATIENCE_S:.0f} s: {waits} wait"
            )
        return waits

    def _write(
        self, kind: int, cursor: int, first: int, end: int, time_ns: int, raw: bytes, key_hash: int
    ) -> bool:
        self._reason[: len(raw)] = np.frombuffer(raw, dtype=np.uint8)
        full = member_ring.put_ack(
            self._ring, self._state, kind, cursor, first, end, time_ns, self._reason, len(raw)
        )
        if full != 0:
            return False
        if key_hash >= 0:
            self._refuse(cursor, key_hash, int(self._state[member_ring.K_ACKED]) - 1)
        return True

    def wake(self) -> None:
        """Wake the puller, because there are acks, or room."""
        member_ring.wake_member(self._wakes, self._connection.link.bells, self._grant.member)

    def run_kernel(self, kernel: Callable[[Any, Any, Any, Any], int]) -> int:
        """Let a kernel take and ack records; makes room for large records. How many it handled."""
        self.check()
        if self._lost or self._draining:
            return 0
        if self._connection.rung:
            self._connection.pump()
        self.collector.flush()
        if self._unsent:
            self._send()
        if self._walked is not None and (left := self._left(FETCH_MAX, False)) is not None:
            for row in range(len(left)):
                # a compiled handler finds it in the ring
                left.acknowledge(row, member_layout.RETURN)
        with self._lock:
            n = kernel(self._ring, self._state, self._assembly, self._reason)
            if n == member_ring.NEED_BUFFER:
                self._assembly = np.zeros(int(self._state[member_ring.K_TOTAL]), dtype=np.uint8)
                n = kernel(self._ring, self._state, self._assembly, self._reason)
        self.generation += 1
        if n == member_ring.HOSTILE:
            problem = SharedMemoryError(f"{self.pattern}: the deliveries' ring is damaged")
            self.fail(problem)
            raise problem
        if n == 0:
            self.wake()
        return max(n, 0)

    # --- about ------------------------------------------------------------------------------------

    def cursor(self, word: int) -> tuple[str, int]:
        """(topic, queue) of a cursor's number in frames. Asks the node for a new cursor."""
        if word not in self._cursors:
            self.ask_cursors()
        return self._cursors.get(word, (self.pattern, -1))

    def knows_cursors(self, batch: DurableBatch) -> bool:
        """Whether all cursors of a batch are known, so that `cursor` need not ask the node."""
        known = self._cursors
        return all(word in known for word in batch.runs[:, member_ring.RUN_CURSOR].tolist())

    def ask_cursors(self) -> None:
        """Ask the node for the subscription's cursors."""
        for word, topic, queue in self._control(CURSORS_ACTION):
            self._cursors[word] = (topic, queue)

    def _control(self, action: str, **arguments: Any) -> Any:
        if action != CURSORS_ACTION:
            self.collector.flush()
            self._connection.flush_to_rings()  # messages that this client published before count
        arguments = {"pattern": self.pattern, "name": self.name, **arguments}
        return self._connection.link.administer(action, arguments)

    def _seek(self, start: Start | str, dry_run: bool) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self._control("seek", dry_run=dry_run, **start_options(start))
        if not dry_run:
            cursors = self._control(CURSORS_ACTION)
            with self._lock:
                self._cursors |= {word: (topic, queue) for word, topic, queue in cursors}
        return rows

    def stats(self) -> dict[str, Any]:
        """The figures of this consumer."""
        return {
            "pattern": self.pattern,
            "name": self.name,
            "consumer_id": self.consumer_id,
            "unread_bytes": int(self._words[member_layout.MEM_DELIVERED_AT // 8] - self._state[0]),
        }

    def abandon(self) -> None:
        """Leave: the caller that opened it has given up."""
        with contextlib.suppress(TidecastError):
            self._shut()

    def _shut(self) -> bool:
        """Leave the subscription. False: it had left before."""
        if self._refusal is not None and isinstance(self._refusal, Closed):
            return False
        self._flush_all_acks()
        self._refusal = Closed(f"the consumer of {self.pattern} is closed")
        self._connection.remove_consumer(self)
        return True

    def _flush_all_acks(self) -> None:
        """Send all acks, if the engine reads them within ACK_PATIENCE_S."""
        link = self._connection.link
        backoff, patience = Backoff(link), Deadline(ACK_PATIENCE_S, link.now_s)
        with contextlib.suppress(ConnectionLost):
            self.collector.flush()
            while self._unsent and not self._lost:
                self._send()
                backoff.pause(patience)

    def leave(self) -> None:
        """Report to the node that it leaves, if there is a node."""
        with contextlib.suppress(TidecastError):
            self._connection.link.close_consumer(self.consumer_id)


def check_run(
    handler: Callable[[Any], Any], concurrency: int, ack: str, on_error: OnError, nak_delay: float
) -> bool:
    """Check the arguments of `run`; is the handler a coroutine function? Raises ConfigError."""
    if not callable(handler):
        raise reject("handler", handler, "is a function of one message")
    try:
        inspect.signature(handler).bind(None)
    except TypeError:
        raise reject("handler", handler, "is a function of one message") from None
    except ValueError:
        pass  # a builtin without a signature
    if not 1 <= concurrency <= 1024:
        raise reject("concurrency", concurrency, "are 1 to 1024")
    if ack not in ACKS:
        raise reject("ack", ack, f"are {', '.join(ACKS)}")
    check_seconds("nak_delay", nak_delay)
    if not callable(on_error):
        check_outcome(on_error)
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
        getattr(handler, "__call__", None)  # noqa: B004 - an instance with an async __call__
    )


def check_outcome(said: Any) -> str:
    """Check ``on_error``, or the return value of its function. Raises ConfigError."""
    if said is None:
        return "nak"
    if said not in ON_ERROR:
        raise reject("on_error", said, f"are {', '.join(ON_ERROR)}, or a function that returns one")
    return str(said)


def acknowledge_failed(
    message: DurableMessage, how: str, nak_delay: float, problem: Exception
) -> None:
    """Apply the decision of ``on_error`` to a message whose handler raised."""
    if how == "nak":
        message.nak(nak_delay)
    elif how == "term":
        message.term(f"{type(problem).__name__}: {problem}")
    elif how == "ack":
        message.ack()


def give_back(messages: Iterable[DurableMessage]) -> None:
    """Return messages that no handler has begun: that was no attempt, and others may have them."""
    with contextlib.suppress(TidecastError):  # they come again
        for message in messages:
            message.give_back()


def worker_of(message: DurableMessage, workers: int, turn: int) -> int:
    """The worker that handles a message: all messages of a key have the same worker."""
    key = message.key
    return turn % workers if key is None else hash(key) % workers
