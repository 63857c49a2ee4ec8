"""`tidecast cluster`: the level that engines write, and raising it after an upgrade."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from tidecast.cli.api import control_option, send
from tidecast.cli.common import data_dir_option, echo_json, json_option


@click.group()
def cluster() -> None:
    """Levels of engines during a rolling upgrade. TIDECAST_KEY holds the secret of a key."""


@cluster.command()
@json_option
@control_option
@data_dir_option
def status(as_json: bool, url: str | None, data_dir: Path) -> None:
    """Show the cluster's level, each engine, and what holds the next level back."""
    found = json.loads(send("GET", "/cluster", url, data_dir))
    if as_json:
        echo_json(found)
        return
    click.echo(f"level {found['level']}, the newest of the service is {found['level_max']}")
    for each in found["engines"]:
        click.echo(
            f"{each['node']}  {each['state']}  {each['version'] or '-'}  writes {each['level']}, "
            f"reads {each['level_min']} to {each['level_max']}"
        )
        if each["refused"]:
            click.echo(f"  refused: {each['refused']}")
    for reason in found["blocked_by"]:
        click.echo(f"blocked: {reason}")


@cluster.command()
@click.option("--finalize", is_flag=True, help="Raise the level; without it: show the change.")
@click.option("--level", type=click.IntRange(1), help="[default: the newest of the service]")
@json_option
@control_option
@data_dir_option
def upgrade(
    finalize: bool, level: int | None, as_json: bool, url: str | None, data_dir: Path
) -> None:
    """Raise the level that engines write, once all read it. The level is never lowered."""
    query = f"?dry_run={'false' if finalize else 'true'}"
    if level is not None:
        query += f"&level={level}"
    plan = json.loads(send("POST", f"/cluster/finalize{query}", url, data_dir))
    if as_json:
        echo_json(plan)
        return
    click.echo(_words(plan))


def _words(plan: dict[str, Any]) -> str:
    if not plan["changes"]:
        return "the cluster is already at this level"
    change = plan["changes"][0]
    if plan["dry_run"]:
        return (
            f"every engine reads level {change['new']}: --finalize raises the cluster from level "
            f"{change['old']}; from then on, engines that do not read this level are refused"
        )
    return f"the cluster is at level {change['new']}, before {change['old']}"
