"""Reading durable queues over a gateway, range by range: for jobs, which keep their own positions.

Needs no rings and no session: a connection that breaks is made again, and the read resumes behind
the last batch that arrived whole.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar
from urllib.parse import urlsplit

import msgspec
import numpy as np
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection

from tidecast.api.connecting import Backoff
from tidecast.api.frames.common import Frame, Goodbye
from tidecast.api.rpc import result_of
from tidecast.client.remote import frames, log_frames
from tidecast.client.remote.dial import CONNECT_TIMEOUT_S, open_socket
from tidecast.client.remote.frames import BadFrame
from tidecast.errors import ConfigError, ConnectionLost, Timeout

PORT = 7400
ANSWER_S = 60.0
RETRY_S, RETRY_MIN_S, RETRY_MAX_S = 30.0, 0.05, 2.0
"""How long a gateway that goes away is waited for."""
_T = TypeVar("_T")


def address_of(servers: str) -> tuple[str, bool]:
    """``HOST:PORT`` and whether with TLS, of ``tidecast[+tls]://HOST:PORT``. Raises ConfigError."""
    parts = urlsplit(servers)
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    sound = parts.scheme in ("tidecast", "tidecast+tls") and not parts.path.strip("/")
    if not host or not sound or parts.username is not None or parts.query:
        raise ConfigError(f"servers: {servers!r}: allowed is tidecast://HOST:PORT of one gateway")
    host = f"[{host}]" if ":" in host else host
    return f"{host}:{port or PORT}", parts.scheme == "tidecast+tls"


class LogClient:
    """One connection to a gateway's logs, made when it is needed. Not for two threads at once."""

    def __init__(self, servers: str, token: str = "", *, retry_s: float = RETRY_S) -> None:
        """``servers``: ``tidecast://HOST:PORT``. Raises ConfigError."""
        self._where, self._tls = address_of(servers)
        self._token = token or os.environ.get("TIDECAST_TOKEN", "")
        self._retry_s = retry_s
        self._numbers = itertools.count(1)
        self._socket: ClientConnection | None = None

    def __enter__(self) -> LogClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the connection. Idempotent."""
        socket, self._socket = self._socket, None
        if socket is not None:
            socket.close()

    # --- questions --------------------------------------------------------------------------------

    def topics(self) -> list[str]:
        """Topics with queues that the key may read."""
        return self._ask(lambda number: log_frames.Topics(id=number), list[str])

    def bounds(self, topic: str) -> list[tuple[int, int, int]]:
        """(queue, first token, end) of each queue of a topic. Raises AuthError, NotFound."""
        ask: Callable[[int], Frame] = lambda number: log_frames.Bounds(id=number, topic=topic)  # noqa: E731
        return self._ask(ask, list[tuple[int, int, int]])

    def at_time(self, topic: str, queue: int, time_ns: int) -> int:
        """See `QueueFiles.token_at_time`."""
        return self._ask(
            lambda number: log_frames.AtTime(id=number, topic=topic, queue=queue, time_ns=time_ns),
            int,
        )

    def cuts(
        self, topic: str, queue: int, start: int, end: int, parts: int, part_bytes_min: int
    ) -> list[int]:
        """See `QueueFiles.cuts`."""
        return self._ask(
            lambda number: log_frames.Cuts(
                id=number,
                topic=topic,
                queue=queue,
                start=start,
                end=end,
                parts=min(parts, log_frames.CUTS_MAX),
                part_bytes_min=part_bytes_min,
            ),
            list[int],
        )

    def _ask(self, make: Callable[[int], Frame], kind: type[_T]) -> _T:
        """Raises the gateway's error, EngineNotRunning, ConnectionLost, Timeout."""
        again = self._socket is not None  # it may have gone away since it was asked last
        while True:
            number = next(self._numbers)
            try:
                self._send(make(number))
                frame, _ = self._receive()
                if not isinstance(frame, log_frames.Answer) or frame.id != number:
                    raise self._nonsense(frame)
                return self._result(frame, kind)
            except ConnectionLost:
                self.close()
                if not again:
                    raise
                again = False

    # --- reading ----------------------------------------------------------------------------------

    def read(self, wanted: log_frames.Range, report: log_frames.Report) -> Iterator[np.ndarray]:
        """Runs of whole batches, writable bytes, in order; not checked yet.

        ``report`` gets the missing ranges. Raises GapError, CorruptLog, AuthError, NotFound,
        ConnectionLost.
        """
        token, patience = wanted.start, _Patience(self._retry_s)
        while token < wanted.end:
            rest = msgspec.structs.replace(wanted, start=token)
            try:
                for block, behind in self._read_once(rest, report):
                    token = max(token, behind)
                    patience.progressed()
                    if block.size:
                        yield block
            except ConnectionLost:
                self.close()
                if not patience.wait():
                    raise
            else:
                return

    def _read_once(
        self, wanted: log_frames.Range, report: log_frames.Report
    ) -> Iterator[tuple[np.ndarray, int]]:
        number, parts = next(self._numbers), []
        self._send(log_frames.Read(id=number, range=wanted))
        while True:
            frame, body = self._receive()
            match frame:
                case log_frames.Piece():
                    parts.append(body)
                    if frame.more:
                        self._give_credit(body.nbytes)
                        continue
                    whole = np.frombuffer(bytearray().join(parts), dtype=np.uint8)
                    parts.clear()
                    yield whole, frame.next
                    self._give_credit(body.nbytes)
                case log_frames.Missing():
                    report(frame.what, frame.about)
                case log_frames.Answer() if frame.id == number:
                    self._result(frame, int)
                    return
                case _:
                    raise self._nonsense(frame)

    def _give_credit(self, n_bytes: int) -> None:
        if n_bytes:
            self._send(log_frames.LogCredit(n_bytes=n_bytes))

    # --- the connection ---------------------------------------------------------------------------

    def _connected(self) -> ClientConnection:
        if self._socket is None:
            self._socket = open_socket(
                self._where, self._token, tls=self._tls, path=log_frames.PATH
            )
            frame, _ = self._receive(CONNECT_TIMEOUT_S)
            if not isinstance(frame, log_frames.Ready):
                raise self._nonsense(frame)
        return self._socket

    def _send(self, frame: Frame) -> None:
        socket = self._connected()
        try:
            socket.send(frames.encode(frame))
        except (ConnectionClosed, OSError) as problem:
            raise ConnectionLost(f"{self._where}: {problem}") from None

    def _receive(self, timeout_s: float = ANSWER_S) -> tuple[log_frames.FromLog, memoryview]:
        assert self._socket is not None
        try:
            frame, body = log_frames.from_log(self._socket.recv(timeout_s))
        except TimeoutError:
            self.close()
            raise Timeout(f"{self._where} did not answer within {timeout_s:g} s") from None
        except (ConnectionClosed, OSError, BadFrame) as problem:
            raise ConnectionLost(f"{self._where}: {problem}") from None
        if isinstance(frame, Goodbye):
            raise ConnectionLost(f"{self._where}: the gateway ended the connection: {frame.reason}")
        return frame, body

    def _result(self, answer: log_frames.Answer, kind: type[_T]) -> _T:
        found: _T = result_of(answer, kind, self._where)
        return found

    def _nonsense(self, frame: object) -> ConnectionLost:
        return ConnectionLost(f"{self._where}: {type(frame).__name__} is no answer to that")


class _Patience:
    """Waits longer and longer, until ``retry_s`` have passed without progress."""

    def __init__(self, retry_s: float) -> None:
        self._retry_s = retry_s
        self.progressed()

    def progressed(self) -> None:
        self._until_s: float | None = None
        self._backoff = Backoff(RETRY_MIN_S, RETRY_MAX_S)

    def wait(self) -> bool:
        """False: it has lasted too long."""
        now_s = time.monotonic()
        if self._until_s is None:
            self._until_s = now_s + self._retry_s
        if now_s >= self._until_s:
            return False
        threading.Event().wait(self._backoff.next_s())
        return True
