"""How `tidecast sub` writes messages: lines, bytes, JSON, or a format of `kcat -f`'s directives."""

from __future__ import annotations

import base64
import contextlib
import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, cast

import click

if TYPE_CHECKING:
    from tidecast.client.consumer.message import DurableMessage
    from tidecast.client.core.message import Message
    from tidecast.client.log.records import LogRecord

    AnyMessage = Message | DurableMessage | LogRecord

Writer = Callable[["Iterable[AnyMessage]"], bytes]
_PART = re.compile(r"%(.)|\\(x[0-9a-fA-F]{2}|.)|([^%\\]+)", re.DOTALL)
_ESCAPES = {"n": b"\n", "r": b"\r", "t": b"\t", "0": b"\0", "\\": b"\\"}
OF_A_QUEUE = "op"
"""Directives that only records of queues have."""


def raw(messages: Iterable[AnyMessage]) -> bytes:
    """Payloads, byte for byte, nothing between."""
    return b"".join(_payloads(messages))


def lines(columns: str, *, terminal: bool) -> Writer:
    """A writer of lines: ``columns``, of `DIRECTIVES`, and the payload, with tabs between them.

    On a ``terminal`` control characters are escaped: a foreign publisher must not drive
    it.
    """
    if not columns and not terminal:
        return lambda messages: b"\n".join((*_payloads(messages), b""))
    parts = [DIRECTIVES[each] for each in f"{columns}s"]
    clean = _printable if terminal else _same
    return lambda messages: b"".join(
        b"\t".join([clean(part(each)) for part in parts]) + b"\n" for each in messages
    )


def json_lines(messages: Iterable[AnyMessage]) -> bytes:
    """One object a line."""
    import msgspec

    return b"".join(msgspec.json.encode(json_object(each)) + b"\n" for each in messages)


def json_object(message: Any) -> dict[str, Any]:
    """A message, or a request, as JSON shows it."""
    value: dict[str, Any] = {"topic": message.topic, **_whence(message)}
    if message.key is not None:
        value |= text_or_base64("key", message.key)
    if message.headers:
        value["headers"] = message.headers
    if message.timestamp is not None:
        value["timestamp_ns"] = message.timestamp
    if (due_ns := getattr(message, "deliver_at", None)) is not None:
        value["deliver_at_ns"] = due_ns
    return value | text_or_base64("data", bytes(message.data))


def formatted(text: str, *, terminal: bool) -> Writer:
    r"""A writer of a format such as ``'%t %k: %s\n'``. Raises `click.BadParameter`."""
    clean = _printable if terminal else _same
    parts: list[bytes | Callable[[Any], bytes]] = []
    at = 0
    for found in _PART.finditer(text):
        directive, escape, literal = found.groups()
        if found.start() != at:
            break
        at = found.end()
        if literal is not None:
            parts.append(literal.encode())
        elif escape is not None:
            parts.append(_unescaped(escape))
        elif directive == "%":
            parts.append(b"%")
        elif directive in DIRECTIVES:
            parts.append(DIRECTIVES[directive])
        else:
            raise _bad(f"%{directive}")
    if at != len(text):
        raise _bad(text[at:])
    return lambda messages: b"".join(
        part if isinstance(part, bytes) else clean(part(each))
        for each in messages
        for part in parts
    )


def directives_of(text: str) -> set[str]:
    """The letters of the directives in a format."""
    return {found.group(1) for found in _PART.finditer(text) if found.group(1)}


def _bad(what: str) -> click.BadParameter:
    allowed = ", ".join(f"%{letter}" for letter in DIRECTIVES)
    return click.BadParameter(
        f"{what}: allowed are {allowed}, %%, \\n, \\r, \\t, \\0, \\xHH and \\\\",
        param_hint="'--format'",
    )


def _unescaped(escape: str) -> bytes:
    if escape[0] == "x" and len(escape) == 3:
        return bytes([int(escape[1:], 16)])
    if escape not in _ESCAPES:
        raise _bad(f"\\{escape}")
    return _ESCAPES[escape]


def _same(data: bytes) -> bytes:
    return data


def _printable(data: bytes) -> bytes:
    text = data.decode("utf-8", "backslashreplace").removesuffix("\n")
    shown = (c if c.isprintable() or c in "\t\n" else f"\\x{ord(c):02x}" for c in text)
    return "".join(shown).encode()


def _payloads(messages: Iterable[AnyMessage]) -> Iterable[bytes]:
    payloads = getattr(messages, "payloads", None)
    if payloads is not None:
        return cast("Iterable[bytes]", payloads())
    return (bytes(each.data) for each in messages)


def text_or_base64(name: str, data: bytes) -> dict[str, str]:
    """A field of JSON: text, or NAME_base64 of bytes that are not UTF-8."""
    with contextlib.suppress(UnicodeDecodeError):
        return {name: data.decode()}
    return {f"{name}_base64": base64.b64encode(data).decode()}


def _whence(message: Any) -> dict[str, Any]:
    token = getattr(message, "token", None)
    if token is None:
        return {"node": message.node, "session": message.session}
    found = {"queue": token.queue, "token": token.sequence}
    attempts = getattr(message, "attempts", None)
    return found if attempts is None else found | {"attempts": attempts}


# --- directives -----------------------------------------------------------------------------------


def _header(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


def _headers(message: Any) -> bytes:
    return b",".join(b"%s=%s" % (k.encode(), _header(v)) for k, v in message.headers.items())


def _timestamp_ms(message: Any) -> bytes:
    return b"-1" if message.timestamp is None else b"%d" % (message.timestamp // 1_000_000)


def _key_length(message: Any) -> bytes:
    return b"-1" if message.key is None else b"%d" % len(message.key)


DIRECTIVES: dict[str, Callable[[Any], bytes]] = {
    "t": lambda message: message.topic.encode(),
    "p": lambda message: b"%d" % message.token.queue,
    "o": lambda message: b"%d" % message.token.sequence,
    "k": lambda message: message.key or b"",
    "K": _key_length,
    "s": lambda message: bytes(message.data),
    "S": lambda message: b"%d" % len(message.data),
    "h": _headers,
    "T": _timestamp_ms,
}
"""The directives of kcat: topic, queue, token, key and its length, payload and its length, headers,
time-stamp in ms since 1970."""
