"""Starting an engine as a process of its own: for `up`, and for its watcher."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tidecast.cli.common import command_name, dir_hint, new_log

if TYPE_CHECKING:
    from tidecast.gateway.settings import GatewaySettings

LOG_NAME = "engine.log"
_UP_TELEMETRY_S = 10.0


def start_engine(
    data_dir: Path,
    topology_file: Path | None,
    token: str | None,
    gateway: GatewaySettings,
    control_url: str | None,
    *,
    log: Path | None,
) -> subprocess.Popen[bytes]:
    """Start an engine, which is not waited for. Without ``log`` it writes where this process does.

    It is in a session of its own: Ctrl-C reaches this process alone, which ends the engine.
    """
    from tidecast.cli.control import local_token

    data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    command = [sys.executable, "-P", "-m", "tidecast.cli", "engine", "--data-dir", str(data_dir)]
    command += ["--telemetry", str(_UP_TELEMETRY_S), *gateway.words]
    if topology_file is not None:
        command += ["--topology", str(topology_file.absolute())]
    environment = dict(os.environ)
    if token is not None:
        environment["TIDECAST_TOKEN"] = token
    if control_url is not None:
        command += ["--control", control_url]
        environment["TIDECAST_ENROL_TOKEN"] = local_token(data_dir) or ""
    return spawn(command, environment, log)


def spawn(
    command: list[str], environment: dict[str, str], log: Path | None
) -> subprocess.Popen[bytes]:
    """Start a process in a session of its own; its output goes to ``log``, if there is one."""
    with contextlib.ExitStack() as stack:
        output = None if log is None else stack.enter_context(new_log(log).open("wb"))
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment,
            start_new_session=True,
        )


def answers(data_dir: Path, token: str | None) -> bool:
    """Is an engine there, and ready?"""
    from tidecast.cli.common import control
    from tidecast.errors import ConnectionLost, Timeout

    try:
        control(data_dir, token).close()
    except (ConnectionLost, Timeout):
        return False
    return True


def explain(data_dir: Path) -> None:
    """Print the commands to try first."""
    name, hint = command_name(), dir_hint(data_dir)
    click.echo(
        f"""
In a second shell:
  {name} sub logs{hint}                        # wait for messages on topic `logs`
and in a third:
  {name} pub logs --message hello{hint}        # publish one message
  tail -f some.log | {name} pub logs -{hint}   # or each line of a file
  {name} top{hint}                             # watch
Ctrl-C stops."""
    )
