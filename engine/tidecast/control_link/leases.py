"""A `LeaseStore` behind the control link: leases lie in the service's Postgres."""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Callable
from typing import Any

import msgspec

from tidecast.errors import AuthError, ConfigError, NoResponders, Timeout
from tidecast.queues.leases.store import Reply, Request

ANSWER_S = 5.0
Send = Callable[[dict[str, Any]], object]
"""Sends a message; False: there is no connection now."""


def _unlinked(message: dict[str, Any]) -> bool:
    del message
    return False


class LinkLeases:
    """Asks the service, from any thread but the link's own. The store's clock is Postgres'.

    A node has its store before its link: until `bind`, nothing is answered.
    """

    def __init__(self, send: Send = _unlinked, answer_s: float = ANSWER_S) -> None:
        self._send, self._answer_s = send, answer_s
        self._serial = itertools.count(1)
        self._lock = threading.Lock()
        self._waiting: dict[int, queue.SimpleQueue[dict[str, Any]]] = {}

    def bind(self, send: Send) -> None:
        """Ask by ``send`` from now on."""
        self._send = send

    def handle(self, request: Request, now_ns: int = 0) -> Reply:
        """Answer one request; ``now_ns`` is not used. Raises Timeout, NoResponders, AuthError.

        A request without an answer may have been granted: ask again, as `LeaseKeeper` does.
        """
        del now_ns
        number = next(self._serial)
        answers: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        with self._lock:
            self._waiting[number] = answers
        try:
            plain = msgspec.to_builtins(request)
            if self._send({"type": "lease", "id": number, "request": plain}) is False:
                raise NoResponders("leases: there is no connection to the control service now")
            message = answers.get(timeout=self._answer_s)
        except queue.Empty:
            raise Timeout("the control service did not answer about a lease") from None
        finally:
            with self._lock:
                self._waiting.pop(number, None)
        if "reply" in message:
            return msgspec.convert(message["reply"], Reply)
        detail = str(message.get("detail", ""))
        match message.get("code"):
            case "denied":
                raise AuthError(detail)
            case "invalid_request":
                raise ConfigError(detail)
        raise NoResponders(f"leases: {detail}")

    def take(self, message: dict[str, Any]) -> None:
        """A ``leased`` message came. In the link's thread."""
        with self._lock:
            answers = self._waiting.get(int(message.get("id", 0)))
        if answers is not None:
            answers.put(message)
