"""An engine's side of the link, by hand: for what needs no engine."""

from __future__ import annotations

import json
import ssl as tls
from collections.abc import Callable
from types import TracebackType
from typing import Any

from websockets.sync.client import connect

from tests.support.control import Running


class FakeLink:
    """Registers as a node and answers commands as configured."""

    def __init__(
        self,
        control: Running,
        node: str,
        *,
        node_id: int = 77,
        ssl: tls.SSLContext | None = None,
        **hello: Any,
    ) -> None:
        """``hello``: more fields of it, or others."""
        url = control.url.replace("http", "ws", 1) + "/api/v1/engine"
        headers = {"Authorization": f"Bearer {control.enrol()}"}
        self._block = connect(url, additional_headers=headers, ssl=ssl, max_size=None)
        self.socket = self._block.__enter__()
        said = {
            "protocol": 1,
            "levels": [1, 2],
            "node": node,
            "node_id": node_id,
            "incarnation": 1,
            "version": "0",
            "host": "h",
            "applied_version": 0,
        }
        self.send(type="hello", **(said | hello))
        self.welcome = self.until("welcome")

    def send(self, **message: Any) -> None:
        """One message."""
        self.socket.send(json.dumps(message))

    def until(self, kind: str) -> Any:
        """The next message of a kind."""
        while True:
            message = json.loads(self.socket.recv(timeout=20))
            if message["type"] == kind:
                return message

    def answer(self, make: Callable[[Any], Any]) -> Any:
        """Answer the next command; what it was."""
        asked = self.until("command")
        self.send(type="result", id=asked["id"], ok=True, value=make(asked))
        return asked

    def __enter__(self) -> FakeLink:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self._block.__exit__(kind, problem, where)
