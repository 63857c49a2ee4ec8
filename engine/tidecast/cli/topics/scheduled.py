"""`tidecast queue scheduled` and `queue cancel`: records that wait for their delivery time."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tidecast.cli.common import console, echo_json, engine_options
from tidecast.cli.options.names import TopicName
from tidecast.cli.options.params import Param

if TYPE_CHECKING:
    from tidecast.client.admin.types import Cancelled


class Place(Param):
    """A record as QUEUE:OFFSET."""

    name = "QUEUE:OFFSET"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[int, int]:
        """See `click.ParamType`."""
        queue, _, offset = str(value).partition(":")
        if not (queue.isdecimal() and offset.isdecimal()):
            self.fail(f"{value!r}: write QUEUE:OFFSET, as in 0:17", param, ctx)
        return int(queue), int(offset)


def _chosen(command: Any) -> Any:
    """Options that choose records of TOPIC."""
    for option in (
        engine_options,
        click.option("--where", metavar="TEXT", help="Only records that pass this filter."),
        click.option("--key", metavar="KEY", help="Only records of this key."),
        click.option("--subscription", metavar="NAME", help="Only of this subscription."),
        click.argument("topic", type=TopicName(durable=True)),
    ):
        command = option(command)
    return command


@click.command()
@_chosen
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="Records.")
def scheduled(
    topic: str,
    subscription: str | None,
    key: str | None,
    where: str | None,
    limit: int,
    data_dir: Path,
    token: str | None,
    as_json: bool,
) -> None:
    """List the records of TOPIC that wait for their delivery time, soonest first."""
    from tidecast.cli.topics.subscription import ask
    from tidecast.client.admin.pages import read_scheduled

    rows, more = read_scheduled(
        partial(ask, data_dir, token),
        topic=topic,
        subscription=subscription,
        key=key,
        where=where,
        limit=limit,
    )
    rows.sort(key=lambda row: (row["deliver_at_ns"], row["queue"], row["token"]))
    if as_json:
        echo_json(rows)
        return
    if not rows:
        click.echo("no scheduled records")
        return
    from rich.table import Table

    table = Table("record", "delivery time", "key", "bytes", "subscriptions", box=None)
    for row in rows:
        at = datetime.fromtimestamp(row["deliver_at_ns"] / 1e9, UTC).isoformat(timespec="seconds")
        names = ", ".join(name for _, name in row["subscriptions"])
        shown = (row["key"] or b"").decode(errors="replace")
        table.add_row(f"{row['queue']}:{row['token']}", at, shown, str(row["size"]), names)
    console().print(table)
    if more:
        click.echo(f"the first {limit}, by queue and offset: --limit shows more", err=True)


@click.command()
@_chosen
@click.option(
    "--record", "records", type=Place(), multiple=True, help="This record; may be repeated."
)
@click.option("--all", "everything", is_flag=True, help="All records that wait.")
@click.option("--dry-run", is_flag=True, help="Only count.")
@click.option("--yes", is_flag=True, help="Do not ask before --all.")
def cancel(
    topic: str,
    subscription: str | None,
    key: str | None,
    where: str | None,
    records: tuple[tuple[int, int], ...],
    everything: bool,
    dry_run: bool,
    yes: bool,
    data_dir: Path,
    token: str | None,
    as_json: bool,
) -> None:
    """Cancel records of TOPIC before their delivery time: no consumer gets them.

    Choose them by --record, or by --key and --where, or take --all. A record whose time has come is
    delivered all the same, and counted as too late.
    """
    from msgspec import to_builtins

    from tidecast.cli.topics.subscription import ask
    from tidecast.client.admin.pages import cancel_scheduled

    chosen = key is not None or where is not None
    if bool(records) + chosen + everything != 1:
        raise click.UsageError("choose records by --record, or by --key and --where, or --all")
    if everything and not dry_run and not yes:
        whom = f"subscription {subscription}" if subscription else "all subscriptions"
        click.confirm(f"Cancel all scheduled records of {topic} for {whom}?", abort=True, err=True)
    done = cancel_scheduled(
        partial(ask, data_dir, token),
        topic=topic,
        subscription=subscription,
        key=key,
        where=where,
        records=[list(each) for each in records] or None,
        everything=everything,
        dry_run=dry_run,
    )
    if as_json:
        echo_json(to_builtins(done))
    else:
        _report(done)


def _report(done: Cancelled) -> None:
    verb = "would be cancelled" if done.dry_run else "cancelled"
    for row in done.subscriptions:
        text = f"{row.name} of {row.pattern}: {row.cancelled} {verb}"
        if row.too_late:
            text += f", {row.too_late} too late: their time has come"
        if row.acked:
            text += f", {row.acked} acked or cancelled before"
        click.echo(text)
    if not done.subscriptions:
        click.echo("no scheduled records" if not done.records else "no subscription waits for them")
