"""Messages of a writer from runs, and runs from messages. No Python object is made a record."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tidecast.errors import CorruptLog, PayloadTooLarge, StorageError
from tidecast.jetstream import frame_kernels as frames
from tidecast.jetstream.cursor import Scanner
from tidecast.jetstream.storing import message_kernels as kernels
from tidecast.layout import segment as seg
from tidecast.log.batch import RECORD_FIELDS
from tidecast.queues.adapter import Record, Run, pack

CHUNK_BYTES = 512 << 10
ROOM_BYTES_MAX = 512 << 20


class Chunk(NamedTuple):
    """Messages to send: their frames, which `Encoder` overwrites with the next, and their tokens.

    ``expected``: the sequence before the first; ``behind``: the token behind the last.
    """

    data: memoryview
    token: int
    behind: int
    expected: int

    @property
    def records(self) -> int:
        """Its messages."""
        return self.behind - self.token


class Encoder:
    """Writes messages with a subject; answers go to ``reply``. Not for several threads."""

    def __init__(self, subject: str, reply: str) -> None:
        self._subject: Any = np.frombuffer(subject.encode(), dtype=np.uint8).copy()
        self._reply: Any = np.frombuffer(reply.encode(), dtype=np.uint8).copy()
        self._words = np.zeros(kernels.WRITE_WORDS, dtype=np.int64)
        self._rows = np.zeros((seg.BATCH_RECORDS_MAX, RECORD_FIELDS), dtype=np.int64)
        self._out = np.empty(CHUNK_BYTES, dtype=np.uint8)

    def encode(self, run: Run, token: int, expected: int, message_max: int) -> Chunk | None:
        """The next records of a run, from ``token`` on; None: it has none.

        Raises CorruptLog for bytes that are no run, PayloadTooLarge.
        """
        words = self._words
        while True:
            words[: kernels.P_COUNT] = token, expected, min(message_max, frames.BODY_BYTES_MAX)
            to = (self._subject, self._reply, self._out)
            size = int(kernels.encode_messages(run, run.size, words, self._rows, *to))
            need = int(words[kernels.P_NEED])
            if size != 0 or not 0 < need <= ROOM_BYTES_MAX:
                break
            self._out = np.empty(need, dtype=np.uint8)
        if size == kernels.TOO_LARGE or need > ROOM_BYTES_MAX:
            raise PayloadTooLarge(
                f"record {token}: a message of {need} bytes, and the server takes {message_max}: "
                "raise its max_payload"
            )
        if size < 0:
            raise CorruptLog(f"run to store from token {token}: its records do not add up")
        if size == 0:
            return None
        data: Any = self._out
        return Chunk(memoryview(data)[:size], token, int(words[kernels.P_BEHIND]), expected)


class RebuildScanner(Scanner):
    """Makes batches of the log from messages. ``token``: of the next record, -1: any.

    ``first``: of the first of the last run. ``gap``: the token behind a gap that ended that run,
    -1: there is none.
    """

    def __init__(self, where: str, limit: int, owner: int) -> None:
        super().__init__("", limit)
        self.words[frames.W_MODE] = frames.BARE
        self.scratch = np.zeros(kernels.SCRATCH_BYTES, dtype=np.uint8)
        self._rows = np.zeros((2, kernels.FIELDS), dtype=np.int64)
        self._made = np.zeros(kernels.REBUILD_WORDS, dtype=np.int64)
        self._where, self._owner = where, owner
        self.token = self.first = self.gap = -1

    def run(self, data: Any, at: int) -> Run:
        """The batches of the messages that were verified. Raises StorageError."""
        end, records = int(self.words[frames.W_END]), int(self.words[frames.W_RECORDS])
        out = np.empty(end - at + (records + 1) * kernels.SPARE_BYTES, dtype=np.uint8)
        self._made[:2] = self.token, self._owner
        n = int(
            kernels.rebuild_messages(
                data, at, end, self._made, out, self.scratch, self.fields, self._rows
            )
        )
        if n < 0:
            raise StorageError(f"{self._where}: a message behind record {self.token} is damaged")
        self.first, self.token, self.gap = self._made[kernels.R_TOKEN : kernels.R_GAP + 1].tolist()
        return out[:n]


def warm_up() -> None:
    """Compile or load the kernels: before the first record, not while it waits."""
    encoder = Encoder("s", "r")
    assert encoder.encode(pack([Record(b"x", b"k", {"a": "b"})]), 0, 0, 1 << 20) is not None
    words: Any = np.zeros(kernels.ANSWER_WORDS, dtype=np.int64)
    assert kernels.scan_answers(words.view(np.uint8), 0, 0, words) == kernels.MORE
    raw = b"HMSG s 1 $JS.ACK.s.c.1.1.1.1.0 18 19\r\nNATS/1.0\r\na: b\r\n\r\nx\r\n"
    data: Any = np.frombuffer(raw, dtype=np.uint8).copy()
    scanner = RebuildScanner("", 1 << 20, 0)
    scanner.scan(data, 0, data.size, 0, 1)
    scanner.run(data, 0)
