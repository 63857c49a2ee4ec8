"""Running the service: uvicorn with our application, until it is told to stop."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from fastapi import FastAPI
from starlette.types import Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.exceptions import InvalidState

from tidecast.errors import TidecastError
from tidecast_control.app import Lifespan, create_app
from tidecast_control.first_run import Secrets
from tidecast_control.lifespan import lifespan_of
from tidecast_control.settings import Settings

OnReady = Callable[[str, Secrets], None]
KEEP_ALIVE_S, STOP_S = 30, 5
CONNECTIONS_MAX = 2000
HEAD_BYTES_MAX = 64 * 1024


class HttpProtocol(HttpToolsProtocol):
    """HTTP parsed in C (in Python it was 1.5 ms a request), with a limit for what leads a body."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._in_head, self._head_bytes = False, 0

    def data_received(self, data: bytes) -> None:
        """Parse; end the connection when a head is too long."""
        super().data_received(data)
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES_MAX:
                self.send_400_response(f"request line and headers: at most {HEAD_BYTES_MAX} bytes")

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        self._in_head, self._head_bytes = True, 0

    def on_headers_complete(self) -> None:
        """Its head is over."""
        self._in_head = False
        super().on_headers_complete()


class SocketProtocol(WebSocketsSansIOProtocol):
    """A websocket that may be told to shut down while the other side is closing it."""

    def shutdown(self) -> None:
        """Close it. Without this one such socket keeps the service from stopping in order."""
        try:
            super().shutdown()
        except InvalidState:
            self.transport.close()


class Application:
    """What is served. Why it cannot start is kept in ``problem``, not logged as a traceback."""

    def __init__(self, lifespan: Lifespan) -> None:
        self.problem: TidecastError | None = None
        self._lifespan = lifespan
        self._app = create_app(self._started)

    @asynccontextmanager
    async def _started(self, app: FastAPI) -> AsyncIterator[None]:
        try:
            async with self._lifespan(app):
                yield
        except TidecastError as problem:
            self.problem = problem
            raise

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""

        async def told(message: Message) -> None:
            failed = message["type"] == "lifespan.startup.failed" and self.problem is not None
            await send({"type": message["type"]} if failed else message)

        await self._app(scope, receive, told if scope["type"] == "lifespan" else send)


class Server(uvicorn.Server):
    """A server that tells its URL once it listens."""

    def __init__(
        self, config: uvicorn.Config, app: Application, on_listen: Callable[[str], None]
    ) -> None:
        super().__init__(config)
        self._app, self._on_listen = app, on_listen

    @property
    def problem(self) -> TidecastError | None:
        """Why it could not start, when that is known."""
        return self._app.problem

    async def startup(self, sockets: Any = None) -> None:
        """Bind, then tell."""
        await super().startup(sockets=sockets)
        if self.started:
            host, port = self.servers[0].sockets[0].getsockname()[:2]
            scheme = "https" if self.config.is_ssl else "http"
            shown = f"[{host}]" if ":" in host else host
            self._on_listen(f"{scheme}://{shown}:{port}")


def make_server(settings: Settings, on_ready: OnReady, *, local_token: str | None = None) -> Server:
    """A server that is not running yet; ``on_ready(url, secrets)`` is called when it serves.

    ``local_token``: an enrolment token, good once and for an hour, for the engine beside it.
    """
    told: list[Secrets] = []
    app = Application(
        lifespan_of(settings, lambda _ctx, secrets: told.append(secrets), local_token)
    )
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        ssl_certfile=settings.tls_certificate,
        ssl_keyfile=settings.tls_key,
        log_level=logging.WARNING,
        access_log=False,
        server_header=False,
        proxy_headers=settings.behind_tls_proxy,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=STOP_S,
        limit_concurrency=CONNECTIONS_MAX,
        loop="asyncio",
        http=HttpProtocol,
        ws=SocketProtocol,
        ws_max_size=64 << 20,
        ws_ping_interval=20.0,
        ws_ping_timeout=20.0,
        lifespan="on",
    )
    return Server(config, app, lambda url: on_ready(url, told[0]))
