"""Writes one stream: in order, each record once, stored by a majority of its replicas.

One chunk of messages is under way at a time. Until all of it is answered it is sent again, byte by
byte the same, over as many connections as it takes: the stream refuses messages that it has
already, because each message expects the sequence before its own. Then a new run reads how far the
log is stored.
"""

from __future__ import annotations

import threading

from tidecast.connections.retries import Attempts
from tidecast.errors import Closed, ConnectionLost, Fenced, StorageError
from tidecast.jetstream.storing.channel import WRONG_SEQUENCE, Channel, Refused
from tidecast.jetstream.storing.fencing import record_subject, writer_subject
from tidecast.jetstream.storing.messages import Chunk, Encoder
from tidecast.jetstream.storing.notes import Mark
from tidecast.jetstream.streams import Streams
from tidecast.queues.adapter import Run

PATIENCE_S = 2.0
"""So long a chunk is sent again before the wait is reported; then it is sent on."""
_MESSAGE_MAX = 1 << 20


class StreamWriter:
    """See module. For one thread; `close` may come from another.

    ``mark``: all before this place in log and stream is stored. Else see `QueueWriter`.
    """

    def __init__(self, streams: Streams, queue: int, log: int, mark: Mark) -> None:
        self._streams, self._queue, self.mark = streams, queue, mark
        self._stream, _ = streams.queues[queue]
        self._where = f"stream {self._stream}"
        self._subject = record_subject(self._stream, log)
        self._channel = Channel(streams, self._where)
        self._encoder = Encoder(self._subject, self._channel.reply)
        self._doubtful: Chunk | None = None
        self._closing, self._busy = threading.Event(), threading.Lock()
        self.behind = mark.token
        self.records = self.bytes = self.errors = 0

    def write(self, run: Run, token: int) -> int:
        """Store the records of a run from ``token`` on; the token behind them.

        When it raises, `behind` is the token behind all that is known to be stored. ConnectionLost
        may leave a chunk in doubt: call again with a run that holds `behind`, which settles that
        chunk first.

        Raises Fenced when another writer has the stream, StorageError when the servers lost
        acknowledged messages, PayloadTooLarge, AuthError, ConfigError, Closed.
        """
        with self._busy:
            while not self._closing.is_set():
                chunk = self._doubtful
                if chunk is None:
                    limit = int(self._streams.server.get("max_payload", _MESSAGE_MAX))
                    chunk = self._encoder.encode(run, token, self.mark.sequence, limit)
                if chunk is None:
                    return token
                self._doubtful = chunk
                self._store(chunk)
                token = self.behind
        raise Closed(f"{self._where}: write after close")

    def _store(self, chunk: Chunk) -> None:
        attempts = Attempts(PATIENCE_S, self._pause)
        last = chunk.expected + chunk.records
        while True:
            try:
                self._send(chunk, last)
                return
            except ConnectionLost as lost:
                problem = lost
                if self._doubtful is None:
                    self.errors += 1
                    return  # a part is stored: the rest becomes another chunk
            self.errors += 1
            self._pause(0.0)  # raises when it is closed, also when no time is left
            attempts.wait(problem)

    def _pause(self, seconds: float) -> None:
        if self._closing.wait(seconds):
            raise Closed(f"{self._where}: write after close")

    def _send(self, chunk: Chunk, last: int) -> None:
        """Send a chunk, and wait until it is stored. Raises TidecastError."""
        try:
            try:
                self._channel.ask_all(chunk.data, chunk.expected + 1, last)
            finally:
                self._note_stored(chunk, self._channel.due - 1)
        except Refused as refused:
            if refused.number != WRONG_SEQUENCE:
                raise
            self._check_fence(chunk)
            raise StorageError(
                f"{refused}, and {self._channel.due - 1} is expected: another program writes to "
                f"{self._stream}.*, or a repetition was refused: it is read again how far the log "
                "is stored"
            ) from None

    def _check_fence(self, chunk: Chunk) -> None:
        """Raises Fenced, and StorageError when the servers lost acknowledged messages."""
        end = self._streams.state(self._queue).next - 1
        if end < chunk.expected:
            raise StorageError(
                f"{self._where}: its last sequence is {end}, and {chunk.expected} was acknowledged:"
                " the servers lost messages"
            )
        subject = writer_subject(self._stream)
        marker = self._streams.message(self._queue, {"last_by_subj": subject})
        if marker is not None and marker["seq"] > chunk.expected:
            raise Fenced(f"{self._where}: another writer has taken it over: {subject} names it")

    def _note_stored(self, chunk: Chunk, sequence: int) -> None:
        """The messages of a chunk are stored up to a sequence."""
        count = sequence - chunk.expected
        if count:
            self._doubtful = None
            self.behind = chunk.token + count
            self.mark = Mark(self.behind, sequence)
            self.records += count
            self.bytes += len(chunk.data) * count // chunk.records

    def close(self) -> None:
        """End a write that waits, hang up. Idempotent."""
        self._closing.set()
        self._channel.wake()
        with self._busy:
            self._channel.close()
