"""`tidecast control`, and the control service for `up`, `down` and `engine`.

The service is another package and another process: nothing of it is imported here.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from tidecast.cli.common import data_dir_option, new_log
from tidecast.native.system.processes import end_process

if TYPE_CHECKING:
    from tidecast.engine.process import CompanionFactory, Fetch
    from tidecast.queues.leases.store import LeaseStore

STATE_NAME, TOKEN_NAME, LOG_NAME = "control-service.json", "enrol.token", "control-service.log"
LOCK_NAME = "control-service.lock"
STOP_TIMEOUT_S = 20.0
LOG_LINES_SHOWN = 20
PORT, PORTS_TRIED_MAX = 7480, 20


@click.command()
@data_dir_option
@click.option("--host", metavar="ADDRESS", help="Where to listen. [default: 127.0.0.1]")
@click.option("--port", type=click.IntRange(0, 65_535), metavar="PORT", help="[default: 7480]")
@click.option("--tls-certificate", type=click.Path(dir_okay=False), metavar="FILE")
@click.option("--tls-key", type=click.Path(dir_okay=False), metavar="FILE")
@click.option("--allow-faults", is_flag=True, help="Let admins inject faults: a place for tests.")
@click.option("--example", is_flag=True, help="Make an example topic on the first run.")
@click.option("--local-token", is_flag=True, help="Write an enrolment token for an engine here.")
@click.option(
    "--topology",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="Topology of a new platform [default: topology.yaml in the data directory].",
)
def control(data_dir: Path, **told: Any) -> None:
    """Run the control service: REST API, live feed, dashboard.

    In the foreground. Postgres: TIDECAST_DATABASE_URL, else its own in the data directory.
    More settings: docs/CONTROL.md.
    """
    _require()
    arguments = ["--data-dir", str(data_dir)]
    for name, value in told.items():
        option = "--" + name.replace("_", "-")
        if value is True:
            arguments.append(option)
        elif value not in (None, False):
            arguments += [option, str(value)]
    os.execv(sys.executable, _command(*arguments))


def _require() -> None:
    from tidecast.cli import Failure

    missing = [
        m
        for m in ("tidecast_control", "fastapi", "sqlmodel")
        if importlib.util.find_spec(m) is None
    ]
    if missing:
        raise Failure(
            f"the control service needs {', '.join(missing)}: pip install 'tidecast[control]'; "
            "an engine alone: tidecast up --no-control"
        )


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-P", "-m", "tidecast_control", *arguments]


class Service:
    """The control service that `up` started."""

    def __init__(self, process: subprocess.Popen[str], lines: list[str]) -> None:
        self.process, self.lines = process, lines
        self.url = lines[0].partition(": ")[2]

    def stop(self) -> None:
        """Stop it and wait."""
        if self.process.poll() is None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(STOP_TIMEOUT_S)


def start_service(data_dir: Path, *options: str) -> Service:
    """Start the service in the background; returns when it serves. Raises Failure."""
    from tidecast.cli import Failure

    _require()
    data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    log = new_log(data_dir / LOG_NAME)
    command = _command("--data-dir", str(data_dir), "--local-token", "--example", *options)
    with log.open("wb") as errors:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        )
    assert process.stdout is not None
    lines: list[str] = []
    with process.stdout as output:
        for line in output:
            if line.strip() == "ready":
                return Service(process, lines)
            lines.append(line.rstrip())
    process.wait()
    said = log.read_text("utf-8", "replace").strip().splitlines()[-LOG_LINES_SHOWN:]
    raise Failure("\n".join(said) or f"the control service did not start; see {log}")


def free_port(first: int = PORT) -> int:
    """``first``, or the next port that no other platform of this machine listens on; 0: any."""
    for port in range(first, first + PORTS_TRIED_MAX):
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            return port
    return 0


def service_state(data_dir: Path) -> dict[str, Any] | None:
    """Pid and url of a service that runs on a data directory: it holds the lock there.

    The pid alone is not enough: after a crash another process may have it.
    """
    try:
        state = json.loads((data_dir / STATE_NAME).read_bytes())
        with (data_dir / LOCK_NAME).open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return dict(state)
    except (OSError, ValueError):
        pass
    return None


def stop_service(data_dir: Path) -> int | None:
    """Stop the service of a data directory, wait until its process has ended; its pid.

    None: there was none. Raises Failure.
    """
    from tidecast.cli import Failure

    state = service_state(data_dir)
    if state is None:
        return None
    pid = int(state["pid"])

    def runs() -> bool:
        found = service_state(data_dir)
        return found is not None and found["pid"] == pid

    try:
        ended = end_process(pid, runs, STOP_TIMEOUT_S)
    except PermissionError:
        raise Failure(f"the control service (pid {pid}) belongs to another user") from None
    if not ended:
        raise Failure(f"the control service (pid {pid}) did not stop within {STOP_TIMEOUT_S:g} s")
    return pid


def local_token(data_dir: Path) -> str | None:
    """The enrolment token that a service on the same data directory wrote."""
    try:
        return (data_dir / TOKEN_NAME).read_text().strip() or None
    except OSError:
        return None


class Linked(NamedTuple):
    """The settings of an engine that a control service manages."""

    companion: CompanionFactory
    leases: LeaseStore
    fetch: Fetch


def link_to(url: str, token: str | None, ca_file: Path | None, *, insecure: bool = False) -> Linked:
    """An engine's link to a control service, and the leases that the service keeps.

    Raises ConfigError for one on another host that is reached in clear text, but with ``insecure``.
    """
    from tidecast.control_link.fetch import fetch_topology
    from tidecast.control_link.leases import LinkLeases
    from tidecast.control_link.link import ControlLink, websocket_url

    websocket_url(url, insecure=insecure)
    leases = LinkLeases()

    def make(node: Any, store: Any) -> ControlLink:
        return ControlLink(
            node, store, url, token=token, ca_file=ca_file, leases=leases, insecure=insecure
        )

    def fetch(topology: Any, own_dir: Path, path: Path) -> Any:
        return fetch_topology(topology, own_dir, path, url, token, ca_file, insecure=insecure)

    return Linked(make, leases, fetch)
