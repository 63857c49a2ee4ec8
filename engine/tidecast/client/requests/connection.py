"""Requests of a connection, where they wait: opening a topic's `Requester`, asking one or many."""

from __future__ import annotations

from collections import deque
from typing import Any, Protocol

from tidecast import codecs
from tidecast.client.core.message import Message
from tidecast.client.core.metadata import Headers
from tidecast.client.core.outgoing import reject
from tidecast.client.flows.publisher import PublisherFlows
from tidecast.client.flows.steps import Flow
from tidecast.client.requests.requester import Pending, Requester
from tidecast.client.waiting import Deadline
from tidecast.errors import RequestTimeout, TidecastError

TIMEOUT_S = 5.0
"""Of a request that gives none."""


class HasRequests(Protocol):
    """A connection, as `requester_of` needs it."""

    _requests: dict[str, Any]


def known_requester(connection: HasRequests, topic: str) -> Requester | None:
    """The requester of a topic, if there is one that takes requests."""
    found: Requester | None = connection._requests.get(topic)  # noqa: SLF001 - of the connection
    return None if found is None or found.over else found


def make_requester(connection: HasRequests, publisher: PublisherFlows) -> Requester:
    """A topic's first requester, or the successor of a requester that ended. Asks the node."""
    requests = connection._requests  # noqa: SLF001
    before: Requester | None = requests.pop(publisher.topic, None)
    if before is not None:
        before.close()
    made = requests[publisher.topic] = Requester(connection, publisher)
    return made


class Gathering:
    """Replies of several responders to one request, as they come."""

    def __init__(
        self, requester: Requester, timeout: float | None, max_replies: int | None
    ) -> None:
        if max_replies is not None and max_replies < 1:
            raise reject("max_replies", max_replies, "is a number from 1 on, or None")
        self.requester, self.timeout = requester, timeout
        self.deadline = Deadline(timeout, requester.now_s)
        self.asked = 0
        """Responders that have the request."""
        self.failures: list[TidecastError] = []
        """Errors that came in place of replies."""
        self._left = max_replies
        self._arrived: deque[Pending] = deque()
        self._waiting: list[Pending] = []
        self._replied = False

    @property
    def missing(self) -> int:
        """Responders that have neither replied nor failed so far."""
        return len(self._waiting)

    def begin_flow(
        self,
        payload: Any,
        key: bytes | str | None,
        headers: Headers | None,
        codec: codecs.Codec | None,
    ) -> Flow[None]:
        """Send the request to all. Raises NoResponders."""
        self._waiting = yield from self.requester.begin_all_flow(
            payload, key, headers, codec, self.timeout, self._arrived.append
        )
        self.asked = len(self._waiting)

    def next_flow(self) -> Flow[Message | None]:
        """The next reply; None: there is no more. Raises RequestTimeout when there was none."""
        while self._waiting and self._left != 0:
            if not self._arrived and not (
                yield from self.requester.wait_flow(lambda: bool(self._arrived), self.deadline)
            ):
                self._late()
                return None
            pending = self._arrived.popleft()
            self._waiting.remove(pending)
            if pending.problem is not None:
                self.failures.append(pending.problem)
                continue
            self._replied = True
            if self._left is not None:
                self._left -= 1
            return pending.reply()
        self.stop()
        if not self._replied and self.failures and self._left != 0:
            raise self.failures[0]
        return None

    def _late(self) -> None:
        problem: RequestTimeout | None = None
        for pending in self._waiting:
            problem = self.requester.expire(pending, self.timeout)
        if not self._replied and problem is not None:
            self._waiting.clear()
            raise problem

    def stop(self) -> None:
        """Wait for no more."""
        for pending in self._waiting:
            self.requester.forget(pending)
