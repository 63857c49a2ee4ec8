"""Typed topics, the part that never waits: encode, decode, and handle invalid payloads."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar, get_args

import msgspec

from tidecast import codecs
from tidecast.client.consumer.core import OnError
from tidecast.client.consumer.message import DurableMessage, Token
from tidecast.client.core.message import Message
from tidecast.client.core.metadata import HeaderValue
from tidecast.client.core.outgoing import reject
from tidecast.client.typed.options import Invalid, InvalidLive
from tidecast.client.waiting import Deadline
from tidecast.errors import CodecError
from tidecast.events import PayloadInvalid

T = TypeVar("T")


class _Received(msgspec.Struct, Generic[T], frozen=True, eq=False):
    """A message, decoded."""

    value: T
    message: Any

    @property
    def data(self) -> bytes:
        """The payload as it came."""
        found: bytes = self.message.data
        return found

    @property
    def topic(self) -> str:
        """Name of the topic."""
        found: str = self.message.topic
        return found

    @property
    def key(self) -> bytes | None:
        """The key, or None."""
        found: bytes | None = self.message.key
        return found

    @property
    def headers(self) -> dict[str, HeaderValue]:
        """The headers; empty when there are none."""
        found: dict[str, HeaderValue] = self.message.headers
        return found


class TypedMessage(_Received[T], Generic[T], frozen=True, eq=False):
    """A live message with its decoded ``value``; ``message`` has all else."""

    value: T
    message: Message

    @property
    def timestamp(self) -> int | None:
        """The publisher's time-stamp, ns since 1970, or None."""
        return self.message.timestamp


class TypedRecord(_Received[T], Generic[T], frozen=True, eq=False):
    """A delivery of a record with its decoded ``value``; settle it as a `DurableMessage`."""

    value: T
    message: DurableMessage

    @property
    def timestamp(self) -> int:
        """The publisher's time-stamp, else when it was appended; ns since 1970."""
        return self.message.timestamp

    @property
    def token(self) -> Token:
        """Where it lies."""
        return self.message.token

    @property
    def attempts(self) -> int:
        """How often it was delivered, this time included."""
        return self.message.attempts

    def ack(self) -> Awaitable[None]:
        """It is done with."""
        return self.message.ack()

    def nak(self, delay: float = 0.0) -> Awaitable[None]:
        """Deliver it again, after ``delay`` seconds. Raises ConfigError."""
        return self.message.nak(delay)

    def extend(self, seconds: float | None = None) -> Awaitable[None]:
        """Ask for more time. Raises ConfigError."""
        return self.message.extend(seconds)

    def term(self, reason: str = "") -> Awaitable[None]:
        """Give it up: a dead letter."""
        return self.message.term(reason)


class InvalidValue(CodecError):
    """A record that could not be decoded, on its way out of a handler."""


class _Checked:
    """A codec that also refuses to encode values of another class."""

    def __init__(self, codec: codecs.Codec, kind: Any) -> None:
        self.type, self._codec = kind, codec
        self._class = kind if isinstance(kind, type) else object

    def encode(self, value: Any) -> bytes:
        """The payload of a value. Raises TypeError for a value of another class."""
        if not isinstance(value, self._class):
            raise TypeError(f"it is not {self._class.__name__}")
        return self._codec.encode(value)

    def decode(self, data: codecs.Payload) -> Any:
        """The value of a payload."""
        return self._codec.decode(data)


class TopicCore(Generic[T]):
    """A topic, or a pattern, and the type of its payloads."""

    def __init__(
        self, connection: Any, name: str, kind: type[T], codec: codecs.Codec | str
    ) -> None:
        found = codecs.codec_for(kind, codec, f"topic {name}")
        self._connection, self.name, self.kind = connection, name, kind
        self.codec: codecs.Codec = _Checked(found, kind)
        self._shown = type(found).__name__

    @property
    def now_s(self) -> Callable[[], float]:
        """The clock of the connection."""
        clock: Callable[[], float] = self._connection.link.now_s
        return clock

    def __repr__(self) -> str:
        return f"<Topic {self.name} of {getattr(self.kind, '__name__', self.kind)}>"

    def decode(self, message: Any) -> T:
        """The value of a message. Raises CodecError, which names topic and type."""
        try:
            value: T = self.codec.decode(message.data)
        except Exception as problem:
            wanted = getattr(self.kind, "__name__", str(self.kind))
            raise CodecError(
                f"topic {message.topic}: {self._shown} cannot decode {len(message.data)} bytes as "
                f"{wanted}: {problem}"
            ) from problem
        return value

    def report(self, subscription: str, fate: str, topic: str, problem: Exception) -> None:
        """Report a message that cannot be decoded."""
        self._connection.emit(
            PayloadInvalid(topic=topic, subscription=subscription, fate=fate, detail=str(problem))
        )


class _Receiver(Generic[T]):
    """Common to typed subscriptions and consumers."""

    def __init__(self, topic: TopicCore[T]) -> None:
        self._topic = topic
        self.invalid = 0
        """Messages that could not be decoded."""

    def deadline(self, timeout: float | None) -> Callable[[], float | None]:
        """A function that returns the seconds left of ``timeout``; None: no limit."""
        deadline = Deadline(timeout, self._topic.now_s)
        return lambda: None if timeout is None else deadline.left_s(timeout)


class RecordsCore(_Receiver[T], Generic[T]):
    """A typed consumer settles records that it cannot decode."""

    def __init__(self, topic: TopicCore[T], name: str, invalid: Invalid) -> None:
        super().__init__(topic)
        self._name, self._invalid = name, invalid

    def record(self, message: DurableMessage) -> TypedRecord[T] | None:
        """A message, decoded; None: it was invalid, and is settled. Raises CodecError."""
        try:
            return TypedRecord(self._topic.decode(message), message)
        except CodecError as problem:
            self._note(message, problem)
            if self._invalid == "raise":
                raise
            if self._invalid == "nak":
                message.nak()
            else:
                message.term(f"{InvalidValue.__name__}: {problem}")
            return None

    def handled(self, message: DurableMessage) -> TypedRecord[T]:
        """A message for a handler, decoded. Raises InvalidValue."""
        try:
            return TypedRecord(self._topic.decode(message), message)
        except CodecError as problem:
            self._note(message, problem)
            raise InvalidValue(str(problem)) from problem

    def decide(self, on_error: OnError) -> Callable[[DurableMessage, Exception], Any]:
        """`on_error`, but records that cannot be decoded have a fate of their own."""

        def fate(message: DurableMessage, problem: Exception) -> Any:
            if isinstance(problem, InvalidValue):
                return self._invalid
            return on_error(message, problem) if callable(on_error) else on_error

        return fate

    def _note(self, message: DurableMessage, problem: CodecError) -> None:
        self.invalid += 1
        self._topic.report(self._name, self._invalid, message.topic, problem)


class MessagesCore(_Receiver[T], Generic[T]):
    """A typed subscription raises, or leaves out, messages that it cannot decode."""

    def __init__(self, topic: TopicCore[T], invalid: InvalidLive) -> None:
        super().__init__(topic)
        self._invalid = invalid

    def message(self, message: Message) -> TypedMessage[T] | None:
        """A message, decoded; None: it was invalid, and is left out. Raises CodecError."""
        try:
            return TypedMessage(self._topic.decode(message), message)
        except CodecError as problem:
            self.invalid += 1
            self._topic.report(self._topic.name, self._invalid, message.topic, problem)
            if self._invalid == "raise":
                raise
            return None


def check_invalid(given: Any, allowed: Any) -> None:
    """Raise ConfigError for a word that is not allowed."""
    words = get_args(allowed)
    if given not in words:
        raise reject("invalid", given, f"are {', '.join(words)}")
