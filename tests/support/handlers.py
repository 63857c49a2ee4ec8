"""The calls of handlers of `Consumer.run` when the subscription is moved meanwhile."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

from tests.support.patience import wait_until
from tidecast.buffers.member_ring import RUN_CURSOR
from tidecast.sync import Consumer

TIMEOUT_S = 10.0


def handled_around(consumer: Consumer, move: Callable[[], None]) -> tuple[list[bytes], list[bytes]]:
    """Let two workers begin, and wait; ``move``; let them go on until there is no lag.

    What was handled that was delivered before, and what was delivered after that.
    """
    begun, go_on = queue.SimpleQueue[tuple[int, bytes]](), threading.Event()

    def handle(message: Any) -> None:
        begun.put((int(message.batch.run_of(0)[RUN_CURSOR]), bytes(message.data)))
        assert go_on.wait(TIMEOUT_S)

    runner = threading.Thread(target=consumer.run, args=(handle, 2))
    runner.start()
    cursors = cursors_of(consumer)
    try:
        wait_until(lambda: begun.qsize() > 0, TIMEOUT_S, "a handler has begun")
        wait_until(lambda: consumer.stats()["unread_bytes"] == 0, TIMEOUT_S, "all is taken")
        move()
        go_on.set()
        wait_until(lambda: consumer.info()["lag"] == 0, TIMEOUT_S, "all is acked")
    finally:
        go_on.set()
        consumer.drain(TIMEOUT_S)
        runner.join(TIMEOUT_S)
    handled = [begun.get() for _ in range(begun.qsize())]
    return (
        [body for cursor, body in handled if cursor in cursors],
        [body for cursor, body in handled if cursor not in cursors],
    )


def cursors_of(consumer: Any) -> set[int]:
    """The ids of a subscription's cursors in frames: a seek gives them new ids."""
    which = {"pattern": consumer.pattern, "name": consumer.name}
    return {word for word, _, _ in consumer._connection.link.administer("cursors", which)}
