"""Shared by commands: options, output, reaching the engine. Light to import."""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from rich.console import Console

    from tidecast.client.links.socket_session import EngineControl

F = TypeVar("F", bound=Callable[..., Any])
_SERVER = "tidecast.server"


def _data_dir(ctx: click.Context, _parameter: click.Parameter, value: Path | None) -> Path:
    if _given(ctx, "data_dir") and _given(ctx, "server"):
        raise click.UsageError("--data-dir and --server: give one of them")
    if value is not None:
        return value.expanduser().absolute()
    from tidecast.config.topology import default_data_dir

    return default_data_dir().absolute()


def data_dir_option(command: F) -> F:
    """``--data-dir``: where a platform keeps its files; passes an absolute Path."""
    return click.option(
        "--data-dir",
        type=click.Path(path_type=Path, file_okay=False),
        envvar="TIDECAST_DATA_DIR",
        callback=_data_dir,
        metavar="DIR",
        help="Where this platform keeps its files [env: TIDECAST_DATA_DIR].",
    )(command)


def json_option(command: F) -> F:
    """``--json``: output for scripts."""
    return click.option("--json", "as_json", is_flag=True, help="JSON, for scripts.")(command)


def token_option(command: F) -> F:
    """``--token``: for an engine that was started with a token."""
    return click.option(
        "--token",
        envvar="TIDECAST_TOKEN",
        metavar="TEXT",
        help="Token of an engine that requires one [env: TIDECAST_TOKEN].",
    )(command)


def _given(ctx: click.Context, name: str) -> bool:
    """Was it given on the command line? The environment counts less than that."""
    return ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE


def _server(ctx: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
    if value is not None and _given(ctx, "data_dir"):
        if _given(ctx, "server"):
            raise click.UsageError("--data-dir and --server: give one of them")
        value = None
    ctx.meta[_SERVER] = value
    return value


def server_option(command: F, **more: Any) -> F:
    """``--server``: a gateway, instead of the engine of this machine."""
    return click.option(
        "--server",
        metavar="URL",
        envvar="TIDECAST_SERVER",
        callback=_server,
        help="Gateway of a remote engine, tidecast://HOST:PORT, with --token "
        "[env: TIDECAST_SERVER].",
        **more,
    )(command)


def server_kept_option(command: F) -> F:
    """``--server``, not passed but kept: `server_of` returns it."""
    return server_option(command, expose_value=False)


def engine_options(command: F) -> F:
    """Options of a command that asks an engine: --data-dir, --token, --server, --json."""
    return data_dir_option(token_option(server_kept_option(json_option(command))))


def server_of(ctx: click.Context | None = None) -> str | None:
    """The ``--server`` of a command, if it takes one; None: the service that runs."""
    found: str | None = (ctx or click.get_current_context()).meta.get(_SERVER)
    return found


def control(data_dir: Path, token: str | None = None) -> EngineControl:
    """A session for administration. Raises EngineNotRunning."""
    from tidecast.client.links.socket_session import EngineControl

    return EngineControl(data_dir, "tidecast command", token)


Ask = Callable[..., Any]
"""``ask(action, **arguments)``: an action of the engine, see `tidecast.api.link.Link.administer`.
"""


@contextlib.contextmanager
def asking(data_dir: Path, token: str | None, ctx: click.Context | None = None) -> Iterator[Ask]:
    """Ask the running engine, or that of ``--server`` of ``ctx``, the command that runs."""
    server = server_of(ctx)
    if server is not None:
        from tidecast.sync import connect

        with connect(server, name="tidecast command", token=token) as client:
            yield lambda action, **arguments: client.link.administer(action, arguments)
        return
    from tidecast.api.frames.socket import Administer

    with control(data_dir, token) as engine:
        yield lambda action, **arguments: engine.ask(Administer(action=action, arguments=arguments))


def all_rows(ask: Ask, action: str, **arguments: Any) -> list[dict[str, Any]]:
    """All pages of a list, see `tidecast.node.consumers.lists`."""
    page = ask(action, **arguments)
    rows: list[dict[str, Any]] = page["rows"]
    while page["next"] is not None:
        page = ask(action, after=page["next"], **arguments)
        rows += page["rows"]
    return rows


def console(*, stderr: bool = False) -> Console:
    """A rich console; plain text when it is not a terminal, and then no line is wrapped.

    Without markup: payloads and names are shown as they are, square brackets and all.
    """
    from rich.console import Console

    make = partial(Console, stderr=stderr, highlight=False, emoji=False, markup=False)
    one = make()
    return one if one.is_terminal else make(width=240)


def warn(text: str) -> None:
    """One line on standard error; the command continues."""
    click.echo(f"warning: {text}", err=True)


def echo_json(value: Any) -> None:
    """One JSON document on one line."""
    click.echo(json.dumps(value, ensure_ascii=False, default=str))


class Stop:
    """How a command was stopped."""

    code = 130
    """Its exit code: 128 and the signal."""


@contextlib.contextmanager
def stoppable(stop: Stop) -> Iterator[None]:
    """SIGTERM raises KeyboardInterrupt, as Ctrl-C does: messages that were taken are not lost.

    It may come as soon as this begins, so ``stop`` is made before. A command reports that it
    serves inside.
    """

    def raise_it(signum: int, _frame: object) -> None:
        stop.code = 128 + signum
        raise KeyboardInterrupt

    before = signal.getsignal(signal.SIGTERM)
    try:
        signal.signal(signal.SIGTERM, raise_it)
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def dir_hint(data_dir: Path) -> str:
    """`` --data-dir X`` for commands to copy, when it is not the default."""
    import shlex

    from tidecast.config.topology import default_data_dir

    if data_dir == default_data_dir().absolute():
        return ""
    return f" --data-dir {shlex.quote(str(data_dir))}"


def command_name() -> str:
    """``tidecast`` as this shell finds it: by its path when it is not among the commands."""
    import shlex
    import shutil
    import sys

    called = sys.argv[0]
    if shutil.which("tidecast") is not None or Path(called).name != "tidecast":
        return "tidecast"
    return shlex.quote(called)


def new_log(path: Path) -> Path:
    """Begin a log; the log before is kept beside it, because it may explain a crash."""
    with contextlib.suppress(FileNotFoundError):
        path.replace(path.with_name(path.name + ".1"))
    return path


def human_bytes(n: float) -> str:
    """``4.0 MiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(n) < 1024 or unit == "GiB":
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1024
    raise AssertionError


def human_count(n: float) -> str:
    """``1.2 M``."""
    for unit in ("", " k", " M", " G"):
        if abs(n) < 1000 or unit == " G":
            return f"{n:.0f}" if unit == "" else f"{n:.1f}{unit}"
        n /= 1000
    raise AssertionError
