"""The streams of an adapter: questions to JetStream, from any thread, over a connection of its own.

Questions are asked one after the other. A receiver has connections of its own for messages.
"""

from __future__ import annotations

import contextlib
import json
import random
import secrets
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from tidecast.config.sources.jetstream import JetStreamSource
from tidecast.connections.registry import ConnectionRegistry
from tidecast.connections.tcp import Address
from tidecast.connections.tls import client_context
from tidecast.errors import (
    AuthError,
    ConfigError,
    ConnectionLost,
    StorageError,
    TidecastError,
)
from tidecast.jetstream.connection import Link

ASK_S, QUESTION_S, RETRY_S = 5.0, 3.0, 0.1
"""How long one answer may take; how long a question is asked again when JetStream is away."""
INACTIVE_NS = 300 * 1_000_000_000
"""The server forgets a consumer without requests after it."""
SERVERS_MAX = 64
_NO_STREAM, _NO_MESSAGE = 10_059, 10_037
_NOT_ENABLED = (10_039, 10_076)
_NS = 1_000_000_000
STORED_MARK = "tidecast"
"""In the metadata of a stream that a durable topic is stored in."""


class NoStream(ConfigError):
    """A stream is not there."""


class State(NamedTuple):
    """A stream: its oldest sequence, the sequence behind its newest, when it was made."""

    first: int
    next: int
    created: str


def _error_of(answer: dict[str, Any], what: str) -> TidecastError | None:
    problem = answer.get("error")
    if not isinstance(problem, dict):
        return None
    code, number = problem.get("code", 0), problem.get("err_code", 0)
    text = f"{what}: {problem.get('description', 'error')} ({number})"
    if number == _NO_STREAM:
        return NoStream(f"{text}: create it first")
    if number in _NOT_ENABLED:
        return ConfigError(f"{text}: enable JetStream for the account")
    if code == 503:
        return ConnectionLost(text)
    if code == 403:
        return AuthError(text)
    return StorageError(text)


def rfc3339(time_ns: int) -> str:
    """A time as JetStream reads it."""
    seconds, rest = divmod(max(time_ns, 0), _NS)
    whole = time.gmtime(min(seconds, 253_402_300_799))
    return time.strftime("%Y-%m-%dT%H:%M:%S", whole) + f".{rest:09d}Z"


class Streams:
    """See module. ``queues``: stream and subject of each.

    ``server``: the INFO of the server that was reached last.
    """

    def __init__(
        self,
        source: JetStreamSource,
        *,
        check: bool = True,
        begun: Callable[[Streams], None] | None = None,
    ) -> None:
        """Asks whether the streams are there, unless ``check`` is false.

        ``begun``: called with this before anything is asked, so that `close` ends that, too.

        Raises ConfigError, AuthError, ConnectionLost, StorageError.
        """
        self.source = source
        self.queues = source.queues
        self.server: dict[str, Any] = {}
        self._stored: set[str] = set()
        """Streams that durable topics are stored in."""
        self.api = f"$JS.{source.domain}.API" if source.domain else "$JS.API"
        self._tls = (
            client_context("jetstream", source.ca, source.certificate, source.key)
            if source.tls
            else None
        )
        self._servers = [Address(*one) for one in source.addresses]
        self._lock, self._asking = threading.Lock(), threading.Lock()
        self._link: Link | None = None
        self._connections = ConnectionRegistry(f"jetstream {source.streams}")
        self._created: dict[str, str] = {}
        self._number = 0
        self._inbox = f"_INBOX.tidecast.{secrets.token_hex(11)}"
        if begun is not None:
            begun(self)
        if not check:
            return
        try:
            for stream in dict.fromkeys(stream for stream, _ in self.queues):
                self._check(stream)
        except BaseException:
            self.close()
            raise

    def _check(self, stream: str) -> None:
        """Can it be read from any place, any number of times? Raises ConfigError."""
        found = self.ask(f"STREAM.INFO.{stream}", {}, f"stream {stream}")
        retention = found.get("config", {}).get("retention", "limits")
        if retention != "limits":
            raise ConfigError(
                f"stream {stream}: retention {retention}: allowed is limits: of others, messages "
                "are deleted when they are acknowledged: subscriptions could not read them again"
            )
        self._note(stream, found)
        metadata = found["config"].get("metadata")
        if isinstance(metadata, dict) and STORED_MARK in metadata:
            self._stored.add(stream)
            self.queues = [
                (name, subject or (f"{name}.record.*" if name == stream else ""))
                for name, subject in self.queues
            ]

    def key_header(self, queue: int) -> str:
        """The header with the key of a queue's messages; empty: the subject is the key."""
        return self.source.key_header or ("tidecast-key" if self.is_stored(queue) else "")

    def is_stored(self, queue: int) -> bool:
        """Is a durable topic stored in the stream of a queue?"""
        return self.queues[queue][0] in self._stored

    def where(self, queue: int) -> str:
        """The name of a queue in errors."""
        stream, subject = self.queues[queue]
        return f"stream {stream}" + (f", subject {subject}" if subject else "")

    # --- questions --------------------------------------------------------------------------------

    def connect(self, room: int) -> Link:
        """A connection of its own. Raises ConnectionLost, AuthError, ConfigError, Closed."""
        with self._lock:
            known = list(self._servers)
        random.shuffle(known)
        problem: TidecastError = ConnectionLost(f"no server of {self.source.servers}")
        for address in known:
            try:
                link = Link(address, self.source, self._tls, self._connections.add, room=room)
            except ConnectionLost as found:
                problem = found
                continue
            self.server = link.info
            self._learn(link.info)
            return link
        raise problem

    def _learn(self, info: dict[str, Any]) -> None:
        """Other servers of the cluster that a server names; behind those of the settings."""
        told = info.get("connect_urls")
        for text in told if isinstance(told, list) else ():
            host, _, port = str(text).rpartition(":")
            if host and port.isdecimal() and 0 < int(port) <= 65_535:
                fresh = Address(host.strip("[]"), int(port))
                with self._lock:
                    if fresh not in self._servers and len(self._servers) < SERVERS_MAX:
                        self._servers.append(fresh)

    def ask(self, subject: str, body: dict[str, Any], what: str) -> dict[str, Any]:
        """The answer of JetStream, again while it is away.

        Raises ConnectionLost after QUESTION_S, and the error that the answer is.
        """
        deadline = time.monotonic() + QUESTION_S
        while True:
            try:
                with self._asking:
                    answer = self._ask(f"{self.api}.{subject}", json.dumps(body).encode(), what)
                problem = _error_of(answer, what)
                if problem is None:
                    return answer
                if not isinstance(problem, ConnectionLost):
                    raise problem
            except ConnectionLost as lost:
                problem = lost
            if time.monotonic() >= deadline:
                raise problem
            self.pause(RETRY_S)

    def _ask(self, subject: str, body: bytes, what: str) -> dict[str, Any]:
        link = self._link
        if link is None:
            link = self.connect(0)
            link.write(b"SUB %s.* 1\r\n" % self._inbox.encode())
            self._link = link
        self._number += 1
        inbox = f"{self._inbox}.{self._number}"
        try:
            link.write(
                b"PUB %s %s %d\r\n%s\r\n" % (subject.encode(), inbox.encode(), len(body), body)
            )
            deadline = time.monotonic() + ASK_S
            while True:
                found = link.frame(deadline)
                if found is None:
                    raise ConnectionLost(f"{what}: no answer to {subject} in {ASK_S:g} s")
                if found.name == "MSG" and found.subject == inbox:
                    break
        except BaseException:
            link.close()
            self._link = None
            raise
        if found.status == 503:
            raise ConnectionLost(f"{what}: no answer to {subject}: is JetStream enabled?")
        try:
            answer = json.loads(found.body)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise StorageError(f"{what}: the answer to {subject} is no JSON object")
        return answer

    def pause(self, seconds: float) -> None:
        """Wait. Raises Closed when it is closed meanwhile."""
        self._connections.pause(seconds)

    # --- streams ----------------------------------------------------------------------------------

    def state(self, queue: int) -> State:
        """The ends of the stream of a queue now. Raises StorageError when it was made again."""
        stream, _ = self.queues[queue]
        answer = self.ask(f"STREAM.INFO.{stream}", {}, f"stream {stream}")
        return self._note(stream, answer)

    def _note(self, stream: str, answer: dict[str, Any]) -> State:
        state, created = answer.get("state"), str(answer.get("created", ""))
        if not isinstance(state, dict):
            raise StorageError(f"stream {stream}: the answer lacks its state")
        behind = _sequence(state, "last_seq", stream) + 1
        first = _sequence(state, "first_seq", stream) if state.get("messages") else behind
        if self._created.setdefault(stream, created) != created:
            raise StorageError(
                f"stream {stream}: it was deleted, and made again at {created}: its sequences are "
                "others: start the engine again, and seek the subscriptions"
            )
        return State(max(first, 1), max(behind, 1), created)

    def message(self, queue: int, body: dict[str, Any]) -> dict[str, Any] | None:
        """A message of a queue's stream, as JetStream's API has it; None: there is none."""
        stream, _ = self.queues[queue]
        try:
            answer = self.ask(f"STREAM.MSG.GET.{stream}", body, self.where(queue))
        except StorageError as problem:
            if f"({_NO_MESSAGE})" in str(problem):
                return None
            raise
        found = answer.get("message")
        if not isinstance(found, dict):
            raise StorageError(f"{self.where(queue)}: the answer lacks the message")
        _sequence(found, "seq", stream)
        return found

    def next_from(self, queue: int, token: int) -> int:
        """The sequence of the first message of a queue from ``token`` on; 0: there is none."""
        stream, subject = self.queues[queue]
        found = self.message(queue, {"seq": max(token, 1), "next_by_subj": subject or ">"})
        return 0 if found is None else _sequence(found, "seq", stream)

    def at_time(self, queue: int, time_ns: int) -> int:
        """Where a consumer would begin that wants messages from a time on."""
        name = f"tidecast-{secrets.token_hex(8)}"
        config = {"deliver_policy": "by_start_time", "opt_start_time": rfc3339(time_ns)}
        answer = self._create(queue, name, config)
        self.forget_consumer(queue, name)
        delivered = answer.get("delivered")
        stream, _ = self.queues[queue]
        if not isinstance(delivered, dict):
            raise StorageError(f"{self.where(queue)}: the answer lacks where the consumer begins")
        return _sequence(delivered, "stream_seq", stream) + 1

    def create_consumer(self, queue: int, token: int) -> str:
        """A consumer whose first message is the first from ``token`` on; its name."""
        name = f"tidecast-{secrets.token_hex(8)}"
        self._create(
            queue, name, {"deliver_policy": "by_start_sequence", "opt_start_seq": max(token, 1)}
        )
        return name

    def _create(self, queue: int, name: str, config: dict[str, Any]) -> dict[str, Any]:
        stream, subject = self.queues[queue]
        wanted = {
            "name": name,
            "ack_policy": "none",
            "replay_policy": "instant",
            "mem_storage": True,
            "num_replicas": 1,
            "inactive_threshold": INACTIVE_NS,
            **config,
        }
        if subject:
            wanted["filter_subject"] = subject
        to = f"CONSUMER.CREATE.{stream}.{name}" + (f".{subject}" if subject else "")
        body = {"stream_name": stream, "config": wanted, "action": "create"}
        return self.ask(to, body, self.where(queue))

    def forget_consumer(self, queue: int, name: str) -> None:
        """Delete a consumer, if that can be done; the server forgets it later by itself."""
        with contextlib.suppress(TidecastError):
            self.ask(f"CONSUMER.DELETE.{self.queues[queue][0]}.{name}", {}, self.where(queue))

    def close(self) -> None:
        """End all that waits, hang up. Idempotent."""
        self._connections.close()
        if self._asking.acquire(timeout=ASK_S):
            try:
                if self._link is not None:
                    self._link.close()
                    self._link = None
            finally:
                self._asking.release()


def _sequence(fields: dict[str, Any], name: str, stream: str) -> int:
    found = fields.get(name, 0)
    if not isinstance(found, int) or not 0 <= found < 1 << 61:
        raise StorageError(f"stream {stream}: {name}: {found!r}: allowed are 0 to {1 << 61}")
    return found
