"""The engine process: one node, its admission server, its files in the data directory.

engine.lock   held (flock) while an engine runs; its pid, for an engine that finds it taken
engine.sock   admission
engine.json   pid, incarnation, version, where counters and recorder lie; removed at a clean stop
topology.yaml the engine's topology, unless --topology names another file
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Protocol

import msgspec

from tidecast.api.node import LeftBehind, NodeApi
from tidecast.config.store import TopologyStore
from tidecast.config.topology import (
    LOCK_NAME,
    Topology,
    first_topology,
    load_topology,
    save_topology,
    topology_path,
    with_identity,
)
from tidecast.disk import write_atomically
from tidecast.engine.admission import AdmissionServer
from tidecast.errors import AuthError, ConfigError, Conflict, NotFound, TidecastError
from tidecast.native.system.processes import end_process
from tidecast.node.access.rights import Guard
from tidecast.queues.leases.store import LeaseStore
from tidecast.version import VERSION

if TYPE_CHECKING:
    from tidecast.gateway.settings import GatewaySettings

STATE_NAME, STOPPED_NAME = "engine.json", "stopped.json"
LOCK_PATIENCE_S = 0.2
"""`running_pid` holds the lock for a moment to look: that must not fail an engine that starts."""
SIGNAL_LOOK_S = 0.5
"""Longest delay of a signal that another thread of the process has received."""
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
NodeFactory = Callable[[Topology, Path], NodeApi]


class EngineState(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of ``engine.json``; kept after a crash, for `tidecast recorder`."""

    pid: int
    node_id: int
    node_name: str
    incarnation: int
    version: str
    counters_path: str
    recorder_path: str
    started_ns: int
    gateway: str = ""
    """Address for remote clients; "" without a gateway."""


def read_state(data_dir: Path) -> EngineState | None:
    """The state that the last engine of a data directory wrote; None: no sound file."""
    try:
        return msgspec.json.decode((data_dir / STATE_NAME).read_bytes(), type=EngineState)
    except (OSError, msgspec.DecodeError):
        return None


def read_left_behind(data_dir: Path) -> LeftBehind:
    """The messages that the last engine of a data directory left unsent; none after a crash."""
    try:
        return msgspec.json.decode((data_dir / STOPPED_NAME).read_bytes(), type=LeftBehind)
    except (OSError, msgspec.DecodeError):
        return LeftBehind()


class EngineLock:
    """Only one engine runs on a data directory. The kernel drops the lock with the process."""

    def __init__(self, data_dir: Path) -> None:
        self._path = data_dir / LOCK_NAME
        self._descriptor = -1
        self._made: list[Path] = []

    def acquire(self) -> None:
        """Take the lock. Raises Conflict with its holder, ConfigError for a bad directory."""
        try:
            self._made = [path for path in (self._path, self._path.parent) if not path.exists()]
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
            descriptor = os.open(self._path, flags, 0o600)
        except OSError as problem:
            raise ConfigError(
                f"data directory {self._path.parent}: {problem.strerror}: choose another with "
                "--data-dir or TIDECAST_DATA_DIR"
            ) from None
        if not _lock_within(descriptor, LOCK_PATIENCE_S):
            pid = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
            os.close(descriptor)
            raise Conflict(
                f"an engine runs on {self._path.parent} already (pid {pid}): stop it with "
                f"`tidecast down --data-dir {self._path.parent}`, or choose another --data-dir"
            ) from None
        if not self._is_at_its_path(descriptor):
            os.close(descriptor)  # its holder could not start, and removed the file
            self.acquire()
            return
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        self._descriptor = descriptor

    def _is_at_its_path(self, descriptor: int) -> bool:
        try:
            return os.path.samestat(os.fstat(descriptor), self._path.stat())
        except FileNotFoundError:
            return False

    def undo(self) -> None:
        """The engine could not start: release the lock, and remove new files."""
        for path in self._made:
            with contextlib.suppress(OSError):
                path.rmdir() if path.is_dir() else path.unlink()
        self.release()

    def release(self) -> None:
        """Release the lock, for the next engine. Idempotent. The file stays."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.ftruncate(descriptor, 0)
            os.close(descriptor)


def _lock_within(descriptor: int, patience_s: float) -> bool:
    pause = threading.Event()
    deadline_s = time.monotonic() + patience_s
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline_s:
                return False
            pause.wait(0.01)
        else:
            return True


def running_pid(data_dir: Path) -> int | None:
    """Pid of the engine that holds the data directory's lock, or None. Changes nothing.

    Raises AuthError when the directory is another user's.
    """
    try:
        descriptor = os.open(data_dir / LOCK_NAME, os.O_RDONLY | os.O_CLOEXEC)
    except PermissionError:
        raise AuthError(f"data directory {data_dir}: it belongs to another user") from None
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        text = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
        return int(text) if text.isdigit() else 0
    finally:
        os.close(descriptor)
    return None


def choose_topology(data_dir: Path, path: Path | None) -> tuple[Topology, Path]:
    """The topology to run and the file it is saved in.

    The file is ``path`` if given, else that of the data directory. If the latter is missing, the
    result is the topology of a new platform, which an engine that starts saves there.
    """
    if path is not None:
        if path.exists() and not path.is_file():
            raise ConfigError(f"--topology {path}: allowed is a regular file: it is rewritten")
        return load_topology(path), path
    path = topology_path(data_dir)
    try:
        return load_topology(path), path
    except NotFound:
        return first_topology(data_dir), path


Fetch = Callable[[Topology, Path, Path], Topology]
"""(topology, data directory, its file) -> the topology to run, from the control service if any."""


def no_fetch(topology: Topology, data_dir: Path, path: Path) -> Topology:
    """Without a control service: the topology of the file."""
    del data_dir, path
    return topology


class Companion(Protocol):
    """A companion of a node, for as long as it runs: the control link."""

    def start(self) -> None:
        """Begin, without waiting for other systems."""

    def stop(self) -> None:
        """End. Idempotent."""


CompanionFactory = Callable[[NodeApi, TopologyStore], Companion | None]
"""Makes a companion; None: the topology does not need it."""


def make_node(topology: Topology, data_dir: Path, lease_store: LeaseStore | None = None) -> NodeApi:
    """A node that is not started. ``lease_store``: the store of its control service."""
    from tidecast.embedded import KnownStorages, connect_to
    from tidecast.node.node import Node

    return Node(
        topology, data_dir, connect=connect_to, lease_store=lease_store, storages=KnownStorages()
    )


class Engine:
    """A node that serves clients. `start` starts all parts or none; `stop` is idempotent."""

    def __init__(
        self,
        data_dir: Path,
        topology: Topology,
        *,
        topology_file: Path | None = None,
        token: str | None = None,
        gateway: GatewaySettings | None = None,
        keys_come: bool = False,
        node_factory: NodeFactory = make_node,
        companions: Sequence[CompanionFactory] = (),
    ) -> None:
        """``gateway`` None: none. ``keys_come``: a control service is linked, which sends keys."""
        self.data_dir = data_dir
        self._gateway, self._keys_come = gateway, keys_come
        self.node: NodeApi | None = None
        self._topology = topology
        self._file = topology_file
        self._token = token
        self._factory = node_factory
        self._companions = companions
        self._undo = contextlib.ExitStack()

    def start(self) -> EngineState:
        """Start. Raises Conflict (already running, port in use), ConfigError, SharedMemoryError."""
        try:
            return self._start()
        except OSError as problem:
            raise explain(problem) from problem

    def _start(self) -> EngineState:
        with contextlib.ExitStack() as undo:
            lock = EngineLock(self.data_dir)
            lock.acquire()
            undo.callback(lock.release)
            undo.push(partial(self._undo_failed, lock, self._missing()))
            node = self._factory(with_identity(self._topology, self.data_dir), self.data_dir)
            undo.callback(self._note_left_behind, node)
            undo.callback(node.stop)
            node.start()
            if self._file is not None and not self._file.exists():
                save_topology(self._topology, self._file)
            store = TopologyStore(self._topology, self._file)
            gateway = ""
            if self._gateway is not None and self._gateway.where != "off":
                # First: an engine that answers here has its gateway.
                from tidecast.gateway.server import open_gateway

                opened = open_gateway(
                    node,
                    self.data_dir,
                    self._gateway,
                    keys_come=self._keys_come,
                    store=store,
                )
                undo.callback(opened.stop)
                gateway = opened.url
            guard = Guard(node, time.monotonic_ns) if self._topology.node.local_keys else None
            server = AdmissionServer(node, self.data_dir, store, self._token, guard)
            undo.callback(server.stop)
            server.start()
            for make in self._companions:
                companion = make(node, store)
                if companion is None:
                    continue
                undo.callback(companion.stop)
                companion.start()
            state = EngineState(
                pid=os.getpid(),
                node_id=node.id,
                node_name=node.name,
                incarnation=node.incarnation,
                version=VERSION,
                counters_path=str(node.counters_path),
                recorder_path=str(node.recorder_path),
                started_ns=time.time_ns(),
                gateway=gateway,
            )
            path = self.data_dir / STATE_NAME
            write_atomically(path, msgspec.json.format(msgspec.json.encode(state)) + b"\n")
            undo.callback(path.unlink, missing_ok=True)
            self.node, self._undo = node, undo.pop_all()
        return state

    def _note_left_behind(self, node: NodeApi) -> None:
        """Note unsent messages for the process that stopped this engine, before it unlocks."""
        if self.node is None:
            return  # it could not start
        path = self.data_dir / STOPPED_NAME
        write_atomically(path, msgspec.json.encode(node.left_behind) + b"\n")

    def _missing(self) -> list[Path]:
        """Files that a first start creates and that do not exist."""
        made = [self.data_dir / name for name in ("recorder", "gateway.token")]
        return [path for path in (*made, self._file) if path is not None and not path.exists()]

    def _undo_failed(self, lock: EngineLock, made: list[Path], kind: object, *_: object) -> None:
        """Remove files of a failed start."""
        if kind is None:
            return
        for path in made:
            with contextlib.suppress(OSError):
                path.unlink()
        lock.undo()

    def stop(self) -> None:
        """Notify clients, stop the node, release the lock."""
        if self.node is not None:
            self.node.end()
        self._undo.close()


def run_engine(
    data_dir: Path,
    topology_file: Path | None,
    *,
    token: str | None = None,
    gateway: GatewaySettings | None = None,
    keys_come: bool = False,
    on_ready: Callable[[EngineState, float], None],
    warm_up: Callable[[Topology], None] = lambda _: None,
    node_factory: NodeFactory = make_node,
    companions: Sequence[CompanionFactory] = (),
    fetch: Fetch = no_fetch,
) -> None:
    """Run until SIGTERM or SIGINT, in the main thread. Raises TidecastError when it cannot start.

    ``on_ready(state, seconds)`` is called once, when clients can connect.
    """
    began_s = time.perf_counter()
    stopping = threading.Event()
    ready = False

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        if not ready:
            raise KeyboardInterrupt
        stopping.set()

    before = {number: signal.signal(number, on_signal) for number in STOP_SIGNALS}
    engine: Engine | None = None
    try:
        pid = running_pid(data_dir)
        if pid is not None:  # before minutes of compiling, not after
            raise Conflict(f"an engine runs on {data_dir} already (pid {pid})")
        topology, path = choose_topology(data_dir, topology_file)
        topology = fetch(topology, data_dir, path)  # before transports are opened
        warm_up(topology)
        engine = Engine(
            data_dir,
            topology,
            topology_file=path,
            token=token,
            gateway=gateway,
            keys_come=keys_come,
            node_factory=node_factory,
            companions=companions,
        )
        state = engine.start()
        ready = True
        on_ready(state, time.perf_counter() - began_s)
        # Python runs a handler between two steps of this thread, and a signal that another thread
        # receives does not wake it: so it looks up now and then.
        while not stopping.wait(SIGNAL_LOOK_S):
            pass
    finally:
        if engine is not None:
            engine.stop()
        for number, handler in before.items():
            signal.signal(number, handler)


def stop_engine(data_dir: Path, timeout_s: float = 15.0) -> int:
    """Stop the engine of a data directory, and wait until its process ends. Returns its pid.

    Raises EngineNotRunning, AuthError, Timeout.
    """
    from tidecast.errors import EngineNotRunning, Timeout

    pid = running_pid(data_dir)
    if not pid:
        raise EngineNotRunning(f"no engine runs on {data_dir}")
    try:
        ended = end_process(pid, lambda: running_pid(data_dir) == pid, timeout_s)
    except PermissionError:
        raise AuthError(f"the engine (pid {pid}) belongs to another user") from None
    if not ended:
        raise Timeout(f"the engine (pid {pid}) did not stop within {timeout_s:g} s")
    return pid


def explain(problem: OSError) -> TidecastError:
    """An operating-system error at start as cause, place and fix."""
    where = f" ({problem.filename})" if problem.filename else ""
    return ConfigError(
        f"the engine cannot start: {problem.strerror or problem}{where}: `tidecast doctor` looks "
        "for the cause"
    )
