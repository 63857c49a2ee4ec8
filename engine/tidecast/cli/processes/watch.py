"""`tidecast up` after its start: it starts again an engine or a service that is missing.

A process that runs holds the lock on its data directory, also if `up` did not start it. The
service itself looks after its Postgres.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

import click

from tidecast.cli.common import data_dir_option
from tidecast.cli.control import Service, service_state, start_service
from tidecast.cli.options.endpoints import gateway_options
from tidecast.cli.processes.launch import LOG_NAME as ENGINE_LOG_NAME
from tidecast.cli.processes.launch import answers, explain, spawn, start_engine
from tidecast.native.system.processes import end_process

if TYPE_CHECKING:
    from tidecast.gateway.settings import GatewaySettings

LOCK_NAME, LOG_NAME = "up.lock", "up.log"
LOOK_S, STOP_TIMEOUT_S, ENGINE_STOP_TIMEOUT_S = 0.5, 10.0, 60.0
START_LOOK_S, INTERRUPTED = 0.05, 130
BACKOFF_S_MIN, BACKOFF_S_MAX = 1.0, 30.0
SOUND_S = 60.0
"""A process that ran for so long is started again at once when it ends."""
Say = Callable[[str], None]


class Watched(Protocol):
    """The engine or the service."""

    name: str

    def runs(self) -> bool:
        """Whether it runs, or is starting."""

    def start(self) -> None:
        """Start it. Raises an error with the reason when it cannot."""


class WatchedService:
    """The control service, on the port that engines know."""

    name = "control service"

    def __init__(self, data_dir: Path, port: int, service: Service | None = None) -> None:
        """``service``: it runs, and was started here."""
        self._data_dir, self._port = data_dir, port
        self.service = service

    def runs(self) -> bool:
        """See `Watched`."""
        if self.service is not None:
            self.service.process.poll()  # reaped, when it ended
        return service_state(self._data_dir) is not None

    def start(self) -> None:
        """See `Watched`."""
        self.service = start_service(self._data_dir, "--port", str(self._port))

    def stop(self) -> None:
        """End the service that was started here, and wait."""
        if self.service is not None:
            self.service.stop()


class WatchedEngine:
    """The engine, as `up --detach` starts it."""

    name = "engine"

    def __init__(self, data_dir: Path, start: Callable[[], subprocess.Popen[bytes]]) -> None:
        self._data_dir, self._start = data_dir, start
        self._process: subprocess.Popen[bytes] | None = None

    def runs(self) -> bool:
        """See `Watched`."""
        from tidecast.engine.process import running_pid

        starting = self._process is not None and self._process.poll() is None
        return starting or running_pid(self._data_dir) is not None

    def start(self) -> None:
        """See `Watched`."""
        self._process = self._start()

    def code(self) -> int | None:
        """The exit code of the engine that was started last; None while it runs."""
        return None if self._process is None else self._process.poll()

    def stop(self) -> None:
        """End the engine that was started last, in order, and wait."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.terminate()
        try:
            self._process.wait(ENGINE_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Keeper:
    """Starts the engine, or the service, again when it is missing, with back-off.

    ``now_s`` is an argument: see `look`.
    """

    def __init__(self, watched: Watched, say: Say) -> None:
        self._watched, self._say = watched, say
        self._backoff_s = BACKOFF_S_MIN
        self._ran_since_s: float | None = None
        self._next_s = 0.0

    def look(self, now_s: float) -> None:
        """Start it when it is missing and its time has come."""
        if self._watched.runs():
            if self._ran_since_s is None:
                self._ran_since_s = now_s
            if now_s - self._ran_since_s >= SOUND_S:
                self._backoff_s = BACKOFF_S_MIN
            return
        if self._ran_since_s is not None:
            self._ran_since_s = None
            self._next_s = now_s + (0.0 if self._backoff_s == BACKOFF_S_MIN else self._backoff_s)
        if now_s < self._next_s:
            return
        self._say(f"the {self._watched.name} is missing: it is started again")
        try:
            self._watched.start()
        except (click.ClickException, OSError) as problem:
            words = problem.message if isinstance(problem, click.ClickException) else str(problem)
            self._say(f"the {self._watched.name} does not start: {words}")
        self._next_s = now_s + self._backoff_s
        self._backoff_s = min(BACKOFF_S_MAX, self._backoff_s * 2)


class Watch:
    """A thread each for engine and service, so that a slow start delays only one of them."""

    def __init__(
        self, watched: Sequence[Watched], say: Say, wanted: Callable[[], bool] = lambda: True
    ) -> None:
        """``wanted``: False = the platform was removed, and nothing is to be started."""
        self._stopping, self._wanted = threading.Event(), wanted
        self._threads = [
            threading.Thread(
                target=self._keep, args=(Keeper(each, say),), name=f"keep {each.name}", daemon=True
            )
            for each in watched
        ]

    def start(self) -> None:
        """Begin."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Start nothing any more, and wait for processes that are starting."""
        self._stopping.set()
        for thread in filter(threading.Thread.is_alive, self._threads):
            thread.join(STOP_TIMEOUT_S)

    def _keep(self, keeper: Keeper) -> None:
        while not self._stopping.wait(LOOK_S) and self._wanted():
            keeper.look(time.monotonic())


# --- one watch a data directory -------------------------------------------------------------------


def hold(data_dir: Path) -> IO[str] | None:
    """The lock of the watcher of a data directory; None if another process watches it."""
    data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    lock = (data_dir / LOCK_NAME).open("a+")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        return None
    lock.truncate(0)
    lock.write(f"{os.getpid()}\n")
    lock.flush()
    return lock


def watching_pid(data_dir: Path) -> int | None:
    """The process that watches a data directory."""
    try:
        with (data_dir / LOCK_NAME).open() as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                text = lock.read().strip()
                return int(text) if text.isdigit() else 0
    except OSError:
        pass
    return None


def stop_watching(data_dir: Path) -> None:
    """End the watch, and wait."""
    pid = watching_pid(data_dir)
    if not pid:
        return
    end_process(pid, lambda: watching_pid(data_dir) == pid, STOP_TIMEOUT_S)


def watch_detached(data_dir: Path, options: list[str], environment: dict[str, str]) -> None:
    """Watch from a process of its own, unless one does already."""
    if watching_pid(data_dir) is not None:
        return
    command = [
        sys.executable,
        "-P",
        "-m",
        "tidecast.cli",
        "watch",
        "--data-dir",
        str(data_dir),
        *options,
    ]
    spawn(command, environment, data_dir / LOG_NAME)


def _stopped_by_signal() -> threading.Event:
    """Set by SIGTERM, Ctrl-C, or the end of the terminal."""
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
            signal.signal(number, lambda _number, _frame: stopping.set())
    return stopping


# --- in the foreground ----------------------------------------------------------------------------


def keep_up(
    data_dir: Path,
    topology_file: Path | None,
    token: str | None,
    gateway: GatewaySettings,
    url: str | None,
    service: Service | None,
) -> int:
    """Run an engine and restart missing processes until a signal; the exit code.

    ``url``: of the control service, which is looked after too. ``service``: it was started here.
    The engine ends with this process. Raises Failure.
    """
    from tidecast.cli import Failure

    stopping = _stopped_by_signal()
    lock = hold(data_dir)
    if lock is None:
        raise Failure(f"process {watching_pid(data_dir)} keeps Tidecast running on {data_dir}")
    engine = WatchedEngine(
        data_dir, lambda: start_engine(data_dir, topology_file, token, gateway, url, log=None)
    )
    watched: list[WatchedEngine | WatchedService] = [engine]
    if url is not None:
        watched.append(WatchedService(data_dir, urlsplit(url).port or 0, service))
    made = Watch(watched, lambda words: click.echo(words, err=True))
    try:
        engine.start()
        while not answers(data_dir, token):
            code = engine.code()
            if code is not None:
                return code
            if stopping.wait(START_LOOK_S):
                return INTERRUPTED
        explain(data_dir)
        made.start()
        while not stopping.wait(LOOK_S):  # with a time: any thread may get the signal
            pass
    finally:
        made.stop()
        for each in watched:
            each.stop()
        lock.close()
    return 0


@click.command(hidden=True)
@data_dir_option
@click.option("--topology", "topology_file", type=click.Path(path_type=Path, dir_okay=False))
@gateway_options("auto")
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=None,
    help="Of the control service; without it there is none.",
)
def watch(
    data_dir: Path, topology_file: Path | None, gateway: GatewaySettings, port: int | None
) -> None:
    """Restart missing processes of `up --detach`; `down` ends it."""
    lock = hold(data_dir)
    if lock is None:
        return
    stopping = _stopped_by_signal()
    url = None if port is None else f"http://127.0.0.1:{port}"
    token = os.environ.get("TIDECAST_TOKEN")
    log = data_dir / ENGINE_LOG_NAME
    watched: list[Watched] = [
        WatchedEngine(
            data_dir, lambda: start_engine(data_dir, topology_file, token, gateway, url, log=log)
        )
    ]
    if port is not None:
        watched.append(WatchedService(data_dir, port))
    held = os.fstat(lock.fileno())

    def wanted() -> bool:
        with contextlib.suppress(OSError):
            return os.path.samestat(held, (data_dir / LOCK_NAME).stat())
        return False

    made = Watch(watched, _say, wanted)
    made.start()
    while not stopping.wait(LOOK_S) and wanted():  # with a time: any thread may get the signal
        pass
    made.stop()
    lock.close()


def _say(words: str) -> None:
    click.echo(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {words}", err=True)
