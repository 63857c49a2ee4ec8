"""`tidecast.connect`: the client is imported and opened in a thread, so the loop never waits.

The first import loads Numba and the kernels, which takes seconds on a busy machine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Unpack

if TYPE_CHECKING:
    from tidecast.api.link import Link
    from tidecast.client.aio import Connection
    from tidecast.client.links.open import ConnectOptions


class Connecting:
    """What `connect` returns: await it, or use it with ``async with``."""

    def __init__(self, make: Callable[[], Connection]) -> None:
        self._make = make
        self._connection: Connection | None = None

    def __await__(self) -> Generator[Any, None, Connection]:
        return asyncio.to_thread(self._make).__await__()

    async def __aenter__(self) -> Connection:
        self._connection = await self
        return self._connection

    async def __aexit__(self, *_: object) -> None:
        assert self._connection is not None
        await self._connection.close()


def connect(
    url: str = "tidecast://",
    *,
    name: str = "",
    token: str | None = None,
    link: Link | None = None,
    **options: Unpack[ConnectOptions],
) -> Connecting:
    """Begin a session with a node: use it with ``async with``, or await it.

    ``tidecast://`` the engine of the default data directory, ``tidecast:///path`` of another one;
    ``embedded://`` an engine in this process (``topology=`` file or object, ``mode=`` ``threads``
    or ``inline``). Raises EngineNotRunning, AuthError, ConfigError.
    """

    def make() -> Connection:
        from tidecast.client.aio import Connection
        from tidecast.client.links.open import open_link

        return Connection(link or open_link(url, name, token, options), name)

    return Connecting(make)
