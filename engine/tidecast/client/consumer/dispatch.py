"""Messages for several tasks: of one key one after another, of different keys at the same time.

A key has no task of its own: a slow message delays its key alone, and any free task takes the next
message.
"""

from __future__ import annotations

import asyncio
from collections import deque

from tidecast.client.consumer.message import DurableMessage

HELD_MIN = 64
HELD_PER_TASK = 4


class Dispatch:
    """Messages that were taken and not completed, in the order in which tasks may take them.

    ``concurrency``: tasks that call `take`. At most ``held_max`` messages are held: `put` waits
    until there is room for the next.
    """

    def __init__(self, concurrency: int) -> None:
        self.held_max = max(HELD_MIN, HELD_PER_TASK * concurrency)
        self.held: dict[int, DurableMessage] = {}
        """By number, in the order of arrival."""
        self._tasks = concurrency
        self._numbers = 0
        self._ready: asyncio.Queue[tuple[int, bytes | None, DurableMessage] | None] = (
            asyncio.Queue()
        )
        self._behind: dict[bytes, deque[tuple[int, bytes | None, DurableMessage]]] = {}
        """By key that a task has: its later messages."""
        self._begun: set[int] = set()
        self._room = asyncio.Event()
        self._ended = False
        self.done = asyncio.Event()
        """No message is held, and none follows."""

    async def put(self, message: DurableMessage) -> None:
        """Hold a message; wait until there is room for the next."""
        self._numbers += 1
        key = message.key
        entry = self._numbers, key, message
        self.held[self._numbers] = message
        if key is None:
            self._ready.put_nowait(entry)
        elif key in self._behind:
            self._behind[key].append(entry)
        else:
            self._behind[key] = deque()
            self._ready.put_nowait(entry)
        while len(self.held) >= self.held_max:
            self._room.clear()
            await self._room.wait()

    async def take(self) -> tuple[int, bytes | None, DurableMessage] | None:
        """The next message for a task, with its number and key; None: there are no more."""
        taken = await self._ready.get()
        if taken is not None:
            self._begun.add(taken[0])
        return taken

    def not_begun(self) -> list[DurableMessage]:
        """The messages that no task has taken."""
        return [each for number, each in self.held.items() if number not in self._begun]

    def complete(self, number: int, key: bytes | None) -> None:
        """A task is done with a message: the next of its key may be taken."""
        del self.held[number]
        self._begun.discard(number)
        self._room.set()
        if key is not None:
            behind = self._behind[key]
            if behind:
                self._ready.put_nowait(behind.popleft())
            else:
                del self._behind[key]
        if self._ended and not self.held:
            self._release()

    def end(self) -> None:
        """No message follows: tasks end behind the held messages."""
        self._ended = True
        if not self.held:
            self._release()

    def _release(self) -> None:
        self.done.set()
        for _ in range(self._tasks):
            self._ready.put_nowait(None)
