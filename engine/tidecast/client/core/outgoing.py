"""Arguments of a publisher: single messages, lists, NumPy arrays. `client.columns`: columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec
import numpy as np

from tidecast.buffers import writer
from tidecast.client.kernels import batches as kernels
from tidecast.client.kernels.ports import Port, put_many
from tidecast.client.kernels.ports import put as put_one
from tidecast.config.check import build, raise_problems
from tidecast.errors import CodecError, ConfigError, TidecastError
from tidecast.native.memory import address

Lengths = np.ndarray[Any, np.dtype[np.int64]]
SAME_LENGTH: Lengths = np.empty(0, dtype=np.int64)


class Outgoing(msgspec.Struct, frozen=True, gc=False):
    """One message, ready to be appended."""

    payload: bytes
    meta: bytes
    flags: int
    receiver: int
    flush: bool


class PublisherStats(msgspec.Struct, frozen=True, kw_only=True):
    """Counts since the publisher was opened."""

    topic: str
    session: int
    messages: int
    bytes: int
    collected: int
    dropped: int
    unsent: int
    """Lost with an engine that did not send them, when no engine could continue: see
    `MessagesUnsent`."""
    full: int
    packets: int
    unsent_packets: int


class Run:
    """Messages that lie end to end in memory, and how many of them are appended already.

    All have ``fixed`` bytes if ``lengths`` is empty.
    """

    __slots__ = ("_at", "_refused", "done", "fixed", "keep", "lengths", "n")

    def __init__(self, keep: Any, lengths: Lengths, fixed: int, n: int) -> None:
        """``keep``: a contiguous array of ``n`` messages; it may be read-only."""
        self.keep, self.lengths, self.fixed, self.n = keep, lengths, fixed, n
        self.done = self._at = 0
        self._refused: list[Refused] = []

    def refuse(self, error: TidecastError) -> None:
        """Leave the next message out."""
        self._refused.append(Refused(self.done, error))
        self._at += self.length_of(self.done)
        self.done += 1

    def refused(self) -> list[Refused]:
        """Messages that were left out, by their number in the run."""
        return self._refused

    def length_of(self, index: int) -> int:
        """Bytes of one message."""
        return int(self.lengths[index]) if self.lengths.size else self.fixed

    def _span(self) -> tuple[int, int]:
        """Address of the first message, and bytes of all."""
        return address(self.keep), self.keep.nbytes

    def append(self, port: Port, flush: bool) -> int:
        """Append the rest of it: 0 when all is in, else `writer.FULL` or `writer.TOO_LARGE`."""
        done = np.array((self.done, self._at), dtype=np.int64)
        status = put_many(
            port, *self._span(), self.lengths, self.fixed, self.n, 0, int(flush), done
        )
        self.done, self._at = done.tolist()
        return int(status)


class SpanRun(Run):
    """Messages end to end in memory that ``keep`` owns."""

    __slots__ = ("_nbytes", "_start")

    def __init__(self, keep: Any, start: int, nbytes: int, lengths: Lengths) -> None:
        super().__init__(keep, lengths, 0, len(lengths))
        self._start, self._nbytes = start, nbytes

    def _span(self) -> tuple[int, int]:
        return self._start, self._nbytes


class RowsRun(Run):
    """The rows of an array."""

    __slots__ = ()

    def __init__(self, rows: np.ndarray[Any, Any], size: int) -> None:
        super().__init__(rows, SAME_LENGTH, size, len(rows))

    def append(self, port: Port, flush: bool) -> int:
        """See `Run.append`."""
        put = kernels.rows_append_fn()
        self.done, code = divmod(
            put(port, self.keep, self.fixed, self.done, self.n, flush), kernels.CODES
        )
        if code != kernels.OTHER:
            return writer.FULL if code == kernels.FULL else 0
        self._at = self.done * self.fixed
        return super().append(port, flush)


class ObjectRun(Run):
    """`bytes` objects of a list, read where they lie."""

    __slots__ = ()

    def __init__(self, objects: tuple[bytes, ...]) -> None:
        """A tuple: it does not change, and all items live until the last is appended."""
        super().__init__(objects, SAME_LENGTH, 0, len(objects))

    def length_of(self, index: int) -> int:
        """Bytes of one message."""
        return len(self.keep[index])

    def append(self, port: Port, flush: bool) -> int:
        """See `Run.append`."""
        put = kernels.list_append_fn()
        while True:
            self.done, code = divmod(put(port, self.keep, self.done, flush), kernels.CODES)
            if code != kernels.OTHER:
                return writer.FULL if code == kernels.FULL else 0
            # packets of its own
            status = int(put_one(port, self.keep[self.done], b"", 0, 0, int(flush)))
            if status < 0:
                return status
            self.done += 1


class Refused(msgspec.Struct, frozen=True):
    """An item of a batch that cannot be published: its number in the batch, and why."""

    index: int
    error: TidecastError


class BatchResult(msgspec.Struct, frozen=True):
    """The outcome of a batch.

    ``appended`` items were accepted. ``refused`` are items that cannot be published: the batch
    continues behind them. ``error``: why the batch ended early; items from `taken` on were not
    accepted. ``dropped``: how many of these were dropped (``on_full="drop"``).
    """

    requested: int
    appended: int
    dropped: int = 0
    error: TidecastError | None = None
    refused: tuple[Refused, ...] = ()

    @property
    def ok(self) -> bool:
        """All items were accepted."""
        return self.appended == self.requested

    @property
    def taken(self) -> int:
        """Items up to this one were accepted or refused: a caller that resumes begins here."""
        return self.appended + len(self.refused)

    def check(self) -> BatchResult:
        """Return the result. Raises ``error``, or the error of the first refused item."""
        if self.error is not None:
            raise self.error
        for each in self.refused:
            raise each.error
        return self


def no_text(topic: str, what: str = "payload") -> CodecError:
    """The error for a str where bytes belong."""
    return CodecError(
        f"topic {topic}: {what} is str: encode it (text.encode()), or give the publisher a codec, "
        "for instance codec=Json()"
    )


def payload_bytes(payload: Any, topic: str) -> bytes:
    """A payload as bytes: bytes as they are; other buffers of bytes copied. Raises CodecError."""
    if type(payload) is bytes:
        return payload
    if isinstance(payload, str):
        raise no_text(topic)
    if isinstance(payload, (bytes, bytearray, memoryview)):
        return bytes(payload)
    if isinstance(payload, np.ndarray) and payload.dtype == np.uint8:
        return payload.tobytes()
    raise CodecError(
        f"topic {topic}: payload is {_kind(payload)}: allowed are bytes, bytearray, memoryview, "
        "a NumPy array of uint8, or anything that the publisher's codec encodes"
    )


def runs_of(messages: Any, topic: str) -> list[Run]:
    """The messages as runs. Raises CodecError, which names the wrong item."""
    if isinstance(messages, np.ndarray):
        return _numpy_runs(messages, topic)
    if isinstance(messages, str):
        raise no_text(topic, "messages")
    if isinstance(messages, (bytes, bytearray, memoryview)):
        raise CodecError(
            f"topic {topic}: messages is {_kind(messages)}, one payload: use publish, or give a "
            "list"
        )
    if not isinstance(messages, Sequence):
        try:
            messages = list(messages)
        except TypeError:
            raise CodecError(
                f"topic {topic}: messages is {_kind(messages)}: allowed are a list of bytes, a "
                "NumPy array, an Arrow array"
            ) from None
    return [list_run(messages, topic)] if messages else []


def list_run(messages: Sequence[Any], topic: str) -> Run:
    """A list of bytes, or of objects with a buffer. Raises CodecError, which names a wrong item."""
    objects = tuple(messages)
    if any(type(each) is not bytes for each in objects):
        converted = []
        for index, each in enumerate(objects):
            try:
                converted.append(payload_bytes(each, topic))
            except CodecError as problem:
                raise CodecError(f"item {index}: {problem}") from None
        objects = tuple(converted)
    return ObjectRun(objects)


def _numpy_runs(array: np.ndarray[Any, Any], topic: str) -> list[Run]:
    if array.dtype.hasobject or array.ndim not in (1, 2):
        raise CodecError(
            f"topic {topic}: messages is {_kind(array)}: allowed are two dimensions (a row is a "
            "message) or one (an item is a message), and no Python objects"
        )
    if array.ndim == 1 and array.dtype == np.uint8:
        raise CodecError(
            f"topic {topic}: messages is {_kind(array)}, which may be one message or many: use "
            "publish, or reshape(-1, n) for messages of n bytes"
        )
    if array.dtype.kind == "U":
        raise no_text(topic, f"messages is {_kind(array)}, which")
    if array.dtype.kind == "S" and array.ndim == 1:  # items end where their padding begins
        return [list_run(array.tolist(), topic)] if len(array) else []
    n = len(array)
    fixed = array.dtype.itemsize * (array.shape[1] if array.ndim == 2 else 1)
    if n == 0:
        return []
    return [RowsRun(np.ascontiguousarray(array), fixed)]


def _kind(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype} with {value.ndim} dimensions"
    return type(value).__name__


OptionsT = TypeVar("OptionsT", bound=msgspec.Struct)


def checked(kind: type[OptionsT], **given: Any) -> OptionsT:
    """Options for a node, their types checked. Raises ConfigError that names each."""
    problems: list[str] = []
    made = build(kind, given, "", problems)
    raise_problems(problems)
    assert made is not None
    return made


def check_text(field: str, value: Any) -> None:
    """Raise ConfigError when a name is no text."""
    if not isinstance(value, str):
        raise reject(field, value, "is text")


def reject(field: str, value: object, allowed: str) -> ConfigError:
    """The error for a wrong argument: names field, value and allowed values."""
    return ConfigError(f"{field}: {value!r}: allowed {allowed}", [f"{field}: {value!r}: {allowed}"])
