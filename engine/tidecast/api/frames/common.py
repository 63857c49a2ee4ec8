"""Shared by all connections of the platform: errors that travel, replies, the encoder."""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterator
from typing import Any

import msgspec

from tidecast.errors import (
    ConfigError,
    GapError,
    RateLimited,
    SequenceGap,
    StorageError,
    TidecastError,
)

HEAD = struct.Struct("<I")
"""A frame's length, or that of its header, in front of it."""


class Failure(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An error as it travels: rebuilt by its code on the other side."""

    code: str
    message: str
    problems: list[str] | None = None
    retry_after_s: float | None = None
    lost_range: tuple[int, int] | None = None
    number: int | None = None
    """StorageError: errno; SequenceGap: the sequence that is due."""


class Frame(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """Base of all tagged frames."""


class Reply(Frame, frozen=True, kw_only=True):
    """The answer to the question of this id: a result, or a failure."""

    id: int
    result: msgspec.Raw = msgspec.Raw(b"\xc0")
    failure: Failure | None = None


class Working(Frame, frozen=True, kw_only=True):
    """The question of this id is worked on; it names the long step. More may come, then the reply.

    Only for clients whose hello has ``working``: older clients do not know the frame.
    """

    id: int
    reason: str


class Goodbye(Frame, frozen=True, kw_only=True):
    """The other side ends the connection, and why."""

    reason: str


def _plain(value: Any) -> Any:
    """NumPy numbers and paths in statistics, as plain values."""
    item = getattr(value, "item", None)
    if callable(item):
        return item()
    return str(value)


encoder = msgspec.msgpack.Encoder(enc_hook=_plain)


def encode_result(value: Any) -> msgspec.Raw:
    """A reply's result."""
    return msgspec.Raw(encoder.encode(value))


def failure_of(problem: TidecastError) -> Failure:
    """An error made ready to travel."""
    return Failure(
        code=problem.code,
        message=str(problem),
        problems=problem.problems if isinstance(problem, ConfigError) else None,
        retry_after_s=problem.retry_after_s if isinstance(problem, RateLimited) else None,
        lost_range=problem.lost_range if isinstance(problem, GapError) else None,
        number=_number_of(problem),
    )


def _number_of(problem: TidecastError) -> int | None:
    if isinstance(problem, StorageError):
        return problem.errno
    return problem.expected if isinstance(problem, SequenceGap) else None


def error_of(failure: Failure) -> TidecastError:
    """The error that a failure stands for; an unknown code becomes a plain TidecastError."""
    kind = _classes().get(failure.code, TidecastError)
    if issubclass(kind, ConfigError):
        return kind(failure.message, failure.problems)
    if issubclass(kind, RateLimited):
        return kind(failure.message, failure.retry_after_s or 0.0)
    if issubclass(kind, GapError):
        return kind(failure.message, failure.lost_range or (0, 0))
    if issubclass(kind, StorageError | SequenceGap):
        return kind(failure.message, failure.number or 0)
    return kind(failure.message)


@functools.cache
def _classes() -> dict[str, type[TidecastError]]:
    found: dict[str, type[TidecastError]] = {}
    for kind in _tree(TidecastError):
        found.setdefault(kind.code, kind)  # a kind without a code of its own arrives as that above
    return found


def _tree(kind: type[TidecastError]) -> Iterator[type[TidecastError]]:
    yield kind
    for below in kind.__subclasses__():
        yield from _tree(below)
