"""Reading a range of tokens of one queue from its files, with the filters applied; read only.

The engine may append to the same files meanwhile, and retention may delete them. Readers on the
engine's host use it directly; a gateway uses it for readers on other hosts.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tidecast.errors import CorruptLog, GapError
from tidecast.layout import segment as lay
from tidecast.log.batch import CAUSES, SHORT
from tidecast.log.files import index_name, read_index, segment_name
from tidecast.log.queue_files import position_before, segments_of
from tidecast.log.reading import select as log_select

BLOCK_BYTES = 8 << 20
TIME_MIN_NS, TIME_END_NS = -(1 << 62), (1 << 63) - 1
SKIPPED, LOST = "skipped", "lost"
"""Findings of a scan: a corrupt batch that was left out, tokens that retention deleted."""

Report = Callable[[str, dict[str, Any]], None]


@dataclass(frozen=True)
class Wanted:
    """Tokens [token_min, token_end), times [min, end), keys (None: any) with their hashes."""

    token_min: int
    token_end: int
    time_min_ns: int = TIME_MIN_NS
    time_end_ns: int = TIME_END_NS
    keys: tuple[bytes, ...] | None = None
    key_hashes: tuple[int, ...] = ()
    key_null: bool = False

    @property
    def filters(self) -> bool:
        """Records between the tokens may be left out."""
        return (
            self.keys is not None
            or self.time_min_ns > TIME_MIN_NS
            or self.time_end_ns < TIME_END_NS
        )


class Selector:
    """Lists the wanted records of blocks; holds the filters as the kernel wants them."""

    def __init__(self, wanted: Wanted, *, holes: bool = False) -> None:
        """``holes``: tokens may be missing between batches, since others left some out."""
        self.w = np.zeros(log_select.SELECT_WORDS, dtype=np.int64)
        self.w[log_select.W_TOKEN_MIN], self.w[log_select.W_TOKEN_END] = (
            wanted.token_min,
            wanted.token_end,
        )
        self.w[log_select.W_TIME_MIN], self.w[log_select.W_TIME_END] = (
            wanted.time_min_ns,
            wanted.time_end_ns,
        )
        self.w[log_select.W_KEYS] = log_select.NO_KEYS if wanted.keys is None else len(wanted.keys)
        self.w[log_select.W_KEY_NULL], self.w[log_select.W_HOLES] = wanted.key_null, holes
        keys = wanted.keys or ()
        self._keys = np.frombuffer(bytearray(b"".join(keys) + b"\0"), dtype=np.uint8)
        self._key_ends = np.cumsum([len(k) for k in keys] or [0]).astype(np.int64)
        self._hashes = np.array(wanted.key_hashes or (0,), dtype=np.int64)
        self.rows = np.zeros((0, 2), dtype=np.int64)
        """Offset and token of each record listed last."""

    def select(self, block: np.ndarray, size: int, expected: int) -> int:
        """Rows listed from the batches of ``block[:size]``, or a cause below zero."""
        room = size // lay.RECORD_HEADER_BYTES + 1
        if self.rows.shape[0] < room:
            self.rows = np.zeros((room, 2), dtype=np.int64)
        w = self.w
        w[log_select.W_AT], w[log_select.W_NEXT_TOKEN], w[log_select.W_EXPECTED] = 0, 0, expected
        return int(
            log_select.select_records(
                block, size, w, self._keys, self._key_ends, self._hashes, self.rows
            )
        )


def _unreported(what: str, about: dict[str, Any]) -> None:
    """Ignore the report."""


class RangeScan:
    """Walks a range through its segments: yields blocks and how many rows `selector` lists in each.

    Behind a block, ``token`` is where the next one begins, and ``selector.w[W_AT]`` where the last
    whole batch ended.
    """

    def __init__(
        self,
        directory: Path,
        topic: str,
        queue: int,
        wanted: Wanted,
        *,
        skip_corrupt: bool = False,
        fail_on_data_loss: bool = True,
        report: Report = _unreported,
        block_bytes: int = BLOCK_BYTES,
    ) -> None:
        self.selector = Selector(wanted)
        self.token = wanted.token_min
        self._directory, self._topic, self._queue = directory, topic, queue
        self._skip_corrupt, self._fail_on_data_loss = skip_corrupt, fail_on_data_loss
        self._report, self._end = report, wanted.token_end
        self._block: Any = np.empty(block_bytes, dtype=np.uint8)

    def __iter__(self) -> Iterator[tuple[np.ndarray, int]]:
        """Raises CorruptLog, GapError."""
        while self.token < self._end:
            bases = segments_of(self._directory)
            held = [b for b in bases if b <= self.token]
            if not held:
                self._lost(bases[0] if bases else self._end)
                continue
            base = held[-1]
            following = min((b for b in bases if b > base), default=self._end)
            try:
                fd = os.open(self._directory / segment_name(base), os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:  # retention was quicker
                continue
            try:
                yield from self._segment(fd, base, following)
            finally:
                os.close(fd)

    def _segment(self, fd: int, base: int, following: int) -> Iterator[tuple[np.ndarray, int]]:
        """All wanted batches of a segment; `token` is behind them afterwards."""
        position, expected = position_before(self._directory, base, self.token)
        until = min(following, self._end)
        w = self.selector.w
        while self.token < until:
            size = os.preadv(fd, [self._block], position)
            n = self.selector.select(self._block, size, expected)
            expected = int(w[log_select.W_EXPECTED])
            self.token = max(self.token, int(w[log_select.W_NEXT_TOKEN]))
            if n < 0 or w[log_select.W_NEXT_TOKEN] == 0:  # the latter: not a single batch there
                position, expected = self._problem(
                    fd, base, position, size, n if n < 0 else SHORT, expected, until
                )
                continue
            yield self._block, n
            position += int(w[log_select.W_AT])

    def _problem(
        self, fd: int, base: int, position: int, size: int, cause: int, expected: int, until: int
    ) -> tuple[int, int]:
        """The next place when no batch could be taken: (position, token expected there)."""
        at = int(self.selector.w[log_select.W_AT])
        position += at
        if cause == SHORT and size == self._block.size and at > 0:
            return position, expected  # its end is in the next block
        if cause == SHORT and size == self._block.size:
            need = int(self._block[:4].view("<u4")[0])
            if lay.BATCH_HEADER_BYTES <= need <= os.fstat(fd).st_size - position:
                self._block = np.empty(need + BLOCK_BYTES, dtype=np.uint8)
                return position, expected
        if cause == log_select.TOKEN_GAP:
            # a part's first batch may begin before its start; tokens never go back otherwise
            text = f"tokens {expected} to {int(self.selector.w[log_select.W_GAP]) - 1} are missing"
        else:
            text = CAUSES[cause]
        return self._corrupt(fd, base, position, text, max(self.token, expected), until)

    def _corrupt(
        self, fd: int, base: int, position: int, text: str, token: int, until: int
    ) -> tuple[int, int]:
        path = self._directory / segment_name(base)
        where = f"{self._topic}/{self._queue}: token {token}: {path} at {position}: {text}"
        if not self._skip_corrupt:
            raise CorruptLog(
                f"{where}. With option mode=skip such batches are left out and counted; "
                "`tidecast queue verify` checks a whole queue"
            )
        found = self._next_sound(fd, base, position, token)
        after = until if found < 0 else self._base_token(fd, found)
        self._report(
            SKIPPED,
            {
                "topic": self._topic,
                "queue": self._queue,
                "token": token,
                "tokens_lost": max(0, after - token),
                "file": str(path),
                "position": position,
                "cause": text,
            },
        )
        if found < 0:
            self.token = until
            return position, -1
        self.token = max(self.token, after)
        return found, -1

    def _next_sound(self, fd: int, base: int, position: int, token: int) -> int:
        """Where the next sound batch of the segment starts, or -1."""
        file_size = os.fstat(fd).st_size
        entries = read_index(self._directory / index_name(base))
        stops = [int(p) for p in entries[:, 1] if p > position] + [file_size]
        start = position + 1
        for stop in stops:
            if start >= file_size:
                break
            window: Any = np.empty(min(stop + BLOCK_BYTES, file_size) - start, dtype=np.uint8)
            size = os.preadv(fd, [window], start)
            at = int(log_select.find_batch(window, size, 0, token)) if size > 0 else -1
            if at >= 0:
                return start + at
            start = stop
        return -1

    def _base_token(self, fd: int, position: int) -> int:
        raw = os.pread(fd, 8, position + lay.BATCH_BASE_TOKEN_AT)
        return int.from_bytes(raw, "little")

    def _lost(self, earliest: int) -> None:
        """Retention has deleted records that were to be read: raise, or report and continue."""
        first, end = self.token, min(earliest, self._end)
        if self._fail_on_data_loss:
            raise lost(self._topic, self._queue, first, end)
        self._report(LOST, {"topic": self._topic, "queue": self._queue, "token": first, "end": end})
        self.token = end


def lost(topic: str, queue: int, first: int, end: int) -> GapError:
    """The error of a read that retention has overtaken."""
    return GapError(
        f"{topic}/{queue}: tokens {first} to {end - 1} were deleted by retention before they were "
        "read. Keep more (retention), read faster, or set failOnDataLoss=false to continue with "
        "what is left",
        (first, end),
    )
