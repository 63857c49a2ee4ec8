"""From messages to a stream: of a live subscription, a durable one, or the log of a topic."""

from __future__ import annotations

import threading
import time
from itertools import islice
from typing import TYPE_CHECKING, BinaryIO

import click

from tidecast.cli.messages.formats import Writer
from tidecast.cli.messages.pub import tell

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tidecast.cli.messages.logs import LogReader
    from tidecast.client.blocking import Connection, Subscription
    from tidecast.client.consumer.blocking import Consumer
    from tidecast.client.log.records import LogRecord
    from tidecast.events import Event

POLL_MESSAGES = 4096
LOOK_S = 0.1


class Flow:
    """From a live subscription to a stream, flushed whenever nothing more is there."""

    keeps = False
    """Messages are kept; those older than ``until_ns`` are written after that time, too."""

    def __init__(
        self, client: Connection, messages: Subscription, out: BinaryIO, writer: Writer
    ) -> None:
        self._client, self._messages, self._out, self._writer = client, messages, out, writer
        self._seen = False

    @property
    def topic(self) -> str:
        """The topic that is read, for errors."""
        return self._messages.pattern

    def run(
        self, count: int | None, timeout_s: float | None, until_ns: int | None, *, until_end: bool
    ) -> None:
        """Until ``count`` messages are written, ``until_ns``, or the end. Raises Timeout."""
        from tidecast.errors import Timeout

        left = count
        last_s = time.monotonic()
        while left is None or left > 0:
            over = until_ns is not None and time.time_ns() >= until_ns
            if over and not self.keeps:
                break
            n = self.take(left)
            self._report_gaps()
            if n:
                last_s = time.monotonic()
                left = None if left is None else left - n
            elif over or (until_end and self.ended()):
                break
            elif timeout_s is not None and time.monotonic() - last_s > timeout_s:
                self.flush()
                raise Timeout(f"no message on {self.topic} for {timeout_s:g} s")
        self.flush()

    def take(self, left: int | None) -> int:
        """Write the available messages, waiting a little for them. Returns their number."""
        from tidecast.errors import Timeout

        limit = POLL_MESSAGES if left is None else min(left, POLL_MESSAGES)
        batch = self._messages.poll(limit)
        if len(batch):
            self._out.write(self._writer(batch))
            return len(batch)
        self.flush()
        try:
            one = self._messages.next(timeout=LOOK_S)
        except Timeout:
            return 0
        self._out.write(self._writer((one,)))
        return 1

    def ended(self) -> bool:
        """All publishers that were seen have ended."""
        there = bool(self._messages.images())
        self._seen = self._seen or there or self._messages.stats().get("messages", 0) > 0
        return self._seen and not there

    def _report_gaps(self) -> None:
        from tidecast.events import Gap

        for event in self._client.events(timeout=0.0):
            if isinstance(event, Gap):
                click.echo(
                    f"gap: {event.topic}: packets {event.first} to {event.end} of "
                    f"{event.node} are lost ({event.reason})",
                    err=True,
                )
            else:
                self.report(event)

    def report(self, event: Event) -> None:
        """Report an event other than a gap on standard error."""
        tell(event)

    def flush(self) -> None:
        """Nothing more is there for the moment."""
        self._out.flush()


class DurableFlow(Flow):
    """From a durable subscription to a stream: acked when it was written and flushed."""

    _messages: Consumer  # type: ignore[assignment]

    def __init__(
        self, client: Connection, messages: Consumer, out: BinaryIO, writer: Writer
    ) -> None:
        super().__init__(client, messages, out, writer)  # type: ignore[arg-type]

    def take(self, left: int | None) -> int:
        """See `Flow`."""
        limit = POLL_MESSAGES if left is None else min(left, POLL_MESSAGES)
        batch = self._messages.fetch(limit, max_wait=LOOK_S)
        if len(batch):
            self._out.write(self._writer(batch))
            self.flush()
            batch.ack()
        return len(batch)

    def ended(self) -> bool:
        """The lag is 0, but for records that wait for their delivery time."""
        info = self._messages.info()
        scheduled = int(info.get("scheduled", 0))
        if info["lag"] > scheduled:
            return False
        if scheduled:
            records = "1 record waits" if scheduled == 1 else f"{scheduled} records wait"
            click.echo(f"{records} for the delivery time", err=True)
        return True

    def report(self, event: Event) -> None:
        """See `Flow`. A pause explains why nothing comes."""
        from tidecast.config.topology import matches
        from tidecast.events import DeliveryPaused

        if not isinstance(event, DeliveryPaused):
            super().report(event)
            return
        name, pattern = self._messages.name, self._messages.pattern
        if event.subscription not in ("", name) or not (
            event.topic == pattern or matches(pattern, event.topic)
        ):
            return
        of = event.topic if event.queue < 0 else f"queue {event.queue} of {event.topic}"
        to = f" to subscription {name}" if event.subscription else ""
        state = "paused until they are resumed" if event.paused else "resumed"
        click.echo(f"deliveries of {of}{to} are {state}", err=True)


class LogFlow(Flow):
    """From the log of a topic to a stream. Nothing is acked, no position is kept."""

    keeps = True

    def __init__(
        self,
        client: Connection,
        reader: LogReader,
        out: BinaryIO,
        writer: Writer,
        until_ns: int | None,
    ) -> None:
        self._client, self._reader, self._out, self._writer = client, reader, out, writer
        self._until_ns = until_ns
        self._round: Iterator[LogRecord] = iter(())
        self._pause = threading.Event()

    @property
    def topic(self) -> str:
        """See `Flow`."""
        return self._reader.topic

    def take(self, left: int | None) -> int:
        """See `Flow`."""
        limit = POLL_MESSAGES if left is None else min(left, POLL_MESSAGES)
        some = self._some(limit)
        if not some:
            self._round = self._reader.round(self._until_ns)
            some = self._some(limit)
        if some:
            self._out.write(self._writer(some))
        else:
            self.flush()
            self._pause.wait(LOOK_S)
        return len(some)

    def _some(self, limit: int) -> list[LogRecord]:
        return list(islice(self._round, limit))

    def ended(self) -> bool:
        """Nothing more was there: so it is, behind a `take` that found nothing."""
        return True
