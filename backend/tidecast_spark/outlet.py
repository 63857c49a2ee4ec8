"""Publishing a staged batch to the engine in a producer session of guaranteed delivery."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.compute as pc

from tidecast.errors import (
    AuthError,
    ConfigError,
    EngineNotRunning,
    Fenced,
    PayloadTooLarge,
    TidecastError,
    Timeout,
)
from tidecast_spark.staging import STAGED_SCHEMA

if TYPE_CHECKING:
    from tidecast_spark.options import SinkOptions
    from tidecast_spark.putting import Columns
    from tidecast_spark.staging import Manifest, StagingArea

TRIES_MAX = 6
_RETRY_S = 0.5
_STEP_ROWS = 4096
_STALL_S = 60.0
_SLICE_S = 0.05
_POLL_S = 0.1


def publish_batch(
    options: SinkOptions,
    area: StagingArea,
    batch: int,
    manifest: Manifest,
    over: Callable[[], bool] = lambda: False,
) -> None:
    """Publish a batch, topic by topic, and wait until it is durable. Raises TidecastError.

    An engine that goes away meanwhile is tried again for half a minute. ``over``: another attempt
    has published it. Such an attempt fences this one, and gets a minute to do it.
    """
    by_partition = manifest.partition is not None
    for topic in manifest.rows:
        for attempt in range(1, TRIES_MAX + 1):
            try:
                _publish_topic(options, area, batch, manifest, topic)
                break
            except TidecastError as problem:
                fenced = isinstance(problem, Fenced) and by_partition
                if not (problem.retryable or fenced) or attempt == TRIES_MAX:
                    raise
                wait_s = _STALL_S if fenced else _RETRY_S * 2 ** (attempt - 1)
                if _over_within(over, wait_s if by_partition else 0.0):
                    return
                if not by_partition:
                    _pause(wait_s)


def _over_within(over: Callable[[], bool], wait_s: float) -> bool:
    end_s = _now_s() + wait_s
    while _now_s() < end_s:
        if over():
            return True
        _pause(min(_POLL_S, wait_s))
    return over()


def next_seq(options: SinkOptions, area: StagingArea, partition: int | None, topic: str) -> int:
    """The next sequence of a producer of the query (see `Manifest`), as the log knows it.

    Raises TidecastError.
    """
    import tidecast.sync

    with (
        tidecast.sync.connect(options.url, **_token(options)) as client,
        client.publisher(topic, producer=_producer(area, partition)) as publisher,
    ):
        return publisher.position + 1


def digest_of(table: Any) -> int:
    """A number for the rows of a record batch, in whatever order they come."""
    from tidecast_spark.putting import digest_rows

    return int(digest_rows(table.num_rows, row_columns(table)))


def check_engine(options: SinkOptions) -> None:
    """On the driver, before any task: an engine answers and the topic is durable.

    Raises EngineNotRunning, AuthError, ConfigError.
    """
    if options.servers:
        _check_gateway(options)
        return
    from tidecast.client.links.socket_session import EngineControl

    try:
        with EngineControl(options.data_dir, "spark", options.token or None) as control:
            modes = {one.name: one.mode for one in control.topics()}
    except EngineNotRunning as problem:
        raise EngineNotRunning(
            f"option dataDir: {options.data_dir}: no engine runs there, and the sink publishes to "
            f"one: start it with `tidecast engine --data-dir {options.data_dir}`"
        ) from problem
    except AuthError as problem:
        raise AuthError(f"option token: {problem}") from problem
    if options.topic:
        mode = modes.get(options.topic)
        if mode != "durable":
            what = "is a live topic: nothing would be durable" if mode else "the engine has none"
            raise ConfigError(
                f"option topic: {options.topic!r}: {what}. Make it durable (mode: durable)"
            )


def _check_gateway(options: SinkOptions) -> None:
    """A gateway answers and takes the token; it does not say which topics are durable."""
    import tidecast.sync

    try:
        tidecast.sync.connect(options.servers, token=options.token or None).close()
    except AuthError as problem:
        raise AuthError(f"option token: {problem}") from problem
    except TidecastError as problem:
        raise EngineNotRunning(
            f"option servers: {options.servers}: no gateway answers there: {problem}"
        ) from problem


_now_s = time.monotonic


def _pause(seconds: float) -> None:
    threading.Event().wait(seconds)


def rows_of(area: StagingArea, batch: int, manifest: Manifest, topic: str) -> Iterator[Any]:
    """The rows of a topic in the order of the manifest."""
    for name in manifest.files:
        for table in area.read(batch, name):
            if len(manifest.rows) > 1:
                yield table.filter(pc.equal(table.column(0), topic))
            else:
                yield table


def _token(options: SinkOptions) -> dict[str, Any]:
    return {"token": options.token} if options.token else {}


def _producer(area: StagingArea, partition: int | None) -> str:
    """The name of a query's producer: the driver's, or that of a partition."""
    own = "" if partition is None else f"#{partition}"
    return f"spark-{area.directory.name}{own}"


def _publish_topic(
    options: SinkOptions, area: StagingArea, batch: int, manifest: Manifest, topic: str
) -> None:
    """Publish a topic's rows in the query's session, from the batch's first sequence on.

    Rows that are in the log already are duplicates by their sequence, and are dropped there.
    """
    import tidecast.sync

    producer = _producer(area, manifest.partition)
    with (
        tidecast.sync.connect(options.url, **_token(options)) as client,
        client.publisher(
            topic, producer=producer, first_seq=manifest.first_seq[topic], on_full="block"
        ) as publisher,
    ):
        writer = RowWriter(publisher, options.rate)
        for table in rows_of(area, batch, manifest, topic):
            writer.write(table)
        publisher.wait_durable(timeout=_STALL_S)


class RowWriter:
    """Publishes record batches of `STAGED_SCHEMA` row by row, in order."""

    def __init__(self, publisher: Any, rate: int) -> None:
        from tidecast_spark.putting import META_BYTES_MAX

        self._publisher, self._rate = publisher, rate
        self._meta = np.zeros(META_BYTES_MAX, dtype=np.uint8)
        self._begun_s, self._published = _now_s(), 0

    def write(self, table: Any) -> None:
        """Publish all rows of a record batch. Raises TidecastError."""
        from tidecast.buffers.writer import TOO_LARGE
        from tidecast_spark.putting import put_rows

        columns = row_columns(table)
        done, stalled_s = 0, _now_s()
        publisher = self._publisher
        while done < table.num_rows:
            end = min(table.num_rows, done + self._allowed())
            before, status = done, 0
            with publisher.lock:
                port = publisher.port_for_kernel()
                if port is not None:
                    done, status = put_rows(port, done, end, columns, self._meta)
            self._published += done - before
            if status == TOO_LARGE:
                size = len(table.column(2)[done].as_py())
                raise PayloadTooLarge(
                    f"topic {publisher.topic}: a value of {size} bytes is too large: raise the "
                    "topic's history_bytes to twice that and more"
                )
            if done > before:
                stalled_s = _now_s()
            if done < end:  # full, or the engine is away: continue when more is durable
                self._wait_for_room(stalled_s)

    def _allowed(self) -> int:
        """Rows of the next step; waits when the rate is used up."""
        if not self._rate:
            return _STEP_ROWS
        due_s = self._begun_s + self._published / self._rate
        ahead_s = due_s - _now_s()
        if ahead_s > 0:
            self._publisher.flush()
            _pause(ahead_s)
        return max(1, min(_STEP_ROWS, self._rate // 20))

    def _wait_for_room(self, stalled_s: float) -> None:
        publisher = self._publisher
        try:
            publisher.wait_durable(publisher.durable_position + 1, timeout=_SLICE_S)
        except Timeout:
            if _now_s() > stalled_s + _STALL_S:
                raise


_NO_BITS = np.zeros(0, dtype=np.uint8)


def first_reserved_row(column: Any) -> int:
    """The first row with a header that only an engine may write, of a `binary` column; -1: none."""
    from tidecast_spark.putting import first_reserved

    if column.offset:
        column = column.take(np.arange(len(column)))
    _, ends, data = column.buffers()
    if ends is None or not len(column):
        return -1
    places, raw = _array(ends, np.int32), _array(data, np.uint8)
    return int(first_reserved(places, raw, _bits(column), len(column)))


def row_columns(table: Any) -> Columns:
    """The buffers of a record batch as `put_rows` takes them. Raises ConfigError."""
    from tidecast_spark.putting import FIELD_BYTES_MAX, Columns

    if any(column.offset for column in table.columns):
        table = table.take(np.arange(table.num_rows))
    found: list[Any] = []
    times = table.column(STAGED_SCHEMA.get_field_index("timestamp"))
    found += [_array(times.buffers()[1], np.int64), _bits(times)]
    for name in ("key", "headers", "value"):
        column = table.column(STAGED_SCHEMA.get_field_index(name))
        if name != "value":
            longest = pc.max(pc.binary_length(column)).as_py() or 0
            if longest > FIELD_BYTES_MAX:
                raise ConfigError(
                    f"column {name}: {longest} bytes in a row: at most {FIELD_BYTES_MAX}"
                )
        _, ends, data = column.buffers()
        found += [_array(ends, np.int32), _array(data, np.uint8)]
        if name != "value":
            found.append(_bits(column))
    return Columns(*found)


def _bits(column: Any) -> np.ndarray:
    raw = column.buffers()[0]
    return _NO_BITS if raw is None or not column.null_count else _array(raw, np.uint8)


def _array(buffer: Any, kind: Any) -> np.ndarray:
    """A writable array of a buffer: staged files are mapped read-only, kernels have one signature.

    Copies: 0.1 ns a byte.
    """
    if buffer is None or buffer.size == 0:
        return np.zeros(1, dtype=kind)
    whole = buffer.size // np.dtype(kind).itemsize
    return np.frombuffer(buffer, dtype=kind, count=whole).copy()
