"""Kernels and packets for tests of tables of keys and headers."""

from __future__ import annotations

import struct
from typing import Any

import msgspec
import numpy as np

from tests.support import packets
from tidecast.layout import packet as wire
from tidecast.native.jit import kernel
from tidecast.protocol.tables.reading import (
    check_definitions,
    expand,
    table_reader,
    take_definitions,
)
from tidecast.protocol.tables.writing import (
    T_ENTRIES,
    begin_table,
    compact,
    is_worn_out,
    put_definitions,
    table_writer,
)

ROOM = 65_000


@kernel
def made_compact(block, data, at, length, out):  # type: ignore[no-untyped-def]
    return compact(block, data, at, length, out, 3)


@kernel
def expanded(block, data, at, length, out):  # type: ignore[no-untyped-def]
    return expand(block, data, at, length, out)


@kernel
def defined(block, first, out, length_max):  # type: ignore[no-untyped-def]
    return put_definitions(block, first, out, length_max)


@kernel
def taken(block, data, at, length):  # type: ignore[no-untyped-def]
    if not check_definitions(data, at, length):
        return -1
    return int(take_definitions(block, data, at))


@kernel
def renewed(block, now_ns):  # type: ignore[no-untyped-def]
    if not is_worn_out(block, now_ns):
        return False
    begin_table(block, now_ns)
    return True


def exactly(raw: bytes, lead: int = 3) -> np.ndarray[Any, Any]:
    """A packet that ends where its array ends: a checked build sees any step beyond."""
    return np.frombuffer(bytes(lead) + raw, dtype=np.uint8).copy()


def message(
    payload: bytes,
    key: bytes | None = None,
    headers: dict[str, Any] | bytes | None = None,
    timestamp: int | None = None,
    to: int | None = None,
) -> bytes:
    lead, flags = b"", wire.WHOLE
    if timestamp is not None:
        lead, flags = lead + struct.pack("<q", timestamp), flags | wire.TIMESTAMP
    if to is not None:
        lead, flags = lead + struct.pack("<I", to), flags | wire.TO
    if key is not None:
        lead, flags = lead + struct.pack("<H", len(key)) + key, flags | wire.KEY
    if headers is not None:
        raw = headers if isinstance(headers, bytes) else msgspec.msgpack.encode(headers)
        lead, flags = lead + struct.pack("<H", len(raw)) + raw, flags | wire.HEADERS
    return packets.message(payload, flags, lead)


class Pair:
    """The table of a sender, and that of an image."""

    def __init__(self, number: int = 7) -> None:
        self.writer, self.reader = table_writer(number), table_reader()
        self.defined = 0

    @property
    def entries(self) -> int:
        return int(self.writer[T_ENTRIES : T_ENTRIES + 8].view(np.int64)[0])

    def compact(self, packet: bytes) -> bytes:
        """As COMPACT; b"" where it would not be shorter."""
        out = np.zeros(3 + len(packet), dtype=np.uint8)
        n = made_compact(self.writer, exactly(packet), 3, len(packet), out)
        return out[3 : 3 + n].tobytes()

    def definitions(self, first: int | None = None, length_max: int = 1400) -> list[bytes]:
        """TABLE packets of the entries from ``first`` on; None: that were not yet defined."""
        entry, found = self.defined if first is None else first, []
        while entry < self.entries:
            out = np.zeros(length_max, dtype=np.uint8)
            n, following = defined(self.writer, entry, out, length_max)
            found.append(
                packets.header(wire.TABLE, n) + out[wire.PACKET_HEADER_BYTES : n].tobytes()
            )
            entry = following
        self.defined = entry
        return found

    def take(self, packet: bytes) -> int:
        """1: taken; 0: entries before these are missing; -1: malformed."""
        return int(taken(self.reader, exactly(packet), 3, len(packet)))

    def expand(self, packet: bytes, room: int = ROOM) -> bytes | int:
        """As DATA; MISSING or MALFORMED."""
        out = np.zeros(room, dtype=np.uint8)
        n = int(expanded(self.reader, exactly(packet), 3, len(packet), out))
        return n if n < 0 else out[:n].tobytes()
