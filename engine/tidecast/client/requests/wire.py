"""Requests, replies and announcements as bytes, with the headers of docs/PROTOCOL.md.

A request carries in one reserved header where its reply goes: the requester's node, the id of its
subscription to replies, and the token of its client, which is random. The reply returns
token and number. Both headers come first in their map, so the common case needs no decoding.
"""

from __future__ import annotations

import secrets
import struct
from typing import NamedTuple

import msgspec

from tidecast.client.core import metadata
from tidecast.client.core.image import Copied
from tidecast.client.core.metadata import NONE, Headers, Optional
from tidecast.layout import packet as wire
from tidecast.layout.header_names import ERROR, REPLY, REQUEST

GROUP_CHARS_MAX = 64
ERROR_CHARS_MAX = 1000
ANNOUNCEMENT_BYTES_MAX = 512
_REQUEST, _REPLY = struct.Struct("<QQHI"), struct.Struct("<QQ")
_TO, _SIZE = struct.Struct("<I"), struct.Struct("<H")
_BIN8 = 0xC4


def _lead(name: str, size: int) -> bytes:
    """The header's name, and the tag and length of its value, as MessagePack."""
    return msgspec.msgpack.encode(name) + bytes((_BIN8, size))


_REQUEST_LEAD, _REPLY_LEAD = _lead(REQUEST, _REQUEST.size), _lead(REPLY, _REPLY.size)
_REQUEST_ALONE = b"\x81" + _REQUEST_LEAD
_REPLY_ALONE = b"\x81" + _REPLY_LEAD
_REQUEST_SIZE = _SIZE.pack(len(_REQUEST_ALONE) + _REQUEST.size)
_REPLY_SIZE = _SIZE.pack(len(_REPLY_ALONE) + _REPLY.size)
PLAIN_FLAGS = wire.TO | wire.HEADERS
"""Of requests and replies that have no fields but their own."""
_REQUEST_FIXED, _REPLY_FIXED = _REQUEST_SIZE + _REQUEST_ALONE, _REPLY_SIZE + _REPLY_ALONE
_REQUEST_AT, _REPLY_AT = _TO.size + len(_REQUEST_FIXED), _TO.size + len(_REPLY_FIXED)
_REQUEST_END, _REPLY_END = _REQUEST_AT + _REQUEST.size, _REPLY_AT + _REPLY.size


class Return(NamedTuple):
    """Where a reply goes, and the request that it is for."""

    number: int
    token: int
    node: int
    subscriber: int


def home_tail(token: int, node: int, subscriber: int) -> bytes:
    """The bytes behind the number in a `Return`."""
    return _REQUEST.pack(0, token, node, subscriber)[8:]


class Answer(NamedTuple):
    """The request that a reply is for, and the error that it reports, if it does."""

    number: int
    token: int
    failure: tuple[str, str] | None
    """(kind, text)"""


class Announcement(msgspec.Struct, frozen=True, kw_only=True):
    """A responder's announcement. ``replies``: session of its publication of replies."""

    node: int
    subscriber: int
    replies: int
    group: str = ""


_announcements = msgspec.msgpack.Decoder(Announcement)


def new_token() -> int:
    """A random token, so that other programs cannot guess it."""
    return secrets.randbits(64)


def encode_announcement(announcement: Announcement) -> bytes:
    """An announcement's payload."""
    return msgspec.msgpack.encode(announcement)


def announcement_of(payload: bytes) -> Announcement | None:
    """An announcement, None when the payload is none."""
    if len(payload) > ANNOUNCEMENT_BYTES_MAX:
        return None
    try:
        found = _announcements.decode(payload)
    except msgspec.DecodeError:
        return None
    sound = (
        0 < found.node < 65_535
        and 0 <= found.subscriber < 1 << 32
        and 0 < found.replies < 1 << 32
        and len(found.group) <= GROUP_CHARS_MAX
    )
    return found if sound else None


def request_lead(subscriber: int) -> bytes:
    """The optional fields of a request to ``subscriber``, up to its `Return`."""
    return _TO.pack(subscriber) + _REQUEST_SIZE + _REQUEST_ALONE


def request_meta(
    to: bytes, subscriber: int, key: bytes | str | None, headers: Headers | None
) -> tuple[bytes, int]:
    """The optional fields of a request that has a key or headers. Raises ConfigError."""
    return _with_headers(REQUEST, to, subscriber, key, headers)


def reply_meta(
    to: Return, headers: Headers | None, failure: tuple[str, str] | None
) -> tuple[bytes, int]:
    """The optional fields of a reply, and their flags. Raises ConfigError."""
    answered = _REPLY.pack(to.number, to.token)
    if not headers and failure is None:
        return _TO.pack(to.subscriber) + _REPLY_SIZE + _REPLY_ALONE + answered, PLAIN_FLAGS
    if failure is not None:
        kind, text = failure
        value = f"{kind[:ERROR_CHARS_MAX]}\n{text[:ERROR_CHARS_MAX]}"
        return metadata.encode(
            None, {REPLY: answered, ERROR: value}, None, to.subscriber, of_engine=True
        )
    return _with_headers(REPLY, answered, to.subscriber, None, headers)


def _with_headers(
    name: str, value: bytes, subscriber: int, key: bytes | str | None, headers: Headers | None
) -> tuple[bytes, int]:
    metadata.check_headers(headers or {}, of_engine=False)
    return metadata.encode(key, {name: value, **(headers or {})}, None, subscriber, of_engine=True)


def return_of(message: Copied) -> tuple[Return, Optional] | None:
    """Where the reply to a message goes, and its other fields; None: it is no request."""
    flags, lead, raw = message
    if flags == PLAIN_FLAGS and lead == _REQUEST_END and raw[4:_REQUEST_AT] == _REQUEST_FIXED:
        return Return(*_REQUEST.unpack_from(raw, _REQUEST_AT)), NONE
    if flags & PLAIN_FLAGS != PLAIN_FLAGS:
        return None
    fields = metadata.decode(memoryview(raw), 0, flags)
    value = _value(fields, REQUEST, _REQUEST.size)
    return None if value is None else (Return(*_REQUEST.unpack(value)), _without_own(fields))


def answer_of(message: Copied) -> tuple[Answer, Optional] | None:
    """The request that a message answers, and its other fields; None: it is no reply."""
    flags, lead, raw = message
    if flags == PLAIN_FLAGS and lead == _REPLY_END and raw[4:_REPLY_AT] == _REPLY_FIXED:
        number, token = _REPLY.unpack_from(raw, _REPLY_AT)
        return Answer(number, token, None), NONE
    if flags & PLAIN_FLAGS != PLAIN_FLAGS:
        return None
    fields = metadata.decode(memoryview(raw), 0, flags)
    value = _value(fields, REPLY, _REPLY.size)
    if value is None:
        return None
    failure = None
    said = fields.headers.get(ERROR)
    if isinstance(said, str):
        kind, _, text = said.partition("\n")
        failure = kind, text
    number, token = _REPLY.unpack(value)
    return Answer(number, token, failure), _without_own(fields)


def _value(fields: Optional, name: str, size: int) -> bytes | None:
    found = fields.headers.get(name)
    return found if isinstance(found, bytes) and len(found) == size else None


def _without_own(fields: Optional) -> Optional:
    """The fields as the user gave them."""
    left = {k: v for k, v in fields.headers.items() if k not in (REQUEST, REPLY, ERROR)}
    return msgspec.structs.replace(
        fields, subscriber=None, raw_headers=msgspec.msgpack.encode(left) if left else None
    )
