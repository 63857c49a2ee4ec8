"""Codecs: how a value becomes a payload and back. Give one to a publisher and to a subscription.

    publisher = client.publisher("orders", codec=Json(Order))
    subscription = client.subscribe("orders", codec=Json(Order))
    ... message.value

`Json` and `MsgPack` are msgspec's; given a type (a `msgspec.Struct`, a dataclass, ``list[int]``)
they validate while they decode. `Raw` hands bytes through.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import msgspec

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
    """JSON. ``type``: what to decode to and validate against; default: plain Python objects."""

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
    """MessagePack. ``type``: what to decode to and validate against."""

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
            f"topic {topic}: value: no codec: subscribe with codec=Json(), or use `data`"
        )
    try:
        return codec.decode(data)
    except Exception as problem:
        wanted = getattr(getattr(codec, "type", None), "__name__", "")
        raise CodecError(
            f"topic {topic}: {type(codec).__name__} cannot decode {len(data)} bytes"
            f"{f' as {wanted}' if wanted else ''}: {problem}"
        ) from problem
