"""Recovers a queue's directory after a clean stop or a crash.

Sealed segments are trusted by name and by the last entry of their index, which names their end and
is written when they are sealed. Only the last segment is scanned; the bytes behind its last sound
batch are copied to ``<segment>.torn-<n>`` and cut off.

A damaged batch with sound batches behind it has two possible causes: a loss of power during writes
that were not synced, or a complete batch that was damaged later. In the first case nothing from
there on was acked, and it is cut off, too: records that publishers send again must not collide with
their own later sequences. In the second case it stays, and readers get an error.
"""

from __future__ import annotations

import errno
import os
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tidecast.disk import sync_directory
from tidecast.errors import CorruptLog
from tidecast.layout import segment as lay
from tidecast.log.files import (
    check_segment_header,
    index_entry,
    index_header,
    index_name,
    read_index,
    segment_name,
    unsynced_name,
)
from tidecast.log.reading.scan import C_BASE_TOKEN, C_POSITION, C_TIME_MAX, Scanner
from tidecast.log.repair.damage import Acked, next_sound

_SEGMENT = re.compile(r"(\d{20})\.log")
_COPY_BYTES = 1 << 20


class NotReadError(OSError):
    """The kernel has dropped bytes that no sync has stored."""

    def __init__(self) -> None:
        super().__init__(errno.EIO, "what was not synced cannot be read back")


Rows = Callable[[np.ndarray], None]


@dataclass(slots=True)
class Segment:
    """One segment file as recovery found it."""

    base_token: int
    bytes: int
    time_max: int = 0
    created_ns: int = 0


@dataclass(slots=True)
class Torn:
    """A tail that was copied to a ``.torn-<n>`` file and cut off."""

    segment: Path
    position: int
    bytes: int
    aside: Path
    cause: int


@dataclass(slots=True)
class Recovered:
    """The contents of a queue's directory. The last of ``segments`` is the active one."""

    segments: list[Segment] = field(default_factory=list)
    next_token: int = 0
    index_due: int = lay.SEGMENT_HEADER_BYTES
    torn: list[Torn] = field(default_factory=list)
    scanned_bytes: int = 0
    indexes_rebuilt: list[Path] = field(default_factory=list)
    damaged: int = 0
    """Damaged batches that were kept, because sound batches follow."""


def _no_rows(rows: np.ndarray) -> None:
    """Ignore the rows."""


def segments_in(directory: Path) -> list[int]:
    """First tokens of the segments of a queue, in order."""
    found = (_SEGMENT.fullmatch(path.name) for path in directory.iterdir())
    return sorted(int(match.group(1)) for match in found if match)


def recover(directory: Path, topic: str, queue: int, on_rows: Rows) -> Recovered:
    """List the segments, repair the tail. ``on_rows`` gets the last segment's batches (C_*).

    Raises CorruptLog when a sealed segment belongs to another queue, or a segment is missing.
    """
    result = Recovered()
    for half_written in directory.glob("*-new"):
        half_written.unlink()
    bases = segments_in(directory)
    while bases:
        base = bases.pop()
        path = directory / segment_name(base)
        if (directory / unsynced_name(base)).exists():
            _store_again(path, path.stat().st_size)
        size = path.stat().st_size
        with path.open("rb") as file:
            head = file.read(lay.SEGMENT_HEADER_BYTES)
        if size < lay.SEGMENT_HEADER_BYTES or check_segment_header(head, base, topic, queue):
            # A crash while it was made: nothing in it was ever acknowledged.
            problem = check_segment_header(head, base, topic, queue)
            if size > lay.SEGMENT_HEADER_BYTES and not head.strip(b"\0") == b"":
                raise CorruptLog(f"{path}: {problem}")
            _set_aside(directory, path, 0, size, 0, result)
            path.unlink()
            (directory / index_name(base)).unlink(missing_ok=True)
            continue
        for one in bases:
            result.segments.append(_sealed(directory, one, topic, queue, bases, base, result))
        _last(directory, base, size, on_rows, result)
        break
    if result.torn or result.indexes_rebuilt:
        sync_directory(directory)
    return result


def _sealed(
    directory: Path,
    base: int,
    topic: str,
    queue: int,
    bases: list[int],
    last: int,
    result: Recovered,
) -> Segment:
    """A sealed segment, by its index; scanned only if that does not fit."""
    path = directory / segment_name(base)
    following = min(b for b in [*bases, last] if b > base)
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(lay.SEGMENT_HEADER_BYTES)
    problem = check_segment_header(head, base, topic, queue)
    if problem:
        raise CorruptLog(f"{path}: {problem}")
    created = struct.unpack_from("<q", head, lay.SEG_CREATED_AT)[0]
    last_entry = read_index(directory / index_name(base), tail=1)
    if last_entry.shape[0] and last_entry[0, :2].tolist() == [following, size]:
        return Segment(base, size, int(last_entry[0, 2]), created)
    _, entries = _scan(path, base, size, _no_rows, result, sealed=True)
    write_index(directory, base, head, entries, seal=(following, size))
    result.indexes_rebuilt.append(directory / index_name(base))
    return Segment(base, size, max((e[2] for e in entries), default=0), created)


Entry = tuple[int, int, int]


def _scan(
    path: Path, base: int, size: int, on_rows: Rows, result: Recovered, *, sealed: bool = False
) -> tuple[Scanner, list[Entry]]:
    """Scan a segment; returns its sparse index, with a last entry behind the end.

    Damage is skipped in a ``sealed`` segment, and where the damaged batch was acked.
    """
    entries: list[Entry] = []
    time_max, due = 0, lay.SEGMENT_HEADER_BYTES
    acked: Acked | None = None
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        scanner = Scanner(fd, size, base)
        while True:
            rows = scanner.next_rows()
            if not rows.shape[0]:
                at, token = scanner.position, scanner.token
                found = next_sound(fd, at + 1, token, size) if at < size else -1
                if found < 0:
                    break
                if not sealed:
                    acked = acked or Acked(fd, size, found)
                    if not acked.covers(at, token):
                        break
                result.damaged += 1
                scanner.reset(found)
                continue
            on_rows(rows)
            for position, token, latest in rows[:, (C_POSITION, C_BASE_TOKEN, C_TIME_MAX)].tolist():
                if position >= due:
                    entries.append((token, position, time_max))
                    due = position + lay.INDEX_INTERVAL_BYTES
                time_max = max(time_max, latest)
    finally:
        os.close(fd)
    result.scanned_bytes += scanner.position
    result.index_due = due
    entries.append((scanner.token, scanner.position, time_max))
    return scanner, entries


def _last(directory: Path, base: int, size: int, on_rows: Rows, result: Recovered) -> None:
    path = directory / segment_name(base)
    scanner, entries = _scan(path, base, size, on_rows, result)
    if scanner.position < size:
        _set_aside(
            directory, path, scanner.position, size - scanner.position, scanner.cause, result
        )
        os.truncate(path, scanner.position)
        try:
            _sync_file(path)
        except OSError:  # no other sync will report it
            _store_again(path, scanner.position)
    with path.open("rb") as file:
        head = file.read(lay.SEGMENT_HEADER_BYTES)
    write_index(directory, base, head, entries[:-1], seal=None)
    created = struct.unpack_from("<q", head, lay.SEG_CREATED_AT)[0]
    result.segments.append(Segment(base, scanner.position, entries[-1][2], created))
    result.next_token = scanner.token


def _store_again(path: Path, end: int) -> None:
    """A sync of a segment failed; if this does, too, the next start finds the mark. OSError."""
    mark = path.with_suffix(".unsynced")
    mark.touch()
    rewrite_segment(path, end, os.fsync)
    mark.unlink()


def rewrite_segment(
    path: Path, end: int, sync: Callable[[int], None], *, sound_from: int = 0, tail: bytes = b""
) -> None:
    """Store the first ``end`` bytes of a segment in another file, which takes its place.

    For a segment of which a sync failed. The kernel marks the pages as clean then, so another sync
    would store nothing and succeed. Writing to the same file is not enough either: ext4 leaves the
    blocks unwritten, and they are zeros when they are read again, as after any failed write-back.
    ``sync``: waits until a descriptor's bytes are on the device. ``tail``: the last bytes, if they
    are known; they are stored first, so that a device that still fails gets only these bytes.
    ``sound_from``: where batches begin that must be sound, up to the end.
    Raises OSError, NotReadError; the segment is unchanged then.
    """
    fresh = path.with_suffix(".log-new")
    fresh.unlink(missing_ok=True)  # an engine that ended before it was done left it
    try:
        with path.open("rb") as source, fresh.open("w+b") as target:
            room = os.fstatvfs(target.fileno())
            if room.f_bfree * room.f_frsize < end:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if tail:
                target.seek(end - len(tail))
                target.write(tail)
                target.flush()
                sync(target.fileno())
                _check_sound(target.fileno(), sound_from, end)
                target.seek(0)
            left = end - len(tail)
            while left > 0 and (some := source.read(min(left, _COPY_BYTES))):
                target.write(some)
                left -= len(some)
            target.flush()
            if left:
                raise NotReadError
            if not tail:
                _check_sound(target.fileno(), sound_from, end)
            sync(target.fileno())
        fresh.replace(path)
    except OSError:
        fresh.unlink(missing_ok=True)  # it has the blocks that failed, or the room that lacks
        raise
    sync_directory(path.parent)


def _check_sound(fd: int, position: int, end: int) -> None:
    """Batches from ``position`` on (0: any bytes) must be sound up to ``end``. Raises OSError."""
    if not position:
        return
    scanner = Scanner(fd, end)
    scanner.reset(position)
    while scanner.next_rows().shape[0]:
        pass
    if scanner.position < end:
        raise NotReadError


def write_index(
    directory: Path,
    base: int,
    segment_head: bytes,
    entries: list[Entry],
    *,
    seal: tuple[int, int] | None,
) -> None:
    """Write an index again, whole or not at all."""
    raw = index_header(segment_head)
    some = entries if seal is None else [*entries[:-1], (*seal, entries[-1][2])]
    raw += b"".join(index_entry(*entry) for entry in some)
    path = directory / index_name(base)
    fresh = path.with_suffix(".index-new")
    fresh.write_bytes(raw)
    fresh.replace(path)


def _set_aside(
    directory: Path, path: Path, position: int, n: int, cause: int, result: Recovered
) -> None:
    """Copy ``n`` bytes from ``position`` on into ``<segment>.torn-<k>``, and wait for the disk."""
    k = 1
    while (aside := directory / f"{path.name}.torn-{k}").exists():
        k += 1
    with path.open("rb") as source, aside.open("xb") as target:
        source.seek(position)
        left = n
        while left > 0 and (some := source.read(min(left, _COPY_BYTES))):
            target.write(some)
            left -= len(some)
        target.flush()
        os.fsync(target.fileno())
    result.torn.append(Torn(path, position, n, aside, cause))


def _sync_file(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
