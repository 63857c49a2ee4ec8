"""`tidecast run`: an app's handlers, in one process or several."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tidecast.cli.common import data_dir_option, echo_json, server_option, token_option
from tidecast.cli.messages.pub import url_of
from tidecast.cli.options.params import Duration

if TYPE_CHECKING:
    from tidecast.app import App

WORKERS_MAX = 256
LEVELS = ("debug", "info", "warning", "error")


def app_of(where: str, directory: Path) -> App:
    """The app that MODULE:NAME names, imported from ``directory``. Raises click.UsageError."""
    from tidecast.app import App

    module_name, _, name = where.partition(":")
    if not module_name:
        raise click.UsageError(f"APP: {where!r}: allowed is MODULE:NAME, such as billing:app")
    sys.path.insert(0, str(directory))
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as problem:
        if problem.name is None or not (module_name + ".").startswith(problem.name + "."):
            raise
        raise click.UsageError(
            f"APP: {where!r}: no module {problem.name} in {directory}: see --app-dir"
        ) from None
    found = getattr(module, name or "app", None)
    if isinstance(found, App):
        return found
    names = [key for key, value in vars(module).items() if isinstance(value, App)]
    hint = f"it has {', '.join(names)}" if names else "it has no tidecast.App"
    raise click.UsageError(f"APP: {where!r}: {module_name} has no app {name or 'app'}: {hint}")


@click.command()
@click.argument("app", metavar="MODULE:APP")
@click.option(
    "--workers",
    type=click.IntRange(1, WORKERS_MAX),
    default=1,
    show_default=True,
    help="Processes; each is a member of the app's subscriptions.",
)
@click.option(
    "--health", "health_at", metavar="HOST:PORT", help="Serve /livez, /readyz and /metrics there."
)
@click.option(
    "--drain-timeout",
    "drain_timeout_s",
    type=Duration(low=0),
    default=30.0,
    show_default=True,
    help="Seconds that handlers under way get when the app stops.",
)
@click.option(
    "--app-dir",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=Path(),
    show_default="the current directory",
    help="Import the module from there.",
)
@click.option("--log-level", type=click.Choice(LEVELS), default="info", show_default=True)
@click.option(
    "--check",
    is_flag=True,
    help="Show the handlers, compare the topics that the app declares with the engine's, and run "
    "nothing.",
)
@click.option(
    "--create/--no-create",
    default=None,
    help="Create the topics and subscriptions that the app declares, or want them to be there. "
    "[default: as the app says]",
)
@click.option("--report-to", type=int, default=None, hidden=True)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="JSON, for scripts: the totals of the handlers, as the last line; with --check what it "
    "shows.",
)
@data_dir_option
@token_option
@server_option
@click.pass_context
def run(
    ctx: click.Context,
    app: str,
    workers: int,
    health_at: str | None,
    drain_timeout_s: float,
    data_dir: Path,
    app_dir: Path,
    log_level: str,
    check: bool,
    create: bool | None,
    report_to: int | None,
    as_json: bool,
    token: str | None,
    server: str | None,
) -> None:
    """Run the handlers of an app until SIGTERM or SIGINT, then drain.

    It connects to the app's own URL, unless --server or --data-dir names another engine. A second
    signal ends it at once.
    """
    logging.basicConfig(
        level=log_level.upper(),
        stream=sys.stderr,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    directory = app_dir.resolve()
    found = app_of(app, directory)
    if server is not None:
        found.url = server
    elif ctx.get_parameter_source("data_dir") is click.core.ParameterSource.COMMANDLINE:
        found.url = url_of(data_dir)
    if token:
        found.token = token
    if create is not None:
        found.create = create
    if check:
        sys.exit(_check(found, as_json=as_json))
    if not found.handlers:
        raise click.UsageError(f"APP: {app!r}: it has no handlers")
    if workers == 1:
        code, totals = asyncio.run(_run_one(found, health_at, drain_timeout_s, report_to))
    else:
        arguments = [
            app,
            "--drain-timeout",
            f"{drain_timeout_s}s",
            "--app-dir",
            str(directory),
            "--log-level",
            log_level,
            "--server",
            found.url,
            "--create" if found.create else "--no-create",
        ]
        if token:
            os.environ["TIDECAST_TOKEN"] = token  # not shown in lists of processes
        code, totals = asyncio.run(_run_many(workers, arguments, health_at, drain_timeout_s))
    if as_json:
        echo_json(
            {
                "app": found.name,
                "url": found.url,
                "workers": workers,
                "exit_code": code,
                "handlers": totals,
            }
        )
    sys.exit(code)


def _check(app: App, *, as_json: bool) -> int:
    """Show the handlers and declarations of the app; the exit code: 1, the app would not start."""
    declared = asyncio.run(_compare(app)) if app.declarations else []
    bad = any(each["state"] != "as declared" and not each["created"] for each in declared)
    if as_json:
        handlers = [each.describe() | {"concurrency": each.concurrency} for each in app.handlers]
        echo_json(
            {
                "app": app.name,
                "url": app.url,
                "handlers": handlers,
                "declared": declared,
                "starts": not bad,
            }
        )
        return int(bad)
    _show(app)
    if declared:
        _show_declared(declared)
    return int(bad)


def _show(app: App) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{app.name}: {app.url}", title_justify="left")
    for head in ("handler", "kind", "topic", "subscription", "concurrency", "payload"):
        table.add_column(head)
    for each in app.handlers:
        about = each.describe()
        hint = each.plan.payload_type
        table.add_row(
            each.name,
            each.kind,
            each.topic,
            str(about.get("subscription", "")),
            str(each.concurrency),
            "" if hint is None else getattr(hint, "__name__", str(hint)),
        )
    Console().print(table)


async def _compare(app: App) -> list[dict[str, Any]]:
    """The declarations of the app, compared with the engine."""
    import tidecast

    found = []
    async with tidecast.connect(app.url, name=app.name, token=app.token) as client:
        for each in app.declarations:
            state, detail = await each.state(client)
            created = state == "missing" and app.create
            found.append(
                {
                    "kind": each.kind,
                    "name": each.name,
                    "state": state,
                    "detail": "is created at start" if created else detail,
                    "created": created,
                }
            )
    return found


def _show_declared(declared: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title="declared", title_justify="left")
    heads = ("kind", "name", "state", "detail")
    for head in heads:
        table.add_column(head)
    for each in declared:
        table.add_row(*(each[head] for head in heads))
    Console().print(table)


async def _run_one(
    app: App, health_at: str | None, drain_timeout_s: float, report_to: int | None
) -> tuple[int, list[dict[str, Any]]]:
    """The exit code, and the totals of the handlers."""
    from tidecast.app import report

    async with AsyncExitStack() as stack:
        stop = await stack.enter_async_context(_stopped_by_signals())
        if health_at is not None:
            port = await stack.enter_async_context(
                report.serving(health_at, lambda: {"0": report.state_of(app)})
            )
            logging.getLogger("tidecast.app").info("health checks at port %d", port)
        if report_to is not None:
            writing = asyncio.create_task(report.write_states(app, report_to))
            writing.add_done_callback(lambda _: stop.set())  # the parent is gone: so is this
            stack.callback(writing.cancel)
        await app.run(stop=stop, drain_timeout=drain_timeout_s)
        if report_to is not None:
            with contextlib.suppress(OSError):  # the parent is gone
                report.write_state(app, report_to)
    totals: list[dict[str, Any]] = []
    report.add_totals(totals, report.state_of(app).handlers)
    return 0, totals


async def _run_many(
    count: int, arguments: list[str], health_at: str | None, drain_timeout_s: float
) -> tuple[int, list[dict[str, Any]]]:
    """The exit code, and the totals of the handlers of all processes."""
    from tidecast.app import report
    from tidecast.app.workers import Workers

    workers = Workers(count, arguments, drain_timeout_s)
    async with AsyncExitStack() as stack:
        stop = await stack.enter_async_context(_stopped_by_signals())
        if health_at is not None:
            port = await stack.enter_async_context(report.serving(health_at, workers.states))
            logging.getLogger("tidecast.app").info("health checks at port %d", port)
        code = await workers.run(stop)
    return code, workers.totals()


@asynccontextmanager
async def _stopped_by_signals() -> AsyncIterator[asyncio.Event]:
    """An event that SIGTERM and SIGINT set; a second signal raises KeyboardInterrupt."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    task = asyncio.current_task()
    assert task is not None

    def stopping() -> None:
        if stop.is_set():
            task.cancel()
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping)
    try:
        yield stop
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            with contextlib.suppress(RuntimeError):
                loop.remove_signal_handler(number)
