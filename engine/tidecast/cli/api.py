"""`tidecast api`: one request to the control service, as the page would send it."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from pathlib import Path

import click

from tidecast.cli.common import data_dir_option

KEY = "TIDECAST_KEY"
PREFIX = "/api/"
VERSION = "/api/v1"
DEFAULT_URL = "http://127.0.0.1:7480"
TIMEOUT_S = 60.0
TEXT_SHOWN_MAX = 500


control_option = click.option(
    "--control", "url", envvar="TIDECAST_CONTROL_URL", metavar="URL",
    help="The service [env: TIDECAST_CONTROL_URL; or that of --data-dir].",
)  # fmt: skip


@click.command()
@click.argument("method", type=click.Choice(["GET", "PUT", "PATCH", "POST", "DELETE"]))
@click.argument("path")
@click.option("--data", metavar="TEXT", help="Body: JSON, or what --type says; @FILE; @-.")
@click.option("--type", "media_type", default="application/json", show_default=True)
@control_option
@data_dir_option
def api(
    method: str, path: str, data: str | None, media_type: str, url: str | None, data_dir: Path
) -> None:  # fmt: skip
    """Send one request to the control service; write its answer.

    PATH is under /api/v1: `tidecast api GET /topics`. TIDECAST_KEY holds the secret of an API key,
    made on the page's Keys & users. When the service refuses it says why, and the exit code is 1.
    """
    body = None if data is None else (_body(data), media_type)
    text = send(method, path, url, data_dir, body)
    if text:
        click.echo(text.removesuffix("\n"))


def send(
    method: str, path: str, url: str | None, data_dir: Path, body: tuple[bytes, str] | None = None
) -> str:  # fmt: skip
    """The answer to one request. ``body``: bytes and their media type. Raises Failure."""
    from tidecast.cli import Failure

    key = os.environ.get(KEY)
    if not key:
        raise Failure(f"no key: set {KEY} to the secret of an API key (page: Keys & users)")
    base = (url or _local(data_dir)).rstrip("/")
    if not base.startswith(("http://", "https://")):
        raise Failure(f"--control {base}: an address that begins with http:// or https://")
    path = "/" + path.lstrip("/")
    request = urllib.request.Request(
        base + (path if path.startswith(PREFIX) else VERSION + path), method=method
    )
    request.add_header("Authorization", f"Bearer {key}")
    if body is not None:
        request.data, media_type = body
        request.add_header("Content-Type", media_type)
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            return str(answer.read().decode("utf-8", "replace"))
    except urllib.error.HTTPError as refused:
        raise Failure(_said(refused)) from refused
    except OSError as problem:
        raise Failure(f"{base} does not answer: {problem}") from problem


def _local(data_dir: Path) -> str:
    from tidecast.cli.control import service_state

    state = service_state(data_dir)
    return str(state["url"]) if state else DEFAULT_URL


def _body(data: str) -> bytes:
    if not data.startswith("@"):
        return data.encode()
    with click.open_file(data.removeprefix("@"), "rb") as file:  # "-": standard input
        return bytes(file.read())


def _said(refused: urllib.error.HTTPError) -> str:
    """``409: what is wrong; why``, of a problem document."""
    text = refused.read().decode("utf-8", "replace")
    try:
        problem = json.loads(text)
        said = [str(problem["title"]), str(problem.get("detail") or "")]
        said += [f"{one['pointer']}: {one['detail']}" for one in problem.get("errors") or ()]
    except (ValueError, KeyError, TypeError):
        return f"{refused.code} {refused.reason}: {text[:TEXT_SHOWN_MAX]}"
    return f"{refused.code}: " + "; ".join(filter(None, said))
