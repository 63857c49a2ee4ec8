"""Questions and answers, the same over every connection: ids, time-outs, late answers.

Used by the link to an engine process (unix socket), to a gateway, to a gateway's logs, and by the
engine's link to the control service. They differ in how they send a frame.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, NamedTuple

import msgspec

from tidecast.api.frames.common import Reply, Working, error_of
from tidecast.errors import ConnectionLost, TidecastError, Timeout

LATE_MAX = 1024
"""Questions whose answers are still expected after their askers gave up."""
Then = Callable[[Any], None]
"""Gets the result of a question, or the TidecastError that it met."""
Undo = Callable[[Any], None]
"""Gets a result that came after its asker gave up: it closes the object that the answer opened."""


class _Question(NamedTuple):
    kind: Any
    then: Then


def result_of(reply: Reply, kind: Any, peer: str) -> Any:
    """The value of a reply. Raises the error in it, ConnectionLost when it is malformed."""
    if reply.failure is not None:
        raise error_of(reply.failure)
    try:
        return msgspec.msgpack.decode(reply.result, type=kind)
    except msgspec.MsgspecError as problem:
        raise ConnectionLost(f"{peer} sent an answer that cannot be read: {problem}") from None


class Calls:
    """The questions of one connection that wait for answers. Safe for use from any thread."""

    def __init__(self, peer: str, clock: Callable[[], float] = time.monotonic) -> None:
        """``peer``: the other side, as messages name it. ``clock``: in seconds, for tests."""
        self._peer, self._clock = peer, clock
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._waiting: dict[int, _Question] = {}
        self._late: dict[int, _Question] = {}
        self._news = (float("-inf"), "")
        """When the other side reported that it works, and its long step.

        It holds for all questions: a connection answers one after another.
        """

    def begin(self, kind: Any, then: Then) -> int:
        """A question is about to be sent: its id. ``kind``: the type of its result.

        ``then`` is called once, by the thread that gets the answer or finds the connection lost.
        """
        number = next(self._numbers)
        with self._lock:
            self._waiting[number] = _Question(kind, then)
        return number

    def ask(
        self,
        send: Callable[[int], None],
        kind: Any,
        timeout_s: float,
        name: str,
        undo: Undo | None = None,
    ) -> Any:
        """Ask and wait for the result; ``send`` sends the question of this id.

        ``timeout_s``: since the question, or since the other side reported that it works.
        Raises the other side's error, ConnectionLost, Timeout, and errors of ``send``.
        """
        answer: Future[Any] = Future()

        def answered(found: Any) -> None:
            if isinstance(found, TidecastError):
                answer.set_exception(found)
            else:
                answer.set_result(found)

        number, asked_s = self.begin(kind, answered), self._clock()
        try:
            send(number)
            while True:
                heard_s, reason = self._news
                left_s = max(asked_s, heard_s) + timeout_s - self._clock()
                if left_s > 0:
                    with contextlib.suppress(FutureTimeout):
                        return answer.result(left_s)
                    continue  # news may have come
                if not self._give_up(number, undo):
                    return answer.result()  # it came this moment
                said = f": {reason}" if heard_s >= asked_s else ""
                raise Timeout(f"{self._peer} did not answer {name} within {timeout_s:g} s{said}")
        except (KeyboardInterrupt, SystemExit):
            if not self._give_up(number, undo) and undo is not None and answer.done():
                with contextlib.suppress(TidecastError):
                    undo(answer.result())
            raise
        finally:
            with self._lock:
                self._waiting.pop(number, None)

    def ask_then(self, send: Callable[[int], None], kind: Any, then: Then) -> None:
        """Ask without waiting; a question that cannot be sent is answered with that error."""
        number = self.begin(kind, then)
        try:
            send(number)
        except ConnectionLost as problem:
            with self._lock:
                known = self._waiting.pop(number, None)
            if known is not None:
                then(problem)

    def resolve(self, number: int, found: Any) -> None:
        """The result of a question came by another way than a `Reply`, or an error."""
        with self._lock:
            question = self._waiting.pop(number, None)
        if question is not None:
            question.then(found)

    def answer(self, reply: Reply) -> None:
        """A reply came."""
        with self._lock:
            question = self._waiting.pop(reply.id, None)
            late = self._late.pop(reply.id, None)
        if question is not None:
            try:
                found = result_of(reply, question.kind, self._peer)
            except TidecastError as problem:
                found = problem
            question.then(found)
        elif late is not None:
            with contextlib.suppress(TidecastError):
                late.then(result_of(reply, late.kind, self._peer))

    def hear(self, working: Working) -> None:
        """A question takes long, and the other side works on it."""
        self._news = (self._clock(), working.reason)

    def lose(self, problem: TidecastError) -> None:
        """The connection is lost: no answer comes any more."""
        with self._lock:
            waiting, self._waiting = list(self._waiting.values()), {}
            self._late.clear()
        for question in waiting:
            question.then(problem)

    def _give_up(self, number: int, undo: Undo | None) -> bool:
        """The asker waits no longer. False: the answer came a moment ago."""
        with self._lock:
            question = self._waiting.pop(number, None)
            if question is not None and undo is not None and len(self._late) < LATE_MAX:
                self._late[number] = _Question(question.kind, undo)
        return question is not None
