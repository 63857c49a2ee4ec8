"""The serving side of requests, the same over every connection: a table of operations, replies.

The unix socket, the gateway, its log readers and the control link each have one table: by the kind
of a request its handler, the rights it takes, and its limit. `rpc.Calls` is the asking side.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, NamedTuple

from tidecast.api.frames.common import Failure, Reply, encode_result, failure_of
from tidecast.errors import TidecastError

EVERY_TOPIC = ">"
Needed = Iterable[tuple[str, str]]
"""(right, topic pattern) pairs."""


def nothing(_request: Any) -> Needed:
    """Takes no right: it names an object of the client, or the answer holds only visible rows."""
    return ()


def everything(_request: Any) -> Needed:
    """Takes `manage` on all topics."""
    return (("manage", EVERY_TOPIC),)


class Operation(NamedTuple):
    """How one kind of request is served."""

    handler: Callable[..., Any]
    """Gets the connection and the request; returns the result, or a coroutine."""
    needs: Callable[[Any], Needed] = everything
    limit: Callable[[Any, Any], None] | None = None
    """Gets the handler's arguments; raises when the connection may not ask this (now)."""
    answered: bool = True
    """False: it gets no reply."""

    def allow(self, connection: Any, request: Any, need: Callable[[str, str], None]) -> None:
        """Raises the error of the limit, and of ``need(right, pattern)`` for each right."""
        if self.limit is not None:
            self.limit(connection, request)
        for right, pattern in self.needs(request):
            need(right, pattern)


class Operations:
    """The table of one kind of connection."""

    def __init__(self, table: Mapping[Any, Operation], unknown: Callable[[Any, Any], Any]) -> None:
        """``unknown``: the handler of other requests; they take every right."""
        self._table, self._unknown = table, Operation(unknown)

    def of(self, request: Any) -> Operation:
        """The operation of a frame, by its class."""
        return self.named(type(request))

    def named(self, kind: Any) -> Operation:
        """The operation of this kind of request."""
        return self._table.get(kind, self._unknown)

    def kinds(self) -> set[Any]:
        """The kinds of requests that are served."""
        return set(self._table)


async def reply_to(
    question: int,
    work: Awaitable[Any],
    server: str,
    *,
    reply: type[Reply] = Reply,
    passed: tuple[type[Exception], ...] = (),
) -> Reply:
    """The reply to a question: the result of ``work``, or its failure by `failure_of_any`.

    ``passed``: errors that end the connection instead. ``reply``: the kind of reply.
    """
    try:
        return reply(id=question, result=encode_result(await work))
    except passed:
        raise
    except Exception as problem:  # noqa: BLE001 - a request does not end its connection
        return reply(id=question, failure=failure_of_any(problem, server))


def failure_of_any(problem: Exception, server: str) -> Failure:
    """A failure for a client, which would wait for ever without it.

    A defect of the ``server`` ("engine", "gateway") is logged with its traceback.
    """
    if isinstance(problem, TidecastError):
        return failure_of(problem)
    log = logging.getLogger(f"tidecast.{server}")
    log.error("%s: a request failed", server, exc_info=problem)
    text = f"internal error in the {server}: {type(problem).__name__}: {problem}"
    return Failure(code=TidecastError.code, message=text)
