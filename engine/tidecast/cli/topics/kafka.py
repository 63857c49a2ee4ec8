"""`tidecast kafka`: clients and groups of the Kafka endpoint of the running engine."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tidecast.cli.common import console, echo_json, engine_options, human_bytes, human_count
from tidecast.cli.options.names import TopicName
from tidecast.cli.options.places import PLACES, Place, of_queue
from tidecast.cli.topics.subscription import ask, table

if TYPE_CHECKING:
    from tidecast.api.start import Start

PAGE = 1000
STATES = ("Empty", "PreparingRebalance", "CompletingRebalance", "Stable")


@click.group()
def kafka() -> None:
    """Clients and consumer groups of the Kafka endpoint: how far groups are, and moving them.

    A group has its offsets at one engine. Ask that engine.
    """


def _pages(
    data_dir: Path, token: str | None, action: str, limit: int | None, **arguments: Any
) -> list[dict[str, Any]]:
    """All rows of an action, or the first ``limit``."""
    rows: list[dict[str, Any]] = []
    while limit is None or len(rows) < limit:
        room = PAGE if limit is None else min(PAGE, limit - len(rows))
        found = ask(data_dir, token, action, limit=room, **arguments)
        rows += found["rows"]
        if found["next"] is None:
            break
        arguments["after"] = found["next"]
    return rows


_limit = click.option("--limit", type=click.IntRange(1), metavar="N", help="At most so many.")


@kafka.command()
@engine_options
@click.option("--topic", type=TopicName(durable=True), help="Only groups that read this topic.")
@click.option("--state", type=click.Choice(STATES), help="Only groups in this state.")
@_limit
def groups(
    topic: str | None,
    state: str | None,
    limit: int | None,
    data_dir: Path,
    token: str | None,
    as_json: bool,
) -> None:
    """Consumer groups: state, members, lag in records and in seconds."""
    rows = _pages(data_dir, token, "kafka_groups", limit, topic=topic or "", state=state or "")
    if as_json:
        echo_json(rows)
        return
    if not rows:
        click.echo("no Kafka groups")
        return
    table(
        ("group", "state", "members", "topics", "queues", "lag", "lag s"),
        [
            (
                row["name"],
                row["state"],
                row["members"],
                _topics(row),
                row["queues"],
                _count(row["lag"]),
                _seconds(row["lag_s"]),
            )
            for row in rows
        ],
    )


@kafka.command()
@engine_options
@click.argument("name")
def group(name: str, data_dir: Path, token: str | None, as_json: bool) -> None:
    """One group: its members, and each of its queues with offset, end and lag."""
    found = ask(data_dir, token, "kafka_group", name=name)
    if as_json:
        echo_json(found)
        return
    out = console()
    for field in ("state", "protocol", "generation"):
        out.print(f"{field}: {found[field] if found[field] != '' else 'none'}")
    if found["committed_at"]:
        out.print(f"last commit: {_time(found['committed_at'])}")
    out.print(f"lag: {_count(found['lag'])}, {_seconds(found['lag_s'])} s")
    table(
        ("topic", "queue", "committed", "end", "lag", "lag s", "member"),
        [
            (
                row["topic"],
                row["queue"],
                _known(row["committed"]),
                _known(row["end"]),
                _known(row["lag"]),
                _seconds(row["lag_s"]),
                row["member"],
            )
            for row in found["offsets"]
        ],
    )
    if found["offsets_left_out"]:
        out.print(f"and {found['offsets_left_out']} queues more")
    if found["consumers"]:
        table(
            ("member", "client id", "address", "queues"),
            [
                (row["id"], row["client_id"], row["address"], ", ".join(row["assigned"]))
                for row in found["consumers"]
            ],
        )


@kafka.command()
@engine_options
@_limit
def clients(limit: int | None, data_dir: Path, token: str | None, as_json: bool) -> None:
    """Connections of Kafka clients: software, address, key, bytes in and out."""
    rows = _pages(data_dir, token, "kafka_clients", limit)
    if as_json:
        echo_json(rows)
        return
    if not rows:
        click.echo("no Kafka clients")
        return
    table(
        ("client id", "software", "address", "key", "since", "requests", "in", "out"),
        [
            (
                row["client_id"],
                row["software"],
                row["address"],
                row["key_name"] or row["key"],
                _time(row["since_ns"] / 1e9),
                row["requests"],
                human_bytes(row["bytes_in"]),
                human_bytes(row["bytes_out"]),
            )
            for row in rows
        ],
    )


@kafka.command()
@engine_options
@click.argument("name")
@click.option("--to", "start", type=Place(), metavar="WHERE", help=PLACES)
@click.option("--shift", type=int, metavar="N", help="By N records, back if below 0.")
@click.option("--topic", type=TopicName(durable=True), help="Only this topic. [default: all]")
@click.option("--queue", type=int, metavar="N", help="Only this queue.")
@click.option("--dry-run", is_flag=True, help="Only list the moves.")
def reset(
    name: str,
    start: Start | None,
    shift: int | None,
    topic: str | None,
    queue: int | None,
    dry_run: bool,
    data_dir: Path,
    token: str | None,
    as_json: bool,
) -> None:
    """Move the offsets of a group that has no members."""
    if (start is None) == (shift is None):
        raise click.UsageError("give either --to or --shift")
    where = {"shift": shift} if start is None else _place(start, queue)
    found = ask(
        data_dir,
        token,
        "kafka_reset_offsets",
        name=name,
        topic=topic or "",
        dry_run=dry_run,
        **{"queue": queue} | where,
    )
    if as_json:
        echo_json(found)
        return
    table(
        ("topic", "queue", "before", "after", "records"),
        [
            (row["topic"], row["queue"], _known(row["before"]), row["after"], row["records"])
            for row in found["rows"]
        ],
    )


@kafka.command()
@engine_options
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Only list what would be deleted.")
def delete(
    name: str, yes: bool, dry_run: bool, data_dir: Path, token: str | None, as_json: bool
) -> None:
    """Delete a group that has no members, with its offsets."""
    if not yes and not dry_run:
        click.confirm(f"Delete group {name}? Its offsets are lost", abort=True)
    found = ask(data_dir, token, "kafka_delete_group", name=name, dry_run=dry_run)
    if as_json:
        echo_json(found)
        return
    verb = "would be deleted" if dry_run else "is deleted"
    click.echo(f"group {name} {verb}, with {found['offsets']} offsets")


def _place(start: Start, queue: int | None) -> dict[str, Any]:
    """A place as the action takes it. Raises `click.UsageError`."""
    from tidecast.api.start import Tokens
    from tidecast.client.consumer.core import start_options

    where = of_queue(start, [] if queue is None else [queue], "--to")
    if isinstance(where, Tokens):
        if len(where.tokens) != 1:
            raise click.UsageError("--to: one queue at a time: give QUEUE:OFFSET and --topic")
        ((number, offset),) = where.tokens.items()
        return {"to": "offset", "queue": number, "offset": offset}
    options = start_options(where)
    if options["start"] == "time":
        return {"to": "time", "time_ns": options["start_time_ns"]}
    return {"to": options["start"]}


def _topics(row: dict[str, Any]) -> str:
    more = row["topics_total"] - len(row["topics"])
    return ", ".join(row["topics"]) + (f" and {more} more" if more else "")


def _count(n: int | None) -> str:
    return "-" if n is None else human_count(n)


def _known(n: int | None) -> str:
    return "-" if n is None else str(n)


def _seconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.1f}"


def _time(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
