"""Asyncio calls that are made of blocking ones: each runs in a thread of its own.

The blocking method is the only definition: the asyncio method has its parameters, types and
docstring, for readers, for `help` and for type checkers.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
BlockingT_co = TypeVar("BlockingT_co", covariant=True)


async def made_in_thread(make: Callable[[], T], undo: Callable[[T], object]) -> T:
    """The result of ``make``, which opens something, called in a thread.

    A caller that is cancelled meanwhile never gets it: ``undo`` does then, in a thread. Else it
    would stay open, and no code could close it.
    """
    lock, given_up, made = threading.Lock(), threading.Event(), list[T]()

    def work() -> T:
        found = make()
        with lock:
            made.append(found)
            late = given_up.is_set()
        if late:
            undo(found)
        return found

    try:
        return await asyncio.to_thread(work)
    except asyncio.CancelledError:
        with lock:
            given_up.set()
            left = list(made)
        for each in left:
            asyncio.get_running_loop().run_in_executor(None, undo, each)
        raise


class Threaded(Protocol[BlockingT_co]):
    """An object that makes the calls of a blocking object in threads."""

    @property
    def _blocking(self) -> BlockingT_co: ...


def in_thread(
    method: Callable[Concatenate[BlockingT_co, P], T],
) -> Callable[Concatenate[Threaded[BlockingT_co], P], Coroutine[Any, Any, T]]:
    """The asyncio method of an object with a ``_blocking`` one, whose ``method`` it runs."""

    @functools.wraps(method)
    async def call(self: Threaded[BlockingT_co], /, *given: P.args, **options: P.kwargs) -> T:
        return await asyncio.to_thread(method, self._blocking, *given, **options)

    return call
