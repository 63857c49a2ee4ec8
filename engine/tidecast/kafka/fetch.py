"""Fetch, ListOffsets, OffsetForLeaderEpoch: reads of durable records, with waits for new records.

Clients see only tokens below the high watermark: synced records (policy `none`: written). So after
a crash no record that a client has seen is gone, with another record at its offset.
"""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidecast.errors import CorruptLog, NotFound, StorageError
from tidecast.kafka.answers.block_loader import LOG_BYTES, BlockLoader, read_batches
from tidecast.kafka.answers.cache import Piece
from tidecast.kafka.answers.pacing import SLEEPER
from tidecast.kafka.codes import Code
from tidecast.kafka.wire import Struct
from tidecast.layout import segment as seg
from tidecast.log.queue_log import QueueLog
from tidecast.log.reading.range_scan import Selector, Wanted

if TYPE_CHECKING:
    from tidecast.kafka.serving import Client, Endpoint
    from tidecast.node.durable.topic import DurableTopic

FETCH_BYTES_MAX = 16 << 20
"""Bytes of one answer, except that its first batch is always whole."""
WAIT_S_MAX = 60.0
MANY, MANY_WAIT_S_MAX = 512, 1.0
"""A request for more partitions waits no longer: it takes a share of the connections' room."""
LEFT_OUT_WAIT_S = 0.02
"""The same, when the client left out partitions that it reads, and in which there is more."""
BLOCK_BYTES = 1 << 20
THREADS = 4
LATEST, EARLIEST = -1, -2
_NS_PER_MS = 1_000_000


@dataclass(slots=True)
class _Wanted:
    """A requested partition, with its log or the reason why there is none."""

    row: Struct
    offset: int
    bytes_max: int
    log: QueueLog | None
    epoch: int
    behind: int
    """The offset behind the records of the answer."""


class _NoRoom(Exception):
    """An answer needs more bytes than its room. ``need``: the bytes of the answer."""

    def __init__(self, need: int) -> None:
        super().__init__(f"an answer of {need} bytes")
        self.need = need


class Fetching:
    """Serves the three APIs; its own threads read files."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="kafka-fetch")
        self._cache = endpoint.cache
        self._loads = BlockLoader(self._cache, self._pool, endpoint.counters.count)

    def stop(self) -> None:
        """End the threads."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._loads.stop()

    def log_of(
        self, connection: Client, topic: str, partition: int
    ) -> tuple[Code, QueueLog | None, DurableTopic | None]:
        """The log of a partition, or the code that explains why there is none."""
        if not connection.may("subscribe", topic):
            return Code.TOPIC_AUTHORIZATION_FAILED, None, None
        node = self._endpoint.node
        found = node.durable.topics.get(topic)
        if found is None:
            config = node.topic_by_name.get(topic)
            if config is None or config.mode != "durable":
                return Code.UNKNOWN_TOPIC_OR_PARTITION, None, None
            return Code.NOT_LEADER_OR_FOLLOWER, None, None
        if not 0 <= partition < len(found.logs):
            return Code.UNKNOWN_TOPIC_OR_PARTITION, None, None
        return Code.NONE, found.logs[partition], found

    # --- Fetch ------------------------------------------------------------------------------------

    async def fetch(self, connection: Client, body: Struct) -> Struct:
        """Answer when there are ``min_bytes``, or an error, or the time is over."""
        many = sum(len(topic["partitions"]) for topic in body["topics"]) > MANY
        wait_s = min(max(body["max_wait_ms"], 0) / 1000, MANY_WAIT_S_MAX if many else WAIT_S_MAX)
        deadline_s = time.monotonic() + wait_s
        topics = {topic["topic"] for topic in body["topics"]}
        bytes_max = min(max(body["max_bytes"], 1), FETCH_BYTES_MAX)
        await self._pace(connection)
        while True:
            waiter = self._endpoint.watch(topics)
            try:
                responses, size, wanted = await self._once(connection, body, bytes_max)
                failed = any(each.row["error_code"] for each in wanted)
                now_s = time.monotonic()
                if failed or size >= max(body["min_bytes"], 0) or deadline_s <= now_s:
                    self._note(connection, wanted, size)
                    return {"responses": responses}
                asked = {each.log for each in wanted if each.log is not None}
                if deadline_s - now_s > LEFT_OUT_WAIT_S and connection.recent.left_out(asked):
                    self._endpoint.counters.count("fetches_cut_short")
                    deadline_s = now_s + LEFT_OUT_WAIT_S
                await asyncio.wait((waiter,), timeout=deadline_s - now_s)
            finally:
                self._endpoint.unwatch(topics, waiter)

    async def _pace(self, connection: Client) -> None:
        """Wait until there is room in the queue of a client that sleeps when it is full."""
        delay_s = connection.recent.delay_s() if SLEEPER in connection.software else 0.0
        if delay_s:
            self._endpoint.counters.count("fetches_paced")
            await asyncio.sleep(delay_s)

    def _note(self, connection: Client, wanted: list[_Wanted], size: int) -> None:
        self._endpoint.counters.count("bytes_fetched", size)
        rows = (
            (each.log, each.offset, each.behind, each.row["high_watermark"])
            for each in wanted
            if each.log is not None
        )
        connection.recent.answered(rows, size)

    async def _once(
        self, connection: Client, body: Struct, bytes_max: int
    ) -> tuple[list[Struct], int, list[_Wanted]]:
        """(answers by topic, bytes of records, partitions) of the records that are there now."""
        wanted: list[_Wanted] = []
        responses = []
        for topic in body["topics"]:
            rows = [self._want(connection, topic["topic"], each) for each in topic["partitions"]]
            wanted += rows
            responses.append({"topic": topic["topic"], "partitions": [each.row for each in rows]})
        ready = [each for each in wanted if each.log is not None and self._has_more(each)]
        size = 0
        if ready:
            bytes_max = min(bytes_max, sum(each.bytes_max for each in ready))
            size = await self._fill(connection, ready, bytes_max)
        return responses, size, wanted

    @staticmethod
    def _has_more(each: _Wanted) -> bool:
        return bool(each.row["high_watermark"] > each.offset)

    def _want(self, connection: Client, topic: str, asked: Struct) -> _Wanted:
        code, log, found = self.log_of(connection, topic, asked["partition"])
        row: Struct = {
            "partition_index": asked["partition"],
            "error_code": code,
            "high_watermark": -1,
            "last_stable_offset": -1,
            "log_start_offset": -1,
            "preferred_read_replica": -1,
            "records": b"",
        }
        offset, epoch = asked["fetch_offset"], 0
        if log is not None and found is not None:
            epoch, end = found.owner, log.durable_token
            row["high_watermark"] = row["last_stable_offset"] = end
            row["log_start_offset"] = earliest = log.earliest_token
            code = _epoch_problem(asked, epoch)
            if code == Code.NONE and not earliest <= offset <= log.next_token:
                code = Code.OFFSET_OUT_OF_RANGE
            row["error_code"] = code
        return _Wanted(
            row,
            offset,
            max(asked["partition_max_bytes"], 1),
            log if code == Code.NONE else None,
            epoch,
            offset,
        )

    async def _fill(self, connection: Client, ready: list[_Wanted], bytes_max: int) -> int:
        """Fill in records of partitions until the answer is long enough. Returns its bytes.

        Its first batch is whole, and may have more bytes than requested: then it is read again when
        there is room, so that answers that wait have no bytes.
        """
        room = bytes_max
        while True:
            await connection.hold(room)
            try:
                size = await self._try_to_fill(connection, ready, bytes_max)
            except _NoRoom as problem:
                room = problem.need
                for each in ready:
                    each.row["records"], each.behind = b"", each.offset
            else:
                connection.hold_less(size)
                return size

    async def _try_to_fill(self, connection: Client, ready: list[_Wanted], bytes_max: int) -> int:
        """Like `_fill`, but raises _NoRoom."""
        self._begin(ready, bytes_max)
        size = 0
        for each in ready:
            if size >= bytes_max:
                break
            room = min(each.bytes_max, bytes_max - size)
            try:
                pieces = await self._records(each, room)
            except NotFound:
                each.row["error_code"] = Code.OFFSET_OUT_OF_RANGE
            except (CorruptLog, StorageError, ValueError):
                each.row["error_code"] = Code.KAFKA_STORAGE_ERROR
                self._endpoint.counters.count("reads_failed")
            else:
                size += sum(len(piece.data) for piece in pieces)
                if not connection.hold_more(size):
                    self._cache.release_all(pieces)
                    raise _NoRoom(size)
                each.row["records"] = [piece.data for piece in pieces]
                each.behind = pieces[-1].behind if pieces else each.offset
                connection.lend(piece.block for piece in pieces if piece.block is not None)
        return size

    def _begin(self, ready: list[_Wanted], bytes_max: int) -> None:
        """Begin to read records that are in no block, side by side; answered in order."""
        for each in ready[: 1 + bytes_max // LOG_BYTES]:
            log, limit = each.log, each.row["high_watermark"]
            if log is not None and not self._cache.has(log, each.epoch, each.offset):
                self._loads.start(log, each.epoch, each.offset, limit)

    async def _records(self, each: _Wanted, bytes_max: int) -> list[Piece]:
        """Record batches of a queue below its high watermark, some ``bytes_max`` bytes of them."""
        log, size, token, limit = each.log, 0, each.offset, each.row["high_watermark"]
        assert log is not None
        pieces: list[Piece] = []
        try:
            while token < limit and bytes_max - size > bytes_max >> 3:  # an eighth is not worth it
                where = (log, each.epoch, token, limit, bytes_max - size)
                piece = self._cache.take(*where, first=size == 0)
                cached = piece is not None
                if piece is None:
                    piece = await self._loads.load(*where, first=size == 0)
                pieces.append(piece)
                if not len(piece.data):
                    break
                if cached:
                    self._endpoint.counters.count("bytes_cached", len(piece.data))
                size, token = size + len(piece.data), piece.behind
        except BaseException:
            self._cache.release_all(pieces)
            raise
        self._loads.ahead(log, each.epoch, token, limit)
        return pieces

    # --- ListOffsets ------------------------------------------------------------------------------

    async def list_offsets(self, connection: Client, body: Struct) -> Struct:
        """The earliest offset, the latest, or the first record that is not older than a time."""
        topics = []
        for topic in body["topics"]:
            rows = [
                await self._offset_of(connection, topic["name"], each)
                for each in topic["partitions"]
            ]
            topics.append({"name": topic["name"], "partitions": rows})
        return {"topics": topics}

    async def _offset_of(self, connection: Client, topic: str, asked: Struct) -> Struct:
        code, log, _ = self.log_of(connection, topic, asked["partition_index"])
        offset, at_ms = -1, -1
        if log is not None and asked["timestamp"] == LATEST:
            offset = log.durable_token
        elif log is not None and asked["timestamp"] == EARLIEST:
            offset = log.earliest_token
        elif log is not None and asked["timestamp"] < 0:
            code = Code.INVALID_REQUEST
        elif log is not None:
            loop = asyncio.get_running_loop()
            try:
                offset, at_ms = await loop.run_in_executor(
                    self._pool, first_since, log, asked["timestamp"]
                )
            except (CorruptLog, StorageError, NotFound, OSError):
                code = Code.KAFKA_STORAGE_ERROR
        return {
            "partition_index": asked["partition_index"],
            "error_code": code,
            "timestamp": at_ms,
            "offset": offset,
        }

    # --- OffsetForLeaderEpoch ---------------------------------------------------------------------

    async def epoch_ends(self, connection: Client, body: Struct) -> Struct:
        """Where the records of an owner's epoch end: a client detects lost records so.

        The begin of a later epoch ends an epoch, else the high watermark.
        """
        topics = []
        for topic in body["topics"]:
            rows = [
                await self._epoch_end(connection, topic["topic"], each)
                for each in topic["partitions"]
            ]
            topics.append({"topic": topic["topic"], "partitions": rows})
        return {"topics": topics}

    async def _epoch_end(self, connection: Client, topic: str, asked: Struct) -> Struct:
        code, log, found = self.log_of(connection, topic, asked["partition"])
        epoch, end = -1, -1
        if log is not None and found is not None:
            code = _epoch_problem(asked, found.owner)
            if code == Code.NONE and 0 <= asked["leader_epoch"] <= found.owner:
                epoch, loop = asked["leader_epoch"], asyncio.get_running_loop()
                try:
                    end = await loop.run_in_executor(self._pool, _end_of_epoch, log, epoch)
                except (CorruptLog, StorageError, NotFound, OSError):
                    self._endpoint.counters.count("reads_failed")
                    code, epoch = Code.KAFKA_STORAGE_ERROR, -1
        return {
            "error_code": code,
            "partition": asked["partition"],
            "leader_epoch": epoch,
            "end_offset": end,
        }


def _epoch_problem(asked: Struct, epoch: int) -> Code:
    """The problem when the client knows another epoch of the owner than ``epoch``."""
    known = asked.get("current_leader_epoch", -1)
    if known in (-1, epoch):
        return Code.NONE
    return Code.FENCED_LEADER_EPOCH if known < epoch else Code.UNKNOWN_LEADER_EPOCH


def first_since(log: QueueLog, at_ms: int) -> tuple[int, int]:
    """(offset, time) of the first record that is not older than a time; (-1, -1): there is none."""
    time_ns = min(at_ms, (1 << 62) // _NS_PER_MS) * _NS_PER_MS
    token, limit = log.token_at_time(time_ns), log.durable_token
    reader = log.reader()
    try:
        while token < limit:
            block, n = read_batches(reader, token, BLOCK_BYTES)
            selector = Selector(Wanted(token, limit, time_min_ns=time_ns))
            found = selector.select(block, n, -1) if n else 0
            if found > 0:
                offset, at = int(selector.rows[0, 1]), int(selector.rows[0, 0])
                raw: Any = block[at + seg.REC_TIME_AT :][:8]
                return offset, int(raw.view("<i8")[0]) // _NS_PER_MS
            if n == 0 or found < 0:
                break
            token = reader.next_token
    finally:
        reader.close()
    return -1, -1


def _end_of_epoch(log: QueueLog, epoch: int) -> int:
    """The first offset whose owner has a later epoch, else the high watermark. A binary search."""
    first, end = log.earliest_token, log.durable_token
    reader = log.reader()
    try:
        while first < end:
            block, n = read_batches(reader, (first + end) // 2, 0)
            if n == 0:
                break
            owner, base, count = (
                int(block[at : at + size].view(form)[0])
                for at, size, form in (
                    (seg.BATCH_OWNER_AT, 4, "<u4"),
                    (seg.BATCH_BASE_TOKEN_AT, 8, "<i8"),
                    (seg.BATCH_COUNT_AT, 4, "<u4"),
                )
            )
            first, end = (first, base) if owner > epoch else (base + max(count, 1), end)
    finally:
        reader.close()
    return end
