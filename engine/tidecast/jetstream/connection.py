"""One connection of a client to a NATS server: bytes out, frames in.

Frames with messages of a consumer are taken by kernels from ``data[at:end]``; all others come one
by one, by `frame`.
"""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from tidecast.config.sources.jetstream import JetStreamSource
from tidecast.connections.tcp import CONNECT_S, Address, Connection
from tidecast.errors import (
    AuthError,
    ConfigError,
    ConnectionLost,
    StorageError,
    TidecastError,
)
from tidecast.jetstream import frame_kernels as kernels
from tidecast.jetstream.logins import login, name_of
from tidecast.version import VERSION

ROOM_MIN = 64 * 1024
_INFO_BYTES_MAX = 1 << 20
_LOGIN_ERRORS = ("authorization violation", "authentication", "user authentication", "permissions")


class Frame(NamedTuple):
    """A frame that is not a message of a consumer. ``status``: of its headers, 0 without any."""

    name: str
    subject: str = ""
    status: int = 0
    text: str = ""
    body: bytes = b""


class Link(Connection):
    """A connection that is logged in.

    Raises ConnectionLost, AuthError, ConfigError; Closed after `wake`. ``data``, ``at``, ``end``:
    the bytes that have arrived and were not taken. ``info``: the server's INFO.
    """

    def __init__(
        self,
        address: Address,
        source: JetStreamSource,
        tls: ssl.SSLContext | None,
        begun: Callable[[Link], None] | None = None,
        *,
        room: int = ROOM_MIN,
    ) -> None:
        """``begun``: called with this before it connects, so that `wake` ends that, too."""
        self.data: Any = np.empty(max(room, ROOM_MIN), dtype=np.uint8)
        self.at = self.end = 0
        self.info: dict[str, Any] = {}
        self.heard_s = 0.0
        """When it has sent something."""
        super().__init__(address, begun)
        with self.opening():
            self._greet(source, tls)

    # --- login ------------------------------------------------------------------------------------

    def _greet(self, source: JetStreamSource, tls: ssl.SSLContext | None) -> None:
        deadline = time.monotonic() + CONNECT_S
        self._await("INFO", deadline)
        if tls is None and self.info.get("tls_required"):
            raise ConfigError(f"{self.where}: it needs TLS: set tls and ca")
        if tls is not None:
            if not self.info.get("tls_required") and not self.info.get("tls_available"):
                raise ConfigError(f"{self.where}: tls: true: the server offers no TLS")
            if self.at != self.end:  # another host between has sent it
                raise AuthError(f"{self.where}: bytes in the clear before TLS")
            self.start_tls(tls)
        if not self.info.get("headers"):
            raise ConfigError(
                f"{self.where}: version {self.info.get('version')} without headers: "
                "NATS 2.9 or newer is needed"
            )
        options = {
            "verbose": False,
            "pedantic": False,
            "headers": True,
            "no_responders": True,
            "protocol": 1,
            "lang": "python",
            "version": VERSION,
            "name": "tidecast",
            "echo": False,
            "tls_required": tls is not None,
            **login(source, str(self.info.get("nonce", ""))),
        }
        self.write(b"CONNECT %s\r\nPING\r\n" % json.dumps(options).encode())
        try:
            self._await("PONG", deadline)
        except AuthError as problem:
            raise AuthError(f"{problem}: {name_of(source)}") from None

    def _await(self, name: str, deadline: float) -> None:
        while True:
            found = self.frame(deadline)
            if found is None:
                raise ConnectionLost(
                    f"{self.where}: no {name} in {CONNECT_S:g} s: is it a NATS server?"
                )
            if found.name == name:
                return

    # --- bytes ------------------------------------------------------------------------------------

    def fill(self, deadline: float, need: int = 0) -> int:
        """Take arrived bytes, or wait for some; how many, 0: none until the deadline.

        ``need``: bytes of the frame from ``at`` on, there is room for them then.
        """
        self._make_room(need)
        n = self.read_into(memoryview(self.data)[self.end :], deadline)
        if n == 0:
            return 0
        self.end += n
        self.heard_s = time.monotonic()
        return n

    def take(self, at: int) -> None:
        """The bytes before ``at`` were taken."""
        assert self.at <= at <= self.end
        self.at = at

    def _make_room(self, need: int) -> None:
        size = self.end - self.at
        if size == 0:
            self.at = self.end = 0
        if self.data.size - self.at >= need and self.data.size - self.end >= ROOM_MIN // 2:
            return
        wanted = max(need, size + ROOM_MIN)
        target = self.data if wanted <= self.data.size else np.empty(wanted, dtype=np.uint8)
        target[:size] = self.data[self.at : self.end].copy()
        self.data, self.at, self.end = target, 0, size

    # --- frames -----------------------------------------------------------------------------------

    def frame(self, deadline: float) -> Frame | None:
        """The next frame, of any kind; None: not before the deadline.

        PING is answered, and INFO noted. Raises AuthError, ConnectionLost for -ERR.
        """
        need = 0
        while True:
            found, need = self._parsed()
            if found is not None:
                self._obey(found)
                return found
            if not self.fill(deadline, need):
                return None

    def _parsed(self) -> tuple[Frame | None, int]:
        """The frame at ``at``, which is taken; else None and how many bytes it has, 0: unknown."""
        raw = memoryview(self.data)[self.at : self.end]
        limit = _INFO_BYTES_MAX if bytes(raw[:4]) == b"INFO" else kernels.LINE_BYTES_MAX
        line, found, _ = bytes(raw[:limit]).partition(b"\r\n")
        if not found:
            if len(raw) >= limit:
                raise self._broken(f"a line of more than {limit} bytes")
            return None, 0
        name, _, rest = line.partition(b" ")
        if name in (b"MSG", b"HMSG"):
            return self._message(name, rest, raw, len(line) + 2)
        self.at += len(line) + 2
        if name in (b"PING", b"PONG", b"+OK", b"INFO", b"-ERR"):
            return Frame(name.decode(), text=rest.decode(errors="replace").strip()), 0
        raise self._broken(f"a frame {shown_bytes(name)}: is it a NATS server?")

    def _message(
        self, name: bytes, rest: bytes, raw: memoryview, at: int
    ) -> tuple[Frame | None, int]:
        sizes = 2 if name == b"HMSG" else 1
        parts = rest.split(b" ")
        numbers = parts[-sizes:]
        if not 2 + sizes <= len(parts) <= 3 + sizes or not all(one.isdigit() for one in numbers):
            raise self._broken(f"a line {shown_bytes(rest)}")
        size, headers_n = int(numbers[-1][:18]), int(numbers[0][:18]) if sizes == 2 else 0
        if not headers_n <= size <= kernels.BODY_BYTES_MAX:
            raise self._broken(f"a message of {size} bytes, {headers_n} of them headers")
        need = at + size + 2
        if len(raw) < need:
            return None, need
        if bytes(raw[need - 2 : need]) != b"\r\n":
            raise self._broken("a message without an end")
        head = bytes(raw[at : at + headers_n]).partition(b"\r\n")[0].decode(errors="replace")
        _, _, status = head.partition(" ")
        code, _, text = status.partition(" ")
        body = bytes(raw[at + headers_n : need - 2])
        self.at += need
        number = int(code) if code.isdecimal() and len(code) == 3 else 0
        return Frame("MSG", parts[0].decode(errors="replace"), number, text, body), 0

    def _obey(self, found: Frame) -> None:
        if found.name == "PING":
            self.write(b"PONG\r\n")
        elif found.name == "INFO":
            try:
                told = json.loads(found.text)
            except ValueError:
                told = None
            if not isinstance(told, dict):
                raise self._broken("an INFO that is no JSON object")
            self.info = told
        elif found.name == "-ERR":
            text = found.text.strip("'")
            self.close()
            kind: type[TidecastError] = ConnectionLost
            if text.lower().startswith(_LOGIN_ERRORS):
                kind = AuthError
            raise kind(f"{self.where}: {text}")

    def _broken(self, what: str) -> StorageError:
        self.close()
        return StorageError(f"{self.where}: {what}")


def shown_bytes(text: bytes) -> str:
    """Some bytes of a line, for an error."""
    return repr(text[:80])[1:]
