"""Cutting a byte stream into messages.

Joined again they are the stream, byte for byte, except the separators that `Lines` and `Prefixed`
take out.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Protocol

from tidecast.errors import ConfigError

MESSAGE_BYTES_MAX = 1 << 30
_LENGTH = struct.Struct("<I")


class Splitter(Protocol):
    """``feed`` returns the messages that are whole now, ``end`` the rest."""

    def feed(self, data: bytes) -> list[bytes]:
        """Take more of the stream."""

    def end(self) -> list[bytes]:
        """The stream is over. Raises ConfigError when it ends within a message."""


class Lines:
    """One line a message, with its newline or without; the last line of a stream may lack one."""

    def __init__(self, *, keep_newline: bool) -> None:
        self._newline = b"\n" if keep_newline else b""
        self._open: list[bytes] = []

    def feed(self, data: bytes) -> list[bytes]:
        """See `Splitter`."""
        first, newline, rest = data.partition(b"\n")
        self._open.append(first)
        if not newline:
            return []
        whole = b"".join(self._open) + self._newline
        parts = rest.split(b"\n")
        self._open = [parts.pop()]
        return [whole, *(part + self._newline for part in parts)]

    def end(self) -> list[bytes]:
        """See `Splitter`."""
        last = b"".join(self._open)
        return [last] if last else []


class Whole:
    """The whole stream is one message."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> list[bytes]:
        """See `Splitter`. Raises ConfigError beyond `MESSAGE_BYTES_MAX`."""
        self._size += len(data)
        if self._size > MESSAGE_BYTES_MAX:
            raise ConfigError(f"--split none: more than {MESSAGE_BYTES_MAX} bytes: split it")
        self._parts.append(data)
        return []

    def end(self) -> list[bytes]:
        """See `Splitter`."""
        return [b"".join(self._parts)] if self._size else []


class Pieces:
    """Messages of a fixed size; the last one may be shorter."""

    def __init__(self, size_bytes: int) -> None:
        self._size, self._rest = size_bytes, b""

    def feed(self, data: bytes) -> list[bytes]:
        """See `Splitter`."""
        data = self._rest + data
        whole = len(data) - len(data) % self._size
        self._rest = data[whole:]
        return [data[at : at + self._size] for at in range(0, whole, self._size)]

    def end(self) -> list[bytes]:
        """See `Splitter`."""
        return [self._rest] if self._rest else []


class Prefixed:
    """Each message follows its length, a little-endian u32, which is not published."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """See `Splitter`. Raises ConfigError for a length beyond `MESSAGE_BYTES_MAX`."""
        self._rest += data
        return list(self._take())

    def _take(self) -> Iterator[bytes]:
        at = 0
        while len(self._rest) - at >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._rest, at)
            if length > MESSAGE_BYTES_MAX:
                raise ConfigError(f"--split length: a message of {length} bytes: another format?")
            if len(self._rest) - at - _LENGTH.size < length:
                break
            at += _LENGTH.size
            yield bytes(self._rest[at : at + length])
            at += length
        del self._rest[:at]

    def end(self) -> list[bytes]:
        """See `Splitter`."""
        if self._rest:
            raise ConfigError(
                f"--split length: the input ends within a message ({len(self._rest)} "
                "bytes are left over)"
            )
        return []


def splitter_of(text: str, *, keep_newline: bool = False) -> Splitter:
    """From ``lines``, ``none``, ``bytes:N``, ``length``. Raises ConfigError."""
    if text == "lines":
        return Lines(keep_newline=keep_newline)
    if text == "none":
        return Whole()
    if text == "length":
        return Prefixed()
    kind, _, size = text.partition(":")
    if kind == "bytes" and size.isdigit() and 0 < int(size) <= MESSAGE_BYTES_MAX:
        return Pieces(int(size))
    raise ConfigError(f"--split: {text}: allowed lines, none, length, bytes:N (N > 0)")
