"""A consumer of a stream, read over a connection of its own from one sequence on.

The server sends no more than was asked for. Arrived messages are a block: a run that is kept until
the next block follows. A consumer acknowledges nothing and is never shared: it only keeps the
place.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import time
from typing import Any, NamedTuple

import numpy as np

from tidecast.errors import ConnectionLost, NotFound, StorageError, TidecastError
from tidecast.jetstream import frame_kernels as kernels
from tidecast.jetstream.connection import ROOM_MIN, Frame
from tidecast.jetstream.streams import Streams
from tidecast.queues.adapter import LeftOut, Received, Run
from tidecast.queues.foreign.runs import Cutter
from tidecast.queues.records import head_of

PULLS = 2
"""Requests for messages that are under way at once."""
BATCH_MAX = 100_000
EXPIRES_NS, HEARTBEAT_NS = 30 * 1_000_000_000, 3 * 1_000_000_000
QUIET_S = 8.0
"""A server that sends nothing for so long, no heartbeat either, is away."""
_MANY_BYTES = 16 * 1024
_GONE = ("consumer deleted", "leadership change", "server shutdown", "consumer is push")
_WHY = {
    kernels.BAD_FRAME: "a frame that cannot be read",
    kernels.BAD_ORDER: "sequences that do not ascend",
}


class Block(NamedTuple):
    """Records with tokens in [token, behind). ``gone``: below it the stream keeps no message.

    ``left_out``: the only message, which a run cannot hold; then the run is empty.
    """

    token: int
    behind: int
    end: int
    run: Run
    records: int
    bytes: int
    gaps: int
    gone: int = 0
    left_out: LeftOut | None = None


class Scanner:
    """Takes messages of consumers out of bytes. Not for several threads at once.

    ``words``: see `frame_kernels.W_NEXT`.
    """

    def __init__(self, key_header: str, limit: int, *, stored: bool = False) -> None:
        """``stored``: of a stream that a durable topic is stored in."""
        self.name: Any = np.frombuffer(key_header.encode() or b"\0", dtype=np.uint8)
        self.words = np.zeros(kernels.SCAN_WORDS, dtype=np.int64)
        self.fields = np.zeros(kernels.FIELDS, dtype=np.int64)
        self.scratch = np.zeros(kernels.SCRATCH_BYTES, dtype=np.uint8)
        self.words[kernels.W_LIMIT] = limit
        self.words[kernels.W_MODE] = kernels.STORED if stored else int(bool(key_header))

    def scan(self, data: Any, at: int, end: int, due: int, number: int) -> int:
        """Verify messages; why the scan ends. ``due``: no sequence is below it."""
        self.words[kernels.W_NEXT], self.words[kernels.W_NUMBER] = due, number
        return int(kernels.scan_frames(data, at, end, self.name, self.words, self.fields))

    def run(self, data: Any, at: int) -> Run:
        """The messages that were verified, as a run."""
        out = np.empty(int(self.words[kernels.W_BYTES]), dtype=np.uint8)
        n = kernels.convert_frames(
            data,
            at,
            int(self.words[kernels.W_END]),
            self.name,
            self.words,
            out,
            self.scratch,
            self.fields,
        )
        assert n == out.size
        return out

    @property
    def sequence(self) -> int:
        """Of the message that was looked at last."""
        return int(self.fields[kernels.F_SEQUENCE])

    def left_out(self) -> LeftOut:
        """The message that cannot be held, which ended the scan."""
        sequence, size = self.sequence, int(self.words[kernels.W_NEED])
        key_n, map_n = int(self.fields[kernels.F_KEY_N]), int(self.fields[kernels.F_MAP_N])
        what, n = ("a key", key_n) if key_n > map_n else ("headers", map_n)
        reason = f"{what} of {n} bytes: at most {kernels.FIELD_BYTES_MAX}"
        if key_n == kernels.DAMAGED:
            reason = "its header tidecast-tail is damaged, or its payload is shorter"
        return LeftOut(sequence, sequence + 1, 1, size, reason)


class Cursor:
    """See module. ``position``: the token that the next block begins with."""

    def __init__(
        self, streams: Streams, queue: int, token: int, scanner: Scanner | None = None
    ) -> None:
        """``scanner``: makes other runs of the messages than those for consumers.

        Raises ConnectionLost, AuthError, ConfigError, StorageError, Closed.
        """
        self._streams, self._queue = streams, queue
        self._where = streams.where(queue)
        self.position = token
        self.block: Block | None = None
        size = streams.source.fetch_bytes
        self._size = size
        self._scanner = scanner or Scanner(
            streams.key_header(queue), size, stored=streams.is_stored(queue)
        )
        self._cutter = Cutter()
        self.link = streams.connect(size + ROOM_MIN)
        self._inbox = f"_INBOX.tidecast.{secrets.token_hex(11)}"
        self._stream = streams.queues[queue][0]
        self._number = 1
        self._asked = self._since = 0
        self._single = False
        self._asked_s = 0.0
        try:
            self.link.write(b"SUB %s 1\r\n" % self._inbox.encode())
            self._consumer = streams.create_consumer(queue, token)
        except BaseException:
            self.link.close()
            raise

    # --- messages ---------------------------------------------------------------------------------

    def ask(self) -> None:
        """Ask for messages, unless enough is under way."""
        wanted = 1 if self._single else PULLS
        while self._asked < wanted:
            body: dict[str, Any] = {"expires": EXPIRES_NS, "idle_heartbeat": HEARTBEAT_NS}
            body |= (
                {"batch": 1}
                if self._single
                else {"batch": BATCH_MAX, "max_bytes": self._size // PULLS}
            )
            subject = f"{self._streams.api}.CONSUMER.MSG.NEXT.{self._stream}.{self._consumer}"
            text = json.dumps(body).encode()
            self.link.write(
                b"PUB %s %s %d\r\n%s\r\n"
                % (subject.encode(), self._inbox.encode(), len(text), text)
            )
            self._asked += 1
            self._asked_s = time.monotonic()

    def read(self, deadline: float) -> Block | None:
        """The next block; None: nothing until the deadline. Raises TidecastError."""
        link, words = self.link, self._scanner.words
        need = 0
        while True:
            if link.end > link.at:
                why = self._scanner.scan(link.data, link.at, link.end, self.position, self._number)
                if words[kernels.W_RECORDS]:
                    return self._take()
                if why == kernels.OTHER:
                    found = link.frame(deadline)
                    if found is None:
                        return None
                    self._obey(found)
                    continue
                if why == kernels.LEFT_OUT:
                    return self._leave_out()
                if why != kernels.MORE:
                    raise self._refused(why)
                need = int(words[kernels.W_NEED])
            self.ask()
            if not self._fill(deadline, need):
                self._check_quiet()
                return None

    def _fill(self, deadline: float, need: int) -> int:
        """Take arrived bytes, together, as long as much comes."""
        link = self.link
        total = n = link.fill(deadline, need)
        while n >= _MANY_BYTES and link.end - link.at < self._size:
            n = link.fill(0.0, need)
            total += n
        return total

    def _check_quiet(self) -> None:
        quiet_s = time.monotonic() - max(self.link.heard_s, self._asked_s)
        if quiet_s > QUIET_S:
            raise ConnectionLost(f"server {self.link.address}: silent for {quiet_s:.0f} s")

    def _refused(self, why: int) -> TidecastError:
        if why == kernels.LOST:
            return ConnectionLost(
                f"{self._where}: messages before sequence {self._scanner.sequence} did not arrive"
            )
        return StorageError(
            f"{self._where} at server {self.link.address}: message behind {self.position - 1}: "
            f"{_WHY[why]}"
        )

    def _take(self) -> Block:
        link, words = self.link, self._scanner.words
        run = self._scanner.run(link.data, link.at)
        begin, end = link.at, int(words[kernels.W_END])
        link.take(end)
        records, behind = int(words[kernels.W_RECORDS]), int(words[kernels.W_BEHIND])
        block = Block(
            self.position,
            behind,
            behind + int(words[kernels.W_PENDING]),
            run,
            records,
            end - begin,
            int(words[kernels.W_GAPS]),
        )
        return self._taken(block, int(words[kernels.W_LAST_NUMBER]))

    def _leave_out(self) -> Block:
        """Pass the message that ended the scan."""
        link, fields = self.link, self._scanner.fields
        about = self._scanner.left_out()
        link.take(link.at + about.bytes)
        block = Block(
            self.position,
            about.end,
            about.end + int(fields[kernels.F_PENDING]),
            np.empty(0, dtype=np.uint8),
            1,
            about.bytes,
            int(about.first != self.position),
            left_out=about,
        )
        return self._taken(block, int(fields[kernels.F_NUMBER]))

    def _taken(self, block: Block, number: int) -> Block:
        """Note a block; ``number``: of its last message."""
        self._number = number + 1
        self._since += block.records
        if self._single or self._since >= BATCH_MAX:  # its request is over, and nothing says so
            self._end_request()
        self.position, self.block = block.behind, block
        return block

    def _end_request(self) -> None:
        self._asked, self._since, self._single = max(self._asked - 1, 0), 0, False

    def _obey(self, found: Frame) -> None:
        """Note the server's report on a request. Raises ConnectionLost, StorageError."""
        if found.name != "MSG" or found.status == 100:
            return
        text = found.text.lower()
        if found.status == 503:
            raise ConnectionLost(f"{self._where}: the server has forgotten the consumer")
        if found.status == 409 and text.startswith(_GONE):
            raise ConnectionLost(f"{self._where}: {found.text}")
        if found.status not in (404, 408, 409):
            raise StorageError(f"{self._where}: status {found.status}: {found.text}")
        if not self._since and text.startswith("batch completed"):
            return
        is_large = not self._since and "exceeds maxbytes" in text
        self._end_request()
        self._single = is_large

    def pass_hole(self, token: int) -> None:
        """No message comes before ``token``."""
        self.position = token

    # --- the block --------------------------------------------------------------------------------

    def covers(self, token: int) -> bool:
        """Does the block have the first message from ``token`` on?"""
        return self.block is not None and self.block.token <= token < self.block.behind

    def note_gone(self, first: int) -> None:
        """The stream keeps no message below ``first``: holes of the block before it are losses."""
        assert self.block is not None
        self.block = self.block._replace(gone=first)

    def cut(self, token: int, buffer: Run) -> Received:
        """Whole batches of the block from ``token`` on, or the message that is left out.

        Raises NotFound when messages are gone.
        """
        block = self.block
        assert block is not None
        if block.left_out is not None:
            self._check_kept(token, block.left_out.first, block.gone)
            return Received(0, block.behind, end=block.end, left_out=block.left_out)
        n, first, stop, behind = self._cutter.cut(block.run, token, buffer.size)
        if block.gone > token:
            base, _ = head_of(block.run, first)
            self._check_kept(token, base, block.gone)
            stop, behind = self._stretch(block.run, first, stop, behind)
            n = stop - first
        if n <= 0:
            return Received(0, token, need=self._cutter.need(block.run, token), end=block.end)
        buffer[:n] = block.run[first:stop]
        return Received(n, behind, end=max(block.end, behind))

    def _check_kept(self, token: int, base: int, gone: int) -> None:
        """Raise NotFound when messages before ``base`` were there, and are deleted."""
        if gone > token and base > token:
            raise NotFound(f"{self._where}: sequence {token} is deleted: the oldest is {gone}")

    def _stretch(self, run: Run, at: int, stop: int, behind: int) -> tuple[int, int]:
        """The end of batches without a hole between them from ``at`` on, and the token behind."""
        due = -1
        while at < stop:
            base, count = head_of(run, at)
            if due >= 0 and base != due:
                return at, due
            due = base + count
            at += self._cutter.need(run, base)
        return stop, behind

    def close(self) -> None:
        """Hang up; the consumer is deleted, if the server can still be reached. Idempotent."""
        subject = f"{self._streams.api}.CONSUMER.DELETE.{self._stream}.{self._consumer}"
        with contextlib.suppress(TidecastError):
            self.link.write(b"PUB %s 0\r\n\r\n" % subject.encode())
        self.link.close()


def warm_up() -> None:
    """Compile or load the kernels: before the first answer, not while it waits."""
    raw = b"HMSG s 1 $JS.ACK.s.c.1.1.1.1.0 18 19\r\nNATS/1.0\r\na: b\r\n\r\nx\r\n"
    data: Any = np.frombuffer(raw, dtype=np.uint8).copy()
    scanner = Scanner("", 1 << 20)
    assert scanner.scan(data, 0, data.size, 0, 1) == kernels.MORE
    run = scanner.run(data, 0)
    Cutter().cut(run, 0, 1 << 20)
