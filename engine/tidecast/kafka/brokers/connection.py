"""One connection of a client to a broker: requests out, answers in, one under way at a time."""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from tidecast.config.kafka import KafkaSource
from tidecast.errors import AuthError, Closed, ConfigError, ConnectionLost, StorageError
from tidecast.kafka.brokers.logins import login
from tidecast.kafka.codes import Code
from tidecast.kafka.schemas import tables
from tidecast.kafka.wire import BadRequest, Reader, Struct, Writer

CONNECT_S = 10.0
ANSWER_BYTES_MAX = 320 << 20
"""Of one answer: a Fetch always brings one whole batch."""
CLIENT_ID = "tidecast"
_HEAD = struct.Struct(">hhih")
_LENGTH, _CORRELATION = struct.Struct(">i"), struct.Struct(">i")


class Address(NamedTuple):
    """Where a broker listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def tls_of(source: KafkaSource) -> ssl.SSLContext | None:
    """How its brokers are talked to; None: in clear text. Raises ConfigError."""
    if not source.tls:
        return None
    try:
        context = ssl.create_default_context(cafile=source.ca or None)
        if source.certificate:
            context.load_cert_chain(source.certificate, source.key)
    except (OSError, ssl.SSLError) as problem:
        raise ConfigError(
            f"kafka: ca {source.ca or 'of the system'}, certificate {source.certificate or 'none'}:"
            f" {problem}: PEM files are needed"
        ) from None
    return context


class Link:
    """A connection that is logged in.

    Raises ConnectionLost, AuthError, ConfigError (no version in common); Closed after `close`.
    ``wrote`` and ``read`` count bytes.
    """

    def __init__(
        self,
        address: Address,
        source: KafkaSource,
        tls: ssl.SSLContext | None,
        begun: Callable[[Link], None] | None = None,
    ) -> None:
        """``begun``: called with this before it connects, so that `wake` ends that, too."""
        self.address = address
        self.asked: Any = None
        """The subject of the request that is under way; None: there is none."""
        self._key, self._version, self._correlation = 0, 0, 0
        self._head, self._frame, self._got = bytearray(4), bytearray(), 0
        self._has_length = self._woken = False
        self._waking = threading.Lock()
        self._connected: socket.socket | None = None
        if begun is not None:
            begun(self)
        try:
            self._socket = socket.create_connection(address, CONNECT_S)
        except OSError as problem:
            raise ConnectionLost(f"broker {address}: {problem}") from None
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if tls is not None:
                self._socket = tls.wrap_socket(
                    self._socket, server_hostname=address.host, do_handshake_on_connect=False
                )
            self._note_connected()
            if isinstance(self._socket, ssl.SSLSocket):
                self._socket.do_handshake()
            self._versions = self._agree()
            if source.user:
                self._log_in(source)
        except ssl.SSLCertVerificationError as problem:
            self.close()
            raise AuthError(f"broker {address}: {problem.verify_message}: set ca") from None
        except OSError as problem:
            raise self._lost(str(problem)) from None
        except BaseException:
            self.close()
            raise

    def _note_connected(self) -> None:
        with self._waking:
            if self._woken:
                raise Closed(f"broker {self.address}: the connection is closed")
            self._connected = self._socket

    # --- login ------------------------------------------------------------------------------------

    def _agree(self) -> dict[int, int]:
        """By API the newest version that both know."""
        self._versions = {tables.API_VERSIONS: 0}
        answer = self.ask(tables.API_VERSIONS, {}, CONNECT_S)
        if answer["error_code"]:
            raise ConfigError(f"broker {self.address}: ApiVersions: error {answer['error_code']}")
        found = {}
        for one in answer["api_keys"]:
            api = tables.KNOWN.get(one["api_key"])
            if api is not None:
                newest = min(api.last, one["max_version"])
                if newest >= max(api.first, one["min_version"]):
                    found[api.key] = newest
        return found

    def _log_in(self, source: KafkaSource) -> None:
        mechanism, user = source.mechanism, source.user
        answer = self.ask(tables.SASL_HANDSHAKE, {"mechanism": mechanism}, CONNECT_S)
        if answer["error_code"]:
            known = ", ".join(answer["mechanisms"]) or "none"
            raise ConfigError(
                f"broker {self.address}: mechanism {mechanism} is not enabled: it has {known}"
            )
        flow = login(mechanism, user, source.secret())
        message = next(flow)
        while True:
            answer = self.ask(tables.SASL_AUTHENTICATE, {"auth_bytes": message}, CONNECT_S)
            if answer["error_code"]:
                text = answer["error_message"] or f"error {answer['error_code']}"
                raise AuthError(f"broker {self.address}: login of {user} by {mechanism}: {text}")
            try:
                message = flow.send(bytes(answer["auth_bytes"]))
            except StopIteration:
                return

    # --- asking -----------------------------------------------------------------------------------

    def ask(self, key: int, body: Struct, timeout_s: float) -> Struct:
        """The answer to a request."""
        self.send(key, body, key)
        found = self.answer(timeout_s)
        if found is None:
            name = tables.KNOWN[key].name
            raise ConnectionLost(f"broker {self.address}: no answer to {name} in {timeout_s:g} s")
        return found

    def version(self, key: int) -> int:
        """The version of an API that is used here. Raises ConfigError."""
        found = self._versions.get(key)
        if found is None:
            api = tables.KNOWN[key]
            raise ConfigError(
                f"broker {self.address}: {api.name} in versions {api.first} to {api.last} is not "
                "served: Kafka 2.4 or newer is needed"
            )
        return found

    def send(self, key: int, body: Struct, about: Any) -> None:
        """Send a request; `answer` waits for what it brings."""
        assert self.asked is None, "one request is under way"
        version = self.version(key)
        writer = Writer()
        self._correlation = (self._correlation + 1) & 0x7FFFFFFF
        name = CLIENT_ID.encode()
        writer.tail.extend(_HEAD.pack(key, version, self._correlation, len(name)) + name)
        if tables.KNOWN[key].is_flexible(version):
            writer.tail.append(0)
        tables.request_writer(key, version)(writer, body)
        pieces = writer.done()
        size = sum(len(piece) for piece in pieces)
        self._key, self._version = key, version
        try:
            self._socket.settimeout(CONNECT_S)
            self._socket.sendall(b"".join([_LENGTH.pack(size), *pieces]))
        except OSError as problem:
            raise self._lost(str(problem)) from None
        self.asked, self._got, self._has_length = about, 0, False

    def answer(self, timeout_s: float) -> Struct | None:
        """The answer to what is under way; None: not in that time, ask again."""
        deadline = time.monotonic() + timeout_s
        if not self._has_length:
            if not self._fill(self._head, deadline):
                return None
            (n,) = _LENGTH.unpack(self._head)
            if not 4 <= n <= ANSWER_BYTES_MAX:
                self.close()
                raise StorageError(
                    f"broker {self.address}: an answer of {n} bytes: allowed 4 to "
                    f"{ANSWER_BYTES_MAX}: is it a Kafka broker, and the listener's protocol right?"
                )
            self._frame, self._got, self._has_length = bytearray(n), 0, True
        if not self._fill(self._frame, deadline):
            return None
        return self._parsed()

    def _parsed(self) -> Struct:
        key, version, frame = self._key, self._version, self._frame
        self.asked, self._frame = None, bytearray()
        reader = Reader(frame)
        try:
            (correlation,) = _CORRELATION.unpack_from(frame, reader.take(4))
            if correlation != self._correlation:
                raise BadRequest(f"it answers request {correlation}, not {self._correlation}")
            if tables.KNOWN[key].is_flexible(version) and key != tables.API_VERSIONS:
                reader.skip_tags()
            return dict(tables.answer_reader(key, version)(reader))
        except BadRequest as problem:
            self.close()
            raise StorageError(
                f"broker {self.address}: its answer to {tables.KNOWN[key].name} {version} cannot "
                f"be read: {problem}"
            ) from None

    def _fill(self, into: bytearray, deadline: float) -> bool:
        """Fill a buffer, across calls; False: not before the deadline."""
        view = memoryview(into)
        while self._got < len(into):
            left = deadline - time.monotonic()
            if left <= 0 and self._got == 0 and not self._has_length:
                left = 1e-4  # look once
            if left <= 0:
                return False
            try:
                self._socket.settimeout(left)
                n = self._socket.recv_into(view[self._got :])
            except TimeoutError:
                return False
            except (OSError, ValueError) as problem:
                raise self._lost(str(problem)) from None
            if n == 0:
                raise self._lost("it closed the connection")
            self._got += n
        return True

    def _lost(self, text: str) -> Closed | ConnectionLost:
        woken = self._woken
        self.close()
        if woken:
            return Closed(f"broker {self.address}: the connection is closed")
        return ConnectionLost(f"broker {self.address}: {text}")

    def wake(self) -> None:
        """End an `answer` that waits in another thread, which then closes; any thread."""
        with self._waking:
            self._woken = True
            found = self._connected
        if found is not None:
            with contextlib.suppress(OSError):  # of both directions: nothing is sent any more
                socket.socket.shutdown(found, socket.SHUT_RDWR)  # TLS's own would say goodbye

    def close(self) -> None:
        """Hang up. Idempotent."""
        self.asked = None
        with contextlib.suppress(OSError):
            self._socket.close()


def code_name(code: int) -> str:
    """A code of an answer, by Kafka's name."""
    try:
        return f"{Code(code).name} ({code})"
    except ValueError:
        return f"error {code}"
