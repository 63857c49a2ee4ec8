"""Produce: record batches to the queues that their clients chose, each answered by its verdict."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

from tidecast.errors import TidecastError
from tidecast.kafka.answers.cache import BlockCache
from tidecast.kafka.codes import Code, Refused, code_of
from tidecast.kafka.compression import BYTES_MAX
from tidecast.kafka.records import Decoder, Taken, TooLong
from tidecast.kafka.wire import Struct
from tidecast.node.durable.placed import Outcome, PlacedAppends, Run, Verdict
from tidecast.protocol.dedup import is_mirror, is_placed

if TYPE_CHECKING:
    from tidecast.kafka.serving import Client
    from tidecast.node.node import Node

ACKS = (0, 1, -1)
TIMEOUT_S_MAX = 300.0
AT_ONCE_BYTES_MAX = 1 << 20
"""A larger result is decompressed in a thread: others are served meanwhile."""
PLAIN_BYTES_MAX = 2 * BYTES_MAX
"""Bytes of all records of one request, decompressed."""

_CODES = {
    Outcome.APPENDED: Code.NONE,
    Outcome.GAP: Code.OUT_OF_ORDER_SEQUENCE_NUMBER,
    Outcome.FENCED: Code.INVALID_PRODUCER_EPOCH,
}


class _Answer:
    """The answer of one request: filled from any thread, complete when nothing is pending."""

    def __init__(self, call: Callable[[Callable[[], None]], None]) -> None:
        """``call`` calls back in the loop, from any thread."""
        self.rows: list[Struct] = []
        self._call, self._lock, self._pending = call, threading.Lock(), 1
        self._whole: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def row(self, index: int) -> Struct:
        """The place of one partition's verdict; until there is one it has timed out."""
        found: Struct = {
            "index": index,
            "error_code": Code.REQUEST_TIMED_OUT,
            "base_offset": -1,
            "log_append_time_ms": -1,
            "log_start_offset": -1,
        }
        self.rows.append(found)
        return found

    def begun(self) -> None:
        """One more verdict is to come."""
        with self._lock:
            self._pending += 1

    def settled(self) -> None:
        """One came."""
        with self._lock:
            self._pending -= 1
            last = self._pending == 0
        if last:
            self._call(self._done)

    def _done(self) -> None:
        if not self._whole.done():
            self._whole.set_result(None)

    async def whole(self, timeout_s: float) -> None:
        """Wait until all verdicts are there, or the time is over."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._whole


class Producing:
    """Serves Produce. ``waiting_bytes``: of batches taken apart whose verdict is still to come."""

    def __init__(
        self,
        node: Node,
        appends: PlacedAppends,
        cache: BlockCache,
        wrote: Callable[[str], None],
        call: Callable[[Callable[[], None]], None],
        count: Callable[[str, int], None],
        room: Callable[[], Awaitable[None]],
    ) -> None:
        """``wrote(topic)``: called from any thread when something was appended.

        ``call`` calls back in the loop, from any thread. ``room()`` waits until the archiver has
        taken most of ``waiting_bytes``.
        """
        self._node, self._appends, self._cache = node, appends, cache
        self._wrote, self._call, self._count = wrote, call, count
        self._decoder, self._decoder_of_pool = Decoder(), Decoder()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="kafka-decode")
        self._room, self._large = room, asyncio.Lock()
        self._lock = threading.Lock()
        self.waiting_bytes = 0

    def stop(self) -> None:
        """End the thread."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    async def begin(
        self, connection: Client, body: Struct
    ) -> Callable[[], Coroutine[Any, Any, Struct | None]]:
        """Hand all batches of a request over, in order; a call that waits for their verdicts."""
        answer = _Answer(self._call)
        acks = body["acks"]
        timeout_s = min(max(body["timeout_ms"], 1) / 1000, TIMEOUT_S_MAX)
        room, responses = PLAIN_BYTES_MAX, []
        for topic in body["topics"]:
            first = len(answer.rows)
            for partition in topic["partitions"]:
                row = answer.row(partition["index"])
                try:
                    self._check(connection, body, topic["name"])
                    taken = await self._take(partition["records"], room)
                    room -= taken.n_bytes
                    self._submit(
                        answer, row, topic["name"], taken, durable=acks == -1, timeout_s=timeout_s
                    )
                except Refused as problem:
                    row["error_code"] = problem.code
                    self._count("batches_refused", 1)
                except TidecastError as problem:
                    row["error_code"] = code_of(problem)
                    self._count("batches_refused", 1)
            responses.append({"name": topic["name"], "partition_responses": answer.rows[first:]})
        answer.settled()
        return partial(self._finish, connection, answer, acks, timeout_s, responses)

    def _check(self, connection: Client, body: Struct, topic: str) -> None:
        if body["transactional_id"] is not None:
            raise Refused(Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "transactions are not served")
        if body["acks"] not in ACKS:
            raise Refused(Code.INVALID_REQUIRED_ACKS, f"acks {body['acks']}: 0, 1 or -1")
        if not connection.may("publish", topic):
            raise Refused(Code.TOPIC_AUTHORIZATION_FAILED, "the key has no right to publish")
        self._queues_of(topic)

    def _queues_of(self, topic: str) -> int:
        """Queues of a topic that this engine keeps. It can go at any time: Refused says so."""
        kept = self._node.durable.topics.get(topic)
        if kept is not None:
            return len(kept.logs)
        config = self._node.topic_by_name.get(topic)
        here = config is None or config.mode != "durable"
        code = Code.UNKNOWN_TOPIC_OR_PARTITION if here else Code.NOT_LEADER_OR_FOLLOWER
        raise Refused(code, f"topic {topic} is not kept here")

    async def _take(self, records: memoryview | None, room: int) -> Taken:
        if records is None:
            raise Refused(Code.INVALID_RECORD, "no record batch")
        most, now_ns = max(min(room, BYTES_MAX), 1), time.time_ns()
        try:
            taken = self._decoder.take(records, now_ns, min(most, AT_ONCE_BYTES_MAX))
        except TooLong:
            if most <= AT_ONCE_BYTES_MAX:
                raise
            loop, decode = asyncio.get_running_loop(), self._decoder_of_pool.take
            async with self._large:  # those before it are counted when it looks for room
                await self._room()
                taken = await loop.run_in_executor(self._pool, decode, records, now_ns, most)
        ours = is_placed(taken.producer) and not is_mirror(taken.producer)
        if taken.producer >= 0 and not ours:
            raise Refused(
                Code.UNKNOWN_PRODUCER_ID,
                f"producer {taken.producer}: its id is not from this engine",
            )
        if taken.producer >= 0 and (taken.epoch < 0 or taken.sequence < 0):
            raise Refused(Code.INVALID_RECORD, "a producer without epoch or sequence")
        return taken

    def _submit(
        self,
        answer: _Answer,
        row: Struct,
        topic: str,
        taken: Taken,
        *,
        durable: bool,
        timeout_s: float,
    ) -> None:
        queues = self._queues_of(topic)  # it can have gone while the records were decoded
        if not 0 <= row["index"] < queues:
            raise Refused(Code.UNKNOWN_TOPIC_OR_PARTITION, f"{topic}: it has {queues} partitions")

        def done(verdict: Verdict) -> None:
            with self._lock:
                self.waiting_bytes -= taken.n_bytes
            self._fill(row, verdict)
            if verdict.outcome is Outcome.APPENDED:
                self._count("records_in", taken.count)
                self._wrote(topic)
            answer.settled()

        answer.begun()
        with self._lock:
            self.waiting_bytes += taken.n_bytes
        try:
            self._appends.submit(
                Run(
                    topic,
                    row["index"],
                    taken.buffer,
                    taken.n_bytes,
                    taken.count,
                    done,
                    durable,
                    max(taken.producer, 0),
                    taken.epoch,
                    taken.sequence,
                    time.monotonic() + timeout_s,
                    None if taken.raw is None else partial(self._cache.append, taken.raw),
                )
            )
        except TidecastError:
            with self._lock:
                self.waiting_bytes -= taken.n_bytes
            answer.settled()
            raise

    def _fill(self, row: Struct, verdict: Verdict) -> None:
        outcome = verdict.outcome
        if outcome is Outcome.DUPLICATE:
            self._count("batches_duplicate", 1)
            known = verdict.token >= 0
            code = Code.NONE if known else Code.DUPLICATE_SEQUENCE_NUMBER
        elif outcome is Outcome.REFUSED:
            code = code_of(verdict.error)
        else:
            code = _CODES[outcome]
        kept = outcome in (Outcome.APPENDED, Outcome.DUPLICATE)
        row["base_offset"] = verdict.token if kept else -1
        row["log_start_offset"] = verdict.earliest
        row["error_code"] = code

    async def _finish(
        self,
        connection: Client,
        answer: _Answer,
        acks: int,
        timeout_s: float,
        responses: list[Struct],
    ) -> Struct | None:
        if acks != 0:
            await answer.whole(timeout_s)
            copies = [
                {**each, "partition_responses": [dict(row) for row in each["partition_responses"]]}
                for each in responses
            ]
            return {"responses": copies}
        if any(row["error_code"] not in (Code.NONE, Code.REQUEST_TIMED_OUT) for row in answer.rows):
            connection.close()  # as Kafka does: else its client would never hear of it
        return None
