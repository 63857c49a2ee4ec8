"""Reads one queue at requested sequences, and never fetches a message that it has.

Two places of a queue are kept, each with its consumer, its connection and the block that was read
last: of a subscription at the end, and of one that is behind. A pause of a reader costs no byte.
"""

from __future__ import annotations

import contextlib
import threading
import time

from tidecast.connections.retries import Outage
from tidecast.errors import (
    AuthError,
    Closed,
    ConfigError,
    ConnectionLost,
    NotFound,
    StorageError,
    TidecastError,
)
from tidecast.jetstream.cursor import Cursor
from tidecast.jetstream.streams import Streams
from tidecast.queues.adapter import Received, Run

CURSORS_MAX = 2
PATIENCE_S = 10.0
"""So long a stream may be without a server before that is an error."""
LOOK_S_MIN, LOOK_S_MAX = 0.1, 2.0
"""How often a reader that gets nothing looks whether there is a hole before the end."""
STUCK_S = 10.0
"""A message that is there and is not sent for so long is asked for by another consumer."""
_CLOSE_S = 5.0


class JetStreamReceiver:
    """See `tidecast.queues.adapter.Receiver`."""

    def __init__(self, streams: Streams, queue: int) -> None:
        self._streams, self.queue = streams, queue
        self._where = streams.where(queue)
        self._cursors: list[Cursor] = []
        self._closing, self._busy = threading.Event(), threading.Lock()
        self._outage = Outage(PATIENCE_S)
        self._was_linked = False
        self._look_s, self._looked_s, self._stuck_s = LOOK_S_MIN, 0.0, 0.0
        self._hole = (0, 0)
        """The hole that was found last: the first token of it, and the first behind it. The watch
        of the end finds it, and the reader that it wakes need not look again."""
        self.fetches = self.records = self.bytes = self.errors = self.reconnects = 0
        """See `Counts`."""
        self.behind, self.end = -1, 0
        """The token behind the last read message, -1: none yet; the newest end that is known."""

    @property
    def is_closed(self) -> bool:
        """It receives nothing more."""
        return self._closing.is_set()

    # --- receiving --------------------------------------------------------------------------------

    def receive(self, token: int, buffer: Run, timeout_s: float) -> Received:
        """See `Receiver.receive`."""
        deadline = time.monotonic() + timeout_s
        with self._busy:
            try:
                while not self._closing.is_set():
                    held = next((one for one in self._cursors if one.covers(token)), None)
                    if held is not None:
                        return self._noted(held.cut(token, buffer))
                    if self._hole[0] <= token < self._hole[1]:
                        return self._noted(Received(0, self._hole[1]))
                    passed = self._fetch(token, deadline)
                    if passed is not None:
                        return self._noted(Received(0, passed))
            except (StorageError, AuthError, ConfigError):
                self.errors += 1
                self._drop_all()
                raise
            self._drop_all()  # `close` may not have waited for this receive
        raise Closed(f"{self._where}: receive after close")

    def _noted(self, got: Received) -> Received:
        if not got.need:
            self.behind = got.next_token
            self.end = max(self.end, got.end, got.next_token)
        return got

    def _fetch(self, token: int, deadline: float) -> int | None:
        """Read from ``token`` on. None: look again; else no record comes before that token."""
        try:
            cursor = self._cursor_at(token)
            found = cursor.read(min(deadline, max(time.monotonic(), self._due_s())))
            self._outage.end()
            if found is not None:
                self._count(cursor)
                return None
            return self._look(cursor, token, deadline)
        except ConnectionLost as problem:
            return self._wait(problem, token, deadline)

    def _count(self, cursor: Cursor) -> None:
        block = cursor.block
        assert block is not None
        self.fetches += 1
        self.records += block.records
        self.bytes += block.bytes
        self._look_s, self._stuck_s = LOOK_S_MIN, 0.0
        self._looked_s = time.monotonic()
        if block.gaps:
            first = self._streams.state(self.queue).first
            if first > max(block.token, 1):
                cursor.note_gone(first)
        with contextlib.suppress(ConnectionLost):  # the next receive finds it, and waits
            cursor.ask()

    def _cursor_at(self, token: int) -> Cursor:
        """The cursor whose next message is the first from ``token`` on."""
        for cursor in self._cursors:
            if cursor.position == token:
                return cursor
        state = self._streams.state(self.queue)
        if max(token, 1) < state.first:
            raise NotFound(f"{self._where}: sequence {token} is deleted: oldest: {state.first}")
        if token > state.next:
            raise ConnectionLost(
                f"{self._where}: sequence {token} is behind the end, {state.next}: the server lost "
                "messages: seek the subscription"
            )
        if len(self._cursors) == CURSORS_MAX:
            self._cursors.pop(0).close()
        made = Cursor(self._streams, self.queue, token)
        self.reconnects += self._was_linked and not self._cursors
        self._was_linked = True
        self._cursors.append(made)
        self._looked_s = time.monotonic()
        return made

    # --- holes at the end -------------------------------------------------------------------------

    def _due_s(self) -> float:
        return self._looked_s + self._look_s

    def _look(self, cursor: Cursor, token: int, deadline: float) -> int | None:
        """Nothing came: is it because of a hole that reaches to the end?"""
        now = time.monotonic()
        if now < self._due_s():
            return token if now >= deadline else None
        self._looked_s, self._look_s = now, min(2 * self._look_s, LOOK_S_MAX)
        end = self._streams.state(self.queue).next  # asked first: later messages are behind it
        if end > token:
            if not self._streams.next_from(self.queue, token):
                self._look_s, self._stuck_s = LOOK_S_MIN, 0.0
                cursor.pass_hole(end)
                self._hole = (token, end)
                return end
            self._stuck_s = self._stuck_s or now
            if now - self._stuck_s > STUCK_S:
                self._stuck_s = 0.0
                raise ConnectionLost(f"{self._where}: messages from {token} on do not arrive")
        return token if time.monotonic() >= deadline else None

    # --- servers that are away --------------------------------------------------------------------

    def _wait(self, problem: TidecastError, token: int, deadline: float) -> int | None:
        """Give the servers time. Raises ConnectionLost when they have had enough."""
        now = time.monotonic()
        self.errors += 1
        self._drop_all()
        self._outage.note(problem, now)
        self._closing.wait(self._outage.pause_s(deadline - now))
        return token if time.monotonic() >= deadline and not self._closing.is_set() else None

    def _drop_all(self) -> None:
        for cursor in self._cursors:
            cursor.close()
        self._cursors.clear()
        self._hole = (0, 0)  # the stream may be another one when it is reached again

    # --- places -----------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._closing.is_set():
            raise Closed(f"{self._where}: used after close")

    def earliest(self) -> int:
        """The oldest sequence that is kept; `latest` without a message."""
        self._check_open()
        state = self._streams.state(self.queue)
        if not self._streams.queues[self.queue][1]:
            return state.first
        return self._streams.next_from(self.queue, state.first) or state.next

    def latest(self) -> int:
        """The sequence that the stream gives to its next message."""
        self._check_open()
        self.end = found = self._streams.state(self.queue).next
        return found

    def at_time(self, time_ns: int) -> int:
        """See `Receiver.at_time`; the time is that of the server when it stored the message."""
        self._check_open()
        begin = self._streams.at_time(self.queue, time_ns)
        return self._streams.next_from(self.queue, begin) or self.latest()

    def ack(self, token: int) -> None:
        """Nothing: the stream deletes by its own limits."""

    def close(self) -> None:
        """See `Receiver.close`."""
        self._closing.set()
        if not self._busy.acquire(blocking=False):
            for cursor in list(self._cursors):
                cursor.link.wake()
            if not self._busy.acquire(timeout=_CLOSE_S):
                return
        try:
            self._drop_all()
        finally:
            self._busy.release()
