"""A `LeaseStore` behind the control link: leases lie in the service's Postgres."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from tidecast.api.rpc import Calls
from tidecast.errors import AuthError, ConfigError, NoResponders
from tidecast.queues.leases.store import BATCH_MAX, Reply, Request

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
        self._calls = Calls("the control service")
        self.batch_max = 1
        """As the service announced it: an older service takes no batch."""
        self.reasons = False
        """The service takes the reason of a release: an older service refuses the field."""

    def bind(self, send: Send) -> None:
        """Ask by ``send`` from now on."""
        self._send = send

    def allow(self, batch_max: int, *, reasons: bool) -> None:
        """The service takes batches of so many requests, and the reasons of releases."""
        self.batch_max = min(max(batch_max, 1), BATCH_MAX)
        self.reasons = reasons

    def handle(self, request: Request, now_ns: int = 0) -> Reply:
        """Answer one request; ``now_ns`` is not used. Raises Timeout, NoResponders, AuthError.

        A request without an answer may have been granted: ask again, as `LeaseKeeper` does.
        """
        del now_ns
        plain = msgspec.to_builtins(request)
        if not self.reasons:
            for each in (plain, *plain.get("requests", ())):
                each.pop("reason", None)

        def send(number: int) -> None:
            if self._send({"type": "lease", "id": number, "request": plain}) is False:
                raise NoResponders("leases: there is no connection to the control service now")

        message = self._calls.ask(send, dict[str, Any], self._answer_s, "a request for a lease")
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
        self._calls.resolve(int(message.get("id", 0)), message)
