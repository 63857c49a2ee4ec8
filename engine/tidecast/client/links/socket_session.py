"""A session with an engine process over its unix socket: questions, answers, pushed events.

`SocketLink` adds publishing and subscribing; `EngineControl` adds administration.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import threading
import weakref
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from tidecast.api import levels
from tidecast.api.frames import socket as frames
from tidecast.api.frames.common import HEAD, Goodbye, Reply, Working
from tidecast.api.frames.socket import Body, Hello, Request, Welcome
from tidecast.api.rpc import Calls
from tidecast.config.topology import FaultSettings, TopicConfig
from tidecast.errors import (
    AuthError,
    Closed,
    ConfigError,
    ConnectionLost,
    EngineNotRunning,
    ForkedProcess,
)
from tidecast.events import EngineBack, EngineLost, Event
from tidecast.version import VERSION

SOCKET_NAME = "engine.sock"
REQUEST_TIMEOUT_S = 30.0
CONNECT_TIMEOUT_S = 10.0
SUN_PATH_BYTES_MAX = 107
EVENTS_HELD_MAX = 4096
"""Events that wait to be taken; while there are fewer the engine may push more."""


class _Wire:
    """One connection: a socket, its reader thread, the requests that wait. Never reconnects."""

    def __init__(self, sock: socket.socket, session: EngineSession) -> None:
        self.sock = sock
        self.lost: str | None = None
        self.serves = False
        """It is the connection of its session, and not an attempt that failed or was given up."""
        self._session = weakref.ref(session)
        self._sending = threading.Lock()
        self._calls = Calls("the engine")
        self._reader = threading.Thread(target=self._read, name="tidecast-events", daemon=True)
        self._reader.start()

    def post(self, body: Body) -> None:
        """Send without waiting for an answer."""
        self._send(frames.frame(Request(0, body)))  # type: ignore[arg-type]

    def ask(self, body: Body, timeout_s: float) -> Any:
        """Send and wait. Raises the engine's error, ConfigError, ConnectionLost, Timeout.

        An object that the engine opens after the time-out is closed again.
        """
        _check_types(body)

        def send(number: int) -> None:
            if self.lost is not None:
                raise ConnectionLost(self.lost)
            self._send(frames.frame(Request(number, body)))  # type: ignore[arg-type]

        kind = type(body)
        undo = frames.UNDO.get(kind)
        late = None if undo is None else lambda result: self.post(undo(result))
        return self._calls.ask(send, frames.RESULTS[kind], timeout_s, kind.__name__, late)

    def _send(self, data: bytes) -> None:
        try:
            with self._sending:
                self.sock.sendall(data)
        except OSError as problem:
            raise ConnectionLost(f"the engine is gone: {problem.strerror or problem}") from None

    def hung_up(self) -> bool:
        """The engine has closed its end; the reader thread may not have noticed yet."""
        try:
            poll = select.poll()
            poll.register(self.sock, select.POLLRDHUP)
            return bool(poll.poll(0))
        except (OSError, ValueError):  # closed here
            return True

    def abandon(self) -> None:
        """Shut the socket down: the engine ends the session, the reader thread ends by itself."""
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End the connection; the reader thread ends."""
        self.abandon()
        if self._reader is not threading.current_thread():
            self._reader.join(CONNECT_TIMEOUT_S)
        self.sock.close()

    def _read(self) -> None:
        reason = "the engine closed the connection"
        try:
            while (content := receive_frame(self.sock)) is not None:
                message = frames.decode_from_engine(content)
                if isinstance(message, Reply):
                    self._calls.answer(message)
                elif isinstance(message, Working):
                    self._calls.hear(message)
                elif isinstance(message, Goodbye):
                    reason = message.reason
                elif (session := self._session()) is not None:
                    session._pushed(self, list(message.events))  # noqa: SLF001 - one unit
        except (OSError, msgspec.DecodeError, ConnectionLost) as problem:
            reason = f"the connection to the engine broke: {problem}"
        self.lost = reason
        self._calls.lose(ConnectionLost(reason))
        if (session := self._session()) is not None:
            session._dropped(self, reason)  # noqa: SLF001


def _check_types(body: Body) -> None:
    """Raise ConfigError for a request that the engine could not read: it would end the session."""
    try:
        frames.decode_request(msgspec.msgpack.encode(Request(0, body)))  # type: ignore[arg-type]
    except (msgspec.DecodeError, TypeError, OverflowError) as problem:
        raise ConfigError(f"{type(body).__name__}: {problem}".replace("$.body.", "")) from None


def receive_frame(sock: socket.socket) -> bytes | None:
    """The next frame's content; None at the end. Raises ConnectionLost when it is too long."""
    head = _receive_exactly(sock, HEAD.size)
    if head is None:
        return None
    (length,) = HEAD.unpack(head)
    if length > frames.FRAME_BYTES_MAX:
        raise ConnectionLost(f"a frame of {length} bytes: allowed {frames.FRAME_BYTES_MAX}")
    return _receive_exactly(sock, length)


def _receive_exactly(sock: socket.socket, n: int) -> bytes | None:
    buffer = bytearray(n)
    view, got = memoryview(buffer), 0
    while got < n:
        more = sock.recv_into(view[got:])
        if more == 0:
            return None
        got += more
    return bytes(buffer)


def socket_path(data_dir: Path) -> Path:
    """Where an engine listens."""
    return data_dir / SOCKET_NAME


@contextlib.contextmanager
def short_path(path: Path) -> Any:
    """A name of ``path`` that fits a unix socket's address (107 bytes), valid inside ``with``."""
    if len(os.fsencode(path)) <= SUN_PATH_BYTES_MAX:
        yield str(path)
        return
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)


def dial(data_dir: Path) -> socket.socket:
    """Connect to the engine of a data directory. Raises EngineNotRunning, AuthError."""
    path = socket_path(data_dir)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.settimeout(CONNECT_TIMEOUT_S)
        with short_path(path) as name:
            sock.connect(name)
        sock.settimeout(None)
    except PermissionError:
        sock.close()
        raise AuthError(f"{path} belongs to another user") from None
    except OSError as problem:
        sock.close()
        absent = (errno.ENOENT, errno.ENOTDIR, errno.ECONNREFUSED)
        detail = "" if problem.errno in absent else f" ({problem.strerror or problem})"
        raise EngineNotRunning(
            f"no engine runs on {data_dir}{detail}: start one with "
            f"`tidecast up --data-dir {data_dir}`"
        ) from None
    return sock


class EngineSession:
    """A session that can be lost and made again. Safe for use from any thread."""

    def __init__(self, data_dir: Path, name: str, token: str | None, *, attach: bool) -> None:
        self.data_dir = data_dir
        reads = (levels.OURS.low, levels.OURS.high)
        self._hello = Hello(
            name=name, token=token, attach=attach, version=VERSION, levels=reads, working=True
        )
        self._pid = os.getpid()
        self._closed = False
        self._events: deque[Event] = deque()
        self._owed = False
        self._counting = threading.Lock()
        """Held by the thread that decides whether the engine may push more."""
        self._notify_lost: Callable[[], None] = lambda: None
        self._reconnecting = threading.Lock()
        self._wire, self.welcome = self._connect()
        self._wire.serves = True
        _sessions.add(self)

    def _connect(self) -> tuple[_Wire, Welcome]:
        wire = _Wire(dial(self.data_dir), self)
        weakref.finalize(self, wire.abandon)
        try:
            welcome = wire.ask(self._hello, CONNECT_TIMEOUT_S)
            levels.check_welcome(welcome.level, "engine", welcome.version)
        except ConnectionLost as problem:
            wire.close()
            raise EngineNotRunning(
                f"the engine on {self.data_dir} ended while this client connected ({problem}): "
                f"start one with `tidecast up --data-dir {self.data_dir}`"
            ) from None
        except BaseException:
            wire.close()
            raise
        assert isinstance(welcome, Welcome)
        return wire, welcome

    @property
    def connected(self) -> bool:
        """The engine is there: it holds its end of the socket."""
        return not self._closed and self._wire.lost is None and not self._wire.hung_up()

    def ask(self, body: Body, timeout_s: float = REQUEST_TIMEOUT_S) -> Any:
        """Ask one question. Raises the engine's error, ConnectionLost, Timeout, Closed."""
        self._check()
        return self._wire.ask(body, timeout_s)

    def take_events(self) -> list[Event]:
        """Events since the call before; never blocks."""
        taken: list[Event] = []
        with contextlib.suppress(IndexError):
            while True:
                taken.append(self._events.popleft())
        with self._counting:
            owed = self._owed and not self._closed and len(self._events) < EVENTS_HELD_MAX
            if owed:
                self._owed = False
        if owed:
            with contextlib.suppress(ConnectionLost):
                self._wire.post(frames.EventsTaken())
        return taken

    def on_lost(self, notify: Callable[[], None]) -> None:
        """Call ``notify``, from any thread, when the engine is lost."""
        self._notify_lost = notify

    def reconnect(self) -> None:
        """Begin a new session after `EngineLost`; all is closed there. Raises EngineNotRunning."""
        self._check()
        with self._reconnecting:
            if self._wire.lost is None:
                return
            self._wire.close()
            self._wire.serves, self._owed = False, False
            self._wire, self.welcome = self._connect()
            self._wire.serves = True
            if self._closed:  # meanwhile: the engine would keep this session
                self._wire.close()
                raise Closed("the connection is closed")
            self._reconnected()
            self._events.append(EngineBack(incarnation=self.welcome.incarnation))
        self._ring()

    def close(self) -> None:
        """End the session. Idempotent; in a forked child it only drops the inherited socket."""
        if self._closed:
            return
        self._closed = True
        if self._pid == os.getpid():
            self._wire.close()

    def _check(self) -> None:
        if self._pid != os.getpid():
            raise ForkedProcess("this connection was made by the parent process: connect again")
        if self._closed:
            raise Closed("the connection is closed")

    def _pushed(self, wire: _Wire, events: list[Event]) -> None:
        """Events came, maybe right behind the welcome: ``wire`` need not be ours yet."""
        self._events.extend(events)
        with self._counting:
            owed = self._owed = len(self._events) >= EVENTS_HELD_MAX
        if not owed:
            with contextlib.suppress(ConnectionLost):
                wire.post(frames.EventsTaken())
        self._ring()

    def _dropped(self, wire: _Wire, reason: str) -> None:
        if wire.serves and not self._closed:
            self._events.append(EngineLost(reason=reason))
            self._ring()
            self._notify_lost()

    def _reconnected(self) -> None:
        """Hook: the welcome is new."""

    def _ring(self) -> None:
        """Hook: events arrived, wake the waiting threads."""


_sessions: weakref.WeakSet[EngineSession] = weakref.WeakSet()


def _drop_inherited() -> None:
    """In a forked child: an inherited socket would hide the parent's death from the engine."""
    for session in list(_sessions):
        session._wire.sock.close()  # noqa: SLF001


os.register_at_fork(after_in_child=_drop_inherited)


class EngineControl(EngineSession):
    """Administration of a running engine: topics, faults, figures. A context manager."""

    def __init__(self, data_dir: Path, name: str = "control", token: str | None = None) -> None:
        super().__init__(data_dir, name, token, attach=False)

    def __enter__(self) -> EngineControl:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def topics(self) -> list[TopicConfig]:
        """All topics of the node."""
        page = self._administer("topics", after=None)
        rows: list[Any] = page["rows"]
        while page["next"] is not None:
            page = self._administer("topics", after=page["next"])
            rows += page["rows"]
        return msgspec.convert(rows, list[TopicConfig])

    def create_topic(self, topic: TopicConfig) -> TopicConfig:
        """Create and save. Raises Conflict, ConfigError."""
        settings = msgspec.to_builtins(topic)
        del settings["name"]
        made = self._administer("create_topic", topic=topic.name, settings=settings)
        return msgspec.convert(made, TopicConfig)

    def edit_topic(
        self, name: str, changes: dict[str, Any], *, recreate: bool = False
    ) -> TopicConfig:
        """Change and save. Raises NotFound, ConfigError."""
        made = self._administer("edit_topic", topic=name, settings=changes, recreate=recreate)
        return msgspec.convert(made, TopicConfig)

    def delete_topic(self, name: str) -> None:
        """Delete and save. Raises NotFound."""
        self._administer("delete_topic", topic=name)

    def _administer(self, action: str, **arguments: Any) -> Any:
        return self.ask(frames.Administer(action=action, arguments=arguments))

    def set_faults(self, transport: str, faults: FaultSettings) -> None:
        """Switch fault injection. Raises NotFound, ConfigError when it is not allowed there."""
        self.ask(frames.SetFaults(transport=transport, faults=faults))

    def faults(self) -> dict[str, FaultSettings]:
        """Fault injection by transport."""
        found: dict[str, FaultSettings] = self.ask(frames.GetFaults())
        return found

    def node_id_of(self, name: str) -> int:
        """Id of a node by name. Raises NoResponders when it is not known."""
        return int(self.ask(frames.NodeIdOf(name=name)))

    def overview(self) -> frames.OverviewResult:
        """Publications, images and receivers."""
        found: frames.OverviewResult = self.ask(frames.Overview())
        return found

    def stats(self) -> dict[str, Any]:
        """Counters by entity."""
        found: dict[str, Any] = self.ask(frames.Stats())
        return found
