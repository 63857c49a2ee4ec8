"""Scanning a segment file batch by batch, in a window that slides: recovery, verification."""

from __future__ import annotations

import numpy as np

from tidecast.layout import segment as lay
from tidecast.log.batch import BAD_FIELD, BAD_RECORD, SHORT, check_batch, check_header, last_seq
from tidecast.native.handles import Kind
from tidecast.native.jit import inlined, kernel
from tidecast.native.memory import load_i64, load_u32
from tidecast.native.system.files import pread_all

(
    C_POSITION,
    C_LENGTH,
    C_BASE_TOKEN,
    C_COUNT,
    C_TIME_MAX,
    C_APPEND_TIME,
    C_PRODUCER,
    C_EPOCH,
    C_OWNER,
    C_BASE_SEQ,
    C_LAST_SEQ,
    C_ACKED_SEQ,
) = range(12)
SCAN_FIELDS = 12
"""Columns of a scan: one row a sound batch."""
SCAN_ROWS = 4096
WINDOW_BYTES = 1 << 20

END, MORE = 0, 1
X_POSITION, X_TOKEN, X_CAUSE, X_STATE, X_NEED = 0, 1, 2, 3, 4
"""Where the next batch should start, its token (-1: any), why no batch is there, END or MORE, and
the window that a long batch needs."""

SCAN = Kind(
    "Scan",
    [
        ("rows", np.int64, (SCAN_FIELDS,)),
        ("window", np.uint8, ()),
        ("w", np.int64, ()),  # X_*
    ],
)
_scan_of = SCAN.of


@inlined
def _note(S, n, at, length, last):
    row = S.rows[n]
    row[C_POSITION], row[C_LENGTH] = S.w[X_POSITION], length
    row[C_BASE_TOKEN] = load_i64(S.window, at + lay.BATCH_BASE_TOKEN_AT)
    row[C_COUNT] = load_u32(S.window, at + lay.BATCH_COUNT_AT)
    row[C_TIME_MAX] = load_i64(S.window, at + lay.BATCH_TIME_MAX_AT)
    row[C_APPEND_TIME] = load_i64(S.window, at + lay.BATCH_APPEND_TIME_AT)
    row[C_PRODUCER] = load_i64(S.window, at + lay.BATCH_PRODUCER_AT)
    row[C_EPOCH] = load_u32(S.window, at + lay.BATCH_EPOCH_AT)
    row[C_OWNER] = load_u32(S.window, at + lay.BATCH_OWNER_AT)
    row[C_BASE_SEQ] = load_i64(S.window, at + lay.BATCH_BASE_SEQ_AT)
    row[C_LAST_SEQ] = last
    row[C_ACKED_SEQ] = load_i64(S.window, at + lay.BATCH_ACKED_SEQ_AT)


@kernel
def scan_batches(words, fd, file_end):
    """List batches from X_POSITION on, up to ``file_end``: rows filled, or ``-errno``.

    X_STATE MORE: call again. END: nothing sound follows; X_CAUSE is 0 at the very end of the file.
    """
    S = _scan_of(words)
    W = S.w
    n = 0
    W[X_CAUSE], W[X_STATE] = 0, END
    while W[X_POSITION] < file_end:
        start = W[X_POSITION]
        got = pread_all(fd, S.window, 0, min(S.window.size, file_end - start), start)
        if got < 0:
            return got
        at = 0
        while at < got:
            length = check_batch(S.window, at, got)
            if length == SHORT and start + got < file_end:
                break  # it crosses the window
            token = load_i64(S.window, at + lay.BATCH_BASE_TOKEN_AT) if length > 0 else -1
            if length > 0 and W[X_TOKEN] >= 0 and token != W[X_TOKEN]:
                length = BAD_FIELD
            last = last_seq(S.window, at) if length > 0 else 0
            if last < 0:
                length = BAD_RECORD
            if length < 0:
                W[X_CAUSE] = length
                return n
            if n >= S.rows.shape[0]:
                W[X_STATE] = MORE
                return n
            _note(S, n, at, length, last)
            n += 1
            at += length
            W[X_POSITION] += length
            W[X_TOKEN] = token + load_u32(S.window, at - length + lay.BATCH_COUNT_AT)
        if at == 0:
            length = check_header(S.window, 0, got)
            if length < 0:
                W[X_CAUSE] = length
                return n
            W[X_NEED], W[X_STATE] = length, MORE
            return n
    return n


class Scanner:
    """Walks one segment file. `rows()` yields arrays int64[n, SCAN_FIELDS], see C_*."""

    def __init__(self, fd: int, file_end: int, token: int = -1) -> None:
        self.fd, self.file_end = fd, file_end
        self._state = SCAN.make(
            rows=np.zeros((SCAN_ROWS, SCAN_FIELDS), dtype=np.int64),
            window=np.zeros(WINDOW_BYTES, dtype=np.uint8),
            w=np.zeros(8, dtype=np.int64),
        )
        self.reset(lay.SEGMENT_HEADER_BYTES, token)

    def reset(self, position: int, token: int = -1) -> None:
        """Continue at ``position``, where the batch with ``token`` should start (-1: any)."""
        self._state.w[X_POSITION], self._state.w[X_TOKEN] = position, token

    @property
    def position(self) -> int:
        """Behind the last sound batch."""
        return int(self._state.w[X_POSITION])

    @property
    def token(self) -> int:
        """Token behind the last record of the last sound batch; -1 when there was none."""
        return int(self._state.w[X_TOKEN])

    @property
    def cause(self) -> int:
        """Why no batch follows (see `tidecast.log.batch.CAUSES`); 0 at the end of the file."""
        return int(self._state.w[X_CAUSE])

    def next_rows(self) -> np.ndarray:
        """The next batches; an empty array at the end. Raises OSError."""
        while True:
            n = int(scan_batches(self._state.words, self.fd, self.file_end))
            if n < 0:
                raise OSError(-n, "cannot read the segment")
            need = int(self._state.w[X_NEED])
            if need > self._state.window.size:
                self._state.replace("window", np.zeros(need, dtype=np.uint8))
            self._state.w[X_NEED] = 0
            if n or self._state.w[X_STATE] == END:
                rows: np.ndarray = self._state.rows
                return rows[:n]
