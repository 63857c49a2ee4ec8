"""Payloads as people read them: each decoder is tried, and says why it does not fit."""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from typing import Any

import msgspec

from tidecast_control.messages.schemas import SHOWN_BYTES_MAX, MessageView, Payload

INT_SAFE = (1 << 53) - 1


def payload_of(raw: bytes, size: int) -> Payload:
    """A payload decoded: JSON, then MessagePack, then text, else hex."""
    shown = raw[:SHOWN_BYTES_MAX]
    truncated = size > len(shown)
    why: dict[str, str] = {}
    if truncated:
        why["json"] = why["msgpack"] = f"{size} bytes: only the first {len(shown)} are here"
    else:
        for encoding, decode in (
            ("json", msgspec.json.decode),
            ("msgpack", msgspec.msgpack.decode),
        ):
            try:
                value = _plain(decode(shown))
            except (
                msgspec.MsgspecError,
                UnicodeDecodeError,
                ValueError,
                RecursionError,
            ) as problem:
                why[encoding] = str(problem)[:200]
                continue
            if encoding == "msgpack" and not isinstance(value, dict | list):
                why[encoding] = "a single value: any byte is one"
                continue
            text = _text(shown)
            return Payload(
                size=size,
                encoding="json" if encoding == "json" else "msgpack",
                value=value,
                text=text if text is not None else shown.hex(),
                decoders=why,
            )
    text = _text(shown)
    if text is not None:
        return Payload(size=size, encoding="text", text=text, truncated=truncated, decoders=why)
    why["text"] = "not UTF-8"
    return Payload(size=size, encoding="hex", text=shown.hex(), truncated=truncated, decoders=why)


def _text(raw: bytes) -> str | None:
    for cut in range(4):  # a truncated payload may end within a character
        try:
            return raw[: len(raw) - cut].decode()
        except UnicodeDecodeError:
            if len(raw) < SHOWN_BYTES_MAX:
                return None
    return None


def _plain(value: Any, depth: int = 0) -> Any:
    """A value as JSON in a browser can hold it: big integers become strings, bytes hex."""
    if depth > 64:
        return "..."
    if isinstance(value, dict):
        return {str(k): _plain(v, depth + 1) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v, depth + 1) for v in value]
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > INT_SAFE:
        return str(value)
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def shown_message(message: dict[str, Any], *, withheld: bool) -> MessageView:
    """A message of an engine as the API shows it."""
    at_ns = message.get("at_ns")
    size = int(message["size"])
    if withheld:
        payload = Payload(size=size, encoding="withheld")
    else:
        payload = payload_of(base64.b64decode(message["payload"]), size)
    return MessageView(
        topic=message["topic"],
        node=message["node"],
        session=message["session"],
        queue=message.get("queue"),
        token=message.get("token"),
        at=datetime.fromtimestamp(at_ns / 1e9, UTC) if at_ns else None,
        at_ns=at_ns,
        key=None if withheld else message.get("key"),
        headers={} if withheld else _plain(message.get("headers", {})),
        payload=payload,
    )
