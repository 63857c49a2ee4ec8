"""`QueueLog`: one queue's log. Open and recover, append, sync, roll, retain; `LogReader` reads it.

A log has one writer: one thread calls append, roll and retain. Another thread may call `sync`.
Readers are independent: each has its own `LogReader`, in any thread of the process.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import threading
from pathlib import Path

import numpy as np

from tidecast.disk import make_directory, sync_directory
from tidecast.errors import CorruptLog, NotFound, StorageError, TidecastError
from tidecast.layout import segment as lay
from tidecast.log import state as log_state
from tidecast.log.append import (
    ROLL,
    SUSPECT,
    append_sealed,
    note_stored,
    sync_active,
    sync_file,
)
from tidecast.log.batch import CAUSES
from tidecast.log.files import (
    index_header,
    index_name,
    segment_header,
    segment_name,
    snapshot_name,
    unsynced_name,
)
from tidecast.log.reading.read import CORRUPT, GONE, NEED_ROOM, close_reader, read_run, seek_time
from tidecast.log.reading.scan import C_BASE_TOKEN, C_COUNT, C_POSITION, C_TIME_MAX, Scanner
from tidecast.log.repair.damage import next_sound, sound_rows
from tidecast.log.repair.recovery import (
    NotReadError,
    Recovered,
    Rows,
    Segment,
    recover,
    rewrite_segment,
)
from tidecast.native.handles import State
from tidecast.native.system.files import disk_table

__all__ = ["LogReader", "QueueLog", "bytes_of"]

SEGMENT_BYTES = 128 << 20


def _no_rows(rows: np.ndarray) -> None:
    """Ignore the batches that recovery reads."""


def bytes_of(words: np.ndarray) -> np.ndarray:
    """Bytes of all segments of logs, by their words: int64[..., LOG_WORDS] -> int64[...]."""
    sealed = words[..., log_state.L_SEALED_BYTES] - words[..., log_state.L_DELETED_BYTES]
    return np.asarray(sealed + words[..., log_state.L_POSITION])


class QueueLog:
    """The log of one queue in one directory. Made by `open`; a context manager."""

    def __init__(
        self,
        directory: Path,
        topic: str,
        queue: int,
        segment_bytes: int,
        fsync: str,
        owner: int,
        words: np.ndarray | None = None,
    ) -> None:
        self.directory, self.topic, self.queue, self.fsync = directory, topic, queue, fsync
        self.recovered = Recovered()
        self.state: State = log_state.LOG.make(
            w=np.zeros(log_state.LOG_WORDS, dtype=np.int64) if words is None else words,
            segments=np.zeros((log_state.SEGMENTS_MAX, log_state.SEGMENT_FIELDS), dtype=np.int64),
            disk=disk_table(),
            entry=np.zeros(lay.INDEX_ENTRY_BYTES, dtype=np.uint8),
        )
        self._unsynced = bytearray()
        """While suspect: the active segment's bytes behind the durable position."""
        self.unreadable = False
        """Bytes that no sync has stored are lost: only opening the log again finds its end."""
        self._lock = threading.Lock()
        """Held while the active segment is synced or replaced."""
        self._w: np.ndarray = self.state.w
        w = self._w
        w[log_state.L_FD] = w[log_state.L_INDEX_FD] = w[log_state.L_DIRECTORY_FD] = -1
        w[log_state.L_SEGMENT_BYTES], w[log_state.L_OWNER], w[log_state.L_QUEUE] = (
            segment_bytes,
            owner,
            queue,
        )
        w[log_state.L_SYNCED_READS] = int(fsync == "batch")

    @classmethod
    def open(
        cls,
        directory: Path,
        *,
        topic: str,
        queue: int = 0,
        segment_bytes: int = SEGMENT_BYTES,
        fsync: str = "interval",
        owner: int = 0,
        now_ns: int = 0,
        on_rows: Rows = _no_rows,
        words: np.ndarray | None = None,
    ) -> QueueLog:
        """Open and recover the log of a directory, create it if it is not there.

        ``on_rows``: gets the batches of the last segment, int64[n, `scan.SCAN_FIELDS`], in order.
        ``words``: int64[`state.LOG_WORDS`] of zeros, the memory for the log's words.
        ``recovered`` has the result of the recovery. Raises CorruptLog, StorageError.
        """
        log = cls(directory, topic, queue, segment_bytes, fsync, owner, words)
        try:
            make_directory(directory)
            log._w[log_state.L_DIRECTORY_FD] = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
            log.recovered = recover(directory, topic, queue, on_rows)
            log._resume(now_ns)
        except OSError as problem:
            log.close()
            raise _storage_error(directory, problem.errno or 0) from problem
        except TidecastError:
            log.close()
            raise
        return log

    def _resume(self, now_ns: int) -> None:
        found, w = self.recovered, self._w
        if not found.segments:
            self._make_segment(0, now_ns)
            found.segments.append(Segment(0, lay.SEGMENT_HEADER_BYTES, 0, now_ns))
        active = found.segments[-1]
        for i, one in enumerate(found.segments):
            self.state.segments[i % log_state.SEGMENTS_MAX] = (
                one.base_token,
                one.bytes,
                one.time_max,
                one.created_ns,
            )
        w[log_state.L_END_SEGMENT] = len(found.segments)
        w[log_state.L_EARLIEST_TOKEN] = found.segments[0].base_token
        w[log_state.L_SEALED_BYTES] = sum(one.bytes for one in found.segments[:-1])
        self._open_active(active.base_token)
        w[log_state.L_POSITION], w[log_state.L_TIME_MAX] = active.bytes, active.time_max
        w[log_state.L_INDEX_DUE] = found.index_due
        w[log_state.L_NEXT_TOKEN] = max(found.next_token, active.base_token)
        try:  # the batches found there may not have reached the device
            os.fdatasync(int(w[log_state.L_FD]))
        except OSError:
            self._doubt()
            self._replace_active()
        w[log_state.L_DURABLE_TOKEN] = w[log_state.L_NEXT_TOKEN]
        w[log_state.L_DURABLE_POSITION] = w[log_state.L_POSITION]

    # --- segments ---------------------------------------------------------------------------------

    def _make_segment(self, base_token: int, now_ns: int) -> None:
        head = segment_header(self.topic, self.queue, base_token, now_ns)
        for name, raw in (
            (index_name(base_token), index_header(head)),
            (segment_name(base_token), head),
        ):
            (self.directory / name).unlink(missing_ok=True)  # of a try that failed
            with (self.directory / name).open("wb") as file:
                file.write(raw)
                file.flush()
                if self.fsync != "none":
                    os.fsync(file.fileno())
        if self.fsync != "none":
            sync_directory(self.directory)

    def _open_active(self, base_token: int) -> None:
        """Open a segment and its index to append to them, and close the files before."""
        w, flags = self._w, os.O_RDWR | os.O_CLOEXEC
        segment = os.open(self.directory / segment_name(base_token), flags)
        try:
            index = os.open(self.directory / index_name(base_token), flags)
        except OSError:
            os.close(segment)
            raise
        self._close_active()
        w[log_state.L_FD], w[log_state.L_INDEX_FD] = segment, index
        w[log_state.L_BASE_TOKEN] = base_token

    def _close_active(self) -> None:
        for at in (log_state.L_FD, log_state.L_INDEX_FD):
            if self._w[at] >= 0:
                os.close(int(self._w[at]))
                self._w[at] = -1

    def roll(self, now_ns: int, snapshot: bytes = b"") -> None:
        """Seal the active segment and begin the next one. Raises StorageError; nothing is lost.

        ``snapshot``: the table of producers, for the segments before: ``<segment>.producers``.
        """
        w = self._w
        token, position = self.next_token, int(w[log_state.L_POSITION])
        if token == int(w[log_state.L_BASE_TOKEN]):
            return
        if int(w[log_state.L_END_SEGMENT] - w[log_state.L_FIRST_SEGMENT]) >= log_state.SEGMENTS_MAX:
            raise StorageError(
                f"{self.directory}: {log_state.SEGMENTS_MAX} segments, the most there may be: set "
                "retention_bytes or retention_s, or larger segment_bytes"
            )
        try:
            with self._lock:  # a running sync may fail, and then the sync below would succeed
                if self.suspect:
                    raise self._is_suspect()
                os.truncate(int(w[log_state.L_FD]), position)  # no leftovers of a failed write
                self._seal_index(token, position)
                if self.fsync != "none":
                    self._sync_segment()
                    os.fdatasync(int(w[log_state.L_INDEX_FD]))
                if snapshot:
                    self.write_snapshot(token, snapshot)
                self._make_segment(token, now_ns)
                self._open_active(token)
                w[log_state.L_DURABLE_TOKEN] = token
                w[log_state.L_DURABLE_POSITION] = lay.SEGMENT_HEADER_BYTES
        except OSError as problem:
            raise _storage_error(self.directory, problem.errno or 0) from problem
        last = int(w[log_state.L_END_SEGMENT])
        row = self.state.segments[(last - 1) % log_state.SEGMENTS_MAX]
        row[log_state.S_BYTES], row[log_state.S_TIME_MAX] = position, w[log_state.L_TIME_MAX]
        self.state.segments[last % log_state.SEGMENTS_MAX] = (token, 0, 0, now_ns)
        w[log_state.L_SEALED_BYTES] += position
        w[log_state.L_POSITION] = w[log_state.L_INDEX_DUE] = lay.SEGMENT_HEADER_BYTES
        w[log_state.L_TIME_MAX] = 0
        w[log_state.L_END_SEGMENT] = last + 1

    def write_snapshot(self, base_token: int, raw: bytes) -> None:
        """Keep ``raw`` beside a segment, on the device, whole or not at all. Raises OSError."""
        path = self.directory / snapshot_name(base_token)
        fresh = path.with_suffix(".producers-new")
        fresh.unlink(missing_ok=True)
        with fresh.open("wb") as file:
            file.write(raw)
            file.flush()
            if self.fsync != "none":
                os.fsync(file.fileno())
        fresh.replace(path)
        if self.fsync != "none":
            sync_directory(self.directory)

    def snapshot(self, base_token: int) -> bytes:
        """The snapshot that was kept beside a segment, or nothing."""
        try:
            return (self.directory / snapshot_name(base_token)).read_bytes()
        except FileNotFoundError:
            return b""

    def _seal_index(self, token: int, position: int) -> None:
        """The last entry of a sealed segment says where it ends; written once, also after a try."""
        from tidecast.log.files import index_entry, read_index

        path = self.directory / index_name(int(self._w[log_state.L_BASE_TOKEN]))
        entries = read_index(path)
        if entries.shape[0] and entries[-1, 0] == token:
            return
        at = lay.SEGMENT_HEADER_BYTES + entries.shape[0] * lay.INDEX_ENTRY_BYTES
        raw = index_entry(token, position, int(self._w[log_state.L_TIME_MAX]))
        os.pwrite(int(self._w[log_state.L_INDEX_FD]), raw, at)

    # --- appending --------------------------------------------------------------------------------

    def append(self, buffer: np.ndarray, n: int, now_ns: int = 0) -> None:
        """Append the sealed batches ``buffer[:n]``, whose tokens begin at `next_token`.

        All or nothing; rolls when the segment is full. Raises StorageError: try again later.
        """
        status = int(append_sealed(self.state.words, buffer, n))
        if status == ROLL:
            self.roll(now_ns)
            status = int(append_sealed(self.state.words, buffer, n))
        if status == SUSPECT:
            raise self._is_suspect()
        if status < 0:
            raise _storage_error(self.directory, -status)

    @property
    def suspect(self) -> bool:
        """A sync failed: nothing is appended until `sync` returns."""
        return bool(self._w[log_state.L_SUSPECT])

    def _is_suspect(self) -> StorageError:
        return StorageError(
            f"{self.directory}: a sync failed: what it covered is stored again first", errno.EIO
        )

    def sync(self) -> int:
        """Make records appended before durable. Returns the durable token. Raises StorageError.

        After it raised, nothing is appended until a call returns: that call stores the active
        segment in another file.
        """
        if self.fsync == "none":
            self._w[log_state.L_DURABLE_TOKEN] = self._w[log_state.L_NEXT_TOKEN]
            return self.durable_token
        with self._lock:
            try:
                if self.suspect and self._w[log_state.L_FD] >= 0:
                    self._replace_active()
                    return self.durable_token
            except OSError as problem:
                self.unreadable = isinstance(problem, NotReadError)
                raise StorageError(
                    f"{self.directory}: {problem.strerror}", problem.errno or 0
                ) from problem
            status = int(sync_active(self.state.words)) if self._w[log_state.L_FD] >= 0 else 0
            if status < 0:
                self._doubt()
                raise _storage_error(self.directory, -status)
        return self.durable_token

    def _sync_segment(self) -> None:
        try:
            os.fdatasync(int(self._w[log_state.L_FD]))
        except OSError:
            self._doubt()
            raise

    def _doubt(self) -> None:
        """A sync failed: note it on disk, so that the next engine sees it if this engine ends."""
        self._w[log_state.L_SUSPECT] = 1
        self._mark()
        with contextlib.suppress(OSError):
            self._keep_unsynced()

    def _mark(self) -> None:
        with contextlib.suppress(OSError):
            (self.directory / unsynced_name(int(self._w[log_state.L_BASE_TOKEN]))).touch()

    def _keep_unsynced(self) -> None:
        """Read the bytes that are not durable before the kernel drops their pages."""
        w, fd = self._w, int(self._w[log_state.L_FD])
        start, end = int(w[log_state.L_DURABLE_POSITION]), int(w[log_state.L_POSITION])
        while start and (left := end - start - len(self._unsynced)) > 0:
            some = os.pread(fd, min(left, 1 << 20), end - left)
            if not some:
                raise NotReadError
            self._unsynced += some

    def _sync_file(self, fd: int) -> None:
        status = int(sync_file(self.state.words, fd))
        if status < 0:
            raise OSError(-status, os.strerror(-status))

    def _replace_active(self) -> None:
        """Store the active segment in another file; all of it is durable then. Raises OSError."""
        w = self._w
        base, end, token = (
            int(w[log_state.L_BASE_TOKEN]),
            int(w[log_state.L_POSITION]),
            self.next_token,
        )
        path = self.directory / segment_name(base)
        self._mark()  # the disk may have refused it before
        self._keep_unsynced()
        rewrite_segment(
            path,
            end,
            self._sync_file,
            sound_from=int(w[log_state.L_DURABLE_POSITION]),
            tail=bytes(self._unsynced),
        )
        fresh = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        os.close(int(w[log_state.L_FD]))
        w[log_state.L_FD] = fresh
        w[log_state.L_GENERATION] += 1  # readers open it again
        w[log_state.L_DURABLE_POSITION], w[log_state.L_DURABLE_TOKEN] = end, token
        self._unsynced.clear()
        w[log_state.L_SUSPECT] = 0
        (self.directory / unsynced_name(base)).unlink(missing_ok=True)

    @property
    def next_token(self) -> int:
        """Token that the next record gets."""
        return int(self._w[log_state.L_NEXT_TOKEN])

    @property
    def durable_token(self) -> int:
        """All tokens below are on the device (with policy `none`: written).

        With a storage beside the log they are there, too.
        """
        if self._w[log_state.L_STORED]:
            return min(self.synced_token, self.stored_token)
        return int(
            self._w[log_state.L_NEXT_TOKEN if self.fsync == "none" else log_state.L_DURABLE_TOKEN]
        )

    # --- a storage beside the log -----------------------------------------------------------------

    def expect_storage(self, *, alone: bool = False) -> None:
        """From now on records are durable when a storage beside the log has them, too.

        ``alone``: the next owner has only the storage, so consumers read no further than it.
        """
        if alone:
            self._w[log_state.L_SYNCED_READS] = 1
        self._w[log_state.L_STORED_TOKEN] = 0
        self._w[log_state.L_STORED] = 1

    def note_stored(self, token: int) -> None:
        """The storage beside the log has all tokens below ``token``. Called by one thread."""
        note_stored(self.state.words, token)

    @property
    def stored_token(self) -> int:
        """All tokens below are in the storage beside the log."""
        return int(self._w[log_state.L_STORED_TOKEN])

    @property
    def synced_token(self) -> int:
        """All tokens below are on the device; a storage beside the log may lack them."""
        return int(self._w[log_state.L_DURABLE_TOKEN])

    @property
    def earliest_token(self) -> int:
        """The oldest token that is kept."""
        return int(self._w[log_state.L_EARLIEST_TOKEN])

    @property
    def _first(self) -> int:
        return int(self._w[log_state.L_FIRST_SEGMENT])

    @property
    def segment_bytes(self) -> int:
        """Bytes at which a segment is full."""
        return int(self._w[log_state.L_SEGMENT_BYTES])

    def roll_at(self, n: int) -> None:
        """Set the size at which a segment is full, from the next batch on."""
        self._w[log_state.L_SEGMENT_BYTES] = n

    @property
    def segments(self) -> list[Segment]:
        """All segments, oldest first; the last segment is active."""
        found = []
        for number in range(self._first, int(self._w[log_state.L_END_SEGMENT])):
            base, n, latest, created = self.state.segments[number % log_state.SEGMENTS_MAX].tolist()
            found.append(Segment(base, n, latest, created))
        found[-1].bytes = int(self._w[log_state.L_POSITION])
        found[-1].time_max = int(self._w[log_state.L_TIME_MAX])
        return found

    @property
    def bytes(self) -> int:
        """Bytes of all segments."""
        return int(bytes_of(self._w))

    # --- retention --------------------------------------------------------------------------------

    def retain(
        self,
        *,
        bytes_max: int = 0,
        age_max_ns: int = 0,
        now_ns: int = 0,
        hold_token: int | None = None,
    ) -> list[Segment]:
        """Delete old segments above ``bytes_max`` or ``age_max_ns`` (0: no limit). Returns them.

        Never the active segment, and no segment with a record at or behind ``hold_token``, or with
        a record that the storage beside the log lacks.
        """
        if self._w[log_state.L_STORED]:
            stored = self.stored_token
            hold_token = stored if hold_token is None else min(hold_token, stored)
        segments = self.segments
        total, gone = sum(one.bytes for one in segments), []
        for one, following in itertools.pairwise(segments):
            too_many = bytes_max and total > bytes_max
            # all records of a segment were appended before the next segment was created
            too_old = age_max_ns and following.created_ns < now_ns - age_max_ns
            if not (too_many or too_old):
                break
            if hold_token is not None and following.base_token > hold_token:
                break
            self._w[log_state.L_FIRST_SEGMENT] += 1
            self._w[log_state.L_EARLIEST_TOKEN] = following.base_token
            self._w[log_state.L_DELETED_BYTES] += one.bytes
            (self.directory / segment_name(one.base_token)).unlink(missing_ok=True)
            (self.directory / index_name(one.base_token)).unlink(missing_ok=True)
            (self.directory / snapshot_name(one.base_token)).unlink(missing_ok=True)
            if self.fsync != "none":  # before the next deletion: a loss of power leaves no hole
                sync_directory(self.directory)
            total -= one.bytes
            gone.append(one)
        return gone

    # --- reading ----------------------------------------------------------------------------------

    def reader(self, *, synced: bool = False) -> LogReader:
        """A reader with its own position and descriptor.

        ``synced``: it reads all records on the device; else only records that consumers may read.
        """
        return LogReader(self, synced=synced)

    def token_at_time(self, time_ns: int) -> int:
        """The first token in a batch that holds a record not older than ``time_ns``.

        `next_token` when there is none.
        """
        for one in self.segments:
            if one.time_max >= time_ns:
                return self._token_in(one, time_ns)
        return self.next_token

    def _token_in(self, one: Segment, time_ns: int) -> int:
        reader = self.reader()
        position = int(seek_time(reader.state.words, one.base_token, time_ns))
        reader.close()
        fd = os.open(self.directory / segment_name(one.base_token), os.O_RDONLY | os.O_CLOEXEC)
        try:
            scanner = Scanner(fd, one.bytes)
            scanner.reset(position)
            while (rows := scanner.next_rows()).shape[0]:
                late = np.flatnonzero(rows[:, C_TIME_MAX] >= time_ns)
                if late.size:
                    return int(rows[late[0], C_BASE_TOKEN])
            return max(scanner.token, one.base_token)  # damaged: to pass over it would be silent
        finally:
            os.close(fd)

    # --- end --------------------------------------------------------------------------------------

    def close(self) -> None:
        """Sync (unless the policy is `none`) and close. Idempotent."""
        with self._lock:
            if self._w[log_state.L_FD] >= 0 and self.fsync != "none" and not self.suspect:
                if sync_active(self.state.words) < 0:  # another sync would succeed: the next
                    self._doubt()  # engine has to know
        self.abandon()

    def abandon(self) -> None:
        """Close its files as they are, as the kernel does for a process that died. Idempotent."""
        with self._lock:
            self._close_active()
            if self._w[log_state.L_DIRECTORY_FD] >= 0:
                os.close(int(self._w[log_state.L_DIRECTORY_FD]))
                self._w[log_state.L_DIRECTORY_FD] = -1

    def __enter__(self) -> QueueLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _storage_error(directory: Path, number: int) -> StorageError:
    return StorageError(f"{directory}: {os.strerror(number)}", number)


class LogReader:
    """Reads a log from any token on. Only one thread at a time may use it."""

    def __init__(self, log: QueueLog, *, synced: bool = False) -> None:
        self.log = log
        self.state: State = log_state.READER.make(
            log=log.state,
            w=np.zeros(log_state.READER_WORDS, dtype=np.int64),
            name=np.zeros(log_state.NAME_BYTES, dtype=np.uint8),
            entry=np.zeros(lay.BATCH_HEADER_BYTES, dtype=np.uint8),
        )
        w = self.state.w
        w[log_state.R_FD] = w[log_state.R_BASE_TOKEN] = w[log_state.R_TOKEN] = -1
        w[log_state.R_SYNCED] = int(synced)

    def read_block(self, token: int, buffer: np.ndarray) -> int:
        """Fill ``buffer`` with whole batches, from the batch with ``token``; bytes, 0: none.

        `next_token` is then the token to continue with. Raises NotFound (deleted by retention),
        CorruptLog, StorageError; ValueError when ``buffer`` is smaller than the batch (`need`).
        """
        n = int(read_run(self.state.words, token, buffer, 0, buffer.size))
        if n == CORRUPT and self._find_behind_damage(token):
            n = int(read_run(self.state.words, token, buffer, 0, buffer.size))
        if n >= 0:
            return n
        w = self.state.w
        if n == GONE:
            raise NotFound(
                f"{self.log.topic}/{self.log.queue}: token {token} was deleted by retention: the "
                f"oldest is {self.log.earliest_token}"
            )
        if n == CORRUPT:
            raise CorruptLog(
                f"{self.log.topic}/{self.log.queue}: token {token}: {self.damaged} at "
                f"{int(w[log_state.R_BAD_POSITION])}: {CAUSES[int(w[log_state.R_BAD_CAUSE])]}"
            )
        if n == NEED_ROOM:
            raise ValueError(f"a batch of {self.need} bytes does not fit {buffer.size}")
        raise _storage_error(self.log.directory, -n)

    def _find_behind_damage(self, token: int) -> bool:
        """After damage: search the batch with ``token`` behind it. True: it is there, and sound."""
        w = self.state.w
        fd, position = int(w[log_state.R_FD]), int(w[log_state.R_BAD_POSITION])
        scanner = Scanner(fd, os.fstat(fd).st_size)
        scanner.reset(next_sound(fd, position + 1, 0, scanner.file_end))
        if scanner.position < 0:
            return False
        for rows in sound_rows(scanner):
            at = int(np.searchsorted(rows[:, C_BASE_TOKEN], token, side="right")) - 1
            if at < 0:
                return False
            if token < rows[at, C_BASE_TOKEN] + rows[at, C_COUNT]:
                w[log_state.R_TOKEN], w[log_state.R_POSITION] = token, rows[at, C_POSITION]
                return True
        return False

    @property
    def damaged(self) -> Path:
        """The segment in which the last read met damage."""
        return self.log.directory / segment_name(int(self.state.w[log_state.R_BAD_BASE]))

    def give_back(self, n: int, token: int) -> None:
        """Read the last ``n`` bytes of the last read again next, from ``token`` on.

        Without a search: they must be whole batches that `read_block` has just returned.
        """
        w = self.state.w
        w[log_state.R_TOKEN] = token
        w[log_state.R_POSITION] -= n

    @property
    def need(self) -> int:
        """Bytes that the last read lacked room for."""
        return int(self.state.w[log_state.R_NEED])

    @property
    def searches(self) -> int:
        """How often a read did not begin where the previous read ended."""
        return int(self.state.w[log_state.R_SEARCHES])

    @property
    def next_token(self) -> int:
        """The token behind the last read."""
        return int(self.state.w[log_state.R_TOKEN])

    def close(self) -> None:
        """Close the segment that is open. The reader may be used again."""
        close_reader(self.state.words)
