"""Processes forked from a warm one: an engine or a client that is ready in tens of milliseconds.

A suite that kills processes hundreds of times would spend its time importing and loading kernels.
The nursery (`python -m tests.support.nursery`) has done both, and has one thread; what it forks is
a process like any other, with pipes of its own, and dies of `kill -9` as any other does.

One request a datagram on a socket: JSON, with the child's three descriptors. The nursery ends, and
what it has forked with it, when the other end of the socket is closed.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, NoReturn

from tests.support.patience import Patience
from tests.support.process import COMMAND_TIMEOUT_S, Child, Text

Environment = Mapping[str, str]

REQUEST_BYTES_MAX = 1 << 17
WARM_MESSAGES = 300
MODULES = (
    "tests.support.roles",
    "tidecast.cli.engine",
    "tidecast.client.remote.link",
    "tidecast.client.remote.consumers",
    "tidecast.client.links.socket_session",
    "tidecast.engine.admission",
    "tidecast.gateway.server",
    "tidecast.engine.process",
    "tidecast.telemetry.sampling",
)
"""Modules that engines and clients import as they run."""


def _appending(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


class Nursery:
    """The test's side: forks children. One for a whole session of tests."""

    def __init__(self, environment: Environment | None = None) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._log = tempfile.NamedTemporaryFile(prefix="tc-nursery-")  # noqa: SIM115
        with theirs:
            self.pid = os.posix_spawn(
                sys.executable,
                [sys.executable, "-m", "tests.support.nursery", str(theirs.fileno())],
                os.environ if environment is None else environment,
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, theirs.fileno(), theirs.fileno()),
                    (os.POSIX_SPAWN_DUP2, self._log.fileno(), 2),
                ],
            )
        self._ask({})  # it is warm

    def _ask(self, request: dict[str, Any], fds: tuple[int, ...] = ()) -> Any:
        socket.send_fds(self._socket, [json.dumps(request).encode()], list(fds))
        answer = self._socket.recv(REQUEST_BYTES_MAX)
        assert answer, f"the nursery ended:\n{Path(self._log.name).read_text()}"
        return json.loads(answer)

    def fork(
        self,
        kind: str,
        arguments: list[str],
        log: Path,
        *,
        environment: Environment | None = None,
        network: str = "",
    ) -> Forked:
        """A child: ``kind`` is `command` (of tidecast) or `role` (see `tests.support.roles`).

        ``network``: the file of the network namespace that it lives in; empty: ours.
        """
        in_r, in_w = os.pipe2(os.O_CLOEXEC)
        out_r, out_w = os.pipe2(os.O_CLOEXEC)
        given = os.environ if environment is None else environment
        pid = self._fork(kind, arguments, given, in_r, out_w, _appending(log), network=network)
        return Forked(self, pid, log, os.fdopen(in_w, "w"), os.fdopen(out_r))

    def run(
        self, arguments: list[str], environment: Environment, log: Path, stdin: IO[Any] | None
    ) -> Text:
        """A command of tidecast to its end. ``stdin``: an open file (None: nothing)."""
        out = log.with_suffix(".out")
        given = os.open(os.devnull, os.O_RDONLY) if stdin is None else os.dup(stdin.fileno())
        files = (given, _appending(out), _appending(log))
        pid = self._fork("command", arguments, environment, *files)
        child = Forked(self, pid, log, None, None)
        try:
            code = child.wait(COMMAND_TIMEOUT_S)
        finally:
            child.close()
        return Text(arguments, code, out.read_text("utf-8"), log.read_text("utf-8"))

    def _fork(
        self,
        kind: str,
        arguments: list[str],
        environment: Environment,
        *fds: int,
        network: str = "",
    ) -> int:
        request = {
            "kind": kind,
            "arguments": arguments,
            "environment": dict(environment),
            "network": network,
        }
        pid = self._ask(request, fds)["pid"]
        for fd in fds:
            os.close(fd)
        return int(pid)

    def reap(self, pid: int) -> int:
        """The exit code of a child that has ended, as `subprocess` has it."""
        return int(self._ask({"reap": pid})["code"])

    def close(self) -> None:
        """End it and all that it forked."""
        self._socket.close()
        os.waitpid(self.pid, 0)
        self._log.close()


class Forked(Child):
    """A child of the nursery."""

    def __init__(
        self, nursery: Nursery, pid: int, log: Path, stdin: IO[str] | None, stdout: IO[str] | None
    ) -> None:
        super().__init__(pid, log, stdin, stdout)
        self._nursery = nursery
        self._code: int | None = None
        self._pidfd = os.pidfd_open(pid)  # it cannot be another's: only `reap` lets it go

    def signal(self, number: int) -> None:
        """See `Child`."""
        if self._code is None:
            signal.pidfd_send_signal(self._pidfd, number)

    @property
    def running(self) -> bool:
        """See `Child`."""
        return self._code is None and not self._ended(0)

    def wait(self, timeout_s: float) -> int:
        """See `Child`."""
        if self._code is None:
            patience = Patience(timeout_s)
            while not (ended := self._ended(50)):
                if patience.over():
                    break
            assert ended, f"process {self.pid} has not ended within {timeout_s:g} s"
            self._code = self._nursery.reap(self.pid)
            os.close(self._pidfd)
        return self._code

    def _ended(self, timeout_ms: int) -> bool:
        poll = select.poll()  # `select.select` takes no descriptor above 1,023
        poll.register(self._pidfd, select.POLLIN)
        return bool(poll.poll(timeout_ms))


# --- the nursery's side ---------------------------------------------------------------------------


def warm() -> None:
    """Run what engines and clients run, so that what is forked later has it in memory."""
    import tidecast.sync
    from tests.support.lab import multicast, topology
    from tidecast.config.topology import topology_from
    from tidecast.embedded import EmbeddedLink

    for module in MODULES:
        importlib.import_module(module)
    topics = [{"name": "orders", "mode": "durable", "queues": 3, "fsync_interval_ms": 5}]
    settings = topology(multicast(), topics=topics)
    with tempfile.TemporaryDirectory(prefix="tc-") as directory:
        link: Any = EmbeddedLink.open(topology_from(settings), data_dir=Path(directory))
        with tidecast.sync.connect(link=link) as client:
            publisher = client.publisher("orders", producer="warm", buffer=False)
            consumer = client.consumer("orders", "warm")
            for i in range(WARM_MESSAGES):
                publisher.publish(bytes(i), key=b"k%d" % (i % 7))
            publisher.wait_durable(timeout=60.0)
            done = 0
            while done < WARM_MESSAGES:
                batch = consumer.fetch(100, max_wait=1.0)
                done += len(batch.payloads()) if batch else 0
                batch.ack()
    gc.collect()
    gc.freeze()
    others = [t.name for t in threading.enumerate() if t is not threading.main_thread()]
    assert not others, f"threads do not outlive a fork: {others}"


def _be(request: dict[str, Any], fds: list[int]) -> NoReturn:
    """In the child: what was asked for, to its end."""
    code = 1
    try:
        for wanted, fd in enumerate(fds):
            os.dup2(fd, wanted)
            os.close(fd)
        os.environ.clear()
        os.environ.update(request["environment"])
        if request["network"]:
            from tests.support.hosts import clock, network

            network.enter(request["network"])
            clock.follow(request["environment"])
        if request["kind"] == "role":
            from tests.support.roles import ROLES

            name, *arguments = request["arguments"]
            ROLES[name](*arguments)
            code = 0
        else:
            from tidecast.cli import main

            main(request["arguments"], prog_name="tidecast")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:  # noqa: BLE001
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _answer(request: dict[str, Any], fds: list[int], children: set[int], here: Any) -> Any:
    if "reap" in request:
        pid = request["reap"]
        _, status = os.waitpid(pid, 0)
        children.discard(pid)
        return {"code": os.waitstatus_to_exitcode(status)}
    if "kind" not in request:
        return {}
    pid = os.fork()
    if pid == 0:
        here.close()
        _be(request, fds)
    children.add(pid)
    for fd in fds:
        os.close(fd)
    return {"pid": pid}


def main() -> None:
    """Serve until the other side is gone."""
    here = socket.socket(fileno=int(sys.argv[1]))
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    warm()
    children: set[int] = set()
    while True:
        raw, fds, _, _ = socket.recv_fds(here, REQUEST_BYTES_MAX, 3)
        if not raw:
            break
        here.send(json.dumps(_answer(json.loads(raw), fds, children, here)).encode())
    for pid in children:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


if __name__ == "__main__":
    main()
