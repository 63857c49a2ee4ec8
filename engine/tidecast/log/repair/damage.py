"""The bytes behind a damaged batch: where the next sound batch begins, and whether it was acked."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from tidecast.layout import segment as lay
from tidecast.log.reading import scan
from tidecast.log.reading.select import find_batch
from tidecast.native.packing import unpack_from

SEARCH_BYTES, OVERLAP_BYTES = 8 << 20, 2 << 20


def next_sound(fd: int, position: int, token: int, end: int) -> int:
    """Where the next sound batch at or behind ``position`` starts, its token not below; or -1.

    ``end``: bytes of the file when it was scanned; bytes appended later are no sign of damage.
    """
    found = _search(fd, position, token, end, SEARCH_BYTES, OVERLAP_BYTES)
    if found >= 0 or end - position <= SEARCH_BYTES:
        return found
    longest = lay.BATCH_BYTES_MAX  # a batch that is larger than the overlap above
    return _search(fd, position, token, end, longest + SEARCH_BYTES, longest)


def _search(
    fd: int, position: int, token: int, end: int, window_bytes: int, overlap_bytes: int
) -> int:
    while position < end:
        window: Any = np.empty(min(window_bytes, end - position), dtype=np.uint8)
        n = os.preadv(fd, [window], position)
        at = int(find_batch(window, n, 0, token))
        if at >= 0:
            return position + at
        if position + n >= end or n <= overlap_bytes:
            break
        position += n - overlap_bytes  # a batch may begin in one window and end in the next
    return -1


def sound_rows(scanner: scan.Scanner) -> Iterator[np.ndarray]:
    """Rows of all sound batches of a segment, from where ``scanner`` is; damage is passed over."""
    while True:
        while (rows := scanner.next_rows()).shape[0]:
            yield rows
        found = -1
        if scanner.position < scanner.file_end:
            found = next_sound(scanner.fd, scanner.position + 1, scanner.token, scanner.file_end)
        if found < 0:
            return
        scanner.reset(found)


class Acked:
    """How far a segment had been acked, according to its batches from ``position`` on.

    A batch names the sequence up to which all records of its producer were acked when it was
    appended. Acked records, and all records before them in the file, had been written and synced
    by the policy.
    """

    def __init__(self, fd: int, size: int, position: int) -> None:
        self._fd = fd
        scanner = scan.Scanner(fd, size)
        scanner.reset(position)
        rows = np.concatenate(list(sound_rows(scanner)))
        ids, at = np.unique(rows[:, scan.C_PRODUCER], return_inverse=True)
        acked = np.zeros(ids.size, dtype=np.int64)
        np.maximum.at(acked, at, rows[:, scan.C_ACKED_SEQ])
        acked[ids == 0] = 0  # no producer, no acks
        self._acked = dict(zip(ids.tolist(), acked.tolist(), strict=True))
        sure = rows[rows[:, scan.C_BASE_SEQ] <= acked[at]]
        self.end = int((sure[:, scan.C_POSITION] + sure[:, scan.C_LENGTH]).max(initial=0))

    def covers(self, position: int, token: int) -> bool:
        """Whether the damaged batch at ``position``, which should hold ``token``, was acked."""
        if position < self.end:
            return True
        raw = os.pread(self._fd, lay.BATCH_HEADER_BYTES, position)
        if len(raw) < lay.BATCH_HEADER_BYTES:
            return False
        head = np.frombuffer(raw, dtype=np.uint8)
        (base,) = unpack_from("<q", head, lay.BATCH_BASE_TOKEN_AT)
        (producer,) = unpack_from("<q", head, lay.BATCH_PRODUCER_AT)
        (first,) = unpack_from("<q", head, lay.BATCH_BASE_SEQ_AT)
        return bool(base == token and 0 < first <= self._acked.get(producer, 0))
