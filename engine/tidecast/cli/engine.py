"""`tidecast up`, `down`, `engine`: the engine process."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tidecast.cli.common import console, data_dir_option, dir_hint, json_option, token_option

if TYPE_CHECKING:
    from tidecast.node.process import EngineState

LOG_NAME = "engine.log"
DETACHED_START_TIMEOUT_S = 300.0
LOG_LINES_SHOWN = 20

_topology_option = click.option(
    "--topology", "topology_file", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
    help="Topology file [default: topology.yaml in the data directory].",
)  # fmt: skip


@contextlib.contextmanager
def _progress() -> Iterator[None]:
    """Compile what needs compiling, with a progress bar on a terminal."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    from tidecast.agents.warmup import warm_up

    out = console(stderr=True)
    columns = (
        TextColumn("Compiling kernels (first start only)"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.description}"),
    )
    began_s, told = time.monotonic(), False
    with Progress(*columns, console=out, transient=True, disable=not out.is_terminal) as bar:
        task = bar.add_task("", total=None)

        def step(name: str, done: int, total: int) -> None:
            nonlocal told
            bar.update(task, description=name, completed=done, total=total)
            if not told and not out.is_terminal and time.monotonic() - began_s > 3:
                told = True
                click.echo("compiling kernels, first start only ...", err=True)

        warm_up(step)
    yield


def _warm_up() -> None:
    with _progress():
        pass


def _run(data_dir: Path, topology_file: Path | None, token: str | None, *, verbose: bool) -> None:
    from tidecast.node.process import run_engine

    def on_ready(state: EngineState, seconds: float) -> None:
        click.echo(
            f"ready in {seconds:.2f} s: node {state.node_name} (id {state.node_id}), "
            f"pid {state.pid}, data in {data_dir}"
        )
        if verbose:
            _explain(data_dir)
        sys.stdout.flush()

    try:
        run_engine(data_dir, topology_file, token=token, on_ready=on_ready, warm_up=_warm_up)
    except KeyboardInterrupt:
        click.echo("stopped before it was ready", err=True)
        sys.exit(130)
    click.echo("stopped")


def _explain(data_dir: Path) -> None:
    hint = dir_hint(data_dir)
    click.echo(
        f"""
In a second shell:
  tidecast sub logs{hint}                        # wait for messages on topic `logs`
and in a third:
  tidecast pub logs --message hello{hint}        # publish one message
  tail -f some.log | tidecast pub logs -{hint}   # or each line of a file
  tidecast top{hint}                             # watch
Ctrl-C stops."""
    )


@click.command()
@data_dir_option
@_topology_option
@token_option
@click.option("--detach", is_flag=True, help="Start in the background and return when ready.")
def up(data_dir: Path, topology_file: Path | None, token: str | None, detach: bool) -> None:
    """Start Tidecast on this machine: an engine that serves all programs here.

    In the foreground until Ctrl-C, or in the background with --detach. When it runs already, says
    so and returns.
    """
    from tidecast.node.process import read_state, running_pid

    pid = running_pid(data_dir)
    if pid is not None:
        state = read_state(data_dir)
        name = f", node {state.node_name}" if state is not None else ""
        click.echo(f"already up: engine pid {pid}{name}, data in {data_dir}")
        return
    if detach:
        _detach(data_dir, topology_file, token)
    else:
        _run(data_dir, topology_file, token, verbose=True)


@click.command()
@data_dir_option
@_topology_option
@token_option
def engine(data_dir: Path, topology_file: Path | None, token: str | None) -> None:
    """Run an engine in the foreground until SIGTERM or Ctrl-C (for service managers)."""
    _run(data_dir, topology_file, token, verbose=False)


@click.command()
@data_dir_option
@json_option
def down(data_dir: Path, as_json: bool) -> None:
    """Stop the engine of this data directory; clients are told. Nothing to do is no error."""
    from tidecast.cli.common import echo_json
    from tidecast.node.process import running_pid, stop_engine

    stopped = None if running_pid(data_dir) is None else stop_engine(data_dir)
    if as_json:
        echo_json({"stopped_pid": stopped})
    else:
        click.echo("nothing was up" if stopped is None else f"stopped engine pid {stopped}")


def _detach(data_dir: Path, topology_file: Path | None, token: str | None) -> None:
    from tidecast.cli import Failure

    data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    log = data_dir / LOG_NAME
    command = [sys.executable, "-m", "tidecast.cli", "engine", "--data-dir", str(data_dir)]
    if topology_file is not None:
        command += ["--topology", str(topology_file.absolute())]
    environment = dict(os.environ)
    if token is not None:
        environment["TIDECAST_TOKEN"] = token
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment,
            start_new_session=True,
        )  # fmt: skip
    began_s = time.monotonic()
    out = console(stderr=True)
    with out.status("starting the engine (the first start compiles its kernels)"):
        while not _answers(data_dir, token):
            try:
                process.wait(0.05)
            except subprocess.TimeoutExpired:
                if time.monotonic() - began_s < DETACHED_START_TIMEOUT_S:
                    continue
                process.terminate()
            said = log.read_text("utf-8", "replace").strip().splitlines()[-LOG_LINES_SHOWN:]
            text = "\n".join(said).removeprefix("error: ")
            raise Failure(text or f"the engine did not start; see {log}")
    click.echo(
        f"up in {time.monotonic() - began_s:.2f} s: engine pid {process.pid}, data in {data_dir}, "
        f"log {log}; stop it with: tidecast down{dir_hint(data_dir)}"
    )


def _answers(data_dir: Path, token: str | None) -> bool:
    from tidecast.cli.common import control
    from tidecast.errors import ConnectionLost, Timeout

    try:
        control(data_dir, token).close()
    except (ConnectionLost, Timeout):
        return False
    return True
