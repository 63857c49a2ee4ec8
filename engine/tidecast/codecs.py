"""Codecs: how a value becomes a payload and back. Give one to a publisher and to a subscription.

    publisher = client.publisher("orders", codec=Json(Order))
    subscription = client.subscribe("orders", codec=Json(Order))
    ... message.value

`Json` and `MsgPack` are msgspec's; given a type (a `msgspec.Struct`, a dataclass, ``list[int]``)
they validate while they decode. `Raw` hands bytes through.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import msgspec

from tidecast.config.internal import is_internal
from tidecast.config.topology import check_pattern, is_pattern, matches
from tidecast.errors import CodecError, ConfigError

Payload = bytes | bytearray | memoryview


@runtime_checkable
class Codec(Protocol):
    """Encodes values to bytes and decodes payloads. Implement it for a format of your own."""

    def encode(self, value: Any) -> bytes:
        """The payload of a value."""

    def decode(self, data: Payload) -> Any:
        """The value of a payload. ``data`` is valid during the call only."""


class Raw:
    """Bytes as they are; decoding copies, so that the value outlives its batch."""

    def encode(self, value: Any) -> bytes:
        """The same bytes."""
        if isinstance(value, (bytes, bytearray, memoryview)):
            return bytes(value)
        raise TypeError(f"{type(value).__name__} is not bytes")

    def decode(self, data: Payload) -> bytes:
        """A copy as bytes."""
        return bytes(data)


class Json:
    """JSON. ``type``: the type of decoded values, which are validated; default: plain objects."""

    def __init__(self, type: Any = Any) -> None:  # noqa: A002 - named like msgspec's
        self.type = type
        self._encoder = msgspec.json.Encoder()
        self._decoder = msgspec.json.Decoder(type)

    def encode(self, value: Any) -> bytes:
        """One JSON document, UTF-8."""
        return self._encoder.encode(value)

    def decode(self, data: Payload) -> Any:
        """The document's value."""
        return self._decoder.decode(data)


class MsgPack:
    """MessagePack. ``type``: the type of decoded values, which are validated."""

    def __init__(self, type: Any = Any) -> None:  # noqa: A002 - named like msgspec's
        self.type = type
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(type)

    def encode(self, value: Any) -> bytes:
        """One MessagePack value."""
        return self._encoder.encode(value)

    def decode(self, data: Payload) -> Any:
        """The value."""
        return self._decoder.decode(data)


class Text:
    """UTF-8 text."""

    type = str

    def encode(self, value: Any) -> bytes:
        """The text as UTF-8."""
        if not isinstance(value, str):
            raise TypeError(f"{type(value).__name__} is not text")
        return value.encode()

    def decode(self, data: Payload) -> str:
        """The text."""
        return bytes(data).decode()


class Model:
    """A pydantic model, as JSON or MessagePack (``codec``); it validates itself."""

    def __init__(self, model: Any, codec: str) -> None:
        self.type, self._json = model, codec == "json"

    def encode(self, value: Any) -> bytes:
        """The payload of a model."""
        if self._json:
            return bytes(value.model_dump_json().encode())
        return msgspec.msgpack.encode(value.model_dump(mode="json"))

    def decode(self, data: Payload) -> Any:
        """The model, validated."""
        if self._json:
            return self.type.model_validate_json(bytes(data))
        return self.type.model_validate(msgspec.msgpack.decode(data))


NAMED: dict[str, type[Json | MsgPack | Raw]] = {"json": Json, "msgpack": MsgPack, "raw": Raw}


def codec_of(codec: Codec | str | None) -> Codec | None:
    """A codec by itself or by name (json, msgpack, raw). Raises ConfigError."""
    if codec is None:
        return None
    if isinstance(codec, str):
        if codec not in NAMED:
            raise ConfigError(
                f"codec: {codec!r}: allowed are {', '.join(NAMED)}, or an object with encode and "
                "decode"
            )
        return NAMED[codec]()
    if isinstance(codec, type) or not isinstance(codec, Codec):
        raise ConfigError(
            f"codec: {codec!r}: allowed is an object with encode and decode, like Json()"
        )
    return codec


def codec_for(wanted: Any, codec: Codec | str, where: str) -> Codec:
    """The codec that decodes to the type ``wanted``: ``json``, ``msgpack``, or an object.

    `bytes` stay as they are, `str` is UTF-8. Raises ConfigError for a type that it cannot decode.
    """
    if wanted is bytes or codec == "raw":
        return Raw()
    if wanted is str:
        return Text()
    if not isinstance(codec, str):
        made = codec_of(codec)
        assert made is not None
        return made
    if codec not in NAMED:
        codec_of(codec)  # refuses it
    if isinstance(wanted, type) and hasattr(wanted, "model_validate_json"):
        return Model(wanted, codec)
    problem: Any = "it is none of the allowed types"
    try:
        if not isinstance(msgspec.inspect.type_info(wanted), msgspec.inspect.CustomType):
            return NAMED[codec](wanted)  # type: ignore[call-arg]
    except TypeError as found:
        problem = found
    raise ConfigError(
        f"{where}: payload type {wanted!r}: {codec} cannot decode to it: allowed are builtin "
        "types, dataclasses, msgspec.Struct and pydantic.BaseModel, or codec= an object of "
        f"your own ({problem})"
    )


class TopicCodecs:
    """The codecs of a connection: those of topics and patterns, and a codec for all others.

    The name of a topic comes before patterns, patterns in their order.
    """

    def __init__(
        self,
        default: Codec | str | None = None,
        by_topic: Mapping[str, Codec | str] | None = None,
    ) -> None:
        """Raises ConfigError."""
        self._default = codec_of(default)
        if not isinstance(by_topic, Mapping | None):
            raise ConfigError(f"codecs: {by_topic!r}: allowed is a map of topics to codecs")
        self._by_topic = {check_pattern(t): codec_of(each) for t, each in (by_topic or {}).items()}
        self._patterns = [(t, each) for t, each in self._by_topic.items() if is_pattern(t)]

    def of(self, topic: str, given: Codec | str | None = None) -> Codec | None:
        """The codec of a topic, unless another one was ``given``. Raises ConfigError."""
        if given is not None:
            return codec_of(given)
        if (self._default is None and not self._by_topic) or is_internal(topic):
            return None
        if topic in self._by_topic:
            return self._by_topic[topic]
        for pattern, codec in self._patterns:
            if matches(pattern, topic):
                return codec
        return self._default


def encode(codec: Codec, value: Any, topic: str) -> bytes:
    """Encode for ``topic``. Raises CodecError naming topic and type."""
    try:
        payload = codec.encode(value)
    except Exception as problem:
        raise CodecError(
            f"topic {topic}: {type(codec).__name__} cannot encode {type(value).__name__}: {problem}"
        ) from problem
    if type(payload) is not bytes:
        raise CodecError(
            f"topic {topic}: {type(codec).__name__}.encode returned {type(payload).__name__}, "
            "not bytes"
        )
    return payload


def decode(codec: Codec | None, data: Payload, topic: str) -> Any:
    """Decode a payload of ``topic``. Raises CodecError; ConfigError when there is no codec."""
    if codec is None:
        raise ConfigError(
            f"topic {topic}: value: no codec: subscribe or connect with codec=Json(), or use `data`"
        )
    try:
        return codec.decode(data)
    except Exception as problem:
        wanted = getattr(getattr(codec, "type", None), "__name__", "")
        raise CodecError(
            f"topic {topic}: {type(codec).__name__} cannot decode {len(data)} bytes"
            f"{f' as {wanted}' if wanted else ''}: {problem}"
        ) from problem
