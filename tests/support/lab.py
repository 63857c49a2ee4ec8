"""Engines and commands as real processes, for the system tests. Whatever is started is ended."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

import tidecast.sync
from tests.support.ports import free_port
from tests.support.process import COMMAND_TIMEOUT_S, ROOT, Child, Process, Text
from tidecast.config.topology import shm_dir

if TYPE_CHECKING:
    from tests.support.nursery import Nursery

_numbers = itertools.count(1)


def free_group() -> str:
    """A multicast group that no other test uses."""
    number = secrets.randbelow(1 << 16)
    return f"239.77.{number >> 8}.{number & 255}"


def multicast(**settings: Any) -> dict[str, Any]:
    """A loopback multicast transport of its own."""
    return {
        "name": "multicast",
        "kind": "udp-multicast",
        "group": free_group(),
        "port": free_port(),
        "allow_faults": True,
    } | settings


def topology(*transports: dict[str, Any], topics: list[Any] | None = None, **node: Any) -> Any:
    """A topology as YAML has it; without transports loopback multicast and ipc."""
    chosen = list(transports) or [multicast(), {"name": "ipc", "kind": "ipc"}]
    return {"node": node, "transports": chosen, "topics": topics or []}


class Platform:
    """One data directory: its topology, its engine (when started), commands on it."""

    def __init__(self, lab: Lab, directory: Path, settings: Any) -> None:
        self.lab, self.directory = lab, directory
        self.url = f"tidecast://{directory}"
        self.engine: Child | None = None
        directory.mkdir()
        if settings is not None:
            (directory / "topology.yaml").write_text(yaml.safe_dump(settings))

    def start(self) -> Child:
        """An engine process of ours; ready when this returns."""
        self.engine = self.lab.spawn("engine", platform=self)
        assert "ready" in self.engine.line("the engine is ready")
        return self.engine

    def kill(self) -> None:
        """kill -9 of the engine."""
        assert self.engine is not None
        self.engine.kill()

    def stop(self) -> None:
        """The engine ends as told, and leaves nothing in shared memory."""
        assert self.engine is not None
        assert self.engine.end() == 0
        assert self.shared() == []

    def shared(self) -> list[Path]:
        """The directories in shared memory of this data directory, one an incarnation."""
        base = shm_dir(self.directory)
        return sorted(base.iterdir()) if base.is_dir() else []

    def connect(self, name: str = "test") -> tidecast.sync.Connection:
        """A client in this process, closed at the end of the test."""
        return self.lab.connect(self.url, name=name)

    def run(self, *arguments: str, **options: Any) -> Text:
        """A command on this data directory."""
        return self.lab.run(*arguments, "--data-dir", str(self.directory), **options)

    def json(self, *arguments: str) -> Any:
        """The last line a command with --json says."""
        return json.loads(self.run(*arguments, "--json").stdout.splitlines()[-1])

    def overview(self) -> Any:
        """Publications, images and receivers, as the engine tells."""
        from tidecast.client.links.socket_session import EngineControl

        with EngineControl(self.directory) as control:
            return control.overview()

    def counters(self, kind: str) -> dict[str, int]:
        """Counters of all entities of a kind, added up."""
        from tidecast.client.links.socket_session import EngineControl

        total: dict[str, int] = {}
        with EngineControl(self.directory) as control:
            for row in control.stats().get(kind, []):
                for name, value in row.items():
                    if isinstance(value, int):
                        total[name] = total.get(name, 0) + value
        return total


class Lab:
    """Makes platforms, processes and clients; ends them all in `close`."""

    def __init__(self, nursery: Nursery | None = None) -> None:
        """``nursery``: processes are forked there instead of being started again."""
        self._nursery = nursery
        self.directory = Path(tempfile.mkdtemp(prefix="tc-"))
        self._undo = contextlib.ExitStack()
        self._undo.callback(shutil.rmtree, self.directory, ignore_errors=True)

    def platform(self, settings: Any = ..., *, start: bool = True) -> Platform:
        """A data directory with this topology (None: no file), its engine started."""
        chosen = topology() if settings is ... else settings
        made = Platform(self, self.directory / f"p{next(_numbers)}", chosen)
        self._undo.callback(shutil.rmtree, shm_dir(made.directory), ignore_errors=True)
        self._undo.callback(self._end_detached, made)
        if start:
            made.start()
        return made

    def _end_detached(self, platform: Platform) -> None:
        from tidecast.engine.process import running_pid

        pid = running_pid(platform.directory)
        if pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def pair(self, *, topics: list[Any] | None = None, **node: Any) -> tuple[Platform, Platform]:
        """Two engines on one multicast group."""
        wire = multicast()
        made = [
            self.platform(topology(wire, topics=topics, name=name, **node))
            for name in ("left", "right")
        ]
        return made[0], made[1]

    def spawn(self, *arguments: str, platform: Platform, **options: Any) -> Child:
        """`tidecast ...` in the background."""
        asked = [*arguments, "--data-dir", str(platform.directory)]
        return self._child("command", "tidecast.cli", asked, **options)

    def program(self, file: Path, *arguments: str, platform: Platform) -> Child:
        """A Python program of ours in the background, with this platform as the default one."""
        environment = {**os.environ, "TIDECAST_DATA_DIR": str(platform.directory)}
        return self._process([sys.executable, "-u", str(file), *arguments], env=environment)

    def role(self, name: str, url: str, *arguments: str, **options: Any) -> Child:
        """A client process, see `tests.support.roles`; it has said "ready"."""
        made = self._child("role", "tests.support.roles", [name, url, *arguments], **options)
        assert made.line(f"role {name} is ready") == "ready"
        return made

    def _child(self, kind: str, module: str, arguments: list[str], **options: Any) -> Child:
        if self._nursery is None or options:
            return self._process([sys.executable, "-m", module, *arguments], **options)
        made = self._nursery.fork(kind, arguments, self._log())
        self._undo.callback(made.close)
        return made

    def _process(self, command: list[str], **options: Any) -> Process:
        made = Process(command, self._log(), **options)
        self._undo.callback(made.close)
        return made

    def _log(self) -> Path:
        return self.directory / f"log-{next(_numbers)}"

    def run(self, *arguments: str, check: bool = True, **options: Any) -> Text:
        """A command to its end."""
        if self._nursery is not None and options.keys() <= {"env", "stdin"}:
            environment, stdin = options.get("env", os.environ), options.get("stdin")
            done = self._nursery.run([*arguments], environment, self._log(), stdin)
            assert not check or done.returncode == 0, f"{arguments}: {done.stdout}{done.stderr}"
            return done
        command = [sys.executable, "-m", "tidecast.cli", *arguments]
        defaults = {"capture_output": True, "text": True, "timeout": COMMAND_TIMEOUT_S}
        done = subprocess.run(command, check=False, cwd=ROOT, **(defaults | options))
        assert not check or done.returncode == 0, f"{arguments}: {done.stdout}{done.stderr}"
        return done

    def connect(self, url: str, **options: Any) -> tidecast.sync.Connection:
        """A client in this process."""
        client = tidecast.sync.connect(url, **options)
        self._undo.callback(client.close)
        return client

    def close(self) -> None:
        """End everything, last first."""
        self._undo.close()


@contextlib.contextmanager
def open_lab(nursery: Nursery | None = None) -> Iterator[Lab]:
    """A lab for one test."""
    lab = Lab(nursery)
    try:
        yield lab
    finally:
        lab.close()
