"""Writing the flight recorder: allocation-free. Reading it merges by time.

Agents of several transports or lanes write to the same ring: each takes the next number first.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tidecast.errors import SharedMemoryError
from tidecast.layout import recorder as lay
from tidecast.native.atomics import fetch_add, store_release
from tidecast.native.jit import held_kernel, inlined
from tidecast.native.mapped import Bytes, MappedFile
from tidecast.native.memory import store_i64
from tidecast.native.packing import pack_into, unpack_from


@inlined
def record(file, writer, section, now_ns, code, entity, a, b, c, d):
    """Append a record."""
    ring = lay.HEADER_BYTES + (writer * lay.SECTIONS + section) * lay.RING_BYTES
    seq = fetch_add(file, ring, 1) + 1
    at = ring + 64 + (seq & (lay.RECORDS_MAX - 1)) * lay.RECORD_BYTES
    store_release(file, at, 0)
    store_i64(file, at + lay.TIME_AT, now_ns)
    store_i64(file, at + lay.CODE_AT, code)
    store_i64(file, at + lay.ENTITY_AT, entity)
    store_i64(file, at + lay.A_AT, a)
    store_i64(file, at + lay.B_AT, b)
    store_i64(file, at + lay.C_AT, c)
    store_i64(file, at + lay.D_AT, d)
    store_release(file, at + lay.SEQ_AT, seq)


@held_kernel
def record_from_python(file, writer, section, now_ns, code, entity, a, b, c, d):
    """`record` for the conductor."""
    record(file, writer, section, now_ns, code, entity, a, b, c, d)


def create_recorder(path: Path) -> MappedFile:
    """Create a recorder file; the file before is kept as ``.previous``."""
    if path.exists():
        path.replace(path.with_suffix(path.suffix + ".previous"))
    mapped = MappedFile.create(path, lay.FILE_BYTES)
    offset = time.time_ns() - time.monotonic_ns()
    pack_into("<QQq", mapped.array, 0, lay.MAGIC, os.getpid(), offset)
    return mapped


@dataclass(frozen=True, slots=True)
class Record:
    """A record as read. ``at_ns``: wall clock."""

    at_ns: int
    writer: str
    section: str
    code: int
    entity: int
    arguments: tuple[int, int, int, int]

    @property
    def text(self) -> str:
        """The event, in words."""
        try:
            _, words, names = lay.MEANING[lay.Code(self.code)]
        except ValueError:
            return f"code {self.code}"
        pairs = zip(names, self.arguments, strict=False)
        return " ".join([words, *(f"{name}={value}" for name, value in pairs)])


def read_records(file: Bytes) -> list[Record]:
    """All sound records, oldest first. Raises SharedMemoryError when it is not a recorder."""
    if file.size < lay.FILE_BYTES or unpack_from("<Q", file, 0)[0] != lay.MAGIC:
        raise SharedMemoryError("not a flight recorder of this version")
    offset = unpack_from("<q", file, lay.REALTIME_OFFSET_AT)[0]
    found = [
        r
        for w in range(lay.WRITERS)
        for s in range(lay.SECTIONS)
        for r in _ring_records(file, w, s, offset)
    ]
    found.sort(key=lambda r: r.at_ns)
    return found


def _ring_records(file: Bytes, writer: int, section: int, offset: int) -> Iterator[Record]:
    ring = lay.ring_at(writer, section)
    for i in range(lay.RECORDS_MAX):
        at = ring + 64 + i * lay.RECORD_BYTES
        seq, when, code, entity, a, b, c, d = unpack_from("<8q", file, at)
        if seq <= 0 or seq & (lay.RECORDS_MAX - 1) != i:
            continue
        again = unpack_from("<q", file, at)[0]
        if again != seq:
            continue
        names = lay.WRITER_NAMES[writer], lay.SECTION_NAMES[section]
        yield Record(when + offset, names[0], names[1], code, entity, (a, b, c, d))
