"""A message's optional fields in wire order: time-stamp, addressee, key, headers. See layout."""

from __future__ import annotations

import struct
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from tidecast.errors import ConfigError
from tidecast.layout import packet as wire
from tidecast.layout.header_names import DELIVER_AT, RESERVED, is_reserved

HeaderValue = bytes | str | int
Headers = Mapping[str, HeaderValue]

_I64_MIN, _I64_MAX = -(1 << 63), (1 << 63) - 1
_U32_MAX = (1 << 32) - 1
DELAY_S_MAX = 365 * 24 * 3600
"""A delivery time is at most so far ahead."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_headers = msgspec.msgpack.Decoder(dict[str, Any])


def _key_bytes(key: Any) -> bytes:
    if isinstance(key, str):
        key = key.encode()
    if not isinstance(key, (bytes, bytearray, memoryview)):
        raise ConfigError(f"key: {key!r}: allowed are bytes, or a str (sent as UTF-8)")
    raw = bytes(key)
    if len(raw) > wire.KEY_BYTES_MAX:
        raise ConfigError(f"key: {len(raw)} bytes: at most {wire.KEY_BYTES_MAX}")
    return raw


def check_headers(headers: Any, *, of_engine: bool) -> None:
    """Raise ConfigError for a name or a value that is not allowed."""
    if not isinstance(headers, Mapping):
        raise ConfigError(f"headers: {headers!r}: allowed is a mapping of str to bytes, str or int")
    for name, value in headers.items():
        whole = isinstance(value, int) and _I64_MIN <= value <= _I64_MAX
        if (
            not isinstance(name, str)
            or isinstance(value, bool)
            or not (whole or isinstance(value, (bytes, str)))
        ):
            raise ConfigError(
                f"headers: {name!r}: {value!r}: allowed are names of type str and values of type "
                "bytes, str or int (64 bit)"
            )
        if not of_engine and is_reserved(name):
            raise ConfigError(
                f"headers: {name!r}: names that begin with {' or '.join(RESERVED)} are the "
                "engine's own: take another name"
            )


def _headers_bytes(headers: Any, of_engine: bool, due_ns: int | None) -> bytes:
    check_headers(headers, of_engine=of_engine)
    given = dict(headers) if due_ns is None else {DELIVER_AT: due_ns, **headers}
    raw = msgspec.msgpack.encode(given)
    if len(raw) > wire.HEADERS_BYTES_MAX:
        raise ConfigError(f"headers: {len(raw)} bytes: at most {wire.HEADERS_BYTES_MAX}")
    return raw


def _timestamp_ns(timestamp: Any) -> int:
    if timestamp is True:
        return time.time_ns()
    if isinstance(timestamp, int) and timestamp is not False and 0 <= timestamp <= _I64_MAX:
        return timestamp
    raise ConfigError(
        f"timestamp: {timestamp!r}: allowed are True (now) and 0 to {_I64_MAX} ns since 1970"
    )


def due_ns_of(deliver_at: Any, deliver_in: Any, now_ns: int) -> int | None:
    """The delivery time of a message, ns since 1970; None: at once. Raises ConfigError."""
    if deliver_in is not None:
        if deliver_at is not None:
            raise ConfigError("deliver_at, deliver_in: give one of them")
        number = isinstance(deliver_in, (int, float)) and not isinstance(deliver_in, bool)
        if not number or not 0 <= deliver_in <= DELAY_S_MAX:
            raise ConfigError(
                f"deliver_in: {deliver_in!r}: allowed are 0 to {DELAY_S_MAX:,} s (365 days)"
            )
        return now_ns + round(deliver_in * 1e9)
    if deliver_at is None:
        return None
    due = deliver_at
    if isinstance(due, datetime) and due.tzinfo is not None:
        due = (due - _EPOCH) // timedelta(microseconds=1) * 1000
    if isinstance(due, int) and not isinstance(due, bool) and due >= 0:
        check_due_ns("deliver_at", due, now_ns)
        return due
    raise ConfigError(
        f"deliver_at: {deliver_at!r}: allowed are a datetime with a time zone, and ns since 1970"
    )


def time_in(headers: Headers) -> int | None:
    """The delivery time among decoded headers, ns since 1970; None: there is none."""
    found = headers.get(DELIVER_AT)
    return found if isinstance(found, int) else None


def without_time(headers: dict[str, HeaderValue]) -> dict[str, HeaderValue]:
    """These headers, their delivery time taken out."""
    if isinstance(headers.get(DELIVER_AT), int):
        del headers[DELIVER_AT]
    return headers


def check_due_ns(field: str, due_ns: int, now_ns: int) -> None:
    """Raise ConfigError for a delivery time that is too far ahead."""
    if due_ns > now_ns + DELAY_S_MAX * 1_000_000_000:
        raise ConfigError(
            f"{field}: {due_ns}: it is {(due_ns - now_ns) / 86_400e9:,.0f} days ahead: at most 365"
        )


def encode(
    key: bytes | str | None,
    headers: Headers | None,
    timestamp: bool | int | None,
    subscriber: Any,
    *,
    of_engine: bool = False,
    due_ns: int | None = None,
) -> tuple[bytes, int]:
    """The optional fields in wire order, and their flags. Raises ConfigError.

    ``of_engine``: the names of headers that the engine reserves are allowed.
    """
    flags, parts = 0, []
    if timestamp is not None and timestamp is not False:
        flags |= wire.TIMESTAMP
        parts.append(struct.pack("<q", _timestamp_ns(timestamp)))
    if subscriber is not None:
        if not isinstance(subscriber, int) or not 0 <= subscriber <= _U32_MAX:
            raise ConfigError(f"subscriber: {subscriber!r}: allowed is a subscriber's id")
        flags |= wire.TO
        parts.append(struct.pack("<I", subscriber))
    if key is not None:
        raw = _key_bytes(key)
        flags |= wire.KEY
        parts += [struct.pack("<H", len(raw)), raw]
    if headers or due_ns is not None:
        raw = _headers_bytes(headers or {}, of_engine, due_ns)
        flags |= wire.HEADERS
        parts += [struct.pack("<H", len(raw)), raw]
    return b"".join(parts), flags


class Optional(msgspec.Struct, frozen=True):
    """Decoded optional fields. ``timestamp``: ns since 1970."""

    timestamp: int | None = None
    subscriber: int | None = None
    key: bytes | None = None
    raw_headers: bytes | None = None

    @property
    def headers(self) -> dict[str, HeaderValue]:
        """The headers, decoded; empty when a foreign client sent no map of headers.

        A delivery time is none of them.
        """
        return without_time(self.all_headers)

    @property
    def all_headers(self) -> dict[str, HeaderValue]:
        """`headers`, and the delivery time."""
        if self.raw_headers is None:
            return {}
        try:
            return _headers.decode(self.raw_headers)
        except msgspec.DecodeError:
            return {}


NONE = Optional()


def decode(data: memoryview, at: int, flags: int) -> Optional:
    """The optional fields that start at ``at``. The kernel has checked that they fit."""
    timestamp = subscriber = key = headers = None
    if flags & wire.TIMESTAMP:
        (timestamp,) = struct.unpack_from("<q", data, at)
        at += 8
    if flags & wire.TO:
        (subscriber,) = struct.unpack_from("<I", data, at)
        at += 4
    if flags & wire.KEY:
        (n,) = struct.unpack_from("<H", data, at)
        key = bytes(data[at + 2 : at + 2 + n])
        at += 2 + n
    if flags & wire.HEADERS:
        (n,) = struct.unpack_from("<H", data, at)
        headers = bytes(data[at + 2 : at + 2 + n])
    return Optional(timestamp, subscriber, key, headers)
