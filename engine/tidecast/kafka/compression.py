"""Compressed record batches: gzip from the standard library; snappy, lz4 and zstd by `cramjam`.

A small batch can say to be gigabytes when it is decompressed, so each codec writes into room that
is given to it, and a batch that needs more than `BYTES_MAX` is refused.
"""

from __future__ import annotations

import importlib
import struct
import zlib
from typing import Any

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
NAMES = ("none", "gzip", "snappy", "lz4", "zstd")
BYTES_MAX = 64 << 20
"""Bytes of the records of one batch, decompressed."""
_GUESS = 8
_TOO_SMALL = "failed to write whole buffer"
"""How `cramjam` says that there is not room enough, and not that the bytes are bad."""
_XERIAL = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES = 16


class Unsupported(Exception):
    """A codec that is unknown, or whose library is not installed."""


class BadCompression(Exception):
    """Bytes that the codec cannot decompress."""


class TooMuch(BadCompression):
    """Bytes that decompress to more than there may be."""


def decompress(codec: int, data: memoryview, bytes_max: int = BYTES_MAX) -> bytes:
    """The records of a batch. Raises Unsupported, BadCompression, TooMuch than ``bytes_max``."""
    if codec == GZIP:
        return _gunzip(data, bytes_max)
    if not NONE < codec <= ZSTD:
        raise Unsupported(f"compression codec {codec}")
    try:
        module: Any = importlib.import_module("cramjam")
    except ImportError:
        raise Unsupported(
            f"{NAMES[codec]} needs the package cramjam: pip install 'tidecast[kafka]'"
        ) from None
    if codec == SNAPPY:
        return _unsnap(module, data, bytes_max)
    return _within(getattr(module, NAMES[codec]).decompress_into, bytes(data), bytes_max)


def _gunzip(data: memoryview, bytes_max: int) -> bytes:
    machine = zlib.decompressobj(wbits=31)
    try:
        found = machine.decompress(data, bytes_max)
    except zlib.error as problem:
        raise BadCompression(f"gzip: {problem}") from problem
    if machine.eof:
        return found
    if len(found) < bytes_max:
        raise BadCompression("gzip: it is cut off")
    raise TooMuch(f"gzip: it is cut off, or has more than {bytes_max} bytes")


def _within(decompress_into: Any, data: bytes, bytes_max: int) -> bytes:
    """Decompress into rooms that grow, so that nothing is allocated because a header says so."""
    room = min(max(len(data) * _GUESS, 1 << 16), bytes_max)
    while True:
        out = bytearray(room)
        try:
            n = int(decompress_into(data, out))
        except Exception as problem:
            if _TOO_SMALL not in str(problem):
                raise BadCompression(str(problem)) from problem
            if room == bytes_max:
                raise TooMuch(f"it has more than {bytes_max} bytes") from problem
            room = min(room * _GUESS, bytes_max)
            continue
        return bytes(memoryview(out)[:n])


def _unsnap(module: Any, data: memoryview, bytes_max: int) -> bytes:
    """Snappy as Java's library frames it, in chunks, or a single raw block."""
    if bytes(data[: len(_XERIAL)]) != _XERIAL:
        return _unsnap_block(module, bytes(data), bytes_max)
    at, parts, left = _XERIAL_HEADER_BYTES, list[bytes](), bytes_max
    while at + 4 <= len(data):
        (n,) = struct.unpack_from(">i", data, at)
        at += 4
        if n < 0 or n > len(data) - at:
            raise BadCompression(f"snappy: a chunk of {n} bytes, there are {len(data) - at}")
        parts.append(_unsnap_block(module, bytes(data[at : at + n]), left))
        left -= len(parts[-1])
        at += n
    return b"".join(parts)


def _unsnap_block(module: Any, data: bytes, bytes_max: int) -> bytes:
    try:
        n = int(module.snappy.decompress_raw_len(data))
        if n > bytes_max:
            raise TooMuch(f"snappy: it has more than {bytes_max} bytes")
        return bytes(module.snappy.decompress_raw(data))
    except module.DecompressionError as problem:
        raise BadCompression(f"snappy: {problem}") from problem
