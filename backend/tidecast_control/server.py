"""Running the service: uvicorn with our application, until it is asked to stop."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from fastapi import FastAPI
from starlette.types import Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.exceptions import InvalidState
from websockets.http11 import Request

from tidecast.errors import TidecastError
from tidecast_control.addresses import Network, network_of
from tidecast_control.app import PREFIX, Lifespan, create_app
from tidecast_control.first_run import Secrets
from tidecast_control.lifespan import lifespan_of
from tidecast_control.link.hub import MESSAGE_BYTES_KEY
from tidecast_control.settings import Settings

OnReady = Callable[[str, Secrets], None]
KEEP_ALIVE_S, STOP_S = 30, 5
CONNECTIONS_MAX, CONNECTIONS_PER_PEER_MAX = 2000, 512
HEAD_BYTES_MAX = 64 * 1024
HEAD_S, BODY_IDLE_S, BODY_S = 10.0, 15.0, 300.0
"""A connection that is new has so long to send a head; a body may pause, and take, so long."""
MESSAGE_BYTES_MAX = 64 * 1024
"""Of a websocket, until its client is known and may send more."""
PING_S = 20.0
ENGINE_PATH = f"{PREFIX}/engine"
ENGINE_PING_S, ENGINE_PONG_S = 3.0, 5.0
"""An engine that is frozen is gone after eight seconds: its socket would stay for hours."""


class Peers:
    """Connections by network. One that has its share is refused, so the others are served."""

    def __init__(self, exempt: Sequence[Network] = ()) -> None:
        self._exempt = tuple(exempt)
        self._counts: Counter[str] = Counter()
        self.refused = 0

    def enter(self, address: str) -> bool:
        """One more. False: it is one too many, and is not counted."""
        network = network_of(address)
        if self._counts[network] >= CONNECTIONS_PER_PEER_MAX and not self._is_exempt(address):
            self.refused += 1
            return False
        self._counts[network] += 1
        return True

    def leave(self, address: str) -> None:
        """One less."""
        network = network_of(address)
        self._counts[network] -= 1
        if self._counts[network] <= 0:
            del self._counts[network]

    def _is_exempt(self, address: str) -> bool:
        with contextlib.suppress(ValueError):
            found = ipaddress.ip_address(address)
            return any(found in n for n in self._exempt if n.version == found.version)
        return False


class Config(uvicorn.Config):
    """Configuration, and the state that connections share."""

    peers: Peers


class HttpProtocol(HttpToolsProtocol):
    """HTTP parsed in C (in Python it was 1.5 ms a request), with limits of size and time."""

    config: Config

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._in_head, self._in_body, self._head_bytes = False, False, 0
        self._counted = False
        self._timer: asyncio.TimerHandle | None = None
        self._body_ends_s = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A head has to come soon; a network has a limited number of connections."""
        super().connection_made(transport)
        self._counted = self.config.peers.enter(self._peer)
        if not self._counted:
            transport.abort()
            return
        self._arm(HEAD_S)

    @property
    def _peer(self) -> str:
        return self.client[0] if self.client else ""

    def connection_lost(self, exc: Exception | None) -> None:
        """It is over."""
        self._disarm()
        if self._counted:
            self._counted = False
            self.config.peers.leave(self._peer)
        super().connection_lost(exc)

    def handle_websocket_upgrade(self) -> None:
        """From now on the websocket's protocol has the connection, and its place."""
        self._disarm()
        self._counted = False
        super().handle_websocket_upgrade()

    def data_received(self, data: bytes) -> None:
        """Parse; end the connection when a head is too long."""
        super().data_received(data)
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES_MAX:
                self.send_400_response(f"request line and headers: at most {HEAD_BYTES_MAX} bytes")
        elif self._in_body:
            self._arm(min(BODY_IDLE_S, max(0.0, self._body_ends_s - self.loop.time())))

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        self._in_head, self._head_bytes = True, 0
        self._arm(HEAD_S)

    def on_headers_complete(self) -> None:
        """Its head is over."""
        self._in_head, self._in_body = False, True
        self._body_ends_s = self.loop.time() + BODY_S
        self._arm(BODY_IDLE_S)
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """All of it is here: uvicorn's own time-out of idle connections follows the answer."""
        self._in_body = False
        self._disarm()
        super().on_message_complete()

    def _arm(self, seconds: float) -> None:
        self._disarm()
        self._timer = self.loop.call_later(seconds, self._too_late)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _too_late(self) -> None:
        self._timer = None
        if self.flow.read_paused:  # it waits for us, not we for it
            self._arm(BODY_IDLE_S)
        else:
            self.transport.abort()


class SocketProtocol(WebSocketsSansIOProtocol):
    """A websocket that may be asked to shut down while the other side is closing it."""

    config: Config

    def handle_connect(self, event: Request) -> None:
        """Engines are asked often whether they are there. The application may allow more."""
        if event.path.partition("?")[0] == ENGINE_PATH:
            self.ping_interval, self.ping_timeout = ENGINE_PING_S, ENGINE_PONG_S
        super().handle_connect(event)
        if self.handshake_initiated and not self.close_sent:
            extensions: dict[str, Any] = self.scope["extensions"]
            extensions[MESSAGE_BYTES_KEY] = self._allow

    def _allow(self, message_bytes_max: int) -> None:
        self.conn.max_message_size = message_bytes_max

    def connection_lost(self, exc: Exception | None) -> None:
        """It is over."""
        self.config.peers.leave(self.client[0] if self.client else "")
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """Close it. Without this one such socket keeps the service from stopping in order."""
        try:
            super().shutdown()
        except InvalidState:
            self.transport.close()


class Application:
    """The ASGI application. The reason why it cannot start is kept in ``problem``, not logged."""

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

        async def send_lifespan(message: Message) -> None:
            failed = message["type"] == "lifespan.startup.failed" and self.problem is not None
            await send({"type": message["type"]} if failed else message)

        await self._app(scope, receive, send_lifespan if scope["type"] == "lifespan" else send)


class Server(uvicorn.Server):
    """A server that reports its URL once it listens."""

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
        """Listen, start the application, then tell.

        In this order: a service whose port is in use must not make, and lose, the password of a
        first run.
        """
        with contextlib.suppress(ValueError):  # the name of a host may have several addresses
            ipaddress.ip_address(self.config.host)
            sockets = sockets or [self.config.bind_socket()]
            sockets[0].listen(self.config.backlog)  # only then is the port taken
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
    created: list[Secrets] = []
    app = Application(
        lifespan_of(settings, lambda _ctx, secrets: created.append(secrets), local_token)
    )
    config = Config(
        app,
        host=settings.host,
        port=settings.port,
        ssl_certfile=settings.tls_certificate,
        ssl_keyfile=settings.tls_key,
        log_level=logging.WARNING,
        access_log=False,
        server_header=False,
        proxy_headers=settings.behind_tls_proxy,
        forwarded_allow_ips=[str(network) for network in settings.trusted_proxies],
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=STOP_S,
        limit_concurrency=CONNECTIONS_MAX,
        loop="asyncio",
        http=HttpProtocol,
        ws=SocketProtocol,
        ws_max_size=MESSAGE_BYTES_MAX,
        ws_ping_interval=PING_S,
        ws_ping_timeout=PING_S,
        lifespan="on",
    )
    config.peers = Peers(settings.trusted_proxies if settings.behind_tls_proxy else ())
    return Server(config, app, lambda url: on_ready(url, created[0]))
