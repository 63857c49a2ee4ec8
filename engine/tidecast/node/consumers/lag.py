"""The lag of a subscription in a queue: records that are not acknowledged, by number and age."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
import numpy as np

from tidecast.agents.puller import entries
from tidecast.agents.puller.runtime import Puller
from tidecast.errors import TidecastError
from tidecast.layout import segment as seg
from tidecast.log.redriven import REDRIVEN_HEADER
from tidecast.native.packing import unpack_from
from tidecast.node.consumers.state import CursorState
from tidecast.queues.filters.scheduled import due_ns_of

NOT_ACKED = ("out", "again_n", "dying")
"""Fields of a cursor that count its entries: at members, waiting, on the way to the dead-letter
topic. A record behind the cursor and in none of them is acked, or a filter passed it over."""


class Lag(NamedTuple):
    """Where a cursor is; ``records``: not acknowledged, here and up to the end of the log."""

    position: int
    """The acked watermark."""
    next_token: int
    end: int
    records: int
    oldest: int
    """First token that is neither acknowledged nor waits for its delivery time."""
    figures: dict[str, int]
    """Fields of the cursor."""

    @property
    def late(self) -> bool:
        """Some record is due, and not acknowledged."""
        return self.records > 0 and self.oldest < self.end

    @property
    def acked_ahead(self) -> int:
        """Records beyond the watermark that are acknowledged, or that a filter passed over."""
        return max(0, self.end - self.position - self.records)


def lag_of(puller: Puller, cursor: CursorState, fields: tuple[str, ...] = ()) -> Lag:
    """Look at a cursor, all at one moment. The acks that its members wrote before count."""

    def look() -> Lag:
        entries.read_acks(puller.words, cursor.number, puller.clock_ns())
        return lag_here(puller, cursor, fields)

    found: Lag = puller.call(look)
    return found


def lag_here(puller: Puller, cursor: CursorState, fields: tuple[str, ...] = ()) -> Lag:
    """Look at a cursor, in the puller's thread: acks count that its last cycle has read."""
    position, next_token = map(int, entries.position_of(puller.words, cursor.number))
    end = max(cursor.here.log.next_token, next_token)
    record = puller.state.cursors[cursor.number]
    figures = {name: int(record[name]) for name in {*NOT_ACKED, *fields}}
    records = end - next_token - acked_ahead(puller, cursor.number, next_token, end)
    records += sum(figures[name] for name in NOT_ACKED)
    oldest = position
    if int(record["scheduled"]):
        oldest = int(entries.oldest_due(puller.words, cursor.number))
    return Lag(position, next_token, end, records, oldest, figures)


def acked_ahead(puller: Puller, cursor: int, token: int, end: int) -> int:
    """Records from ``token`` on that were acknowledged under an engine before this one."""
    rows = puller.restored_beyond(cursor, token)
    rows = rows[(rows[:, 2] < 0) & (rows[:, 0] < end)]
    return int((np.minimum(rows[:, 1], end) - rows[:, 0]).sum())


def age_s(puller: Puller, cursor: CursorState, token: int, now_ns: int) -> float:
    """Seconds since a record was published, or sent again; 0.0: it cannot be read.

    ``now_ns``: time of day.
    """
    since = puller.call(since_ns, puller, cursor, token)
    return 0.0 if since is None else max(0.0, (now_ns - since) / 1e9)


def since_ns(puller: Puller, cursor: CursorState, token: int) -> int | None:
    """When a record, or the next behind, was published, was due, or was sent as a dead letter.

    ns since 1970. In the puller's thread. None: it cannot be read.
    """
    try:
        _, record = puller.record_from(cursor.here.row, token)
    except TidecastError:
        return None
    length, _, stamp, _, key_n, headers_n = unpack_from("<IIqIHH", record, 0)
    stamp = max(stamp, due_ns_of(record))
    if length & seg.REC_ENGINE and headers_n:
        at = seg.RECORD_HEADER_BYTES + key_n
        headers: dict[str, Any] = msgspec.msgpack.decode(record[at : at + headers_n])
        redriven = headers.get(REDRIVEN_HEADER)
        if isinstance(redriven, int):
            return redriven
    return int(stamp)
