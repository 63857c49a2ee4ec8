"""``python -m tidecast_control``: run the control service; `tidecast control` is the same."""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import secrets
import sys
from pathlib import Path
from typing import Any

import click

from tidecast.disk import write_atomically
from tidecast.errors import Conflict, TidecastError
from tidecast_control.first_run import Secrets
from tidecast_control.server import make_server
from tidecast_control.settings import PORT_DEFAULT, Settings, load_settings

STATE_NAME, LOCK_NAME, TOKEN_NAME = "control-service.json", "control-service.lock", "enrol.token"


def _locked(data_dir: Path) -> Any:
    data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    lock = (data_dir / LOCK_NAME).open("a+")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise Conflict(f"a control service runs on {data_dir} already") from None
    return lock


def run(settings: Settings, *, local_token: bool) -> None:
    """Run until SIGTERM or SIGINT. The first lines on standard output say URL and secret."""
    lock = _locked(settings.data_dir)
    token = "tce_" + secrets.token_urlsafe(32) if local_token else None
    state = settings.data_dir / STATE_NAME

    def on_ready(url: str, secrets: Secrets) -> None:
        if token is not None:
            write_atomically(settings.data_dir / TOKEN_NAME, token.encode())
        write_atomically(state, json.dumps({"pid": os.getpid(), "url": url}).encode())
        click.echo(f"control service: {url}")
        if secrets.admin_password is not None:
            click.echo(f"first run: log in as admin with password {secrets.admin_password}")
            click.echo("(shown this once; it is to be changed at the first login)")
        click.echo("ready")
        sys.stdout.flush()

    server = make_server(settings, on_ready, local_token=token)
    try:
        with contextlib.suppress(SystemExit):  # so uvicorn ends when it cannot start: logged below
            server.run()
    finally:
        state.unlink(missing_ok=True)
        lock.close()
    if server.problem is not None:
        raise server.problem
    if not server.started:
        raise Conflict(
            f"the control service could not start on {settings.host}:{settings.port}: choose "
            "another port with --port, or end the process that has it (ss -ltnp shows it)"
        )


@click.command("tidecast control")
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    envvar="TIDECAST_DATA_DIR",
    help="Where this platform keeps its files.",
)
@click.option("--host", help="Address to listen on. [default: 127.0.0.1]")
@click.option("--port", type=click.IntRange(0, 65_535), help=f"[default: {PORT_DEFAULT}]")
@click.option("--tls-certificate", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--tls-key", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--allow-faults/--no-allow-faults", default=None, help="Let admins inject faults.")
@click.option(
    "--example/--no-example",
    "example_topic",
    default=None,
    help="Make an example topic on the first run.",
)
@click.option(
    "--forget-secrets",
    is_flag=True,
    default=None,
    help="Give up secrets in the database that no key of secrets.key opens.",
)
@click.option("--local-token", is_flag=True, help="Write an enrolment token for engines here.")
@click.option(
    "--topology",
    "topology_file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="What a new platform begins with [default: topology.yaml in the data directory].",
)
def main(local_token: bool, **options: Any) -> None:
    """Run the control service: REST API, live feed, dashboard.

    More settings: environment variables TIDECAST_CONTROL_*, and TIDECAST_DATABASE_URL.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    for noisy in ("alembic", "sqlalchemy", "httpx", "websockets"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    try:
        run(load_settings(**options), local_token=local_token)
    except TidecastError as problem:
        raise click.ClickException(str(problem)) from None


if __name__ == "__main__":
    main()
