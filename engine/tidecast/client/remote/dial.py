"""Connecting to a gateway: the websocket, the token, the first two frames."""

from __future__ import annotations

import ssl

from websockets.exceptions import (
    ConnectionClosed,
    InvalidStatus,
    InvalidURI,
    WebSocketException,
)
from websockets.sync.client import ClientConnection, connect

from tidecast.api import levels
from tidecast.api.connecting import UNLOGGED
from tidecast.api.frames.common import Goodbye
from tidecast.client.remote import frames
from tidecast.client.remote.frames import BadFrame
from tidecast.errors import AuthError, ConfigError, ConnectionLost, EngineNotRunning
from tidecast.version import VERSION

CONNECT_TIMEOUT_S = 10.0


def dial(
    where: str, name: str, token: str, session: str, key: str, *, tls: bool
) -> tuple[frames.Welcome, ClientConnection]:
    """Connect to ``HOST:PORT``; ``session``, ``key``: to resume.

    Raises AuthError, ConfigError, ConnectionLost, EngineNotRunning.
    """
    socket = open_socket(where, token, tls=tls)
    try:
        hello = frames.Hello(
            name=name,
            session=session,
            key=key,
            version=VERSION,
            levels=(levels.OURS.low, levels.OURS.high),
            working=True,
        )
        socket.send(frames.encode(hello))
        frame, _ = frames.from_gateway(socket.recv(CONNECT_TIMEOUT_S))
    except (ConnectionClosed, TimeoutError, BadFrame) as problem:
        socket.close()
        raise ConnectionLost(f"{where}: {problem}") from None
    if not isinstance(frame, frames.Welcome):
        socket.close()
        reason = frame.reason if isinstance(frame, Goodbye) else type(frame).__name__
        raise ConnectionLost(f"{where}: the gateway refuses: {reason}")
    try:
        levels.check_welcome(frame.level, "gateway", frame.version)
    except ConfigError:
        socket.close()
        raise
    return frame, socket


def open_socket(where: str, token: str, *, tls: bool, path: str = frames.PATH) -> ClientConnection:
    """A websocket to a gateway. Raises AuthError, ConfigError, ConnectionLost, EngineNotRunning."""
    try:
        return connect(
            f"{'wss' if tls else 'ws'}://{where}{path}",
            additional_headers={"Authorization": f"Bearer {token}"},
            compression=None,
            proxy=None,
            logger=UNLOGGED,
            max_size=frames.FRAME_BYTES_MAX,
            max_queue=4,
            open_timeout=CONNECT_TIMEOUT_S,
            close_timeout=1,
            user_agent_header=None,
            ssl=ssl.create_default_context() if tls else None,
        ).__enter__()
    except InvalidStatus as problem:
        status = problem.response.status_code
        if status in (401, 403):
            raise AuthError(
                f"{where}: the gateway refuses the token: give the secret of a key (`tidecast key "
                "new`, or the page), or the engine's own (gateway.token in its data directory), as "
                "token=..., --token or TIDECAST_TOKEN"
            ) from None
        raise ConnectionLost(f"{where}: answered {status}: is it a gateway?") from None
    except InvalidURI:
        raise ConfigError(f"url: {where!r}: allowed is tidecast://HOST:PORT") from None
    except ssl.SSLError as problem:
        raise EngineNotRunning(f"{where}: {_of_tls(where, problem)}") from None
    except (OSError, WebSocketException, EOFError) as problem:
        # ConnectionClosed too: a peer that closes during the handshake counts as absent.
        tls_there = "" if tls else f", or use tidecast+tls://{where} if it speaks TLS"
        raise EngineNotRunning(
            f"no gateway at {where} ({problem}): start an engine with "
            f"`tidecast engine --gateway HOST:PORT`{tls_there}"
        ) from None


def _of_tls(where: str, problem: ssl.SSLError) -> str:
    """The defect in a gateway's TLS, and the remedy."""
    if isinstance(problem, ssl.SSLCertVerificationError):
        return (
            f"the certificate is not valid here ({problem.verify_message}): name the file of its "
            "authority in SSL_CERT_FILE"
        )
    return f"does not speak TLS ({problem.reason or problem}): use tidecast://{where}"
