"""`tidecast wire`: the secrets of sealed transports, for nodes without a control service."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tidecast.cli.common import data_dir_option, echo_json, json_option
from tidecast.cli.options.params import Duration

if TYPE_CHECKING:
    from tidecast.node.sealing.wire_keys import WireEpoch, WireKeys


@click.group()
def wire() -> None:
    """Sealed transports: packets that are encrypted and authenticated."""


@wire.group()
def keys() -> None:
    """Secrets in `wire-keys.json` of the data directory: the same file on all nodes.

    Engines read the file again when it changes. No command prints a secret.
    """


@keys.command()
@click.argument("transport")
@click.option(
    "--activate-after",
    type=Duration(low=0, high=30 * 86400),
    default="0s",
    show_default=True,
    help="When senders begin to use it: time to copy the file to nodes that run.",
)
@data_dir_option
@json_option
def new(transport: str, activate_after: float, data_dir: Path, as_json: bool) -> None:
    """Make the first secret of a transport."""
    from tidecast.node.sealing.wire_keys import load_wire_keys, save_wire_keys

    path, held = _held(data_dir)
    now_ns = time.time_ns()
    changed = held.without_retired(now_ns).with_new(
        transport, now_ns, activate_after_s=activate_after
    )
    save_wire_keys(changed, path)
    made = load_wire_keys(path).transports[transport][-1]
    _tell(made, transport, path, now_ns, as_json=as_json)


@keys.command()
@click.argument("transport")
@click.option(
    "--activate-after",
    type=Duration(low=0, high=30 * 86400),
    default="10m",
    show_default=True,
    help="When senders begin to use it: until then the file has to be on all nodes.",
)
@click.option(
    "--retire-after",
    type=Duration(low=0, high=30 * 86400),
    default="10m",
    show_default=True,
    help="How long packets of the old secret are still taken after that.",
)
@data_dir_option
@json_option
def rotate(
    transport: str, activate_after: float, retire_after: float, data_dir: Path, as_json: bool
) -> None:
    """Make the next secret of a transport; the old one ends a while after it is in use."""
    from tidecast.node.sealing.wire_keys import load_wire_keys, save_wire_keys

    path, held = _held(data_dir)
    now_ns = time.time_ns()
    changed = held.without_retired(now_ns).rotated(
        transport, now_ns, activate_after_s=activate_after, retire_after_s=retire_after
    )
    save_wire_keys(changed, path)
    made = load_wire_keys(path).transports[transport][-1]
    _tell(made, transport, path, now_ns, as_json=as_json)


@keys.command()
@data_dir_option
@json_option
def show(data_dir: Path, as_json: bool) -> None:
    """Show the epochs of each transport, without their secrets."""
    _, held = _held(data_dir)
    now_ns = time.time_ns()
    rows = [
        {
            "transport": name,
            "epoch": each.epoch,
            "state": _state_of(held, name, each, now_ns),
            "activate_at": _text(each.activate_at_ns),
            "retire_at": _text(each.retire_at_ns),
        }
        for name, epochs in sorted(held.transports.items())
        for each in epochs
    ]
    if as_json:
        echo_json(rows)
        return
    if not rows:
        click.echo("no transport has keys: `tidecast wire keys new TRANSPORT` makes some")
    for row in rows:
        ends = f", until {row['retire_at']}" if row["retire_at"] else ""
        click.echo(
            f"{row['transport']}  epoch {row['epoch']}  {row['state']}, from "
            f"{row['activate_at']}{ends}"
        )


def _held(data_dir: Path) -> tuple[Path, WireKeys]:
    """The file and its content; empty if there is no file."""
    from tidecast.errors import NotFound
    from tidecast.node.sealing.wire_keys import FILE_NAME, WireKeys, load_wire_keys

    path = data_dir / FILE_NAME
    try:
        return path, load_wire_keys(path)
    except NotFound:
        data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        return path, WireKeys()


def _tell(made: WireEpoch, transport: str, path: Path, now_ns: int, *, as_json: bool) -> None:
    if as_json:
        echo_json(
            {
                "transport": transport,
                "epoch": made.epoch,
                "path": str(path),
                "activate_at": _text(made.activate_at_ns),
            }
        )
        return
    when = "now" if made.activate_at_ns <= now_ns else f"from {_text(made.activate_at_ns)}"
    click.echo(
        f"transport {transport}: epoch {made.epoch} is used {when}. Copy {path} to the data "
        "directory of each node of the transport (mode 0600)."
    )


def _state_of(held: WireKeys, transport: str, each: WireEpoch, now_ns: int) -> str:
    from tidecast.errors import NotFound

    if each not in held.accepted(transport, now_ns):
        return "retired"
    try:
        active = held.active(transport, now_ns)
    except NotFound:
        return "waiting"
    if each == active:
        return "active"
    return "waiting" if each.activate_at_ns > now_ns else "accepted"


def _text(at_ns: int) -> str:
    return datetime.fromtimestamp(at_ns // 10**9, UTC).isoformat() if at_ns else ""
