"""Waiting until what was published is durable: blocking and on an event loop."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

import msgspec

from tidecast.client.core.outgoing import BatchResult
from tidecast.client.core.producer import check_ack
from tidecast.client.waiting import Deadline, InlinePace
from tidecast.errors import StorageError, TidecastError, Timeout

if TYPE_CHECKING:
    from tidecast.client.aio_publisher import Publisher as AsyncPublisher
    from tidecast.client.blocking import Publisher
    from tidecast.client.core.publisher import PublisherCore

_SLICE_S = 0.1
"""Longest sleep: a publisher that was fenced or lost its engine is noticed."""


def _late(publisher: PublisherCore, seq: int, timeout_s: float | None) -> Timeout:
    problem = Timeout(
        f"topic {publisher.topic}: message {seq} is not durable after {timeout_s:g} s: durable up "
        f"to {publisher.durable_position}; it stays in the ring, wait for it again"
    )
    session = publisher.producer_session
    problem.__cause__ = None if session is None else session.disk()
    return problem


def _arm(publisher: PublisherCore, seq: int) -> bool:
    """Prepare to sleep. False: there is no need to."""
    session = publisher.producer_session
    return session is not None and session.arm() < seq


def wait(publisher: Publisher, seq: int | None, timeout_s: float | None) -> int:
    """Wait until ``seq`` (None: all that was published so far) is durable; how far it is then."""
    check_ack(publisher, "durable")
    deadline, pace = Deadline(timeout_s), InlinePace()
    if seq is None:
        publisher.hand_over(timeout_s)
        seq = publisher.position
    connection = publisher.connection
    link = connection.link
    while not publisher.is_durable(seq):
        if deadline.passed:
            raise _late(publisher, seq, timeout_s)
        if connection.rung:
            connection.pump()
        if link.inline:
            pause_s = pace.pause_s(link.work())
            if pause_s:
                connection.bell.wait(connection.bell.word, deadline.left_s(pause_s))
            continue
        word = connection.bell.word
        if _arm(publisher, seq):
            connection.bell.wait(word, deadline.left_s(_SLICE_S))
    return publisher.durable_position


async def wait_async(publisher: AsyncPublisher, seq: int | None, timeout_s: float | None) -> int:
    """`wait` on an event loop."""
    check_ack(publisher, "durable")
    deadline, pace = Deadline(timeout_s), InlinePace()
    if seq is None:
        await publisher.hand_over(timeout_s)
        seq = publisher.position
    connection = publisher.connection
    wanted = seq
    while not publisher.is_durable(wanted):
        if deadline.passed:
            raise _late(publisher, wanted, timeout_s)
        if connection.rung:
            connection.pump()
        if connection.link.inline:
            await asyncio.sleep(deadline.left_s(pace.pause_s(connection.link.work())))
            continue
        await connection.sleep(lambda: _arm(publisher, wanted), deadline, _SLICE_S)
    return publisher.durable_position


def with_error(result: BatchResult, problem: TidecastError) -> BatchResult:
    """A batch that is in, and not (yet) durable."""
    return msgspec.structs.replace(result, error=problem)


class BlockingWaits:
    """What a blocking publisher can do besides, on a durable topic."""

    def wait_durable(self, seq: int | None = None, timeout: float | None = None) -> int:
        """Wait until ``seq`` (None: all that was published so far) is durable; how far it is then.

        Raises Timeout (wait again), Fenced, Closed, StorageError (``on_full="error"``), ConfigError
        on a live topic.
        """
        return wait(cast("Publisher", self), seq, timeout)

    def hand_over(self, timeout: float | None = None) -> None:
        """Put what was collected into the ring. Raises Timeout, Closed."""
        publisher = cast("Publisher", self)
        if not publisher.attempt_hand_over(seal=False):
            publisher._until(lambda: publisher.attempt_hand_over(seal=False), timeout)  # noqa: SLF001

    def settle_batch(self, result: BatchResult, timeout: float | None) -> BatchResult:
        """The result of a batch once it is durable; with an error if it is not in time."""
        try:
            self.wait_durable(timeout=timeout)
        except (Timeout, StorageError) as problem:
            return result if result.error else with_error(result, problem)
        return result
