"""The engine that keeps the topic, asked from all threads of a mirror; it may go away."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from tidecast.errors import ConnectionLost, Timeout
from tidecast.mirror.progress import Progress
from tidecast.mirror.retries import Retries

NAME = "tidecast mirror"
LOCAL_BYTES_MAX, REMOTE_BYTES_MAX = 16 << 20, 900 << 10
"""Bytes of a run: the limit of a frame of the engine's socket, and of a gateway's frame."""


class TargetSession(Protocol):
    """A session with the engine."""

    def administer(self, action: str, arguments: dict[str, Any]) -> Any:
        """See `Link.administer`."""

    def close(self) -> None:
        """End it."""


class _Local:
    def __init__(self, data_dir: Path, token: str | None) -> None:
        from tidecast.client.links.socket_session import EngineControl

        self._engine = EngineControl(data_dir, NAME, token)
        self.close = self._engine.close

    def administer(self, action: str, arguments: dict[str, Any]) -> Any:
        from tidecast.api.frames.socket import Administer

        return self._engine.ask(Administer(action=action, arguments=arguments))


class _Remote:
    def __init__(self, server: str, token: str | None) -> None:
        from tidecast.sync import connect

        self._client = connect(server, name=NAME, token=token)
        self.administer, self.close = self._client.link.administer, self._client.close


class Target:
    """A durable topic. ``bytes_max``: of a run that is appended at once."""

    def __init__(
        self,
        topic: str,
        mirror: str,
        progress: Progress,
        connect: Callable[[], TargetSession],
        bytes_max: int,
    ) -> None:
        self.topic, self.mirror, self.bytes_max = topic, mirror, bytes_max
        self._progress, self._connect = progress, connect
        self._lock = threading.Lock()
        self._session: TargetSession | None = None

    @classmethod
    def of(
        cls,
        topic: str,
        mirror: str,
        progress: Progress,
        *,
        data_dir: Path,
        server: str | None,
        token: str | None,
    ) -> Target:
        """The topic at the engine of a data directory, or behind a gateway."""
        if server is None:
            local: Callable[[], TargetSession] = lambda: _Local(data_dir, token)  # noqa: E731
            return cls(topic, mirror, progress, local, LOCAL_BYTES_MAX)
        remote: Callable[[], TargetSession] = lambda: _Remote(server, token)  # noqa: E731
        return cls(topic, mirror, progress, remote, REMOTE_BYTES_MAX)

    def ask(self, action: str, **arguments: Any) -> Any:
        """Ask the engine, again while it is away. Raises TidecastError, Stopped."""
        retries = Retries(self._progress, "EngineAway")
        while True:
            session: TargetSession | None = None
            try:
                session = self._open()
                return session.administer(action, {"topic": self.topic} | arguments)
            except (ConnectionLost, Timeout) as problem:
                self._drop(session)
                retries.wait(problem)

    def _open(self) -> TargetSession:
        with self._lock:
            if self._session is None:
                self._session = self._connect()
            return self._session

    def _drop(self, session: TargetSession | None) -> None:
        with self._lock:
            if session is not None and self._session is session:
                self._session = None
                session.close()

    def marks(self, sources: int) -> dict[str, Any]:
        """See `mirror_marks`."""
        found: dict[str, Any] = self.ask("mirror_marks", mirror=self.mirror, sources=sources)
        return found

    def append(self, source: int, queue: int, after: int, run: bytes) -> dict[str, Any]:
        """See `append_run`."""
        found: dict[str, Any] = self.ask(
            "append_run", mirror=self.mirror, source=source, queue=queue, after=after, run=run
        )
        return found

    def close(self) -> None:
        """End the session."""
        with self._lock:
            session, self._session = self._session, None
        if session is not None:
            session.close()
