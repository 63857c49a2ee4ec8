"""The steps that flows consist of, and the two drivers that carry them out.

A flow is a generator: it yields a step, gets the step's result, and returns its own. An exception
of a step is raised where the flow yielded it. A flow of flows uses ``yield from``.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Generator
from typing import Any, Generic, NamedTuple, TypeVar

from tidecast.client.waiting import Bell, Deadline, InlinePace, LoopWaker, settle

T = TypeVar("T")


class Pause(NamedTuple):
    """Let ``seconds`` pass; 0: let other threads, or tasks, run."""

    seconds: float


class Turn(NamedTuple):
    """Let other tasks of the event loop run: a flow that never waits must not hog it."""


class Ring(NamedTuple):
    """Wait for the doorbell, ``seconds`` at most. The result: False, it did not ring.

    ``arm``: called when all is prepared for the wait; the doorbell's word then, or None when there
    is no need to wait.
    """

    arm: Callable[[], int | None]
    seconds: float


class Ask(NamedTuple):
    """Call a function that may take long: it asks the node, or compiles. The result is its own."""

    function: Callable[[], Any]


Step = Pause | Turn | Ring | Ask
TURN = Turn()
Flow = Generator[Step, Any, T]


class Done(NamedTuple, Generic[T]):
    """In place of a flow: there was no need to wait."""

    result: T


Begun = Flow[T] | Done[T]


def idle(
    connection: Any,
    arm: Callable[[], int | None],
    deadline: Deadline,
    pace: InlinePace,
    at_most_s: float = 1.0,
) -> Flow[bool]:
    """Nothing is there: run inline agents, else wait for the doorbell. False: it did not ring."""
    link = connection.link
    if link.inline:
        pause_s = pace.pause_s(link.work())
        yield Pause(deadline.left_s(pause_s)) if pause_s else TURN
        return True
    rang: bool = yield Ring(arm, deadline.left_s(at_most_s))
    return rang


def _advance(
    flow: Flow[T], result: Any, problem: BaseException | None = None
) -> tuple[Any, tuple[T] | None]:
    """(the next step of a flow, None), or (None, its result)."""
    try:
        return (flow.send(result) if problem is None else flow.throw(problem)), None
    except StopIteration as end:
        return None, (end.value,)


class BlockingDriver:
    """Carries out flows on the thread that calls. ``bell``: the connection's doorbell now."""

    def __init__(self, bell: Callable[[], Bell]) -> None:
        self._bell = bell

    def run(self, flow: Flow[T]) -> T:
        """Run a flow to its end; its result. Raises the errors of the flow."""
        step, ended = _advance(flow, None)
        while ended is None:
            try:
                result, problem = self._perform(step), None
            except BaseException as raised:  # noqa: BLE001 - raised in the flow
                result, problem = None, raised
            step, ended = _advance(flow, result, problem)
        return ended[0]

    def stop(self) -> None:
        """Nothing runs beside it."""

    def _perform(self, step: Step) -> Any:
        if isinstance(step, Pause):
            return time.sleep(step.seconds)
        if isinstance(step, Ask):
            return step.function()
        if isinstance(step, Turn):
            return None
        word = step.arm()
        return word is None or self._bell().wait(word, step.seconds) != word


class Blocking:
    """Base of the objects that a blocking connection opens."""

    _connection: Any

    def _drive(self, flow: Flow[T]) -> T:
        found: T = self._connection.driver.run(flow)
        return found


class LoopDriver:
    """Carries out flows on an event loop, which runs other tasks meanwhile."""

    def __init__(self, bell: Callable[[], Bell]) -> None:
        self._bell = bell
        self._waker: LoopWaker | None = None

    async def run(self, flow: Flow[T]) -> T:
        """Run a flow to its end; its result. Raises the errors of the flow."""
        step, ended = _advance(flow, None)
        while ended is None:
            try:
                result, problem = await self._perform(step), None
            except BaseException as raised:  # noqa: BLE001 - raised in the flow
                result, problem = None, raised
            step, ended = _advance(flow, result, problem)
        return ended[0]

    async def _perform(self, step: Step) -> Any:
        if isinstance(step, Turn):
            return await asyncio.sleep(0)
        if isinstance(step, Pause):
            return await asyncio.sleep(step.seconds)
        if isinstance(step, Ask):
            return await asyncio.to_thread(step.function)
        return await self.ring(step.arm, step.seconds)

    async def ring(self, arm: Callable[[], int | None], seconds: float) -> bool:
        """See `Ring`. Always True: the loop may be too busy to know."""
        loop = asyncio.get_running_loop()
        waker = self._waker
        if waker is None or waker.loop is not loop:
            if waker is not None:
                waker.stop()
            waker = self._waker = LoopWaker(self._bell, loop)
        future = waker.enlist()
        try:
            if arm() is not None:
                timer = loop.call_later(seconds, settle, future)
                try:
                    await future
                finally:
                    timer.cancel()
        finally:
            waker.retire(future)
        return True

    def stop(self) -> None:
        """End the thread that wakes the loop; call it in another thread."""
        if self._waker is not None:
            self._waker.stop()


class OnLoop:
    """Base of the objects that an asyncio connection opens."""

    _connection: Any

    async def _drive(self, flow: Flow[T]) -> T:
        found: T = await self._connection.driver.run(flow)
        return found
