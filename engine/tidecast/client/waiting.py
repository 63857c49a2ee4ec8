"""How a client waits: back-off for room in a ring, the doorbell for messages and events.

Nothing here spins without an end: a little at first, then it sleeps on a futex (rings) or for at
most a millisecond (room). With an inline link no other thread runs the agents, so waiting runs
them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Callable
from typing import Protocol

import numpy as np

from tidecast.api.link import Link
from tidecast.client.kernels import ports
from tidecast.layout import ring as ring_layout
from tidecast.native.mapped import Bytes

SLICE_NS = 100_000_000
"""Longest sleep in one kernel call: Ctrl-C is noticed between two of them."""
_SPINS = 32
_SLEEP_MIN_S, _SLEEP_MAX_S = 20e-6, 1e-3
_INLINE_SPIN_S, _FILL_MIN_S = 1e-3, 50e-6
_TURN_S, _BURST_S, _BURST_MAX = 2e-3, 0.5e-3, 16
_LOOKS, _LEFT_OUT_MAX = 50, 63
_FLUSH_MIN_S, _FLUSH_MAX_S, _FLUSH_DEFAULT_S = 200e-6, 10e-3, 1e-3


class Deadline:
    """A point in time by the clock ``now_s``, or never. ``timeout_s``: None = never."""

    __slots__ = ("_at", "_now_s")

    def __init__(
        self, timeout_s: float | None, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._now_s = now_s
        self._at = None if timeout_s is None else now_s() + timeout_s

    @property
    def passed(self) -> bool:
        """The time is over."""
        return self._at is not None and self._now_s() >= self._at

    def left_s(self, at_most_s: float) -> float:
        """Seconds left, at least 0, at most ``at_most_s``."""
        if self._at is None:
            return at_most_s
        return min(max(0.0, self._at - self._now_s()), at_most_s)


class Backoff:
    """Growing pauses while a ring is full: some spins, then sleeps of 20 us to 1 ms.

    With an inline link the agents run meanwhile, without a pause as long as they have work.
    """

    __slots__ = ("_link", "_pace", "_sleep_s", "_turn")

    def __init__(self, link: Link) -> None:
        self._link, self._turn, self._sleep_s = link, 0, _SLEEP_MIN_S
        self._pace = InlinePace()

    def next_s(self) -> float:
        """How long to sleep now; 0: not at all."""
        if self._link.inline:
            return self._pace.pause_s(self._link.work())
        self._turn += 1
        if self._turn <= _SPINS:
            return 0.0
        pause_s, self._sleep_s = self._sleep_s, min(self._sleep_s * 1.5, _SLEEP_MAX_S)
        return pause_s

    def pause(self, deadline: Deadline) -> None:
        """Sleep for the next pause, not beyond the deadline."""
        time.sleep(deadline.left_s(self.next_s()))


class FillPace:
    """Growing pauses while a batch fills up, but slowly: 50 us to 1 ms."""

    __slots__ = ("_pause_s",)

    def __init__(self) -> None:
        self._pause_s = _FILL_MIN_S

    def next_s(self) -> float:
        """How long to sleep now."""
        pause_s, self._pause_s = self._pause_s, min(2 * self._pause_s, _SLEEP_MAX_S)
        return pause_s


class _Scratch(threading.local):
    """Room for the kernel that waits, of each thread its own."""

    def __init__(self) -> None:
        self.bytes = np.zeros(16, dtype=np.uint8)


class Bell:
    """This client's line in its node's doorbell file."""

    __slots__ = ("_bells", "_line", "_scratch", "_word")

    def __init__(self, link: Link) -> None:
        self._bells, self._line = link.bells, link.doorbell
        at = self._line * ring_layout.DOORBELL_BYTES
        self._word = self._bells.data[at : at + 4].cast("i")
        self._scratch = _Scratch()

    @property
    def word(self) -> int:
        """The futex word: every ring changes it."""
        return self._word[0]

    def ring(self) -> None:
        """Wake the threads that wait here."""
        ports.ring_line(self._bells, self._line)

    def wait(self, seen: int, timeout_s: float) -> int:
        """Sleep while the word is ``seen``, one slice at most. The word then."""
        timeout_ns = min(int(timeout_s * 1e9), SLICE_NS)
        if timeout_ns <= 0:
            return self._word[0]
        return int(ports.wait_line(self._bells, self._line, seen, timeout_ns, self._scratch.bytes))

    def wake_loop(self, seen: int, armed: Bytes, event_fd: int) -> int:
        """For one slice, write to ``event_fd`` when it rings and a loop waits; the word then."""
        return int(
            ports.wake_loop(
                self._bells, self._line, seen, armed, event_fd, SLICE_NS, self._scratch.bytes
            )
        )


class InlinePace:
    """How long to pause between runs of inline agents: not at all, until nothing came for 1 ms."""

    __slots__ = ("_idle_since",)

    def __init__(self) -> None:
        self._idle_since = time.monotonic()

    def pause_s(self, did: int) -> float:
        """0 to continue at once, else seconds to sleep. ``did``: the work of the last run."""
        now = time.monotonic()
        if did > 0:
            self._idle_since = now
        idle_s = now - self._idle_since
        return 0.0 if idle_s < _INLINE_SPIN_S else min(idle_s / 20, _SLEEP_MAX_S)


class LoopPace:
    """Lets other tasks of the event loop run in time, whether a loop's body is fast or slow."""

    __slots__ = ("_burst", "_looked", "_turned")

    def __init__(self) -> None:
        self._burst = 1
        self._looked = self._turned = time.monotonic()

    async def turn(self) -> int:
        """Let other tasks run if it is time; the number of messages until the next call."""
        now = time.monotonic()
        quick = now - self._looked < _BURST_S
        self._burst = min(2 * self._burst, _BURST_MAX) if quick else 1
        if now - self._turned >= _TURN_S:
            await asyncio.sleep(0)
            now = self._turned = time.monotonic()
        self._looked = now
        return self._burst


class LoopSpin:
    """Whether an event loop looks on for some 40 us before it sleeps: waking takes longer.

    It does as long as that pays. After looks in vain it leaves out one wait, then 3, up to 63: a
    loop that waits for long is held for less than 1 us a wait.
    """

    __slots__ = ("_left_out", "_to_leave")

    def __init__(self) -> None:
        self._left_out = self._to_leave = 0

    def looks(self) -> int:
        """How often to look before this wait; 0: not at all."""
        if self._to_leave:
            self._to_leave -= 1
            return 0
        return _LOOKS

    def looked(self, *, found: bool) -> None:
        """Note whether it paid."""
        self._left_out = 0 if found else min(2 * self._left_out + 1, _LEFT_OUT_MAX)
        self._to_leave = self._left_out


class LoopWaker:
    """One thread a connection that turns the doorbell into wake-ups of an event loop.

    A kernel sleeps on the futex and writes to an eventfd that the loop watches, so the loop wakes
    without the interpreter lock changing hands.
    """

    def __init__(self, bell: Callable[[], Bell], loop: asyncio.AbstractEventLoop) -> None:
        self._bell, self._loop = bell, loop
        self._stop = False
        self._waiting: set[asyncio.Future[None]] = set()
        self._armed = np.zeros(1, dtype=np.int64)
        self._event_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        loop.add_reader(self._event_fd, self._on_ring)
        self._thread = threading.Thread(target=self._run, name="tidecast-waker", daemon=True)
        self._thread.start()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop it wakes."""
        return self._loop

    def enlist(self) -> asyncio.Future[None]:
        """A future that the next ring settles. Enlist first, then arm, then wait."""
        future = self._loop.create_future()
        self._waiting.add(future)
        self._armed[0] = ports.WAITS
        return future

    def retire(self, future: asyncio.Future[None]) -> None:
        """Done waiting."""
        self._waiting.discard(future)

    def stop(self) -> None:
        """End the thread, and settle each future."""
        if self._stop:
            return
        self._stop = True
        self._armed[0] = ports.STOPS
        self._bell().ring()
        self._thread.join(1.0)
        try:
            self._loop.call_soon_threadsafe(self._finish)
        except RuntimeError:  # the loop is closed, and its selector with it
            os.close(self._event_fd)

    def _run(self) -> None:
        bell, seen, armed = None, 0, self._armed.view(np.uint8)
        while not self._stop and not self._loop.is_closed():
            if (now := self._bell()) is not bell:  # of another engine: earlier rings are unknown
                bell, seen = now, ~now.word
            seen = bell.wake_loop(seen, armed, self._event_fd)

    def _finish(self) -> None:
        self._loop.remove_reader(self._event_fd)
        os.close(self._event_fd)
        self._wake()

    def _on_ring(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._event_fd)
        self._wake()

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, set()
        for future in waiting:
            settle(future)


def settle(future: asyncio.Future[None]) -> None:
    """End the wait for a future, unless it has ended."""
    if not future.done():
        future.set_result(None)


class Collects(Protocol):
    """Collects a batch to flush: publishers messages, consumers their acks."""

    flush_after_s: float

    @property
    def buffering(self) -> bool:
        """Something may be collected."""

    def tick(self) -> bool:
        """Put collected messages into the ring. False: there was none for a whole round."""


class Flusher:
    """A thread of a connection that puts collected messages into rings, in time.

    It sleeps on a condition while no publisher collects: a publisher that is called now and then
    hands every message over by itself.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._busy: set[Collects] = set()
        self._stop = False
        self._thread: threading.Thread | None = None

    def add(self, each: Collects) -> None:
        """Look after it until it has nothing to flush for a whole round."""
        with self._changed:
            if self._stop:
                return
            self._busy.add(each)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="tidecast-flusher", daemon=True
                )
                self._thread.start()
            self._changed.notify()

    def stop(self) -> None:
        """End the thread."""
        with self._changed:
            self._stop = True
            thread = self._thread
            self._changed.notify()
        if thread is not None and thread is not threading.current_thread():
            thread.join(1.0)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._busy and not self._stop:
                    self._changed.wait()
                if self._stop:
                    return
                pause_s = min(each.flush_after_s for each in self._busy)
                self._changed.wait(pause_s)
                busy = list(self._busy)
            for each in busy:
                if not each.tick():
                    self._retire(each)

    def _retire(self, each: Collects) -> None:
        with self._changed:
            if not each.buffering:
                self._busy.discard(each)


def flush_after_s(linger_ns: int) -> float:
    """How long messages may be collected, for a ring's linger time; 0: not at all."""
    if linger_ns <= 0:
        return _FLUSH_DEFAULT_S
    return min(max(linger_ns / 1e9, _FLUSH_MIN_S), _FLUSH_MAX_S)
