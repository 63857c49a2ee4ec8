"""Engines on hosts of their own, and a control service on one."""

from __future__ import annotations

import contextlib
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2 as httpx

from tests.support.builds import NEW, Build
from tests.support.control_process import ControlProcess
from tests.support.hosts import clock
from tests.support.hosts.network import CONTROL, Namespace, Network
from tests.support.lab import Lab, Platform, free_group
from tests.support.nursery import Nursery
from tests.support.process import Child
from tidecast.node.sealing.wire_keys import FILE_NAME

PORT = 7400
LEASE_S = 2.0


def transport(**settings: Any) -> dict[str, Any]:
    """Sealed multicast on the hosts' network."""
    return {
        "name": "multicast",
        "kind": "udp-multicast",
        "group": free_group(),
        "port": PORT,
        "interface": "eth0",
        "ttl": 1,
        "secure": "required",
        "allow_faults": True,
    } | settings


class Host(Lab):
    """A host: its processes live in its network namespace."""

    def __init__(self, nursery: Nursery, network: Network, number: int) -> None:
        super().__init__(nursery)
        self.name, self.number, self.network = f"host{number}", number, network
        self.port = network.port(number)
        self._warm = nursery
        self._clock = self.directory / "clock"
        clock.set_ahead(self._clock, 0)
        self.node: Platform
        self._asked: tuple[Build, tuple[str, ...], dict[str, str]] = NEW, (), {}

    def make(self, settings: Any) -> Platform:
        """Its data directory, with this topology; nothing runs yet."""
        self.node = self.platform(settings, start=False)
        return self.node

    def begin(self, *arguments: str, build: Build = NEW, **environment: str) -> None:
        """Its engine; ready when this returns. `again` repeats it."""
        self._asked = build, arguments, environment
        self.again()

    def again(self, build: Build | None = None) -> None:
        """Start the engine anew, with the arguments of `begin`."""
        before, arguments, environment = self._asked
        chosen = before if build is None else build
        self._asked = chosen, arguments, environment
        options = chosen.options(**{clock.VARIABLE: str(self._clock)}, **environment)
        self.node.engine = self.spawn("engine", *arguments, platform=self.node, **options)
        assert "ready" in self.node.engine.line(f"{self.name} is ready")

    def _child(self, kind: str, module: str, arguments: list[str], **options: Any) -> Child:
        if options.keys() <= {"env"}:
            made = self._warm.fork(
                kind,
                arguments,
                self._log(),
                environment=options.get("env"),
                network=self.port.namespace.path,
            )
            self._undo.callback(made.close)
            return made
        with self.port.namespace.entered():  # of another build
            return super()._child(kind, module, arguments, **options)

    def pause(self) -> None:
        """SIGSTOP."""
        assert self.node.engine is not None
        self.node.engine.signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        assert self.node.engine is not None
        self.node.engine.signal(signal.SIGCONT)

    def step_clock(self, ahead_s: int) -> bool:
        """The engine's wall clock is ahead by so much. False: it cannot be stepped here."""
        clock.set_ahead(self._clock, ahead_s)
        return clock.library() is not None


class Service:
    """A control service on a host of its own; `ask` and `tell` go there over the network."""

    def __init__(
        self, directory: Path, network: Network, settings: Any, before: Build | None = None
    ) -> None:
        """``before``: the build that makes the platform, at its level; it is upgraded at once."""
        import yaml

        self.port = network.port(CONTROL)
        self._namespace: Namespace = self.port.namespace
        data_dir = directory / "control"
        data_dir.mkdir()
        (data_dir / "topology.yaml").write_text(yaml.safe_dump(settings))
        plain = {"host": self.port.address, "TIDECAST_CONTROL_ALLOW_PLAIN_HTTP": "1"}
        if before is not None:
            first = ControlProcess(data_dir, **{**before.options()["env"], **plain})
            try:
                with self._namespace.entered():
                    first.start()
            finally:
                first.stop()
        self.process = ControlProcess(data_dir, **plain)
        self._admin: httpx.Client
        self.start()

    def start(self) -> None:
        """Until it serves, also again after `ControlProcess.kill`."""
        with self._namespace.entered():
            self.process.start()
            self._admin = self.process.admin()

    @property
    def url(self) -> str:
        """For engines."""
        return self.process.url

    def call(self, method: str, path: str, body: Any = None) -> httpx.Response:
        """A request of the admin."""
        with self._namespace.entered():
            return self._admin.request(method, path, json=body)

    def ask(self, path: str) -> Any:
        """The answer to a GET."""
        answer = self.call("GET", path)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def tell(self, method: str, path: str, body: Any = None) -> Any:
        """The answer to a change."""
        answer = self.call(method, path, body)
        assert answer.status_code in (200, 201), answer.text
        return answer.json()

    def enrol(self, name: str) -> dict[str, str]:
        """The environment of an engine that joins for the first time."""
        token = self.tell("POST", "/enrolments", {"name": name})["token"]
        return {"TIDECAST_ENROL_TOKEN": token}

    def keeper(self, topic: str) -> str:
        """The node that has the topic; empty: none, at this moment."""
        found = self.ask(f"/cluster/moves?topic={topic}&limit=1")["items"]
        return str(found[0]["to_node"]) if found else ""

    def close(self) -> None:
        """Stop it."""
        with contextlib.suppress(AttributeError):
            self._admin.close()
        self.process.stop()


class Cluster:
    """Hosts by their numbers, on one network; a control service when `serve` was called."""

    def __init__(self, nursery: Nursery, hosts: int) -> None:
        self._undo = contextlib.ExitStack()
        self.network = Network()
        self._undo.callback(self.network.close)
        self.hosts: list[Host] = []
        for number in range(1, hosts + 1):
            made = Host(nursery, self.network, number)
            self._undo.callback(made.close)
            self.hosts.append(made)
        self.service: Service

    def serve(self, settings: Any, before: Build | None = None) -> Service:
        """Start the control service; a platform begins with these settings. See `Service`."""
        self.service = Service(self.hosts[0].directory, self.network, settings, before)
        self._undo.callback(self.service.close)
        return self.service

    def join(self, host: Host, settings: Any, *, build: Build = NEW) -> None:
        """Start the host's engine, which the service manages."""
        host.make(settings | {"node": {**settings["node"], "name": host.name}})
        given = self.hosts[0].node.directory / FILE_NAME if host is not self.hosts[0] else None
        if given is not None and given.exists():  # an engine that gets no answer in 5 s has none
            shutil.copy(given, host.node.directory / FILE_NAME)
        arguments = "--control", self.service.url, "--insecure-control"
        host.begin(*arguments, build=build, **self.service.enrol(host.name))

    def lose(self, part: float) -> None:
        """Each port of the bridge loses this part of the packets to its host."""
        for port in self.network.ports.values():
            port.lose(part)

    def close(self) -> None:
        """End all processes, then the network."""
        self._undo.close()


@contextlib.contextmanager
def open_cluster(nursery: Nursery, hosts: int) -> Iterator[Cluster]:
    """A cluster for one test; all of it is gone afterwards, whatever happens in the block."""
    made = Cluster(nursery, hosts)
    try:
        yield made
    finally:
        made.close()
