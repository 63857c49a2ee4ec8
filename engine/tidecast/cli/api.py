"""`tidecast api`: one request to the control service, as the page would send it."""

from __future__ import annotations

from pathlib import Path

import click

from tidecast.cli.common import data_dir_option
from tidecast.errors import TidecastError

control_option = click.option(
    "--control",
    "url",
    envvar="TIDECAST_CONTROL_URL",
    metavar="URL",
    help="The service [env: TIDECAST_CONTROL_URL; or that of --data-dir].",
)


@click.command()
@click.argument("method", type=click.Choice(["GET", "PUT", "PATCH", "POST", "DELETE"]))
@click.argument("path")
@click.option("--data", metavar="TEXT", help="Body: JSON, or what --type says; @FILE; @-.")
@click.option("--type", "media_type", default="application/json", show_default=True)
@control_option
@data_dir_option
def api(
    method: str, path: str, data: str | None, media_type: str, url: str | None, data_dir: Path
) -> None:
    """Send one request to the control service; write its answer.

    PATH is under /api/v1: `tidecast api GET /topics`. TIDECAST_KEY holds the secret of an API key,
    made on the page's Keys & users. When the service refuses, its reason is printed, and the exit
    code is 1.
    """
    body = None if data is None else (_body(data), media_type)
    text = send(method, path, url, data_dir, body)
    if text:
        click.echo(text.removesuffix("\n"))


def send(
    method: str, path: str, url: str | None, data_dir: Path, body: tuple[bytes, str] | None = None
) -> str:
    """The answer to one request. ``body``: bytes and their media type. Raises Failure."""
    from tidecast.cli import Failure
    from tidecast.rest.http import Service

    try:
        service = Service(url or _local(data_dir), None)
        return service.send(method, path, body).body.decode("utf-8", "replace")
    except TidecastError as problem:
        raise Failure(str(problem)) from problem


def _local(data_dir: Path) -> str | None:
    from tidecast.cli.control import service_state

    state = service_state(data_dir)
    return str(state["url"]) if state else None


def _body(data: str) -> bytes:
    if not data.startswith("@"):
        return data.encode()
    with click.open_file(data.removeprefix("@"), "rb") as file:  # "-": standard input
        return bytes(file.read())
