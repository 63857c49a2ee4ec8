"""The client that asks and the endpoint that serves it, as the handlers of requests see them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple, Protocol

from tidecast.access import Access
from tidecast.kafka.answers.cache import Block, BlockCache
from tidecast.kafka.answers.pacing import Recent
from tidecast.kafka.counters import Counters
from tidecast.kafka.wire import Struct

if TYPE_CHECKING:
    from tidecast.node.node import Node


class Client(Protocol):
    """The client that asks: its connection."""

    client_id: str
    peer: str
    software: str
    local: tuple[str, int]
    recent: Recent
    """Its latest reads."""

    @property
    def access(self) -> Access:
        """The rights of the client. Raises BadRequest before it has logged in."""

    @property
    def name(self) -> str:
        """Its name, for logs and events."""

    def may(self, right: str, pattern: str) -> bool:
        """Has it a right on a topic, or pattern? A missing one is counted and reported."""

    def log_in(self, access: Access, digest: str) -> None:
        """It has shown a key."""

    def introduce(self, software: str) -> None:
        """It has said which software it is."""

    async def hold(self, n: int) -> None:
        """Wait for ``n`` bytes for an answer, of the room that all connections share."""

    def hold_less(self, n: int) -> None:
        """The answer has only ``n`` bytes."""

    def hold_more(self, n: int) -> bool:
        """The answer has ``n`` bytes. False: there is no room for so many now; `hold` waits."""

    def lend(self, blocks: Iterable[Block]) -> None:
        """The answer is sent from these blocks; they are released behind it."""

    def close(self) -> None:
        """End its connection."""


class Endpoint(Protocol):
    """The endpoint that serves clients."""

    node: Node
    counters: Counters
    cache: BlockCache

    def watch(self, topics: set[str]) -> asyncio.Future[None]:
        """Set the callback for more to read in one of these topics. End it with `unwatch`."""

    def unwatch(self, topics: set[str], waiter: asyncio.Future[None]) -> None:
        """The request waits no longer."""


class Request(NamedTuple):
    """One request, its body decoded."""

    connection: Client
    version: int
    body: Struct


class Budget:
    """Bytes, or items, in use at a time; a request for more waits. In the loop's thread alone."""

    def __init__(self, most: int, waits: Callable[[], None] = lambda: None) -> None:
        """``waits()``: called when they are not there at once."""
        self._most, self._waits, self.used = most, waits, 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    def _has_room(self, n: int) -> bool:
        return self.used == 0 or self.used + n <= self._most

    @property
    def contested(self) -> bool:
        """Some wait."""
        return bool(self._waiting)

    def take_now(self, n: int) -> bool:
        """Have ``n`` bytes if they are free and no other request waits."""
        if self._waiting or not self._has_room(n):
            return False
        self.used += n
        return True

    def force(self, n: int) -> None:
        """Have ``n`` bytes that are in use already, whether they are there or not."""
        self.used += n

    async def take(self, n: int) -> None:
        """Have ``n`` bytes, when they are there; first come, first served.

        Alone, a request may take more than there are.
        """
        if self.take_now(n):
            return
        self._waits()
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((n, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give(n)  # it was given just before
            else:
                turn.cancel()
                self._grant()
            raise

    def give(self, n: int) -> None:
        """They are not in use any more."""
        self.used -= n
        self._grant()

    def _grant(self) -> None:
        while self._waiting and (self._waiting[0][1].done() or self._has_room(self._waiting[0][0])):
            n, turn = self._waiting.popleft()
            if not turn.done():
                self.used += n
                turn.set_result(None)
