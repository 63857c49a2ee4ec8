"""Example traffic: an engine publishes and reads on a topic of its own, until asked to stop."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from tidecast.client.blocking import Publisher, Subscription
from tidecast.errors import BackPressure, Closed, TidecastError, Timeout
from tidecast.telemetry.views import connect_inside

if TYPE_CHECKING:
    from tidecast.node.node import Node

TICK_S = 0.02
CATCH_UP_S_MAX = 0.25
"""After a hold-up at most this much is made up for, so that traffic does not burst."""


class Traffic:
    """One generator: a publisher thread, and a thread a subscriber."""

    def __init__(self, node: Node, settings: dict[str, Any]) -> None:
        """``settings``: topic, messages_per_s, message_bytes, keys, subscribers. Runs at once."""
        self.settings = settings
        self.topic = str(settings["topic"])
        self._rate = float(settings["messages_per_s"])
        self._bytes, self._keys = int(settings["message_bytes"]), int(settings["keys"])
        self._stopping = threading.Event()
        self.published, self.received, self.problem = 0, 0, ""
        self._connection = connect_inside(node, f"traffic {self.topic}")
        try:
            readers = [
                self._connection.subscribe(self.topic, on_gap="skip")
                for _ in range(int(settings["subscribers"]))
            ]
            publisher = self._connection.publisher(self.topic)
        except TidecastError:
            self._connection.close()
            raise
        self._threads = [
            threading.Thread(target=self._publish, args=(publisher,), daemon=True),
            *(threading.Thread(target=self._read, args=(r,), daemon=True) for r in readers),
        ]
        for thread in self._threads:
            thread.start()

    def counts(self) -> dict[str, Any]:
        """The figures so far."""
        return {
            "published": self.published,
            "received": self.received,
            "running": not self._stopping.is_set() and not self.problem,
            "problem": self.problem,
        }

    def stop(self) -> None:
        """End its threads and its session."""
        self._stopping.set()
        for thread in self._threads:
            thread.join(2.0)
        self._connection.close()

    def _publish(self, publisher: Publisher) -> None:
        """Batches every ``TICK_S``: the rate is a mean, and Python is woken 50 times a second."""
        due_s = time.monotonic()
        while not self._stopping.wait(max(0.0, due_s + TICK_S - time.monotonic())):
            now_s = time.monotonic()
            due_s = max(due_s, now_s - CATCH_UP_S_MAX)
            n = int((now_s - due_s) * self._rate)
            if n == 0:
                continue
            due_s += n / self._rate
            try:
                self._send(publisher, n)
            except (Timeout, BackPressure):
                continue
            except TidecastError as problem:
                self.problem = str(problem)
                return

    def _send(self, publisher: Publisher, n: int) -> None:
        if not self._keys:
            stamp = time.time_ns()
            done = publisher.publish_batch(
                [self._payload(self.published + i, stamp) for i in range(n)], timeout=TICK_S
            )
            self.published += done.appended
            return
        for _ in range(n):
            serial = self.published
            publisher.publish(
                self._payload(serial, time.time_ns()),
                key=f"key-{serial % self._keys}",
                timestamp=True,
                timeout=TICK_S,
            )
            self.published += 1

    def _payload(self, serial: int, stamp_ns: int) -> bytes:
        text = b'{"n":%d,"at_ns":%d,"pad":"' % (serial, stamp_ns)
        return text + b"." * max(0, self._bytes - len(text) - 2) + b'"}'

    def _read(self, subscription: Subscription) -> None:
        try:
            for batch in subscription.batches(max_messages=1024, max_wait=0.1):
                self.received += len(batch)
                if self._stopping.is_set():
                    return
        except Closed:
            return
        except TidecastError as problem:
            self.problem = str(problem)
