"""The file of grants of a topic's queues: producer epochs that the log may not contain yet.

A grant is appended and synced before the producer gets it, so its cost does not depend on the
number of producers. From time to time, and whenever the topic is opened, the file is written again
without replaced grants: then it is as long as the table of producers, which has a limit. That also
gives each owner of shared queues a separate file: at first it has a link to the file of the
previous owner.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path

from tidecast.disk import sync_directory, write_atomically
from tidecast.errors import CorruptLog
from tidecast.layout import segment as lay
from tidecast.log.files import checksum

GRANTS_NAME = "grants.log"
REPLACED_MAX = 1024
"""The file is written again when more grants than this, and than twice those kept, came since."""
_CRC = struct.Struct("<I")
_RECORD_BYTES = lay.PRODUCER_BYTES + _CRC.size


class GrantLog:
    """See module."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / GRANTS_NAME
        self._bytes = 0
        self._kept = 0
        self._suspect = False
        self.torn_bytes = 0
        """Bytes at the end that `load` ignored: a write that a crash cut short, or damage."""

    def load(self) -> bytes:
        """All grants, the newest last; without a torn grant at the end. Raises CorruptLog."""
        try:
            raw = self.path.read_bytes()
        except FileNotFoundError:
            return b""
        records = [raw[at : at + _RECORD_BYTES] for at in range(0, len(raw), _RECORD_BYTES)]
        sound = [_is_sound(record) for record in records]
        good = sound.index(False) if False in sound else len(sound)
        if any(sound[good:]):
            raise CorruptLog(
                f"{self.path}: it is damaged at byte {good * _RECORD_BYTES}: remove it if no "
                "publisher on another node is open"
            )
        self._bytes = good * _RECORD_BYTES
        self.torn_bytes = len(raw) - self._bytes
        return b"".join(record[: lay.PRODUCER_BYTES] for record in records[:good])

    def append(self, grant: bytes) -> None:
        """Append a grant; it is on disk when this returns. Raises OSError: it is not stored."""
        record = grant + _CRC.pack(checksum(grant))
        if self._suspect:  # a sync failed: bytes in the same blocks may never be stored
            write_atomically(self.path, self.path.read_bytes()[: self._bytes] + record)
            self._suspect = False
        else:
            self._append(record)
        self._bytes += _RECORD_BYTES

    def _append(self, record: bytes) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
        fd = os.open(self.path, flags, 0o600)
        try:
            os.ftruncate(fd, self._bytes)  # remove the bytes of a failed write
            if os.pwrite(fd, record, self._bytes) != len(record):
                raise OSError(28, os.strerror(28))
            self._suspect = True
            os.fsync(fd)
            self._suspect = False
        finally:
            os.close(fd)
        if not self._bytes:
            sync_directory(self.path.parent)

    @property
    def is_long(self) -> bool:
        """Should the file be written again?"""
        since = self._bytes // _RECORD_BYTES - self._kept
        return since > max(REPLACED_MAX, 2 * self._kept)

    def rewrite(self, grants: bytes) -> None:
        """Nothing but these. Raises OSError, and then it is as before."""
        if not grants and not self._bytes and not self.path.exists():
            return
        one = lay.PRODUCER_BYTES
        each = [grants[at : at + one] for at in range(0, len(grants), one)]
        write_atomically(self.path, b"".join(g + _CRC.pack(checksum(g)) for g in each))
        self._suspect = False
        self._kept, self._bytes = len(each), len(each) * _RECORD_BYTES


def _is_sound(record: bytes) -> bool:
    grant, crc = record[: lay.PRODUCER_BYTES], record[lay.PRODUCER_BYTES :]
    return len(record) == _RECORD_BYTES and _CRC.unpack(crc)[0] == checksum(grant)
