"""Typed topics of the blocking client: `tidecast.sync.Connection.topic`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
    from tidecast.client.consumer.blocking import Consumer

T = TypeVar("T")


class TypedConsumer(Public, RecordsCore[T], Generic[T]):
    """A consumer whose records have a decoded value. ``plain``: the `Consumer`."""

    PUBLIC = "close fetch invalid next plain run"

    def __init__(self, topic: TopicCore[T], plain: Consumer, invalid: Invalid) -> None:
        super().__init__(topic, plain.name, invalid)
        self.plain = plain

    def __iter__(self) -> Iterator[TypedRecord[T]]:
        """Records as they come, until closed or drained."""
        for message in self.plain:
            record = self.record(message)
            if record is not None:
                yield record

    def next(self, timeout: float | None = None) -> TypedRecord[T]:
        """The next record. Raises Timeout, CodecError, and as `Consumer.next`."""
        deadline = self.deadline(timeout)
        while True:
            record = self.record(self.plain.next(deadline()))
            if record is not None:
                return record

    def fetch(self, max_messages: int = 100, max_wait: float = 1.0) -> list[TypedRecord[T]]:
        """Up to ``max_messages`` records; empty when none came in ``max_wait`` s."""
        deadline = self.deadline(max_wait)
        while batch := self.plain.fetch(max_messages, deadline() or 0.0):
            found = [record for each in batch if (record := self.record(each)) is not None]
            if found or not deadline():  # each record may be invalid, without an end
                return found
        return []

    def run(
        self,
        handler: Callable[[TypedRecord[T]], Any],
        concurrency: int = 1,
        *,
        ack: AckWhen = "after",
        on_error: OnError = "nak",
        nak_delay: float = 1.0,
        max_messages: int | None = None,
    ) -> int:
        """Call ``handler`` with every record, see `Consumer.run`; invalid records count, too."""

        def handle(message: DurableMessage) -> None:
            handler(self.handled(message))

        return self.plain.run(
            handle,
            concurrency,
            ack=ack,
            on_error=self.decide(on_error),
            nak_delay=nak_delay,
            max_messages=max_messages,
        )

    def close(self) -> None:
        """Leave the subscription."""
        self.plain.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
