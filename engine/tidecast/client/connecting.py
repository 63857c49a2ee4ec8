"""`tidecast.connect`: the client is imported and opened in a thread, so the loop never waits.

The first import loads Numba and the kernels, which takes seconds on a busy machine.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import TYPE_CHECKING, Any, Unpack

from tidecast.api.in_thread import made_in_thread

if TYPE_CHECKING:
    from tidecast.api.link import Link
    from tidecast.client.aio import Connection
    from tidecast.client.links.open import ConnectOptions
    from tidecast.codecs import Codec


class Connecting:
    """The awaitable of `connect`: await it, or use it with ``async with``."""

    def __init__(self, make: Callable[[], Connection]) -> None:
        self._make = make
        self._connection: Connection | None = None

    def __await__(self) -> Generator[Any, None, Connection]:
        return made_in_thread(self._make, lambda made: made.abandon()).__await__()

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
    codec: Codec | str | None = None,
    topic_codecs: Mapping[str, Codec | str] | None = None,
    link: Link | None = None,
    **options: Unpack[ConnectOptions],
) -> Connecting:
    """Begin a session with a node: use it with ``async with``, or await it.

    ``tidecast://`` the engine of the default data directory, ``tidecast:///path`` of another one;
    ``embedded://`` an engine in this process (``topology=`` file or object, ``mode=`` ``threads``
    or ``inline``). ``codec``: of all topics; ``topic_codecs``: by topic or pattern, before it.
    A call with a codec of its own does not use them. Raises
    EngineNotRunning, AuthError, ConfigError.
    """

    def make() -> Connection:
        from tidecast.client.aio import Connection
        from tidecast.client.links.open import open_link
        from tidecast.codecs import TopicCodecs

        found = TopicCodecs(codec, topic_codecs)
        return Connection(link or open_link(url, name, token, options), name, found)

    return Connecting(make)
