"""A TCP connection to a server, in clear text or TLS: time-outs, waking, errors with the server."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from typing import ClassVar, NamedTuple, Self

from tidecast.errors import AuthError, Closed, ConnectionLost

CONNECT_S = 10.0
"""How long a server may take to accept a connection, a handshake, or the bytes of a request."""
_LOOK_S = 1e-4


class Address(NamedTuple):
    """Where a server listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class Connection:
    """A connection to a server. A protocol derives its own, which logs in within `opening`.

    For one thread; `wake` may come from another. Its methods raise ConnectionLost, and Closed after
    `wake`. ``role``: the word for the server in errors. ``where``: role and address.
    """

    role: ClassVar[str] = "server"

    def __init__(self, address: Address, begun: Callable[[Self], None] | None = None) -> None:
        """Connect. ``begun``: called with this before it connects, so that `wake` ends that, too.

        Raises ConnectionLost, Closed.
        """
        self.address = address
        self.where = f"{self.role} {address}"
        self._woken = False
        self._waking = threading.Lock()
        self._connected: socket.socket | None = None
        if begun is not None:
            begun(self)
        try:
            self._socket = socket.create_connection(address, CONNECT_S)
        except OSError as problem:
            raise ConnectionLost(f"{self.where}: {problem}") from None
        with self.opening():
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._note_connected()

    @contextlib.contextmanager
    def opening(self) -> Iterator[None]:
        """Close the connection when a step of its opening fails.

        Raises AuthError for a certificate that cannot be verified, ConnectionLost, Closed.
        """
        try:
            yield
        except ssl.SSLCertVerificationError as problem:
            self.close()
            raise AuthError(f"{self.where}: {problem.verify_message}: set ca") from None
        except OSError as problem:
            raise self.lost(str(problem)) from None
        except BaseException:
            self.close()
            raise

    def start_tls(self, context: ssl.SSLContext) -> None:
        """Encrypt from now on. To be called within `opening`."""
        self._socket = context.wrap_socket(
            self._socket, server_hostname=self.address.host, do_handshake_on_connect=False
        )
        self._note_connected()
        self._socket.settimeout(CONNECT_S)
        self._socket.do_handshake()

    def _note_connected(self) -> None:
        with self._waking:
            if self._woken:
                raise self._closed()
            self._connected = self._socket

    def write(self, data: bytes | memoryview) -> None:
        """Send all bytes, within CONNECT_S."""
        try:
            self._socket.settimeout(CONNECT_S)
            self._socket.sendall(data)
        except (OSError, ValueError) as problem:
            raise self.lost(str(problem)) from None

    def read_into(self, view: memoryview, deadline: float) -> int:
        """Read the bytes that are there, or wait for some; their count, 0: none until the deadline.

        ``deadline``: of `time.monotonic`; when it is over, the socket is still read once.
        """
        try:
            self._socket.settimeout(max(deadline - time.monotonic(), _LOOK_S))
            n = self._socket.recv_into(view)
        except (TimeoutError, ssl.SSLWantReadError):
            return 0
        except (OSError, ValueError) as problem:
            raise self.lost(str(problem)) from None
        if n == 0:
            raise self.lost("it closed the connection")
        return n

    def lost(self, text: str) -> Closed | ConnectionLost:
        """Close; the error to raise for a failure of the socket."""
        woken = self._woken
        self.close()
        return self._closed() if woken else ConnectionLost(f"{self.where}: {text}")

    def _closed(self) -> Closed:
        return Closed(f"{self.where}: the connection is closed")

    def wake(self) -> None:
        """End a call that waits in another thread, which then closes; any thread."""
        with self._waking:
            self._woken = True
            found = self._connected
        if found is not None:
            with contextlib.suppress(OSError):  # of both directions: nothing is sent any more
                socket.socket.shutdown(found, socket.SHUT_RDWR)  # TLS's own would say goodbye

    def close(self) -> None:
        """Hang up. Idempotent."""
        with contextlib.suppress(OSError):
            self._socket.close()
