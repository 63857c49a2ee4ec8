"""Topics of a data directory as files: queues, segments, ends, positions. Read only.

The engine may append to the same files meanwhile: complete and sound batches are read, a batch that
is being written is not there yet.
"""

from __future__ import annotations

import bisect
import os
from pathlib import Path

import numpy as np

from tidecast.errors import NotFound
from tidecast.layout import segment as lay
from tidecast.log.batch import BAD_CRC, BAD_FIELD, BAD_LENGTH, BAD_RECORD
from tidecast.log.files import index_entry, index_name, queue_directory, read_index, segment_name
from tidecast.log.reading.scan import C_BASE_TOKEN, C_TIME_MAX, Scanner
from tidecast.log.repair.damage import next_sound

DAMAGE = (BAD_LENGTH, BAD_CRC, BAD_FIELD, BAD_RECORD)
_SEGMENT_NAME_CHARS = 24
_DIGITS = 20


def topics_of(data_dir: Path) -> list[str]:
    """Names of the topics that have queues, sorted. Raises PermissionError."""
    root = data_dir / "queues"
    try:
        return sorted(one.name for one in root.iterdir() if one.name[0] != "." and one.is_dir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def queues_of(data_dir: Path, topic: str) -> list[int]:
    """Indexes of a topic's queues, sorted."""
    root = queue_directory(data_dir, topic, 0).parent
    try:
        return sorted(int(one.name) for one in root.iterdir() if one.name.isdecimal())
    except FileNotFoundError:
        return []


def segments_of(directory: Path) -> list[int]:
    """First tokens of a queue's segments, sorted."""
    try:
        names = [one.name for one in directory.iterdir()]
    except FileNotFoundError:
        return []
    return sorted(
        int(name[:_DIGITS])
        for name in names
        if len(name) == _SEGMENT_NAME_CHARS and name.endswith(".log") and name[:_DIGITS].isdecimal()
    )


def position_before(directory: Path, base: int, token: int) -> tuple[int, int]:
    """(position, token) of a batch at or before the batch with ``token``, from the index."""
    path = directory / index_name(base)
    hints = _raw_index(path)
    at = int(np.searchsorted(hints[:, 0], token, side="right")) - 1
    if at >= 0:
        raw = hints[at].tobytes()
        found_token, position = int(hints[at, 0]), int(hints[at, 1])
        if found_token <= token and raw == index_entry(*hints[at, :3].tolist()):
            return position, found_token
    entries = read_index(path)  # 16 us an entry, of 64 KiB of log each
    at = int(np.searchsorted(entries[:, 0], token, side="right")) - 1
    if at < 0:
        return lay.SEGMENT_HEADER_BYTES, base
    return int(entries[at, 1]), int(entries[at, 0])


def _raw_index(path: Path) -> np.ndarray:
    """Entries of an index, unchecked: int64[n, 4]."""
    try:
        raw = np.fromfile(path, dtype="<i8", offset=lay.SEGMENT_HEADER_BYTES)
    except FileNotFoundError:
        raw = np.zeros(0, dtype=np.int64)
    words = lay.INDEX_ENTRY_BYTES // 8
    return raw[: raw.size // words * words].reshape(-1, words)


def _index_hints(path: Path) -> list[tuple[int, int]]:
    """(token, position) of an index, unchecked: good enough to cut work into equal parts."""
    entries = _raw_index(path)
    sound = np.diff(entries[:, :2], axis=0, prepend=-1).min(axis=1) > 0
    return [(int(t), int(p)) for t, p in entries[sound, :2].tolist()]


def _to_the_end(scanner: Scanner) -> None:
    while scanner.next_rows().shape[0]:
        pass


class QueueFiles:
    """One queue of a topic. Remembers how far it has read: repeated `end_token` is cheap."""

    def __init__(self, data_dir: Path, topic: str, queue: int) -> None:
        self.topic, self.queue = topic, queue
        self.directory = queue_directory(data_dir, topic, queue)
        self._base = -1
        self._position, self._token = lay.SEGMENT_HEADER_BYTES, 0

    def earliest_token(self) -> int:
        """The oldest token kept. Raises NotFound."""
        bases = segments_of(self.directory)
        if not bases:
            raise NotFound(f"{self.topic}/{self.queue}: no segments in {self.directory}")
        return bases[0]

    def end_token(self) -> int:
        """The token behind the last complete record. Raises NotFound."""
        bases = segments_of(self.directory)
        if not bases:
            raise NotFound(f"{self.topic}/{self.queue}: no segments in {self.directory}")
        base = bases[-1]
        if base != self._base:
            self._base, self._position, self._token = base, lay.SEGMENT_HEADER_BYTES, base
        entries = read_index(self.directory / index_name(base), tail=1)
        if entries.shape[0] and entries[0, 1] > self._position:
            self._token, self._position = int(entries[0, 0]), int(entries[0, 1])
        try:
            fd = os.open(self.directory / segment_name(base), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:  # just deleted: a newer segment is there
            return self.end_token()
        try:
            scanner = Scanner(fd, os.fstat(fd).st_size)
            scanner.reset(self._position, self._token)
            _to_the_end(scanner)
            while scanner.cause in DAMAGE:  # a sound batch behind it: damage, and not a torn tail
                token = max(scanner.token, self._token)
                found = next_sound(fd, scanner.position + 1, token, scanner.file_end)
                if found < 0:
                    break
                scanner.reset(found)
                _to_the_end(scanner)
            self._position, self._token = scanner.position, max(scanner.token, self._token)
        finally:
            os.close(fd)
        return self._token

    def token_at_time(self, time_ns: int) -> int:
        """First token of the first batch with a record not older than ``time_ns``; else the end."""
        bases = segments_of(self.directory)
        for base, following in zip(bases, [*bases[1:], -1], strict=True):
            entries = read_index(self.directory / index_name(base))
            # the last entry of a sealed segment stands at its end, and holds its latest time
            sealed = following >= 0 and entries.shape[0] and entries[-1, 0] == following
            if sealed and entries[-1, 2] < time_ns:
                continue
            at = int(np.searchsorted(entries[:, 2], time_ns, side="left")) - 1
            position = int(entries[at, 1]) if at >= 0 else lay.SEGMENT_HEADER_BYTES
            found = self._scan_for_time(base, position, time_ns)
            if found is not None:
                return found
        return self.end_token()

    def _scan_for_time(self, base: int, position: int, time_ns: int) -> int | None:
        path = self.directory / segment_name(base)
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            scanner = Scanner(fd, os.fstat(fd).st_size)
            scanner.reset(position)
            while (rows := scanner.next_rows()).shape[0]:
                late = np.flatnonzero(rows[:, C_TIME_MAX] >= time_ns)
                if late.size:
                    return int(rows[late[0], C_BASE_TOKEN])
            if scanner.position < scanner.file_end and scanner.cause in DAMAGE:
                token = max(scanner.token, base)
                if next_sound(fd, scanner.position + 1, token, scanner.file_end) >= 0:
                    return (
                        token  # it may be in there: to continue behind it would skip it in silence
                    )
        finally:
            os.close(fd)
        return None

    def cuts(self, start: int, end: int, parts: int, part_bytes_min: int) -> list[int]:
        """Tokens that cut ``[start, end)`` into at most ``parts`` of about equal bytes.

        Begins with ``start``, ends with ``end``. Cuts stand at batches that the index knows.
        """
        marks: list[tuple[int, int]] = []  # (token, bytes of the queue before it)
        offset = 0
        bases = segments_of(self.directory)
        first = max(0, bisect.bisect_right(bases, start) - 1)
        for base in bases[first:]:
            if base >= end:
                break
            marks.append((base, offset))
            marks += [(t, offset + p) for t, p in _index_hints(self.directory / index_name(base))]
            try:
                offset += (self.directory / segment_name(base)).stat().st_size
            except FileNotFoundError:
                continue
        marks.append((end, offset))
        tokens = np.array([m[0] for m in marks])
        sizes = np.array([m[1] for m in marks])
        low, high = np.interp([start, end], tokens, sizes)
        parts = max(1, min(parts, int((high - low) // part_bytes_min)))
        wanted = low + (high - low) / parts * np.arange(1, parts)
        at = np.minimum(np.searchsorted(sizes, wanted), tokens.size - 1)
        inner = {int(tokens[i]) for i in at.tolist()}
        return [start, *sorted(t for t in inner if start < t < end), end]
