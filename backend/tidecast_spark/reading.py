"""Reading a range of tokens of one queue as Arrow record batches; runs in Spark's workers."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from tidecast.client.remote.log import LogClient
from tidecast.client.remote.log_frames import Range
from tidecast.errors import CorruptLog
from tidecast.layout import segment as lay
from tidecast.log.batch import CAUSES
from tidecast.log.reading.range_scan import (
    BLOCK_BYTES,
    LOST,
    RangeScan,
    Report,
    Selector,
    Wanted,
    lost,
)
from tidecast.log.reading.select import W_AT, find_batch
from tidecast.queues.mapper import hash_of
from tidecast_spark import decode
from tidecast_spark.parts import QueueRange, ReadSettings

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
    part, settings = QueueRange("", 0, "", 0, 1), ReadSettings()
    selector = Selector(wanted_of(part, settings))
    empty = np.zeros(lay.BATCH_HEADER_BYTES, dtype=np.uint8)
    selector.select(empty, 0, -1)
    find_batch(empty, 0, 0, 0)
    BlockDecoder(part, settings, selector).batch(empty, selector.rows, 0, 0)


class BlockDecoder:
    """Makes record batches of the rows that a selector lists in blocks."""

    def __init__(self, part: QueueRange, settings: ReadSettings, selector: Selector) -> None:
        self.part, self.settings, self.selector = part, settings, selector
        self._sums = np.zeros(3, dtype=np.int64)
        self._schema = arrow_schema(settings)
        self._topics: Any = None
        self._queues: Any = None

    def batches(self, block: np.ndarray, n: int) -> Iterator[pa.RecordBatch]:
        """Record batches of the ``n`` rows that the selector has listed."""
        first, rows = 0, self.selector.rows
        while first < n:
            end = min(n, first + BATCH_ROWS_MAX)
            end = int(decode.measure(block, rows, first, end, COLUMN_BYTES_MAX, self._sums))
            yield self.batch(block, rows, first, end)
            first = end

    def batch(self, block: np.ndarray, rows: np.ndarray, first: int, end: int) -> pa.RecordBatch:
        """One record batch of the listed rows [first, end); `measure` has set the sums."""
        n = end - first
        columns = decode.Buffers.of(n, *self._sums.tolist())
        decode.fill(block, rows, first, end, columns)
        no_key, no_headers = columns.nulls.tolist()
        arrays = []
        for name in self.settings.columns:
            if name == "key":
                arrays.append(_binary(n, columns.key_at, columns.keys, columns.key_bits, no_key))
            elif name == "value":
                arrays.append(_binary(n, columns.value_at, columns.values, None, 0))
            elif name == "headers":
                bits = columns.header_bits
                raw = _binary(n, columns.header_at, columns.headers, bits, no_headers)
                arrays.append(raw if self.settings.headers == "raw" else header_maps(raw))
            elif name == "token":
                arrays.append(_fixed(pa.int64(), n, columns.tokens))
            elif name == "timestamp":
                arrays.append(_fixed(_TIMES, n, columns.times))
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


def wanted_of(part: QueueRange, settings: ReadSettings) -> Wanted:
    """The range and its filters, as a scan of the log takes them."""
    rows = settings.rows
    return Wanted(
        token_min=max(part.start, rows.token_min),
        token_end=min(part.end, rows.token_end),
        time_min_ns=rows.time_min_ns,
        time_end_ns=rows.time_end_ns,
        keys=rows.keys,
        key_hashes=tuple(hash_of(key) for key in rows.keys or ()),
        key_null=rows.key_null,
    )


def _range_of(part: QueueRange, settings: ReadSettings) -> Range:
    """The same for a gateway."""
    wanted = wanted_of(part, settings)
    return Range(
        topic=part.topic,
        queue=part.queue,
        start=wanted.token_min,
        end=wanted.token_end,
        time_min_ns=wanted.time_min_ns,
        time_end_ns=wanted.time_end_ns,
        keys=wanted.keys,
        key_null=wanted.key_null,
        skip_corrupt=settings.skip_corrupt,
        fail_on_data_loss=settings.fail_on_data_loss,
    )


class Reporting:
    """Reports records missing in a read: a log line, and a file if a directory is configured."""

    def __init__(self, settings: ReadSettings) -> None:
        self._directory = settings.bad_records_path
        self.skipped_batches = 0

    def __call__(self, what: str, about: dict[str, Any]) -> None:
        """Something was left out."""
        if what == LOST:
            _log.warning("%s", lost(about["topic"], about["queue"], about["token"], about["end"]))
            return
        self.skipped_batches += 1
        _log.warning("skipped a corrupt batch: %s", json.dumps(about))
        if self._directory:
            directory = Path(self._directory)
            directory.mkdir(parents=True, exist_ok=True)
            name = f"{about['topic']}-{about['queue']:05d}-{about['token']:020d}.json"
            (directory / name).write_text(json.dumps(about | {"seen": time.time()}) + "\n")


def read_files(
    part: QueueRange, settings: ReadSettings, report: Report, block_bytes: int = BLOCK_BYTES
) -> Iterator[pa.RecordBatch]:
    """The wanted records of a range, from the files of its queue."""
    scan = RangeScan(
        Path(part.directory),
        part.topic,
        part.queue,
        wanted_of(part, settings),
        report=report,
        skip_corrupt=settings.skip_corrupt,
        fail_on_data_loss=settings.fail_on_data_loss,
        block_bytes=block_bytes,
    )
    decoder = BlockDecoder(part, settings, scan.selector)
    for block, n in scan:
        yield from decoder.batches(block, n)


def read_gateway(
    part: QueueRange, settings: ReadSettings, report: Report
) -> Iterator[pa.RecordBatch]:
    """The same over a gateway; received data is checked like data from a disk."""
    selector = Selector(wanted_of(part, settings), holes=True)
    decoder = BlockDecoder(part, settings, selector)
    with LogClient(settings.servers, settings.token) as client:
        for block in client.read(_range_of(part, settings), report):
            n = selector.select(block, block.size, -1)
            if n < 0 or selector.w[W_AT] != block.size:
                raise CorruptLog(
                    f"{part.topic}/{part.queue}: the data of {settings.servers} arrived damaged: "
                    f"{CAUSES.get(n, 'its tokens are out of order')}"
                )
            yield from decoder.batches(block, n)


def read_range(part: QueueRange, settings: ReadSettings) -> Iterator[pa.RecordBatch]:
    """The wanted records of a range as Arrow batches. Raises CorruptLog, GapError, AuthError."""
    if settings.rows.is_empty() or part.start >= part.end:
        return
    read = read_gateway if settings.servers else read_files
    yield from read(part, settings, Reporting(settings))
