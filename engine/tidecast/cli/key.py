"""`tidecast key`: keys of clients that are declared in the topology file."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import click

from tidecast.cli.common import data_dir_option, echo_json, json_option
from tidecast.cli.options.params import Moment


@click.group()
def key() -> None:
    """Keys of clients, which remote clients show at the gateway."""


@key.command()
@click.argument("name")
@click.option(
    "--allow",
    "allowed",
    multiple=True,
    required=True,
    metavar="RIGHT:PATTERN",
    help="A right (publish, subscribe, manage, read_payloads) on the topics of a pattern; may be "
    "repeated.",
)
@click.option(
    "--expires",
    "expires_ns",
    type=Moment(ahead=True),
    help="When it ends: 90d from now, or 2027-01-31; never without it.",
)
@data_dir_option
@json_option
def new(
    name: str, allowed: tuple[str, ...], expires_ns: int | None, data_dir: Path, as_json: bool
) -> None:
    """Make a key. Prints its secret, once, and the lines for `keys:` in the topology file.

    The file holds a hash only. Engines that a control service manages receive its keys instead.
    """
    import msgspec
    import yaml

    from tidecast.access import RIGHTS, Scope, new_key
    from tidecast.config.topology import check_pattern, topology_path
    from tidecast.errors import ConfigError

    rights: dict[str, list[str]] = {}
    for each in allowed:
        right, colon, pattern = each.partition(":")
        if not colon:
            raise click.UsageError(f"--allow {each}: no colon: allowed is RIGHT:PATTERN")
        if right not in RIGHTS:
            raise click.UsageError(f"--allow {each}: right {right!r}: allowed {', '.join(RIGHTS)}")
        try:
            check_pattern(pattern)
        except ConfigError as problem:
            raise click.UsageError(f"--allow {each}: pattern {pattern!r}: {problem}") from None
        rights.setdefault(pattern, []).append(right)
    scopes = [msgspec.convert({"pattern": p, "rights": r}, Scope) for p, r in rights.items()]
    ends = None if expires_ns is None else datetime.fromtimestamp(expires_ns // 10**9, UTC)
    secret, made = new_key(name, scopes, ends)
    plain = msgspec.to_builtins(made)
    if as_json:
        echo_json({"secret": secret, "key": plain})
        return
    click.echo(f"# The secret, shown only now: {secret}")
    click.echo(f"# For {topology_path(data_dir)}:")
    click.echo(yaml.safe_dump({"keys": [plain]}, sort_keys=False), nl=False)
