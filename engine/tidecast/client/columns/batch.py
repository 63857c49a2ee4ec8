"""A batch of messages as runs: plain messages, or columns of payloads, keys, headers and times."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, NamedTuple, TypedDict

import msgspec
import numpy as np

from tidecast.api.words import Ack
from tidecast.client.columns import cells
from tidecast.client.columns.cells import NO_CELLS, NO_TIMES, Located, wrong
from tidecast.client.columns.headers import from_arrow, headers_of, scheduled
from tidecast.client.core.metadata import DELAY_S_MAX, Headers, HeaderValue, due_ns_of
from tidecast.client.core.outgoing import Refused, RowsRun, Run, SpanRun, runs_of
from tidecast.client.kernels import cells as kernels
from tidecast.client.kernels.cells import Cells
from tidecast.client.kernels.ports import Port
from tidecast.errors import CodecError, ConfigError, TidecastError
from tidecast.layout import packet as wire
from tidecast.native.arrow import interface as arrow
from tidecast.native.arrow.interface import ArrowArray, ArrowStream, Column
from tidecast.native.memory import address

FRAME = {
    "payload": "payload",
    "value": "payload",
    "key": "key",
    "headers": "headers",
    "timestamp": "timestamp",
    "deliver_at": "deliver_at",
}
"""Columns of a frame, and the fields that they are; `value` as Spark calls the payload."""
FRAME_IGNORED = ("topic", "queue", "offset", "token", "attempts")
"""Columns of a frame about the place that a record had."""
_INDEX = "__index_level_"


Arrow = ArrowArray | ArrowStream
AnyArray = np.ndarray[Any, Any]
Messages = Iterable[Any] | AnyArray | Arrow
Keys = bytes | str | Iterable[bytes | str | None] | AnyArray | Arrow
HeaderColumn = HeaderValue | Iterable[HeaderValue | None] | AnyArray | Arrow
BatchHeaders = Iterable[Headers | None] | Mapping[str, HeaderColumn] | Arrow
Timestamps = bool | int | Iterable[int | None] | AnyArray | Arrow
Deliveries = datetime | int | Iterable[int | None] | AnyArray | Arrow


class BatchOptions(TypedDict, total=False):
    """Options of `Connection.publish_batch`, see `Publisher.publish_batch`."""

    keys: Keys | None
    headers: BatchHeaders | None
    timestamps: Timestamps | None
    deliver_at: Deliveries | None
    deliver_in: float | None
    flush: bool
    timeout: float | None
    ack: Ack | None


class Optional(msgspec.Struct, frozen=True):
    """The columns that the caller gives besides payloads."""

    keys: Keys | None = None
    headers: BatchHeaders | None = None
    timestamps: Timestamps | None = None
    deliver_at: Deliveries | None = None
    deliver_in: float | None = None

    def __bool__(self) -> bool:
        plain = self.keys is self.headers is self.timestamps is None
        return not (plain and self.deliver_at is self.deliver_in is None)


class Scheduling(NamedTuple):
    """How delivery times are checked."""

    check: Callable[[str], None]
    """Raises ConfigError, naming this field, unless the topic can have some."""
    now_ns: int


class ColumnsRun(Run):
    """Messages whose parts lie anywhere. Invalid messages are left out, and listed."""

    __slots__ = ("_codes", "_columns", "_done", "_problem", "_scratch")

    def __init__(
        self,
        payload: Located,
        keys: Located | None,
        headers: Located | None,
        times: Cells,
        problem: Callable[[int, int], TidecastError],
    ) -> None:
        """``problem``: the error for a message of (bytes, bytes of optional fields)."""
        super().__init__((payload, keys, headers), NO_TIMES, 0, len(payload))
        self._columns = (
            payload.cells,
            NO_CELLS if keys is None else keys.cells,
            NO_CELLS if headers is None else headers.cells,
            times,
        )
        self._codes = np.zeros(self.n, dtype=np.uint8)
        self._scratch = np.empty(wire.PACKET_BYTES_MAX, dtype=np.uint8)
        self._done = np.zeros(1, dtype=np.int64)
        self._problem = problem

    def append(self, port: Port, flush: bool) -> int:
        """See `Run.append`."""
        status = kernels.put_cells(
            port, *self._columns, int(flush), self._scratch, self._codes, self._done
        )
        self.done = int(self._done[0])
        return int(status)

    def refused(self) -> list[Refused]:
        """See `Run.refused`."""
        return [
            Refused(index, self._error(index)) for index in np.flatnonzero(self._codes).tolist()
        ]

    def _error(self, index: int) -> TidecastError:
        payload, keys, headers, times = self._columns
        key = int(keys[1, index]) if keys.size else -1
        maps = int(headers[1, index]) if headers.size else -1
        code, size = int(self._codes[index]), int(payload[1, index])
        if code == kernels.IS_NULL:
            return CodecError(f"messages[{index}]: is null: a message has bytes")
        if code == kernels.KEY_TOO_LONG:
            return ConfigError(f"keys[{index}]: {key} bytes: at most {wire.KEY_BYTES_MAX}")
        if code == kernels.HEADERS_TOO_LONG:
            return ConfigError(f"headers[{index}]: {maps} bytes: at most {wire.HEADERS_BYTES_MAX}")
        if code == kernels.BAD_TIME:
            return ConfigError(
                f"timestamps[{index}]: allowed are 0 to {(1 << 63) - 1} ns since 1970"
            )
        stamp = 8 if times.size and times[index] != kernels.NO_TIME else 0
        meta = stamp + sum(2 + n for n in (key, maps) if n >= 0)
        return self._problem(size, meta)


def needs_columns(messages: Any, optional: Optional) -> bool:
    """Does `batch_runs` need kernels of columns for them?"""
    return bool(optional) or arrow.is_arrow(messages)


def batch_runs(
    messages: Any,
    optional: Optional,
    topic: str,
    *,
    of_engine: bool,
    problem: Callable[[int, int], TidecastError],
    scheduling: Scheduling,
) -> list[Run]:
    """The messages as runs. Raises CodecError and ConfigError that name the field and the item."""
    if arrow.is_arrow(messages):
        column = _payload_column(messages, topic)
        if column.is_frame:
            return _frame_run(column, optional, topic, of_engine, problem, scheduling)
        payload = _payload_cells(column, topic)
        if not optional and cells.lies_end_to_end(column):
            return _spans(column, payload)
    else:
        runs = runs_of(messages, topic)
        if not optional:
            return runs
        payload = _cells_of_runs(runs)
    return _run(payload, optional, {}, of_engine, problem, scheduling)


def _spans(column: Column, payload: Located) -> list[Run]:
    """Arrays of nothing but payloads, which need no addresses."""
    runs: list[Run] = []
    at = 0
    for chunk in column.chunks:
        if chunk.length:
            starts, lengths = payload.cells[:, at : at + chunk.length]
            nbytes = int(starts[-1] + lengths[-1] - starts[0])
            runs.append(SpanRun(payload, int(starts[0]), nbytes, lengths))
        at += chunk.length
    return runs


def _payload_column(messages: Any, topic: str) -> Column:
    try:
        return arrow.read(messages)
    except arrow.BadArrow as bad:
        raise CodecError(f"topic {topic}: messages: the Arrow array {bad}") from None


def _payload_cells(column: Column, topic: str) -> Located:
    try:
        return Located(cells.arrow_cells(column, "messages"), column)
    except ConfigError as bad:
        raise CodecError(f"topic {topic}: {bad}") from None


def _cells_of_runs(runs: list[Run]) -> Located:
    if not runs:
        return Located(NO_CELLS, None)
    [run] = runs
    found = np.empty((2, run.n), dtype=np.int64)
    if isinstance(run, RowsRun):
        kernels.locate_fixed(run.fixed, address(run.keep), 0, 0, found)
    else:
        kernels.locate_objects()(run.keep, found)
    return Located(found, run.keep)


def _run(
    payload: Located,
    optional: Optional,
    frame: dict[str, Column],
    of_engine: bool,
    problem: Callable[[int, int], TidecastError],
    scheduling: Scheduling,
) -> list[Run]:
    n = len(payload)
    keys = headers = None
    times = NO_TIMES
    if optional.keys is not None:
        keys = cells.located(optional.keys, "keys", n)
    if optional.headers is not None:
        headers = headers_of(optional.headers, n, of_engine=of_engine)
    if optional.timestamps is not None and optional.timestamps is not False:
        times = cells.times_of(optional.timestamps, "timestamps", n, time.time_ns())
    if "key" in frame:
        keys = Located(cells.arrow_cells(frame["key"], "key"), frame["key"])
    if "headers" in frame:
        headers = from_arrow(frame["headers"], of_engine=of_engine)
    if "timestamp" in frame:
        times = cells.arrow_times(frame["timestamp"], "timestamp")
    due = _deliveries(optional, frame, n, scheduling)
    if due is not None:
        headers = scheduled(headers, due)
    return [ColumnsRun(payload, keys, headers, times, problem)] if n else []


def _deliveries(
    optional: Optional, frame: dict[str, Column], n: int, scheduling: Scheduling
) -> Cells | None:
    """Delivery times of all messages; None: they have none. Raises ConfigError."""
    given, now_ns = optional.deliver_at, scheduling.now_ns
    if given is optional.deliver_in is None and "deliver_at" not in frame:
        return None
    field = "deliver_at" if optional.deliver_in is None else "deliver_in"
    if optional.deliver_in is not None or isinstance(given, (datetime, int)):
        scheduling.check(field)
        one = due_ns_of(given, optional.deliver_in, now_ns)
        return np.full(n, one, dtype=np.int64)
    if "deliver_at" in frame:
        times = cells.arrow_times(frame["deliver_at"], field)
    else:
        times = cells.times_of(given, field, n, now_ns)
    if (times == kernels.NO_TIME).all():
        return None
    scheduling.check(field)
    late = (times != kernels.NO_TIME) & ((times < 0) | (times > now_ns + DELAY_S_MAX * 10**9))
    if late.any():
        index = int(late.argmax())
        wrong(
            f"{field}[{index}]",
            f"{times[index]}: allowed are ns since 1970, at most 365 days ahead",
        )
    return times


def _frame_run(
    frame: Column,
    optional: Optional,
    topic: str,
    of_engine: bool,
    problem: Callable[[int, int], TidecastError],
    scheduling: Scheduling,
) -> list[Run]:
    """A record batch, table or data frame: its columns by name."""
    try:
        fields = frame.fields()
    except arrow.BadArrow as bad:
        raise CodecError(f"topic {topic}: messages: the frame {bad}") from None
    found: dict[str, Column] = {}
    for name, column in fields:
        part = FRAME.get(name)
        if part is None:
            if name in FRAME_IGNORED or name.startswith(_INDEX):
                continue
            wrong("messages", f"column {name!r}: allowed are {', '.join((*FRAME, *FRAME_IGNORED))}")
        if part in found:
            wrong("messages", f"column {name!r}: the frame has two columns for the {part}")
        found[part] = column
    if "payload" not in found:
        wrong("messages", 'the frame has no column "payload" or "value"')
    for part, given in (
        ("key", optional.keys),
        ("headers", optional.headers),
        ("timestamp", optional.timestamps),
        ("deliver_at", optional.deliver_at),
        ("deliver_at", optional.deliver_in),
    ):
        if given is not None and part in found:
            wrong("messages", f"column {part!r}: it is given as an argument, too")
    payload = _payload_cells(found["payload"], topic)
    return _run(payload, optional, found, of_engine, problem, scheduling)
