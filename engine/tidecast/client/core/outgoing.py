"""What a publisher is given, as bytes that lie end to end: lists, NumPy arrays, Arrow columns."""

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
_ARROW_NARROW = ("binary", "string")
_ARROW_WIDE = ("large_binary", "large_string")
_ARROW_CAST = {"binary_view": "large_binary", "string_view": "large_string"}
"""Kinds without values that lie end to end, and what they are cast to."""


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

    __slots__ = ("_at", "done", "fixed", "keep", "lengths", "n")

    def __init__(self, keep: Any, lengths: Lengths, fixed: int, n: int) -> None:
        """``keep``: a contiguous array of ``n`` messages; it may be read-only."""
        self.keep, self.lengths, self.fixed, self.n = keep, lengths, fixed, n
        self.done = self._at = 0

    def length_of(self, index: int) -> int:
        """Bytes of one message."""
        return int(self.lengths[index]) if self.lengths.size else self.fixed

    def append(self, port: Port, flush: bool) -> int:
        """Append what is left of it: 0 when all is in, else `writer.FULL` or `writer.TOO_LARGE`."""
        done = np.array((self.done, self._at), dtype=np.int64)
        status = put_many(
            port, address(self.keep), self.keep.nbytes, self.lengths, self.fixed, self.n, 0,
            int(flush), done,
        )  # fmt: skip
        self.done, self._at = done.tolist()
        return int(status)


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
        """A tuple: nobody changes it, and all live until the last is appended."""
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


class BatchResult(msgspec.Struct, frozen=True):
    """What became of a batch: items ``[0, appended)`` are in, item ``appended`` met ``error``."""

    requested: int
    appended: int
    dropped: int = 0
    error: TidecastError | None = None

    @property
    def ok(self) -> bool:
        """All items are in."""
        return self.appended == self.requested

    def check(self) -> BatchResult:
        """Itself. Raises ``error`` if there is one."""
        if self.error is not None:
            raise self.error
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
    """The messages as runs. Raises CodecError naming what is not allowed."""
    if isinstance(messages, np.ndarray):
        return _numpy_runs(messages, topic)
    if type(messages).__module__.startswith("pyarrow"):
        return _arrow_runs(messages, topic)
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
    """A list of bytes, or of what can be made bytes. Raises CodecError naming what cannot."""
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


def _no_bytes() -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.empty(0, dtype=np.uint8)


def _arrow_runs(column: Any, topic: str) -> list[Run]:
    kind = getattr(column, "type", None)
    if kind is None or not hasattr(column, "null_count"):
        raise CodecError(
            f"topic {topic}: messages is an Arrow {_kind(column)}: allowed are an array, or a "
            'column of a table (table["name"])'
        )
    wanted = _ARROW_CAST.get(str(getattr(kind, "value_type", kind)))
    if wanted is not None or str(kind).startswith("dictionary"):
        column = column.cast(wanted or kind.value_type)
    chunks = column.chunks if hasattr(column, "chunks") else [column]
    return [_arrow_run(chunk, topic) for chunk in chunks if len(chunk)]


def _arrow_run(array: Any, topic: str) -> Run:
    """One Arrow array without a copy of its values; a slice begins at its offset."""
    kind = str(getattr(array, "type", ""))
    narrow, wide = kind in _ARROW_NARROW, kind in _ARROW_WIDE
    if not (narrow or wide or kind.startswith("fixed_size_binary")):
        raise CodecError(
            f"topic {topic}: messages is an Arrow {kind or _kind(array)}: allowed are binary, "
            "large_binary, fixed_size_binary, string, large_string; cast others"
        )
    if array.null_count:
        first = next(i for i, valid in enumerate(array.is_valid().to_pylist()) if not valid)
        raise CodecError(
            f"topic {topic}: item {first} is null ({array.null_count} in all): a message has "
            "bytes; fill_null or drop them"
        )
    n, start = len(array), int(array.offset)
    buffers = array.buffers()
    values = np.frombuffer(buffers[-1], dtype=np.uint8) if buffers[-1] else _no_bytes()
    if not (narrow or wide):
        fixed = int(array.type.byte_width)
        rows = values[start * fixed : (start + n) * fixed].reshape(n, fixed)
        return RowsRun(rows, fixed)
    offsets = np.frombuffer(buffers[1], dtype=np.int32 if narrow else np.int64)
    offsets = offsets[start : start + n + 1]
    lengths = np.diff(offsets).astype(np.int64, copy=False)
    return Run(values[int(offsets[0]) : int(offsets[-1])], lengths, 0, n)


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
    """The error for a wrong argument: names field, value and what is allowed."""
    return ConfigError(f"{field}: {value!r}: allowed {allowed}", [f"{field}: {value!r}: {allowed}"])
