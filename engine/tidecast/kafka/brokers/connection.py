"""One connection of a client to a broker: requests out, answers in, one under way at a time."""

from __future__ import annotations

import ssl
import struct
import time
from collections.abc import Callable
from typing import Any, ClassVar

from tidecast.config.sources.kafka import KafkaSource
from tidecast.connections.tcp import CONNECT_S, Address, Connection
from tidecast.errors import AuthError, ConfigError, ConnectionLost, StorageError
from tidecast.kafka.brokers.logins import login
from tidecast.kafka.codes import Code
from tidecast.kafka.schemas import tables
from tidecast.kafka.wire import BadRequest, CutReader, Reader, Struct, Writer

ANSWER_BYTES_MAX = 320 << 20
"""Of one answer. A Fetch always brings one whole batch: of a longer answer the rest is not read."""
CLIENT_ID = "tidecast"
_HEAD = struct.Struct(">hhih")
_LENGTH, _CORRELATION = struct.Struct(">i"), struct.Struct(">i")


class Link(Connection):
    """A connection that is logged in.

    Raises ConnectionLost, AuthError, ConfigError (no version in common); Closed after `wake`.
    """

    role: ClassVar[str] = "broker"

    def __init__(
        self,
        address: Address,
        source: KafkaSource,
        tls: ssl.SSLContext | None,
        begun: Callable[[Link], None] | None = None,
    ) -> None:
        """``begun``: called with this before it connects, so that `wake` ends that, too."""
        self.asked: Any = None
        """The subject of the request that is under way; None: there is none."""
        self._key, self._version, self._correlation = 0, 0, 0
        self._head, self._frame, self._got = bytearray(4), bytearray(), 0
        self._size, self._has_length = 0, False
        self.is_cut = False
        """Only the begin of the last answer was read: the connection is closed."""
        super().__init__(address, begun)
        with self.opening():
            if tls is not None:
                self.start_tls(tls)
            self._versions = self._agree()
            if source.user:
                self._log_in(source)

    # --- login ------------------------------------------------------------------------------------

    def _agree(self) -> dict[int, int]:
        """By API the newest version that both know."""
        self._versions = {tables.API_VERSIONS: 0}
        answer = self.ask(tables.API_VERSIONS, {}, CONNECT_S)
        if answer["error_code"]:
            raise ConfigError(f"{self.where}: ApiVersions: error {answer['error_code']}")
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
            raise ConfigError(f"{self.where}: mechanism {mechanism} is not enabled: it has {known}")
        flow = login(mechanism, user, source.secret())
        message = next(flow)
        while True:
            answer = self.ask(tables.SASL_AUTHENTICATE, {"auth_bytes": message}, CONNECT_S)
            if answer["error_code"]:
                text = answer["error_message"] or f"error {answer['error_code']}"
                raise AuthError(f"{self.where}: login of {user} by {mechanism}: {text}")
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
            raise ConnectionLost(f"{self.where}: no answer to {name} in {timeout_s:g} s")
        return found

    def version(self, key: int) -> int:
        """The version of an API that is used here. Raises ConfigError."""
        found = self._versions.get(key)
        if found is None:
            api = tables.KNOWN[key]
            raise ConfigError(
                f"{self.where}: {api.name} in versions {api.first} to {api.last} is not "
                "served: Kafka 2.4 or newer is needed"
            )
        return found

    def send(self, key: int, body: Struct, about: Any) -> None:
        """Send a request; `answer` waits for its answer."""
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
        self.write(b"".join([_LENGTH.pack(size), *pieces]))
        self.asked, self._got, self._has_length = about, 0, False

    def answer(self, timeout_s: float) -> Struct | None:
        """The answer to the request under way; None: not in that time, call it again."""
        deadline = time.monotonic() + timeout_s
        if not self._has_length:
            if not self._fill(self._head, deadline):
                return None
            (n,) = _LENGTH.unpack(self._head)
            if n < 4 or (n > ANSWER_BYTES_MAX and self._key != tables.FETCH):
                self.close()
                raise StorageError(
                    f"{self.where}: an answer of {n} bytes: allowed 4 to "
                    f"{ANSWER_BYTES_MAX}: is it a Kafka broker, and the listener's protocol right?"
                )
            self._frame = bytearray(min(n, ANSWER_BYTES_MAX))
            self._size, self._got, self._has_length = n, 0, True
        if not self._fill(self._frame, deadline):
            return None
        return self._parsed()

    def _parsed(self) -> Struct:
        key, version, frame = self._key, self._version, self._frame
        self.asked, self._frame = None, bytearray()
        reader = Reader(frame)
        if len(frame) < self._size:
            reader = CutReader(frame, self._size)
            self.close()
            self.is_cut = True
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
                f"{self.where}: its answer to {tables.KNOWN[key].name} {version} cannot "
                f"be read: {problem}"
            ) from None

    def _fill(self, into: bytearray, deadline: float) -> bool:
        """Fill a buffer, across calls; False: not before the deadline."""
        view = memoryview(into)
        while self._got < len(into):
            is_begun = self._got > 0 or self._has_length
            if is_begun and time.monotonic() >= deadline:
                return False
            n = self.read_into(view[self._got :], deadline)
            if n == 0:
                return False
            self._got += n
        return True

    def close(self) -> None:
        """Hang up. Idempotent."""
        self.asked = None
        super().close()


def code_name(code: int) -> str:
    """A code of an answer, by Kafka's name."""
    try:
        return f"{Code(code).name} ({code})"
    except ValueError:
        return f"error {code}"
