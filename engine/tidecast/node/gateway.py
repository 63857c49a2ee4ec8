"""The gateway: remote clients over websockets, for hosts without an engine. See docs/GATEWAY.md.

One thread with an event loop of its own. Who connects shows the token in the HTTP handshake; only
its hash is kept, and it is compared in constant time. Tokens are never logged. Browsers are
refused: whoever sends an Origin is one.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import http
import logging
import os
import secrets
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from tidecast.client import remote_frames as rf
from tidecast.client.aio import Connection
from tidecast.client.link import Link
from tidecast.client.remote_frames import BadFrame
from tidecast.errors import ConfigError, Conflict, TidecastError
from tidecast.node.gateway_session import RemoteSession

PORT = 7400
HOST = "127.0.0.1"
TOKEN_NAME = "gateway.token"
TOKEN_BYTES_MIN = 16
CLIENTS_MAX = 64
RESUME_S = 30.0
HELLO_TIMEOUT_S = 10.0
START_TIMEOUT_S = 30.0
POLICY_VIOLATION = 1008

_log = logging.getLogger("tidecast.gateway")
_silent = logging.getLogger("tidecast.gateway.websockets")
"""The library logs handshakes with their headers at DEBUG: those hold tokens."""
_silent.disabled = True


def token_of(data_dir: Path) -> str:
    """The token in the data directory; made when there is none, for this user alone (0600)."""
    path = data_dir / TOKEN_NAME
    with contextlib.suppress(FileNotFoundError):
        if path.stat().st_mode & 0o077:
            raise ConfigError(f"{path}: others may read it: chmod 600 {path}")
        token = path.read_text("ascii", "replace").strip()
        if len(token) < TOKEN_BYTES_MIN or not token.isprintable():
            raise ConfigError(
                f"{path}: a token has at least {TOKEN_BYTES_MIN} printable characters: remove the "
                "file, and the next start makes a new one"
            )
        return token
    token = secrets.token_urlsafe(32)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(token + "\n")
    return token


def address_of(text: str) -> tuple[str, int]:
    """Host and port of ``HOST:PORT``, ``[::1]:PORT``, ``:PORT`` (loopback). Raises ConfigError."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or not 0 <= int(port) <= 65535:
        raise ConfigError(f"gateway: {text!r}: allowed are HOST:PORT, and :PORT for loopback")
    return host.strip("[]") or HOST, int(port)


class Gateway:
    """Serves remote clients. ``make_link`` attaches one, by name, to the node."""

    def __init__(
        self, make_link: Callable[[str], Link], token: str, *, host: str = HOST, port: int = PORT,
        resume_s: float = RESUME_S, clients_max: int = CLIENTS_MAX,
    ) -> None:  # fmt: skip
        self._make_link, self._hash = make_link, hashlib.sha256(token.encode()).digest()
        self.host, self.port = host, port
        self._resume_s, self._clients_max = resume_s, clients_max
        self._sessions: dict[str, RemoteSession] = {}
        self._expiries: dict[str, asyncio.TimerHandle] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._ready = threading.Event()
        self._problem: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="tidecast-gateway", daemon=True)
        self.counts = {"connections": 0, "refused": 0, "bad_frames": 0, "expired": 0}

    @property
    def url(self) -> str:
        """What a client connects to."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"tidecast://{host}:{self.port}"

    def start(self) -> None:
        """Listen. Raises ConfigError when the address is taken or not ours."""
        self._thread.start()
        if not self._ready.wait(START_TIMEOUT_S):
            raise ConfigError(f"gateway: {self.host}:{self.port}: it did not start in time")
        if isinstance(self._problem, OSError):
            raise ConfigError(
                f"gateway: {self.host}:{self.port}: {self._problem.strerror or self._problem}: "
                "choose another with --gateway HOST:PORT, or --gateway off"
            ) from self._problem
        if self._problem is not None:
            raise self._problem

    def stop(self) -> None:
        """Tell the clients, end their sessions. Idempotent."""
        if self._loop is not None and self._stopping is not None and self._thread.is_alive():
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._stopping.set)
        if self._thread.is_alive():
            self._thread.join(START_TIMEOUT_S)

    def stats(self) -> dict[str, Any]:
        """Counts of the gateway and of each session, without anything secret."""
        sessions = [
            {"name": each.name, "connected": each.connected, **each.counts}
            for each in list(self._sessions.values())
        ]
        return {**self.counts, "sessions": sessions}

    # --- the loop's thread ------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except Exception as problem:  # noqa: BLE001 - handed to whoever waits in `start`
            self._problem = problem
        finally:
            self._ready.set()

    async def _main(self) -> None:
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        server = await serve(
            self._handle, self.host, self.port, process_request=self._admit, origins=[None],
            compression=None, max_size=rf.FRAME_BYTES_MAX, max_queue=4, logger=_silent,
            server_header=None, close_timeout=2, open_timeout=HELLO_TIMEOUT_S,
        )  # fmt: skip
        self.port = _port_of(server)
        self._ready.set()
        try:
            await self._stopping.wait()
        finally:
            server.close(close_connections=False)
            goodbye = rf.Goodbye(reason="the engine stops")
            sessions = list(self._sessions.values())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await asyncio.gather(*(each.send(goodbye) for each in sessions))
            await asyncio.gather(*(self._end(each) for each in sessions))

    def _admit(self, connection: ServerConnection, request: Request) -> Response | None:
        """Refuse who has no token, before there is a websocket."""
        given = request.headers.get("Authorization", "")
        scheme, _, token = given.partition(" ")
        digest = hashlib.sha256(token.strip().encode("utf-8", "replace")).digest()
        if not hmac.compare_digest(digest, self._hash) or scheme.lower() != "bearer":
            self.counts["refused"] += 1
            return connection.respond(http.HTTPStatus.UNAUTHORIZED, "wrong or missing token\n")
        if request.path != rf.PATH:
            return connection.respond(http.HTTPStatus.NOT_FOUND, f"this gateway is at {rf.PATH}\n")
        return None

    async def _handle(self, socket: ServerConnection) -> None:
        self.counts["connections"] += 1
        try:
            async with asyncio.timeout(HELLO_TIMEOUT_S):
                data = await socket.recv()
            hello, _ = rf.from_client(data)
            if not isinstance(hello, rf.Hello) or hello.protocol != rf.PROTOCOL_VERSION:
                raise BadFrame(f"no Hello of protocol {rf.PROTOCOL_VERSION}")
            session, resumed = await self._session_of(hello)
            done = False
            try:
                done = await session.serve(socket, resumed=resumed)
            finally:
                self._left(session, done)
        except (BadFrame, TidecastError, TimeoutError) as problem:
            self.counts["bad_frames"] += isinstance(problem, BadFrame)
            _log.warning("gateway: a client was disconnected: %s", problem)
            with contextlib.suppress(ConnectionClosed):
                await socket.send(rf.encode(rf.Goodbye(reason=str(problem) or "too slow")))
            await socket.close(POLICY_VIOLATION)
        except ConnectionClosed:
            return

    async def _session_of(self, hello: rf.Hello) -> tuple[RemoteSession, bool]:
        session = self._sessions.get(hello.session)
        if session is not None and hmac.compare_digest(session.key.encode(), hello.key.encode()):
            expiry = self._expiries.pop(session.id, None)
            if expiry is not None:
                expiry.cancel()
            return session, True
        if len(self._sessions) >= self._clients_max:
            raise Conflict(f"a gateway serves at most {self._clients_max} remote clients")
        name = f"remote {hello.name[: rf.NAME_MAX]}".strip()
        link = await asyncio.to_thread(self._make_link, name)
        session = RemoteSession(Connection(link, name), name)
        self._sessions[session.id] = session
        return session, False

    def _left(self, session: RemoteSession, done: bool) -> None:
        """Its connection ended: the session waits for it to come back, or ends."""
        if session.connected or session.ended:
            return  # taken over
        assert self._loop is not None
        delay_s = 0.0 if done else self._resume_s
        self._expiries[session.id] = self._loop.call_later(delay_s, self._expire, session, done)

    def _expire(self, session: RemoteSession, done: bool) -> None:
        self._expiries.pop(session.id, None)
        if session.connected:  # it came back while its old connection ended
            return
        self.counts["expired"] += not done
        task = asyncio.create_task(self._end(session))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _end(self, session: RemoteSession) -> None:
        self._sessions.pop(session.id, None)
        self._expiries.pop(session.id, None)
        await session.end()


def open_gateway(node: Any, data_dir: Path, where: str) -> Gateway:
    """A gateway to a node of this process, listening. Raises ConfigError.

    ``where``: HOST:PORT, or ``auto``: loopback, on PORT, or on any free port when that is taken.
    """
    from tidecast.node.embedded import EmbeddedLink

    def make_link(name: str) -> Link:
        link: Any = EmbeddedLink(node, name, owns_node=False)
        return cast("Link", link)

    token = token_of(data_dir)
    if where != "auto":
        host, port = address_of(where)
        gateway = Gateway(make_link, token, host=host, port=port)
        gateway.start()
        return gateway
    try:
        gateway = Gateway(make_link, token)
        gateway.start()
    except ConfigError:
        gateway = Gateway(make_link, token, port=0)
        gateway.start()
    return gateway


def _port_of(server: Server) -> int:
    return int(next(iter(server.sockets)).getsockname()[1])
