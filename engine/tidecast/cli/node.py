"""`tidecast node`: identities of engines at the control service."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click

from tidecast.cli.api import control_option, send
from tidecast.cli.common import F, data_dir_option, echo_json, json_option


@click.group()
def node() -> None:
    """Credentials of engines at the control service. TIDECAST_KEY holds the secret of a key."""


def _command(help_line: str) -> Callable[[F], F]:
    def decorate(command: F) -> F:
        made = json_option(data_dir_option(control_option(click.argument("name")(command))))
        return node.command(help=help_line)(made)  # type: ignore[return-value]

    return decorate


@_command("Give a connected engine a new credential; the one before ends.")
def rotate(name: str, url: str | None, data_dir: Path, as_json: bool) -> None:
    """See the help line."""
    send("POST", f"/nodes/{name}/rotate", url, data_dir)
    if as_json:
        echo_json({"node": name, "credential": "new"})
        return
    click.echo(f"node {name} has a new credential")


@_command("End an engine's credential, link and leases; it has to be enrolled again.")
def revoke(name: str, url: str | None, data_dir: Path, as_json: bool) -> None:
    """See the help line."""
    send("POST", f"/nodes/{name}/revoke", url, data_dir)
    if as_json:
        echo_json({"node": name, "credential": "none"})
        return
    click.echo(f"node {name} has no credential any more: enrol its engine again to let it in")
