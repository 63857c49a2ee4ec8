"""Methods of the two shells that are flows: `waits` for the blocking client, `awaits` for asyncio.

The flow is the only definition: both methods have its parameters, types and docstring, for
readers, for `help` and for type checkers. Methods that are hot, or that iterate, stay by hand.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar

from tidecast.client.flows.steps import Begun, Done

S = TypeVar("S")
P = ParamSpec("P")
T = TypeVar("T")
_FLOW = re.compile(r"(?:Flow|Begun)\[(.*)\]")


def waits(flow: Callable[Concatenate[S, P], Begun[T]]) -> Callable[Concatenate[S, P], T]:
    """A method that runs the flow of this name to its end, unless it is done; the result."""
    name = flow.__name__

    @functools.wraps(flow)
    def call(self: Any, /, *given: P.args, **options: P.kwargs) -> T:
        begun = getattr(self, name)(*given, **options)
        found: T = begun.result if isinstance(begun, Done) else self._drive(begun)
        return found

    return _as_method(call, flow)


def awaits(
    flow: Callable[Concatenate[S, P], Begun[T]],
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """As `waits`, a coroutine method."""
    name = flow.__name__

    @functools.wraps(flow)
    async def call(self: Any, /, *given: P.args, **options: P.kwargs) -> T:
        begun = getattr(self, name)(*given, **options)
        found: T = begun.result if isinstance(begun, Done) else await self._drive(begun)
        return found

    return _as_method(call, flow)


def _as_method(call: Any, flow: Any) -> Any:
    """Name a method without ``_flow``; it returns the result of the flow, not the flow."""
    call.__name__ = call.__name__.removesuffix("_flow")
    call.__qualname__ = call.__qualname__.removesuffix("_flow")
    signature = inspect.signature(flow)
    result = _FLOW.sub(r"\1", signature.return_annotation)
    call.__signature__ = signature.replace(return_annotation=result)
    call.__annotations__ = {**flow.__annotations__, "return": result}
    return call
