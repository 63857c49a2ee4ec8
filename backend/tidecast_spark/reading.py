"""Reading a range of tokens of one queue as Arrow record batches; runs in Spark's workers."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from tidecast.errors import CorruptLog, GapError
from tidecast.layout import segment as lay
from tidecast.log.batch import CAUSES, SHORT
from tidecast.log.files import index_name, read_index, segment_name
from tidecast_spark import decode as dc
from tidecast_spark.files import position_before, segments_of
from tidecast_spark.parts import QueueRange, ReadSettings

BLOCK_BYTES = 8 << 20
BATCH_ROWS_MAX = 65_536
COLUMN_BYTES_MAX = 256 << 20
_TIMES = pa.timestamp("us", tz="UTC")
_HEADER_MAP = pa.map_(pa.string(), pa.binary())
_log = logging.getLogger("tidecast_spark")

ARROW_TYPES: dict[str, Any] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "queue": pa.int32(),
    "token": pa.int64(),
    "timestamp": _TIMES,
    "headers": _HEADER_MAP,
}


def arrow_schema(settings: ReadSettings) -> pa.Schema:
    """Columns and types, exactly as Spark expects them."""
    types = dict(ARROW_TYPES)
    if settings.headers == "raw":
        types["headers"] = pa.binary()
    return pa.schema([(name, types[name]) for name in settings.columns])


def load_kernels() -> None:
    """Load the kernels from disk (0.3 s), or compile them, before they are needed."""
    decoder = BlockDecoder(QueueRange("", 0, "", 0, 1), ReadSettings())
    empty = np.zeros(lay.BATCH_HEADER_BYTES, dtype=np.uint8)
    decoder.select(empty, 0, -1)
    dc.find_batch(empty, 0, 0, 0)
    decoder.batch(empty, 0, 0)


class BlockDecoder:
    """Makes record batches of blocks; holds the filters as the kernels want them."""

    def __init__(self, part: QueueRange, settings: ReadSettings) -> None:
        from tidecast.queues.mapper import hash_of

        rows = settings.rows
        self.part, self.settings = part, settings
        self.w = np.zeros(dc.SELECT_WORDS, dtype=np.int64)
        self.w[dc.W_TOKEN_MIN] = max(part.start, rows.token_min)
        self.w[dc.W_TOKEN_END] = min(part.end, rows.token_end)
        self.w[dc.W_TIME_MIN], self.w[dc.W_TIME_END] = rows.time_min_ns, rows.time_end_ns
        self.w[dc.W_KEYS] = dc.NO_KEYS if rows.keys is None else len(rows.keys)
        self.w[dc.W_KEY_NULL] = rows.key_null
        keys = rows.keys or ()
        self._keys = np.frombuffer(bytearray(b"".join(keys) + b"\0"), dtype=np.uint8)
        self._key_ends = np.cumsum([len(k) for k in keys] or [0]).astype(np.int64)
        self._hashes = np.array([hash_of(k) for k in keys] or [0], dtype=np.int64)
        self._rows = np.zeros((0, 2), dtype=np.int64)
        self._sums, self._nulls = np.zeros(3, dtype=np.int64), np.zeros(2, dtype=np.int64)
        self._schema = arrow_schema(settings)
        self._topics: Any = None
        self._queues: Any = None

    def select(self, block: np.ndarray, size: int, expected: int) -> int:
        """Rows listed from the batches of ``block[:size]``, or a cause below zero."""
        room = size // lay.RECORD_HEADER_BYTES + 1
        if self._rows.shape[0] < room:
            self._rows = np.zeros((room, 2), dtype=np.int64)
        w = self.w
        w[dc.W_AT], w[dc.W_NEXT_TOKEN], w[dc.W_EXPECTED] = 0, 0, expected
        return int(
            dc.select_records(block, size, w, self._keys, self._key_ends, self._hashes, self._rows)
        )

    def batches(self, block: np.ndarray, n: int) -> Iterator[pa.RecordBatch]:
        """Record batches of the ``n`` rows that `select` listed."""
        first = 0
        while first < n:
            end = min(n, first + BATCH_ROWS_MAX)
            end = int(dc.measure(block, self._rows, first, end, COLUMN_BYTES_MAX, self._sums))
            yield self.batch(block, first, end)
            first = end

    def batch(self, block: np.ndarray, first: int, end: int) -> pa.RecordBatch:
        """One record batch of the listed rows [first, end); `measure` has set the sums."""
        n = end - first
        key_bytes, header_bytes, value_bytes = self._sums.tolist()
        ends = [np.empty(n + 1, dtype=np.int32) for _ in range(3)]
        data = [np.empty(b, dtype=np.uint8) for b in (key_bytes, header_bytes, value_bytes)]
        bits = [np.zeros((n + 7) // 8, dtype=np.uint8) for _ in range(2)]
        tokens, times = np.empty(n, dtype=np.int64), np.empty(n, dtype=np.int64)
        dc.fill(
            block, self._rows, first, end, ends[0], data[0], bits[0], ends[1], data[1], bits[1],
            ends[2], data[2], tokens, times, self._nulls,
        )  # fmt: skip
        no_key, no_headers = self._nulls.tolist()
        arrays = []
        for name in self.settings.columns:
            if name == "key":
                arrays.append(_binary(n, ends[0], data[0], bits[0], no_key))
            elif name == "value":
                arrays.append(_binary(n, ends[2], data[2], None, 0))
            elif name == "headers":
                raw = _binary(n, ends[1], data[1], bits[1], no_headers)
                arrays.append(raw if self.settings.headers == "raw" else header_maps(raw))
            elif name == "token":
                arrays.append(_fixed(pa.int64(), n, tokens))
            elif name == "timestamp":
                arrays.append(_fixed(_TIMES, n, times))
            else:
                arrays.append(self._constant(name, n))
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _constant(self, name: str, n: int) -> pa.Array:
        """The same topic or queue in all rows: made once, then sliced."""
        if self._topics is None:
            topic = self.part.topic.encode()
            ends = np.arange(BATCH_ROWS_MAX + 1, dtype=np.int32) * len(topic)
            data = np.frombuffer(topic * BATCH_ROWS_MAX, dtype=np.uint8)
            self._topics = pa.Array.from_buffers(
                pa.string(), BATCH_ROWS_MAX, [None, pa.py_buffer(ends), pa.py_buffer(data)], 0
            )
            queues = np.full(BATCH_ROWS_MAX, self.part.queue, dtype=np.int32)
            self._queues = _fixed(pa.int32(), BATCH_ROWS_MAX, queues)
        return (self._topics if name == "topic" else self._queues).slice(0, n)


def _binary(n: int, ends: np.ndarray, data: np.ndarray, bits: Any, nulls: int) -> pa.Array:
    valid = pa.py_buffer(bits) if nulls else None
    buffers = [valid, pa.py_buffer(ends), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), n, buffers, nulls)


def _fixed(kind: Any, n: int, values: np.ndarray) -> pa.Array:
    return pa.Array.from_buffers(kind, n, [None, pa.py_buffer(values)], 0)


_decode_map = msgspec.msgpack.Decoder(dict[str, Any])


def header_maps(raw: pa.Array) -> pa.Array:
    """MessagePack maps as Arrow maps of text to bytes; integers as decimal text."""
    if raw.null_count == len(raw):
        return pa.nulls(len(raw), _HEADER_MAP)
    rows: list[list[tuple[str, bytes]] | None] = []
    for one in raw.to_pylist():
        if one is None:
            rows.append(None)
            continue
        try:
            found = _decode_map.decode(one)
        except msgspec.MsgspecError:
            found = {"": one}  # of a foreign client, and no such map: not hidden
        rows.append([(k, _header_bytes(v)) for k, v in found.items()])
    return pa.array(rows, type=_HEADER_MAP)


def _header_bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


class QueueScan:
    """Walks one `QueueRange` through its segments, block by block."""

    def __init__(
        self, part: QueueRange, settings: ReadSettings, block_bytes: int = BLOCK_BYTES
    ) -> None:
        self.part, self.settings = part, settings
        self.directory = Path(part.directory)
        self.decoder = BlockDecoder(part, settings)
        self.block: Any = np.empty(block_bytes, dtype=np.uint8)
        self.skipped_batches = 0
        self._token = max(part.start, settings.rows.token_min)
        self._end = int(self.decoder.w[dc.W_TOKEN_END])

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        while self._token < self._end:
            bases = segments_of(self.directory)
            held = [b for b in bases if b <= self._token]
            if not held:
                self._lost(bases[0] if bases else self._end)
                continue
            base = held[-1]
            following = min((b for b in bases if b > base), default=self._end)
            try:
                fd = os.open(self.directory / segment_name(base), os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:  # retention was quicker
                continue
            try:
                yield from self._segment(fd, base, following)
            finally:
                os.close(fd)

    def _segment(self, fd: int, base: int, following: int) -> Iterator[pa.RecordBatch]:
        """All batches of one segment that are wanted; `_token` is then behind them."""
        position, expected = position_before(self.directory, base, self._token)
        until = min(following, self._end)
        while self._token < until:
            size = os.preadv(fd, [self.block], position)
            n, w = self.decoder.select(self.block, size, expected), self.decoder.w
            if n == 0 and w[dc.W_NEXT_TOKEN] == 0:
                n = SHORT  # not a single batch there
            if n < 0:
                position, expected = self._problem(fd, base, position, size, n, expected, until)
                continue
            yield from self.decoder.batches(self.block, n)
            position += int(w[dc.W_AT])
            expected = int(w[dc.W_EXPECTED])
            self._token = max(self._token, int(w[dc.W_NEXT_TOKEN]))

    def _problem(
        self, fd: int, base: int, position: int, size: int, cause: int, expected: int, until: int
    ) -> tuple[int, int]:
        """What to do when no batch could be taken: (position, token expected there) to go on."""
        at = int(self.decoder.w[dc.W_AT])
        position += at
        if cause == SHORT and size == self.block.size and at > 0:
            return position, expected  # its end is in the next block
        file_size = os.fstat(fd).st_size
        if cause == SHORT and size == self.block.size:
            need = int(self.block[:4].view("<u4")[0])
            if lay.BATCH_HEADER_BYTES <= need <= file_size - position:
                self.block = np.empty(need + BLOCK_BYTES, dtype=np.uint8)
                return position, expected
        if cause == dc.TOKEN_GAP:
            # a part's first batch may begin before its start; tokens never go back otherwise
            text = f"tokens {expected} to {int(self.decoder.w[dc.W_GAP]) - 1} are missing"
        else:
            text = CAUSES[cause]
        return self._corrupt(fd, base, position, text, max(self._token, expected), until)

    def _corrupt(
        self, fd: int, base: int, position: int, text: str, token: int, until: int
    ) -> tuple[int, int]:
        path = self.directory / segment_name(base)
        where = f"{self.part.topic}/{self.part.queue}: token {token}: {path} at {position}: {text}"
        if not self.settings.skip_corrupt:
            raise CorruptLog(
                f"{where}. With option mode=skip such batches are left out and counted; "
                "`tidecast queue verify` checks a whole queue"
            )
        found = self._next_sound(fd, base, position, token)
        after = until if found < 0 else self._base_token(fd, found)
        self.skipped_batches += 1
        self._note({
            "topic": self.part.topic, "queue": self.part.queue, "token": token,
            "tokens_lost": max(0, after - token), "file": str(path), "position": position,
            "cause": text,
        })  # fmt: skip
        if found < 0:
            self._token = until
            return position, -1
        self._token = max(self._token, after)
        return found, -1

    def _next_sound(self, fd: int, base: int, position: int, token: int) -> int:
        """Where the next sound batch of the segment starts, or -1."""
        file_size = os.fstat(fd).st_size
        entries = read_index(self.directory / index_name(base))
        stops = [int(p) for p in entries[:, 1] if p > position] + [file_size]
        start = position + 1
        for stop in stops:
            if start >= file_size:
                break
            window: Any = np.empty(min(stop + BLOCK_BYTES, file_size) - start, dtype=np.uint8)
            size = os.preadv(fd, [window], start)
            at = int(dc.find_batch(window, size, 0, token)) if size > 0 else -1
            if at >= 0:
                return start + at
            start = stop
        return -1

    def _base_token(self, fd: int, position: int) -> int:
        raw = os.pread(fd, 8, position + lay.BATCH_BASE_TOKEN_AT)
        return int.from_bytes(raw, "little")

    def _note(self, what: dict[str, Any]) -> None:
        """Tell of a batch that was left out: a log line, and a file if a directory was named."""
        _log.warning("skipped a corrupt batch: %s", json.dumps(what))
        if self.settings.bad_records_path:
            directory = Path(self.settings.bad_records_path)
            directory.mkdir(parents=True, exist_ok=True)
            name = f"{self.part.topic}-{self.part.queue:05d}-{what['token']:020d}.json"
            stamped = what | {"seen": time.time()}
            (directory / name).write_text(json.dumps(stamped) + "\n")

    def _lost(self, earliest: int) -> None:
        """Retention has deleted what was to be read."""
        text = (
            f"{self.part.topic}/{self.part.queue}: tokens {self._token} to "
            f"{min(earliest, self._end) - 1} were deleted by retention before they were read"
        )
        if self.settings.fail_on_data_loss:
            raise GapError(
                f"{text}. Keep more (retention), read faster, or set failOnDataLoss=false to go on "
                "with what is left",
                (self._token, min(earliest, self._end)),
            )
        _log.warning(text)
        self._token = min(earliest, self._end)


def read_range(part: QueueRange, settings: ReadSettings) -> Iterator[pa.RecordBatch]:
    """The wanted records of a range as Arrow batches. Raises CorruptLog, GapError."""
    if not settings.rows.is_empty():
        yield from QueueScan(part, settings)
