"""The parameters of a handler: read once, when it is registered, from its annotations.

A handler gets its arguments by name: the payload, decoded to the annotated type;
the message; its key or a header; the connection; the app; the results of dependencies.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Annotated, Any, NamedTuple, get_args, get_origin, get_type_hints

from tidecast.app.payloads import Decoder, decoder_of
from tidecast.client.aio import Connection
from tidecast.client.consumer.message import DurableMessage
from tidecast.client.core.message import Message
from tidecast.client.requests.responder import Request
from tidecast.codecs import Codec
from tidecast.errors import CodecError, ConfigError

MESSAGES: tuple[type, ...] = (Message, DurableMessage, Request)


class Dependency:
    """Made by `Depends`."""

    def __init__(self, call: Callable[..., Any], shared: bool) -> None:
        if not callable(call):
            raise ConfigError(f"Depends: {call!r}: allowed is a function")
        self.call, self.shared = call, shared


def Depends(call: Callable[..., Any], *, shared: bool = True) -> Any:  # noqa: N802 - as in FastAPI
    """A parameter that gets the result of ``call``, as a default or in ``Annotated[T, ...]``.

    ``call``: a function, a coroutine function, or a generator function of either kind that yields
    once; the code behind its ``yield`` runs after the handler. Its parameters are those of a
    handler. ``shared``: it is called once a message, however many ask for it. Raises ConfigError.
    """
    return Dependency(call, shared)


class Key:
    """``Annotated[str | bytes | None, Key()]``: the key of the message."""


class Header:
    """``Annotated[str | bytes | int | None, Header("name")]``: a header of the message.

    Without a name the header is that of the parameter's name, with ``-`` for ``_``. A message that
    lacks the header gets the parameter's default; without a default the message is refused.
    """

    def __init__(self, name: str | None = None) -> None:
        self.name = name


class InvalidMessage(Exception):
    """A message does not fit its handler: its payload cannot be decoded, or it lacks a header.

    Another delivery cannot help.
    """


class Call(NamedTuple):
    """One message on its way through a handler."""

    message: Any
    client: Connection
    app: Any
    values: dict[Callable[..., Any], Any]
    """Results of dependencies that are shared."""
    stack: AsyncExitStack
    overrides: Mapping[Callable[..., Any], Callable[..., Any]]


Source = Callable[[Call], Any]
"""A parameter's value, or a coroutine of it."""


class Plan:
    """How a function is called for a message. Raises ConfigError for parameters without a source.

    ``payload``: may it have a parameter for the payload? Dependencies may not. ``codec``: of
    the payload, a name or an object with ``decode``.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        codec: Codec | str,
        local: Mapping[str, Any],
        *,
        payload: bool = True,
    ) -> None:
        self.fn, self.payload_type = fn, None
        self._where = f"{getattr(fn, '__qualname__', fn)}()"
        self._sources: dict[str, Source] = {}
        self._payload = ""
        self._decoder: Decoder | None = None
        self._called = _call_kind(fn)
        for name, parameter, hint in _parameters(fn, self._where, local):
            source = self._source(name, parameter, hint, codec, local)
            if source is not None:
                self._sources[name] = source
            elif not payload or self._payload:
                raise ConfigError(
                    f"{self._where}: parameter {name}: a handler has one parameter for the "
                    f"payload{f', here {self._payload}' if payload else ', a dependency none'}; "
                    "others are annotated as a message, Connection or App, or with Key(), "
                    "Header() or Depends()"
                )
            else:
                self._payload, self.payload_type = name, hint
                self._decoder = decoder_of(hint, codec, self._where)

    def _source(
        self,
        name: str,
        parameter: inspect.Parameter,
        hint: Any,
        codec: Codec | str,
        local: Mapping[str, Any],
    ) -> Source | None:
        marks = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
        base = get_args(hint)[0] if marks else hint
        if isinstance(parameter.default, Dependency):
            marks = (*marks, parameter.default)
        for mark in marks:
            if isinstance(mark, Dependency):
                return _dependency(mark, codec, local)
            if isinstance(mark, Key):
                return functools.partial(_key, text=_is_text(base))
            if isinstance(mark, Header):
                return _header(mark, name, parameter, base)
        if isinstance(base, type):
            if issubclass(base, MESSAGES):
                return lambda call: call.message
            if issubclass(base, Connection):
                return lambda call: call.client
            if getattr(base, "is_tidecast_app", False):
                return lambda call: call.app
        return None

    async def call(self, call: Call) -> Any:
        """Call the function. Raises InvalidMessage, and errors of the function."""
        arguments: dict[str, Any] = {}
        if self._decoder is not None:
            try:
                arguments[self._payload] = self._decoder(call.message)
            except CodecError as problem:
                raise InvalidMessage(str(problem)) from problem
        for name, source in self._sources.items():
            value = source(call)
            arguments[name] = await value if inspect.isawaitable(value) else value
        return await self._called(self.fn, arguments, call.stack)


def _parameters(
    fn: Callable[..., Any], where: str, local: Mapping[str, Any]
) -> list[tuple[str, inspect.Parameter, Any]]:
    try:
        signature = inspect.signature(fn)
        annotated = fn.__call__ if not inspect.isroutine(fn) and not isinstance(fn, type) else fn  # type: ignore[operator]
        if isinstance(fn, type):
            annotated = fn.__init__  # type: ignore[misc]
        hints = get_type_hints(annotated, localns=dict(local), include_extras=True)
    except (NameError, TypeError, ValueError) as problem:
        raise ConfigError(f"{where}: its annotations cannot be read: {problem}") from None
    found = []
    for name, parameter in signature.parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise ConfigError(f"{where}: parameter *{name}: a handler names all its parameters")
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise ConfigError(f"{where}: parameter {name}: it must be allowed by name (no `/`)")
        if name not in hints and not isinstance(parameter.default, Dependency):
            raise ConfigError(
                f"{where}: parameter {name}: annotate it: `{name}: bytes`, `{name}: Order`, "
                f"`{name}: tidecast.Message`"
            )
        found.append((name, parameter, hints.get(name, Any)))
    return found


def _is_text(base: Any) -> bool:
    return base is str or str in get_args(base)


def _key(call: Call, *, text: bool) -> Any:
    key = call.message.key
    return key.decode() if text and key is not None else key


def _header(mark: Header, name: str, parameter: inspect.Parameter, base: Any) -> Source:
    header = mark.name or name.replace("_", "-")
    text, whole = _is_text(base), base is int or int in get_args(base)
    default = parameter.default

    def value(call: Call) -> Any:
        found = call.message.headers.get(header, default)
        if found is inspect.Parameter.empty:
            raise InvalidMessage(f"the message has no header {header!r}")
        if text and isinstance(found, (bytes, int)) and not (whole and isinstance(found, int)):
            return found.decode() if isinstance(found, bytes) else str(found)
        return found

    return value


def _dependency(mark: Dependency, codec: Codec | str, local: Mapping[str, Any]) -> Source:
    plans: dict[Callable[..., Any], Plan] = {
        mark.call: Plan(mark.call, codec, local, payload=False)
    }

    async def value(call: Call) -> Any:
        wanted = call.overrides.get(mark.call, mark.call)
        if mark.shared and wanted in call.values:
            return call.values[wanted]
        plan = plans.get(wanted)
        if plan is None:  # an override, in a test
            plan = plans[wanted] = Plan(wanted, codec, {}, payload=False)
        made = await plan.call(call)
        if mark.shared:
            call.values[wanted] = made
        return made

    return value


Called = Callable[[Callable[..., Any], dict[str, Any], AsyncExitStack], Any]


def _call_kind(fn: Callable[..., Any]) -> Called:
    """How a function of this kind is called; plain functions run in a thread."""
    inner = fn if inspect.isroutine(fn) or isinstance(fn, type) else getattr(fn, "__call__", fn)  # noqa: B004
    if inspect.isasyncgenfunction(inner):
        return lambda fn, arguments, stack: stack.enter_async_context(
            asynccontextmanager(fn)(**arguments)
        )
    if inspect.isgeneratorfunction(inner):
        return lambda fn, arguments, stack: stack.enter_async_context(
            _in_thread(contextmanager(fn)(**arguments))
        )
    if inspect.iscoroutinefunction(inner):
        return lambda fn, arguments, _: fn(**arguments)
    return lambda fn, arguments, _: asyncio.to_thread(fn, **arguments)


@asynccontextmanager
async def _in_thread(plain: Any) -> Any:
    """A plain context manager whose two ends run in threads."""
    value = await asyncio.to_thread(plain.__enter__)
    try:
        yield value
    except BaseException as problem:
        if not await asyncio.to_thread(
            plain.__exit__, type(problem), problem, problem.__traceback__
        ):
            raise
    else:
        await asyncio.to_thread(plain.__exit__, None, None, None)
