"""Frames of a reader of logs and a gateway: ranges of durable queues, as whole encoded batches.

A frame is one binary websocket message, as in `tidecast.client.remote.frames`; only a `Piece` has a
body: batches as they lie in segments (`layout/segment.py`), or a part of them. One connection reads
one range at a time; how much of it is under way is bounded by the reader's credit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from tidecast.api.frames.common import Frame, Goodbye, Reply
from tidecast.client.remote import frames
from tidecast.client.remote.frames import BadFrame

PATH = f"{frames.PATH}/log"
"""Where a gateway's logs are read."""
PIECE_BYTES_MAX = 1 << 20
CREDIT_BYTES, CREDIT_BYTES_MAX = 4 << 20, 64 << 20
KEYS_MAX = 64
CUTS_MAX = 100_000
TIME_MIN_NS, TIME_END_NS = -(1 << 62), (1 << 63) - 1

_Name = Annotated[str, Meta(max_length=250)]
_Queue = Annotated[int, Meta(ge=0, le=1 << 16)]
_Token = Annotated[int, Meta(ge=0, le=1 << 62)]
_Time = Annotated[int, Meta(ge=TIME_MIN_NS, le=TIME_END_NS)]
_Key = Annotated[bytes, Meta(max_length=65_535)]


class Range(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Tokens [start, end) of a queue, of those the records of these times [min, end) and keys.

    ``keys`` None: any. Batches without such a record are not sent; others are sent whole.
    """

    topic: _Name
    queue: _Queue
    start: _Token
    end: _Token
    time_min_ns: _Time = TIME_MIN_NS
    time_end_ns: _Time = TIME_END_NS
    keys: Annotated[tuple[_Key, ...], Meta(max_length=KEYS_MAX)] | None = None
    key_null: bool = False
    skip_corrupt: bool = False
    fail_on_data_loss: bool = True


# --- from the reader ----------------------------------------------------------------------------
class Topics(Frame, frozen=True, kw_only=True):
    """Which topics with queues may be read? The answer: their names."""

    id: int


class Bounds(Frame, frozen=True, kw_only=True):
    """Where does each queue of a topic begin and end? The answer: (queue, first, end) each."""

    id: int
    topic: _Name


class AtTime(Frame, frozen=True, kw_only=True):
    """First token of the first batch with a record not older than this; else the end."""

    id: int
    topic: _Name
    queue: _Queue
    time_ns: _Time


class Cuts(Frame, frozen=True, kw_only=True):
    """Tokens that cut [start, end) into at most ``parts`` of about equal bytes."""

    id: int
    topic: _Name
    queue: _Queue
    start: _Token
    end: _Token
    parts: Annotated[int, Meta(ge=1, le=CUTS_MAX)]
    part_bytes_min: Annotated[int, Meta(ge=1)]


class Read(Frame, frozen=True, kw_only=True):
    """Read a range. Pieces come, then the answer: the token behind the last one."""

    id: int
    range: Range
    credit: Annotated[int, Meta(ge=1, le=CREDIT_BYTES_MAX)] = CREDIT_BYTES


class LogCredit(Frame, frozen=True, kw_only=True, tag="Credit"):
    """So many bytes more may be sent."""

    n_bytes: Annotated[int, Meta(ge=1, le=CREDIT_BYTES_MAX)]


# --- from the gateway ---------------------------------------------------------------------------
class Ready(Frame, frozen=True, kw_only=True):
    """First of all: it may be asked."""


class Answer(Reply, frozen=True, kw_only=True):
    """The answer to one question."""


class Piece(Frame, frozen=True, kw_only=True):
    """Batches of a range, or with ``more`` a part of them. Behind them, token ``next`` is due."""

    next: int
    more: bool = False


class Missing(Frame, frozen=True, kw_only=True):
    """A part of the read is missing, named by ``what``: see `tidecast.log.reading.range_scan`."""

    what: str
    about: dict[str, Any]


FromReader = Topics | Bounds | AtTime | Cuts | Read | LogCredit
FromLog = Ready | Answer | Piece | Missing | Goodbye

_reader_decoder = msgspec.msgpack.Decoder(FromReader)
_log_decoder = msgspec.msgpack.Decoder(FromLog)
Report = Callable[[str, dict[str, Any]], None]


def from_reader(data: Any) -> FromReader:
    """A reader's frame. Raises BadFrame."""
    header, body = frames.split(data)
    if body.nbytes:
        raise BadFrame(f"a reader's frame with a body of {body.nbytes} bytes: it has none")
    return frames.decoded(_reader_decoder, header, "a reader")


def from_log(data: Any) -> tuple[FromLog, memoryview]:
    """A gateway's frame and its body. Raises BadFrame."""
    header, body = frames.split(data)
    frame = frames.decoded(_log_decoder, header, "a gateway")
    if body.nbytes > (PIECE_BYTES_MAX if isinstance(frame, Piece) else 0):
        raise BadFrame(f"{type(frame).__name__} with a body of {body.nbytes} bytes")
    return frame, body
