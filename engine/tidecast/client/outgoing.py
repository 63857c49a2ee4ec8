"""What a publisher is given, as bytes that lie end to end: lists, NumPy arrays, Arrow columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from tidecast.client import object_kernels as kernels
from tidecast.client.kernels import Port, put_many
from tidecast.errors import CodecError, ConfigError, TidecastError
from tidecast.native.memory import address
from tidecast.native.objects import TUPLE_ITEMS_AT

Lengths = np.ndarray[Any, np.dtype[np.int64]]
SAME_LENGTH: Lengths = np.empty(0, dtype=np.int64)
_ARROW_NARROW = ("binary", "string")
_ARROW_WIDE = ("large_binary", "large_string")


class Run:
    """Messages end to end in memory, or as objects, and how many of them are appended already."""

    __slots__ = ("address", "bytes", "done", "fixed", "items", "keep", "lengths", "n")

    def __init__(
        self, keep: Any, lengths: Lengths, fixed: int, n: int, objects: tuple[bytes, ...] = ()
    ) -> None:
        """``keep``: a byte array of the messages. All have ``fixed`` bytes if ``lengths`` is empty.

        An address instead of an array keeps the kernel to one signature, read-only or not.
        """
        self.address, self.bytes = address(keep), int(keep.size)
        self.lengths, self.fixed, self.n = lengths, fixed, n
        self.keep = objects or keep
        self.items = _items(objects) if objects else 0
        self.done = np.zeros(2, dtype=np.int64)

    def length_of(self, index: int) -> int:
        """Bytes of one message."""
        if self.items:
            return len(self.keep[index])
        return int(self.lengths[index]) if self.lengths.size else self.fixed

    def append(self, port: Port, flush: bool) -> int:
        """Append what is left of it; see `append_batch`."""
        return int(
            put_many(
                port, self.address, self.bytes, self.lengths, self.fixed, self.items, self.n, 0,
                int(flush), self.done,
            )
        )  # fmt: skip


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
    """A list of bytes, read where they lie. Raises CodecError naming the first that is not."""
    objects = tuple(messages)  # nobody changes it, and all live until the last is appended
    if not kernels.all_bytes(_items(objects), len(objects), id(bytes)):
        converted = []
        for index, each in enumerate(objects):
            try:
                converted.append(payload_bytes(each, topic))
            except CodecError as problem:
                raise CodecError(f"item {index}: {problem}") from None
        objects = tuple(converted)
    return Run(_no_bytes(), SAME_LENGTH, 0, len(objects), objects)


def _items(objects: tuple[bytes, ...]) -> int:
    return id(objects) + TUPLE_ITEMS_AT


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
    n = len(array)
    fixed = array.dtype.itemsize * (array.shape[1] if array.ndim == 2 else 1)
    if n == 0:
        return []
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8) if fixed else _no_bytes()
    return [Run(flat, SAME_LENGTH, fixed, n)]


def _no_bytes() -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.empty(0, dtype=np.uint8)


def _arrow_runs(column: Any, topic: str) -> list[Run]:
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
        return Run(values[start * fixed : (start + n) * fixed], SAME_LENGTH, fixed, n)
    offsets = np.frombuffer(buffers[1], dtype=np.int32 if narrow else np.int64)
    offsets = offsets[start : start + n + 1]
    lengths = np.diff(offsets).astype(np.int64, copy=False)
    return Run(values[int(offsets[0]) : int(offsets[-1])], lengths, 0, n)


def _kind(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype} with {value.ndim} dimensions"
    return type(value).__name__


def reject(field: str, value: object, allowed: str) -> ConfigError:
    """The error for a wrong argument: names field, value and what is allowed."""
    return ConfigError(f"{field}: {value!r}: allowed {allowed}", [f"{field}: {value!r}: {allowed}"])
