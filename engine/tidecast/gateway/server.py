"""The gateway: remote clients over websockets, for hosts without an engine. See docs/GATEWAY.md.

One thread with an event loop of its own. A client shows a token in the HTTP handshake: the
engine's own, or a key's secret. Only hashes are kept; the engine's is compared in constant time.
Tokens are never logged. Browsers are refused: a client that sends an Origin is one.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import http
import logging
import os
import secrets
import time
import weakref
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from tidecast.access import EVERYTHING, Access, digest_of, is_loopback, printable
from tidecast.api import levels
from tidecast.api.connecting import UNLOGGED
from tidecast.api.frames.common import Goodbye
from tidecast.api.link import Link
from tidecast.client.aio import Connection
from tidecast.client.remote import frames, log_frames
from tidecast.client.remote.frames import BadFrame
from tidecast.config.certificate import Certificate
from tidecast.config.store import TopologyStore
from tidecast.errors import AuthError, ConfigError, Conflict, TidecastError
from tidecast.events import AccessDenied, Event
from tidecast.gateway import life
from tidecast.gateway.consumers import KEEP_S
from tidecast.gateway.log import READERS_MAX, LogReader
from tidecast.gateway.quotas import Quotas
from tidecast.gateway.session import RemoteSession
from tidecast.gateway.settings import GatewaySettings
from tidecast.layout.counters import ROW_GATEWAY, GatewayCounter, KeyCounter
from tidecast.node.access.rights import Denials
from tidecast.node.server_thread import ServerThread
from tidecast.protocol.state_table import StateTable

PORT = 7400
HOST = "127.0.0.1"
TOKEN_NAME = "gateway.token"
TOKEN_BYTES_MIN = 16
CLIENTS_MAX = 64
RESUME_S = 30.0
HELLO_TIMEOUT_S = 10.0
START_TIMEOUT_S = 30.0
KEYS_CHECKED_S = 0.5
"""How soon a key that was revoked or has expired ends its sessions."""
POLICY_VIOLATION, INTERNAL_ERROR = 1008, 1011
GOODBYE_S, SETTLE_S = 1.0, 1.0

_log = logging.getLogger("tidecast.gateway")


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


def _no_key(digest: str) -> Access | None:
    del digest
    return None


def _uncounted(key: str, counter: KeyCounter) -> None:
    del key, counter


class Gateway:
    """Serves remote clients. ``make_link`` attaches one, by name, to the node.

    ``find_key``: the rights of the key with this hash. ``counters``: the gateway's row. ``notify``
    passes an event on, ``count_key`` counts a refusal of a key. ``data_dir``: where the logs are
    that may be read.
    """

    def __init__(
        self,
        make_link: Callable[[str], Link],
        token: str,
        *,
        host: str = HOST,
        port: int = PORT,
        resume_s: float = RESUME_S,
        keep_s: float = KEEP_S,
        clients_max: int = CLIENTS_MAX,
        find_key: Callable[[str], Access | None] = _no_key,
        counters: np.ndarray[Any, np.dtype[np.int64]] | None = None,
        notify: Callable[[Event], None] | None = None,
        data_dir: Path | None = None,
        certificate: Certificate | None = None,
        count_key: Callable[[str, KeyCounter], None] = _uncounted,
    ) -> None:
        self._count_key = count_key
        self._data_dir, self._readers = data_dir, set[LogReader]()
        self._make_link, self._digest = make_link, digest_of(token)
        self._find_key, self._notify = find_key, notify
        self._certificate, self._quotas = certificate, Quotas(self._over_quota)
        self._denials = Denials(self._report, time.monotonic_ns)
        self.counters = np.zeros(len(GatewayCounter), np.int64) if counters is None else counters
        self._shown: weakref.WeakKeyDictionary[ServerConnection, str] = weakref.WeakKeyDictionary()
        """Hashes of the tokens that connections showed."""
        self.host, self.port = host, port
        self._resume_s, self._keep_s, self._clients_max = resume_s, keep_s, clients_max
        self._sessions: dict[str, RemoteSession] = {}
        self._expiries: dict[str, asyncio.TimerHandle] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._server = ServerThread(self._main, "tidecast-gateway")

    @property
    def url(self) -> str:
        """The URL that a client connects to."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        scheme = "tidecast" if self._certificate is None else "tidecast+tls"
        return f"{scheme}://{host}:{self.port}"

    def start(self) -> None:
        """Listen. Raises ConfigError when the address is taken or not ours."""
        place = f"gateway: {self.host}:{self.port}"
        mend = "choose another with --gateway HOST:PORT, or --gateway off"
        self._server.start(place, mend, timeout_s=START_TIMEOUT_S)

    def stop(self) -> None:
        """Tell the clients, end their sessions. Idempotent."""
        self._server.stop(timeout_s=START_TIMEOUT_S)

    def stats(self) -> dict[str, Any]:
        """Counts of the gateway and of each session, without anything secret."""
        sessions = [
            {"name": each.name, "key": each.access.name, "connected": each.connected, **each.counts}
            for each in list(self._sessions.values())
        ]
        return {**self.counts, "sessions": sessions}

    @property
    def counts(self) -> dict[str, int]:
        """The counters, by name."""
        return {each.name.lower(): int(self.counters[each]) for each in GatewayCounter}

    def _count(self, what: GatewayCounter, n: int = 1) -> None:
        self.counters[what] += n

    # --- the loop's thread ------------------------------------------------------------------------

    async def _main(self) -> None:
        server = await serve(
            self._handle,
            self.host,
            self.port,
            process_request=self._admit,
            origins=[None],
            compression=None,
            max_size=frames.FRAME_BYTES_MAX,
            max_queue=4,
            logger=UNLOGGED,
            server_header=None,
            close_timeout=2,
            open_timeout=HELLO_TIMEOUT_S,
            ssl=None if self._certificate is None else self._certificate.context,
        )
        self.port = _port_of(server)
        checking = asyncio.create_task(self._check())
        try:
            await self._server.serve()
        finally:
            checking.cancel()
            server.close(close_connections=False)
            reason = "the engine stops"
            await asyncio.gather(*(each.end(reason) for each in list(self._readers)))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SETTLE_S):
                    await asyncio.gather(*(each.settle() for each in self._sessions.values()))
            for session in list(self._sessions.values()):
                self._on(session, life.Event.DISMISSED, reason)
            await asyncio.gather(*self._tasks)

    def _access(self, digest: str) -> Access | None:
        if hmac.compare_digest(digest, self._digest):
            return EVERYTHING
        return self._find_key(digest)

    def _admit(self, connection: ServerConnection, request: Request) -> Response | None:
        """Refuse a client without a token, before there is a websocket."""
        given = request.headers.get("Authorization", "")
        scheme, _, token = given.partition(" ")
        digest = digest_of(token.strip())
        if scheme.lower() != "bearer" or self._access(digest) is None:
            self._count(GatewayCounter.REFUSED)
            denied = self._denials.refused(str((connection.remote_address or [""])[0]))
            if denied is not None:
                _log.warning(
                    "gateway: %s showed no valid token (and %d others since)",
                    denied.client,
                    denied.unreported,
                )
            return connection.respond(http.HTTPStatus.UNAUTHORIZED, "wrong or missing token\n")
        if request.path != frames.PATH and (
            request.path != log_frames.PATH or self._data_dir is None
        ):
            return connection.respond(
                http.HTTPStatus.NOT_FOUND, f"this gateway is at {frames.PATH}\n"
            )
        self._shown[connection] = digest
        return None

    def _denied(self, session: RemoteSession, right: str, topic: str) -> None:
        self._count_denied(session.access, session.name, right, topic)

    def _count_denied(self, access: Access, client: str, right: str, topic: str) -> None:
        self._count(GatewayCounter.DENIED)
        self._count_key(access.name, KeyCounter.DENIED)
        self._say_denied(access.name, client, right, topic)

    def _say_denied(self, key: str, client: str, right: str, topic: str) -> None:
        _log.warning("gateway: %s (key %s) was denied %s on %r", client, key, right, topic)
        self._report(AccessDenied(key=key, client=client, right=right, topic=topic))

    def _report(self, event: Event) -> None:
        if self._notify is not None:
            self._notify(event)

    def _over_quota(self, access: Access, what: str) -> None:
        self._count(GatewayCounter.OVER_QUOTA)
        self._count_key(access.name, KeyCounter.OVER_QUOTA)
        self._say_denied(access.name, "", f"quota.{what}", "")

    def _failed(self, session: RemoteSession, problem: BaseException) -> None:
        """A task of a session failed unexpectedly: its client connects again."""
        reason = f"internal error: {type(problem).__name__}"
        if self._on(session, life.Event.DISMISSED, reason):
            _log.error("gateway: session of %s failed", session.name, exc_info=problem)
            self._count(GatewayCounter.FAULTS)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _check(self) -> None:
        """Look at keys and certificate again and again, whatever happens."""
        while True:
            await asyncio.sleep(KEYS_CHECKED_S)
            try:
                self._end_revoked()
                if self._certificate is not None and self._certificate.reload():
                    _log.info("gateway: the certificate was loaded again")
            except Exception:  # noqa: BLE001 - revocation must not end with one defect
                self._count(GatewayCounter.FAULTS)
                _log.exception("gateway: keys or certificate could not be checked")

    def _end_revoked(self) -> None:
        """End sessions whose key is revoked, was changed or has expired."""
        reason = "the key was revoked or changed"
        for session in list(self._sessions.values()):
            if session.access != self._access(session.digest):
                self._count(GatewayCounter.KEYS_ENDED)
                self._on(session, life.Event.DISMISSED, reason)
        for reader in list(self._readers):
            if reader.access != self._access(reader.digest):
                self._count(GatewayCounter.KEYS_ENDED)
                self._readers.discard(reader)
                self._spawn(reader.end(reason))

    async def _read_logs(self, socket: ServerConnection) -> None:
        digest = self._shown[socket]
        access = self._access(digest)
        if access is None:
            raise AuthError("the key is not valid any more")
        if len(self._readers) >= READERS_MAX:
            raise Conflict(f"a gateway serves at most {READERS_MAX} readers of logs")
        assert self._data_dir is not None

        def denied(right: str, topic: str) -> None:
            self._count_denied(access, "a reader of logs", right, topic)

        reader = LogReader(
            socket,
            self._data_dir,
            access,
            digest,
            denied=denied,
            sent=lambda n: self._count(GatewayCounter.BYTES_OUT, n),
        )
        self._readers.add(reader)
        try:
            await reader.serve()
        finally:
            self._readers.discard(reader)

    async def _handle(self, socket: ServerConnection) -> None:
        self._count(GatewayCounter.CONNECTIONS)
        try:
            if socket.request is not None and socket.request.path == log_frames.PATH:
                await self._read_logs(socket)
                return
            async with asyncio.timeout(HELLO_TIMEOUT_S):
                data = await socket.recv()
            hello, _ = frames.from_client(data)
            if not isinstance(hello, frames.Hello):
                raise BadFrame(f"{type(hello).__name__}: a Hello comes first")
            reads = levels.range_of("gateway", hello.protocol, hello.levels)
            level = levels.agreed("client", printable(hello.version), reads, "gateway")
            session, resumed = await self._session_of(hello, self._shown[socket])
            session.connect(socket, hears_news=hello.working)
            self._count(GatewayCounter.RESUMED, resumed)
            done = False
            try:
                done = await session.serve(socket, resumed=resumed, level=level)
            finally:
                if session.is_newest(socket):
                    self._on(session, life.Event.BYE if done else life.Event.LOST)
        except (BadFrame, TidecastError, TimeoutError) as problem:
            self._count(GatewayCounter.BAD_FRAMES, isinstance(problem, BadFrame))
            _log.warning("gateway: a client was disconnected: %s", problem)
            with contextlib.suppress(ConnectionClosed):
                await socket.send(frames.encode(Goodbye(reason=str(problem) or "too slow")))
            await socket.close(POLICY_VIOLATION)
        except ConnectionClosed:
            return
        except Exception as problem:  # noqa: BLE001 - reported to the client, and logged
            self._count(GatewayCounter.FAULTS)
            _log.error("gateway: a connection failed", exc_info=problem)
            with contextlib.suppress(ConnectionClosed):
                await socket.send(frames.encode(Goodbye(reason="internal error in the gateway")))
            await socket.close(INTERNAL_ERROR)

    async def _session_of(self, hello: frames.Hello, digest: str) -> tuple[RemoteSession, bool]:
        access, session = self._access(digest), self._sessions.get(hello.session)
        if access is None:
            raise AuthError("the key is not valid any more")
        if (
            session is not None
            and session.digest == digest
            and hmac.compare_digest(session.key.encode(), hello.key.encode())
            and self._on(session, life.Event.CONNECTED)
        ):
            return session, True
        if len(self._sessions) >= self._clients_max:
            raise Conflict(f"a gateway serves at most {self._clients_max} remote clients")
        name = f"remote {printable(hello.name[: frames.NAME_MAX])}".strip()
        link = await asyncio.to_thread(self._make_link, name)
        session = RemoteSession(
            Connection(link, name),
            name,
            access,
            digest,
            keep_s=self._keep_s,
            counters=self.counters,
            denied=self._denied,
            failed=self._failed,
            quotas=self._quotas,
        )
        self._sessions[session.id] = session
        self.counters[GatewayCounter.SESSIONS] = len(self._sessions)
        return session, False

    # --- the life of sessions ---------------------------------------------------------------------

    def _on(self, session: RemoteSession, event: life.Event, reason: str = "") -> bool:
        """Run the actions of `TRANSITIONS`; False: the session's state does not list the event."""
        after = TRANSITIONS.after(session.state, event)
        if after is None:
            return False
        state, action = after
        session.enter(state)
        action(self, session, reason)
        return True

    def resume(self, session: RemoteSession, _reason: str) -> None:
        """Its client is back, or comes over a second connection, which `serve` prefers."""
        expiry = self._expiries.pop(session.id, None)
        if expiry is not None:
            expiry.cancel()

    def await_return(self, session: RemoteSession, _reason: str) -> None:
        """Keep it for `resume_s`."""
        expire = partial(self._on, session, life.Event.EXPIRED)
        loop = asyncio.get_running_loop()
        self._expiries[session.id] = loop.call_later(self._resume_s, expire)

    def expire(self, session: RemoteSession, reason: str) -> None:
        """Its client does not come back."""
        self._count(GatewayCounter.EXPIRED)
        self.end(session, reason)

    def end(self, session: RemoteSession, _reason: str) -> None:
        """End everything that its client had."""
        self._forget(session)
        self._spawn(session.end())

    def dismiss(self, session: RemoteSession, reason: str) -> None:
        """End it, and send the reason first; do not wait for a client that does not read."""
        self._forget(session)
        self._spawn(self._dismiss(session, reason))

    def _forget(self, session: RemoteSession) -> None:
        self._sessions.pop(session.id, None)
        self.counters[GatewayCounter.SESSIONS] = len(self._sessions)
        expiry = self._expiries.pop(session.id, None)
        if expiry is not None:
            expiry.cancel()

    async def _dismiss(self, session: RemoteSession, reason: str) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GOODBYE_S):
                await session.send(Goodbye(reason=reason))
        await session.end()


Action = Callable[[Gateway, RemoteSession, str], None]
"""Gets the gateway, the session, and the reason of a dismissal."""
TRANSITIONS: StateTable[life.State, life.Event, Action] = StateTable(
    {
        (life.State.SERVED, life.Event.CONNECTED): (life.State.SERVED, Gateway.resume),
        (life.State.SERVED, life.Event.LOST): (life.State.AWAY, Gateway.await_return),
        (life.State.SERVED, life.Event.BYE): (life.State.ENDED, Gateway.end),
        (life.State.SERVED, life.Event.DISMISSED): (life.State.ENDED, Gateway.dismiss),
        (life.State.AWAY, life.Event.CONNECTED): (life.State.SERVED, Gateway.resume),
        (life.State.AWAY, life.Event.EXPIRED): (life.State.ENDED, Gateway.expire),
        (life.State.AWAY, life.Event.DISMISSED): (life.State.ENDED, Gateway.dismiss),
    }
)
"""The diagram in docs/PROTOCOL.md is made from it."""


def open_gateway(
    node: Any,
    data_dir: Path,
    settings: GatewaySettings,
    *,
    keys_come: bool = False,
    store: TopologyStore | None = None,
) -> Gateway:
    """A gateway to a node of this process, listening. Raises ConfigError.

    ``keys_come``: a control service sends keys. Without any, only loopback is listened on.
    ``store``: where topics are saved that clients change; None: nowhere.
    """
    from tidecast.embedded import EmbeddedLink

    def make_link(name: str) -> Link:
        link: Any = EmbeddedLink(node, name, owns_node=False, store=store)
        return cast("Link", link)

    where, insecure = settings.where, settings.insecure
    host, port = address_of(where) if where != "auto" else (HOST, PORT)
    certificate = settings.loaded()
    if not (is_loopback(host) or insecure or certificate is not None):
        raise ConfigError(
            f"gateway: {where}: it would be reached from other hosts in clear text, keys and all: "
            "give it a certificate (--gateway-cert FILE --gateway-key FILE); or say that the "
            "network is trusted, or has a TLS proxy, with --insecure-gateway; or listen on "
            "127.0.0.1"
        )
    if not (is_loopback(host) or keys_come or node.keys):
        raise ConfigError(
            f"gateway: {where}: it would be reached from other hosts, and there are no keys to "
            "check their clients with: make one (tidecast key new NAME --allow 'publish:orders.*')"
            " and put it into the topology file under keys, or connect the engine to a control "
            "service; or listen on 127.0.0.1"
        )
    row = node.counters.allocate(ROW_GATEWAY, "gateway", where)
    made: dict[str, Any] = {
        "find_key": node.keys.find,
        "counters": node.counters.values[row],
        "notify": node.notify_all,
        "count_key": node.key_counts.count,
        "data_dir": data_dir,
        "certificate": certificate,
    }
    token = token_of(data_dir)
    try:
        gateway = Gateway(make_link, token, host=host, port=port, **made)
        gateway.start()
    except ConfigError:
        if where != "auto":
            raise
        gateway = Gateway(make_link, token, port=0, **made)
        gateway.start()
    return gateway


def _port_of(server: Server) -> int:
    return int(next(iter(server.sockets)).getsockname()[1])
