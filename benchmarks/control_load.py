"""Load on the control service that costs little itself: raw HTTP/1.1, websockets that only read."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

CONNECTIONS = 16


class Connection:
    """One keep-alive connection."""

    def __init__(self, url: str, cookie: str) -> None:
        self._where, self._cookie = urlsplit(url), cookie
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter

    async def open(self) -> None:
        """Connect."""
        self._reader, self._writer = await asyncio.open_connection(
            self._where.hostname, self._where.port
        )

    async def get(self, path: str) -> int:
        """The status of one GET."""
        head = (
            f"GET {path} HTTP/1.1\r\nHost: {self._where.netloc}\r\nCookie: {self._cookie}\r\n\r\n"
        )
        self._writer.write(head.encode())
        raw = await self._reader.readuntil(b"\r\n\r\n")
        lower = raw.lower()
        at = lower.find(b"content-length:")
        await self._reader.readexactly(int(lower[at + 15 : lower.find(b"\r\n", at)]))
        return int(raw[9:12])

    def close(self) -> None:
        """Close."""
        self._writer.close()


async def requests(url: str, cookie: str, paths: Sequence[str], per_s: float) -> dict[str, Any]:
    """GETs at a fixed rate.

    A latency counts from when its request was due, not from when it was sent: a service that falls
    behind does not hide it.
    """
    connections = [Connection(url, cookie) for _ in range(CONNECTIONS)]
    for one in connections:
        await one.open()
    spent: list[float] = []
    wrong = 0
    began = time.monotonic() + 0.1
    serial = iter(range(len(paths)))

    async def work(connection: Connection) -> None:
        nonlocal wrong
        for n in serial:
            due = began + n / per_s
            wait_s = due - time.monotonic()
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            status = await connection.get(paths[n])
            spent.append(time.monotonic() - due)
            wrong += status != 200

    await asyncio.gather(*(work(one) for one in connections))
    took_s = time.monotonic() - began
    for one in connections:
        one.close()
    spent.sort()
    return {
        "per_s": round(len(paths) / took_s, 1),
        "p50_ms": round(spent[len(spent) // 2] * 1e3, 2),
        "p99_ms": round(spent[int(len(spent) * 0.99)] * 1e3, 2),
        "max_ms": round(spent[-1] * 1e3, 2),
        "errors": wrong,
    }


@asynccontextmanager
async def watching(
    url: str, cookie: str, viewers: int, channels: Sequence[str]
) -> AsyncIterator[list[float]]:
    """So many viewers; how late each frame came, in seconds after the service made it."""
    from websockets.asyncio.client import connect

    address = url.replace("http", "ws", 1) + "/api/v1/live"
    names = ", ".join(f'"{name}"' for name in channels)
    late: list[float] = []

    async def view() -> None:
        headers = {"Cookie": cookie}
        async with connect(
            address, additional_headers=headers, compression=None, max_size=None
        ) as socket:
            await socket.send(f'{{"watch": [{names}]}}')
            async for text in socket:
                if '"kind":"delta"' in str(text[:120]):
                    at = str(text).partition('"at":"')[2][:32]
                    late.append(time.time() - datetime.fromisoformat(at.rstrip('"')).timestamp())

    tasks = [asyncio.create_task(view()) for _ in range(viewers)]
    try:
        yield late
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
