"""`tidecast cluster`: the level that engines write, and draining a node before an upgrade."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import click

from tidecast.cli import Failure
from tidecast.cli.api import control_option, send
from tidecast.cli.common import data_dir_option, echo_json, json_option
from tidecast.errors import NotFound

POLL_S = 0.5


@click.group()
def cluster() -> None:
    """Levels and drains of engines in an upgrade. TIDECAST_KEY holds the secret of a key."""


@cluster.command()
@json_option
@control_option
@data_dir_option
def status(as_json: bool, url: str | None, data_dir: Path) -> None:
    """Show the cluster's level, each engine, and the obstacles to the next level."""
    found = json.loads(send("GET", "/cluster", url, data_dir))
    reached = _peers(url, data_dir)
    if as_json:
        echo_json(found | reached)
        return
    click.echo(f"level {found['level']}, the newest of the service is {found['level_max']}")
    for each in found["engines"]:
        click.echo(
            f"{each['node']}  {each['state']}  {each['version'] or '-'}  writes {each['level']}, "
            f"reads {each['level_min']} to {each['level_max']}"
            + ("  drained" if each["drained"] else "")
        )
        for transport, address in sorted(each.get("addresses", {}).items()):
            click.echo(f"  {transport} at {address}")
        for path in reached["paths"]:
            if path["node"] == each["node"]:
                click.echo(f"  {_path_words(path)}")
        if each["refused"]:
            click.echo(f"  refused: {each['refused']}")
    for node in reached["unanswered"]:
        click.echo(f"{node} does not report its peers")
    for reason in found["blocked_by"]:
        click.echo(f"blocked: {reason}")


def _peers(url: str | None, data_dir: Path) -> dict[str, Any]:
    """The discovered peers of each engine; none of a service that is older."""
    try:
        found: dict[str, Any] = json.loads(send("GET", "/cluster/peers", url, data_dir))
    except Failure as refused:
        if isinstance(refused.__cause__, NotFound):
            return {"paths": [], "unanswered": []}
        raise
    return found


def _path_words(path: dict[str, Any]) -> str:
    age_s = path["heard_age_s"]
    heard = "never heard" if age_s is None else f"heard {age_s:.1f} s ago"
    down = ", its engine is not connected" if path["peer_state"] == "down" else ""
    silent = "SILENT, " if path["silent"] else ""
    return f"{path['transport']} to {path['peer']} ({path['address']}): {silent}{heard}{down}"


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


@cluster.command()
@click.argument("node")
@click.option("--dry-run", is_flag=True, help="Report what moves and what stays; change nothing.")
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(0, 86_400),
    default=300.0,
    show_default=True,
    help="Seconds to wait until the node is empty; 0: do not wait.",
)
@json_option
@control_option
@data_dir_option
def drain(
    node: str, dry_run: bool, timeout_s: float, as_json: bool, url: str | None, data_dir: Path
) -> None:
    """Hand the leased topics of NODE over to other engines, and wait until it is empty.

    NODE takes no topic until `tidecast cluster undrain`, also after a restart. Things that no other
    engine takes are listed with the reason. Exit code 1: NODE was not empty in time.
    """

    def ask() -> Any:
        return json.loads(send("GET", f"/cluster/nodes/{quote(node, '')}/drain", url, data_dir))

    if not dry_run:
        _set_drained(node, True, url, data_dir)
    found = ask()
    if not dry_run and timeout_s:
        found = _until_empty(ask, timeout_s, show=not as_json)
    if as_json:
        echo_json(found)
    else:
        _show_drain(found, dry_run=dry_run)
    if not dry_run and timeout_s and not found["empty"]:
        raise Failure(f"node {node} still has {len(found['keeps'])} leased topics")


@cluster.command()
@click.option("--topic", default="", help="Moves of this topic alone.")
@click.option("--node", default="", help="Moves from or to this node alone.")
@click.option("--limit", type=click.IntRange(1, 500), default=50, show_default=True)
@json_option
@control_option
@data_dir_option
def moves(
    topic: str, node: str, limit: int, as_json: bool, url: str | None, data_dir: Path
) -> None:
    """Show which leased topic went from which engine to which, and why; newest first."""
    wanted = {"limit": limit} | {k: v for k, v in (("topic", topic), ("node", node)) if v}
    found = json.loads(send("GET", f"/cluster/moves?{urlencode(wanted)}", url, data_dir))
    if as_json:
        echo_json(found)
        return
    for each in found["items"]:
        away = "" if each["away_s"] is None else f"  {each['away_s']:.3f} s without an owner"
        click.echo(
            f"{each['at'][:19]}  {each['topic']}  {each['from_node'] or '-'} -> "
            f"{each['to_node'] or '(no node yet)'}  {each['reason']}{away}"
        )
    if not found["items"]:
        click.echo("no leased topic has moved in the last 30 days")


@cluster.command()
@click.argument("node")
@json_option
@control_option
@data_dir_option
def undrain(node: str, as_json: bool, url: str | None, data_dir: Path) -> None:
    """Let NODE take its share of the leased topics again."""
    found = _set_drained(node, False, url, data_dir)
    if as_json:
        echo_json(found)
        return
    click.echo(f"node {node} takes its share of the leased topics again")


def _set_drained(node: str, drained: bool, url: str | None, data_dir: Path) -> Any:
    body = json.dumps({"spec": {"drained": drained}}).encode()
    path = f"/nodes/{quote(node, '')}"
    return json.loads(send("PATCH", path, url, data_dir, (body, "application/merge-patch+json")))


def _until_empty(ask: Callable[[], Any], timeout_s: float, *, show: bool) -> Any:
    """Ask until the node is empty, or all that it has stays; a line for each change."""
    deadline, before = time.monotonic() + timeout_s, -1
    while True:
        found = ask()
        if show and len(found["keeps"]) != before:
            before = len(found["keeps"])
            click.echo(f"{before} leased topics left, {len(found['moving'])} of them move")
        stuck = found["drained"] and found["keeps"] and not found["moving"]
        if found["empty"] or stuck or time.monotonic() >= deadline:
            return found
        time.sleep(POLL_S)


def _show_drain(found: Any, *, dry_run: bool) -> None:
    for each in found["stays"]:
        click.echo(f"stays: {each['kind']} {each['name']}: {each['reason']}")
    if found["stays_total"] > len(found["stays"]):
        click.echo(f"stays: {found['stays_total'] - len(found['stays'])} more")
    if dry_run:
        click.echo(f"a drain hands {len(found['keeps'])} leased topics over")
    elif found["empty"]:
        click.echo(f"node {found['node']} is empty: it has no leased topic")
    else:
        click.echo(f"node {found['node']} has {len(found['keeps'])} leased topics")


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
