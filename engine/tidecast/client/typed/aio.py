"""Typed topics of the asyncio client: `tidecast.Connection.topic`."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Generator
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from tidecast.api.words import AckWhen
from tidecast.client.consumer.core import OnError
from tidecast.client.consumer.message import DurableMessage
from tidecast.client.core.public import Public
from tidecast.client.typed.core import (
    RecordsCore,
    TopicCore,
    TypedRecord,
)
from tidecast.client.typed.options import Invalid

if TYPE_CHECKING:
    from tidecast.client.consumer.aio import Consumer, Opening

T = TypeVar("T")


class TypedOpening(Generic[T]):
    """The awaitable of `Topic.consumer`: await it, or use it with ``async with``."""

    def __init__(self, topic: TopicCore[T], opening: Opening, invalid: Invalid) -> None:
        self._topic, self._opening, self._invalid = topic, opening, invalid

    async def _open(self) -> TypedConsumer[T]:
        return TypedConsumer(self._topic, await self._opening, self._invalid)

    def __await__(self) -> Generator[Any, None, TypedConsumer[T]]:
        return self._open().__await__()

    async def __aenter__(self) -> TypedConsumer[T]:
        return await self._open()

    async def __aexit__(self, *problem: object) -> None:
        await self._opening.__aexit__(*problem)


class TypedConsumer(Public, RecordsCore[T], Generic[T]):
    """A consumer whose records have a decoded value. ``plain``: the `Consumer`."""

    PUBLIC = "close fetch invalid next plain run"

    def __init__(self, topic: TopicCore[T], plain: Consumer, invalid: Invalid) -> None:
        super().__init__(topic, plain.name, invalid)
        self.plain = plain

    async def __aiter__(self) -> AsyncIterator[TypedRecord[T]]:
        """Records as they come, until closed or drained."""
        async for message in self.plain:
            record = self.record(message)
            if record is not None:
                yield record

    async def next(self, timeout: float | None = None) -> TypedRecord[T]:  # noqa: ASYNC109
        """The next record. Raises Timeout, CodecError, and as `Consumer.next`."""
        deadline = self.deadline(timeout)
        while True:
            record = self.record(await self.plain.next(deadline()))
            if record is not None:
                return record

    async def fetch(self, max_messages: int = 100, max_wait: float = 1.0) -> list[TypedRecord[T]]:
        """Up to ``max_messages`` records; empty when none came in ``max_wait`` s."""
        deadline = self.deadline(max_wait)
        while batch := await self.plain.fetch(max_messages, deadline() or 0.0):
            found = [record for each in batch if (record := self.record(each)) is not None]
            if found or not deadline():  # each record may be invalid, without an end
                return found
        return []

    async def run(
        self,
        handler: Callable[[TypedRecord[T]], Any],
        concurrency: int = 1,
        *,
        ack: AckWhen = "after",
        on_error: OnError = "nak",
        nak_delay: float = 1.0,
        max_messages: int | None = None,
        extend: bool = False,
    ) -> int:
        """Call ``handler`` with every record, see `Consumer.run`; invalid records count, too."""

        async def handle(message: DurableMessage) -> None:
            outcome = handler(self.handled(message))
            if inspect.isawaitable(outcome):
                await outcome

        return await self.plain.run(
            handle,
            concurrency,
            ack=ack,
            on_error=self.decide(on_error),
            nak_delay=nak_delay,
            max_messages=max_messages,
            extend=extend,
        )

    async def close(self) -> None:
        """Leave the subscription."""
        await self.plain.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
