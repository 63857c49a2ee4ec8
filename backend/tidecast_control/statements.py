"""Single statements in the event loop, each a transaction of its own.

Most requests need a statement or two of Postgres (the caller, one resource, one page). Here they
cost no thread, no unit of work and, once prepared, no parsing.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import msgspec
import psycopg
from psycopg.types.json import set_json_loads

CONNECTIONS_MAX = 8
PREPARE_AFTER = 1
LIFE_S, RECENT_MAX = 1.0, 1024


class Recent:
    """Answers that hold for a moment: a caller that asks once asks again at once.

    A change through this service clears them; one through another is seen after ``LIFE_S``.
    """

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._lock = threading.Lock()  # changes are made in other threads
        self._known: dict[Hashable, tuple[float, Any]] = {}
        self.changes = 0
        """How often something changed."""

    def get(self, key: Hashable) -> Any:
        """The value that was put under the key a moment ago, or None."""
        found = self._known.get(key)
        return found[1] if found is not None and self._clock_s() - found[0] < LIFE_S else None

    def put(self, key: Hashable, answer: Any, changes: int) -> None:
        """Keep an answer, asked for at ``changes``, if nothing changed since; the oldest goes."""
        with self._lock:
            if changes != self.changes:
                return  # it may be as things were before
            self._known.pop(key, None)
            self._known[key] = (self._clock_s(), answer)
            if len(self._known) > RECENT_MAX:
                del self._known[next(iter(self._known))]

    def clear(self) -> None:
        """Something changed."""
        with self._lock:
            self.changes += 1
            self._known.clear()


class Statements:
    """A few connections, made when they are needed."""

    def __init__(self, url: str, options: str) -> None:
        """``options`` of the server: see `db.Database`."""
        self.recent = Recent()
        """Actors by the kind and the digest of the secret."""
        self._url = url
        # Values differ much in how many rows they match, and planning takes 0.1 ms.
        self._options = f"{options} -c plan_cache_mode=force_custom_plan"
        self._free: list[psycopg.AsyncConnection[tuple[Any, ...]]] = []
        self._gate = asyncio.Semaphore(CONNECTIONS_MAX)

    async def rows(self, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """The rows of one statement. Raises psycopg.Error."""
        async with self._gate:
            while self._free:
                connection = self._free.pop()
                try:
                    return await self._run(connection, sql, parameters)
                except psycopg.OperationalError:
                    if not connection.broken:
                        raise
                    await self.close()  # the server was restarted: the others are dead, too
            return await self._run(await self._connect(), sql, parameters)

    async def close(self) -> None:
        """Close the unused connections."""
        while self._free:
            await self._free.pop().close()

    async def _run(
        self,
        connection: psycopg.AsyncConnection[tuple[Any, ...]],
        sql: str,
        arguments: Sequence[Any],
    ) -> list[tuple[Any, ...]]:
        try:
            cursor = await connection.execute(sql.encode(), arguments)
            found = await cursor.fetchall() if cursor.description is not None else []
        except psycopg.Error:
            if not connection.broken:
                self._free.append(connection)
            raise
        except BaseException:  # cancelled: do not wait for the server's result
            await connection.close()
            raise
        self._free.append(connection)
        return found

    async def _connect(self) -> psycopg.AsyncConnection[tuple[Any, ...]]:
        made = await psycopg.AsyncConnection.connect(
            self._url,
            autocommit=True,
            connect_timeout=5,
            options=self._options,
            application_name="tidecast-control-reads",
            prepare_threshold=PREPARE_AFTER,
        )
        set_json_loads(msgspec.json.decode, made)
        return made
