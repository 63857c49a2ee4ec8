"""From a payload to the type that a handler names, and from a handler's result to a payload.

msgspec decodes and validates its structs, dataclasses, typed dicts, and all builtin types. Models
of pydantic validate themselves. A codec (``json``, ``msgpack``) uses either.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tidecast import codecs
from tidecast.codecs import Codec
from tidecast.errors import CodecError

Decoder = Callable[[Any], Any]
"""The payload of a message, decoded. Raises CodecError."""
JSON, MSGPACK = "json", "msgpack"


def check_codec(codec: Codec | str) -> Codec | str:
    """A codec by name, or an object. Raises ConfigError."""
    if codec not in (JSON, MSGPACK):
        codecs.codec_of(codec)
    return codec


def decoder_of(wanted: Any, codec: Codec | str, where: str) -> Decoder:
    """The decoder of payloads to ``wanted``. Raises ConfigError for a type that no codec knows."""
    if wanted is bytes:
        return lambda message: bytes(message.data)
    if wanted is str:
        return _text
    made = codecs.codec_for(wanted, codec, where)
    return lambda message: codecs.decode(made, message.data, message.topic)


def _text(message: Any) -> str:
    try:
        return bytes(message.data).decode()
    except UnicodeDecodeError as problem:
        raise CodecError(f"topic {message.topic}: the payload is not UTF-8: {problem}") from None


def _is_model(wanted: Any) -> bool:
    return isinstance(wanted, type) and hasattr(wanted, "model_validate_json")


def encode(value: Any, codec: Codec | str, topic: str) -> bytes:
    """A handler's result as a payload: bytes as they are, text as UTF-8, others by the codec.

    Raises CodecError.
    """
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    if isinstance(value, str):
        return value.encode()
    if isinstance(codec, str) and _is_model(type(value)):
        if codec == JSON:
            return bytes(value.model_dump_json().encode())
        value = value.model_dump(mode="json")
    made = codecs.codec_of(codec)
    assert made is not None
    return codecs.encode(made, value, topic)
