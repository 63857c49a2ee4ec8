"""`tidecast queue scheduled` and `queue cancel`: records that wait for their delivery time."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from tidecast.cli.common import (
    console,
    data_dir_option,
    echo_json,
    json_option,
    server_kept_option,
    token_option,
)
from tidecast.cli.options.names import TopicName
from tidecast.cli.options.params import Param

LISTED_PAGE = 1000


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
        json_option,
        server_kept_option,
        token_option,
        data_dir_option,
        click.option("--where", metavar="TEXT", help="Only those for which this filter holds."),
        click.option("--key", metavar="KEY", help="Only those of this key."),
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

    rows: list[dict[str, Any]] = []
    after = None
    while len(rows) < limit:
        page = ask(
            data_dir,
            token,
            "scheduled",
            topic=topic,
            subscription=subscription,
            key=key,
            where=where,
            limit=min(limit - len(rows), LISTED_PAGE),
            after=after,
        )
        rows += page["records"]
        after = page["next"]
        if after is None:
            break
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
    if after is not None:
        click.echo(f"the first {limit}, by queue and offset: --limit shows more", err=True)


@click.command()
@_chosen
@click.option(
    "--record", "records", type=Place(), multiple=True, help="This record; may be repeated."
)
@click.option("--all", "everything", is_flag=True, help="All that wait.")
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
    from tidecast.cli.topics.subscription import ask

    chosen = key is not None or where is not None
    if bool(records) + chosen + everything != 1:
        raise click.UsageError("choose records by --record, or by --key and --where, or --all")
    if everything and not dry_run and not yes:
        whom = f"subscription {subscription}" if subscription else "all subscriptions"
        click.confirm(f"Cancel all scheduled records of {topic} for {whom}?", abort=True, err=True)
    count, after = 0, None
    sums: dict[tuple[str, str], dict[str, Any]] = {}
    while True:
        page = ask(
            data_dir,
            token,
            "cancel_scheduled",
            topic=topic,
            subscription=subscription,
            key=key,
            where=where,
            records=[list(each) for each in records] or None,
            everything=everything,
            dry_run=dry_run,
            after=after,
        )
        count, after = count + page["records"], page["next"]
        for row in page["subscriptions"]:
            before = sums.get((row["pattern"], row["name"]), {})
            counts = {k: row[k] + before.get(k, 0) for k in ("cancelled", "too_late", "acked")}
            sums[row["pattern"], row["name"]] = row | counts
        if after is None:
            break
    rows = [sums[each] for each in sorted(sums)]
    if as_json:
        echo_json({"dry_run": dry_run, "records": count, "subscriptions": rows})
        return
    _report(rows, count, dry_run=dry_run)


def _report(rows: list[dict[str, Any]], count: int, *, dry_run: bool) -> None:
    verb = "would be cancelled" if dry_run else "cancelled"
    for row in rows:
        text = f"{row['name']} of {row['pattern']}: {row['cancelled']} {verb}"
        if row["too_late"]:
            text += f", {row['too_late']} too late: their time has come"
        if row["acked"]:
            text += f", {row['acked']} acked or cancelled before"
        click.echo(text)
    if not rows:
        click.echo("no scheduled records" if not count else "no subscription waits for them")
