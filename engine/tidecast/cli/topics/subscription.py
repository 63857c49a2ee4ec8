"""`tidecast subscription`: durable subscriptions of the running engine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tidecast.api.renamed import with_new_name
from tidecast.cli.common import asking, console, echo_json, engine_options, human_count, server_of
from tidecast.cli.options.names import SubscriptionName, TopicName
from tidecast.cli.options.params import Duration
from tidecast.cli.options.places import PLACES, Place, of_queue

if TYPE_CHECKING:
    from tidecast.api.start import Start

F = TypeVar("F", bound=Callable[..., Any])
REDRIVE_PAGE = 10_000
TOKENS_SHOWN_MAX = 1000


@click.group()
def subscription() -> None:
    """Named consumers of durable topics: how far they are, and moving them.

    A subscription is identified by its topic (or pattern) and its name.
    """


def _named(command: F) -> F:
    command = click.argument("name", type=SubscriptionName())(command)
    return click.argument("topic", type=TopicName(durable=True))(engine_options(command))


def ask(data_dir: Path, token: str | None, action: str, **arguments: Any) -> Any:
    """One action of the running engine, or that of ``--server``."""
    with asking(data_dir, token) as engine:
        return engine(action, **arguments)


def asked_if_running(data_dir: Path, token: str | None, action: str) -> list[dict[str, Any]]:
    """The rows that an action of the engine answers; none when none runs."""
    from tidecast.engine.process import running_pid

    found: list[dict[str, Any]] = []
    if server_of() is not None or running_pid(data_dir) is not None:
        found = ask(data_dir, token, action)
    return found


@subscription.command("list")
@engine_options
def list_all(data_dir: Path, token: str | None, as_json: bool) -> None:
    """All subscriptions: lag, outstanding, members."""
    rows = ask(data_dir, token, "list")
    if as_json:
        echo_json(rows)
        return
    if not rows:
        click.echo("no subscriptions; make one: tidecast subscription create TOPIC NAME")
        return
    table(
        ("topic", "name", "queues", "members", "lag", "lag s", "outstanding", "dead", "state"),
        [
            (
                row["pattern"],
                row["name"],
                row["queues"],
                len(row["members"]),
                human_count(row["lag"]),
                f"{row['lag_s']:.1f}",
                row["outstanding"],
                row["dead"],
                "paused" if row["paused"] else "active",
            )
            for row in rows
        ],
    )


@subscription.command()
@_named
def show(topic: str, name: str, data_dir: Path, token: str | None, as_json: bool) -> None:
    """One subscription: its settings, and each of its queues with the reason why it waits."""
    found = with_new_name(ask(data_dir, token, "show", pattern=topic, name=name))
    if as_json:
        echo_json(found)
        return
    out = console()
    for field in ("ack_wait_s", "max_deliver", "dead_letter", "key_pattern", "where", "paused"):
        out.print(f"{field}: {found[field]}")
    members = [m["client"] or f"client {m['client_id']}" for m in found["members"]]
    out.print(f"members: {', '.join(members) or 'none'}")
    if found.get("arriving"):
        out.print(f"arriving from other hosts: {found['arriving']}")
    table(
        (
            "topic",
            "queue",
            "position",
            "end",
            "lag",
            "acked ahead",
            "lag s",
            "outstanding",
            "waiting",
            "scheduled",
            "reason",
        ),
        [
            (
                row["topic"],
                row["queue"],
                row["position"],
                row["end"],
                row["lag"],
                row["acked_ahead"],
                f"{row['lag_s']:.1f}",
                row["outstanding"],
                row["waiting"],
                row.get("scheduled", 0),
                ", ".join([row["reason"], *row["paused_by"]]),
            )
            for row in found["cursors"]
        ],
    )


@subscription.command()
@_named
@click.option("--start", type=Place(), default="earliest", metavar="WHERE", help=PLACES)
@click.option(
    "--ack-wait", type=Duration(low=0, above=True), help="Deliver again after. [default: 30s]"
)
@click.option(
    "--max-deliver", type=int, metavar="N", help="Deliveries, at most; 0: no limit. [default: 5]"
)
@click.option(
    "--dead-letter",
    type=TopicName(durable=True),
    metavar="TOPIC",
    help="Durable topic for messages that fail too often.",
)
@click.option("--key", metavar="PATTERN", help="A key, or a prefix and *.")
@click.option("--where", metavar="TEXT", help="Only records for which this holds: 'size > 100'.")
def create(
    topic: str,
    name: str,
    start: Start,
    ack_wait: float | None,
    max_deliver: int | None,
    dead_letter: str | None,
    key: str | None,
    where: str | None,
    data_dir: Path,
    token: str | None,
    as_json: bool,
) -> None:
    """Create a subscription; its position is fixed from now on."""
    chosen = {
        "ack_wait_s": ack_wait,
        "max_deliver": max_deliver,
        "dead_letter": dead_letter,
        "key_pattern": key,
        "where": where,
        **_start(start, "--start"),
    }
    made = ask(data_dir, token, "create", pattern=topic, name=name, **chosen)
    queues = "1 queue" if made["queues"] == 1 else f"{made['queues']} queues"
    _done(as_json, made, f"subscription {name} of {topic}: {queues}")


@subscription.command()
@_named
@click.option("--yes", is_flag=True, help="Do not ask.")
def delete(
    topic: str, name: str, yes: bool, data_dir: Path, token: str | None, as_json: bool
) -> None:
    """Delete a subscription; its position is lost, its consumers end."""
    if not yes:
        click.confirm(f"Delete {name} of {topic}? Its position is lost", abort=True)
    ask(data_dir, token, "delete", pattern=topic, name=name)
    _done(as_json, {"deleted": True}, f"subscription {name} of {topic} is deleted")


@subscription.command()
@_named
def pause(topic: str, name: str, data_dir: Path, token: str | None, as_json: bool) -> None:
    """Pause a subscription; its consumers keep the messages that they fetched."""
    ask(data_dir, token, "pause", pattern=topic, name=name)
    _done(as_json, {"paused": True}, f"subscription {name} of {topic} is paused")


@subscription.command()
@_named
def resume(topic: str, name: str, data_dir: Path, token: str | None, as_json: bool) -> None:
    """Resume a subscription."""
    ask(data_dir, token, "resume", pattern=topic, name=name)
    _done(as_json, {"paused": False}, f"subscription {name} of {topic} is resumed")


@subscription.command()
@_named
@click.option("--to", "start", type=Place(), metavar="WHERE", help=PLACES)
@click.option("--shift", type=int, default=0, metavar="N", help="By N records, back if below 0.")
@click.option("--queue", type=int, metavar="N", help="Only this queue.")
@click.option("--dry-run", is_flag=True, help="Only list the moves.")
def seek(
    topic: str,
    name: str,
    start: Start | None,
    shift: int,
    queue: int | None,
    dry_run: bool,
    data_dir: Path,
    token: str | None,
    as_json: bool,
) -> None:
    """Move a subscription, back or forth."""
    if (start is None) == (shift == 0):
        raise click.UsageError("give either --to or --shift")
    rows = ask(
        data_dir,
        token,
        "seek",
        pattern=topic,
        name=name,
        shift=shift,
        queue=queue,
        dry_run=dry_run,
        **({} if start is None else _start(start, "--to", queue)),
    )
    if as_json:
        echo_json(rows)
        return
    table(
        ("topic", "queue", "before", "after", "records"),
        [(r["topic"], r["queue"], r["before"], r["after"], r["records"]) for r in rows],
    )


@subscription.command()
@_named
@click.option("--reason", metavar="TEXT", help="Only dead letters whose reason contains this text.")
@click.option("--key", metavar="KEY", help="Only dead letters of this key.")
@click.option(
    "--where", metavar="TEXT", help="""As 'headers["dead-attempts"] > 3 and size < 99'."""
)
@click.option("--to", metavar="TOPIC", help="Publish to this durable topic instead.")
@click.option("--limit", type=click.IntRange(1), default=100_000, help="At most (100,000).")
@click.option("--dry-run", is_flag=True, help="Only list them.")
def redrive(
    topic: str,
    name: str,
    reason: str | None,
    key: str | None,
    where: str | None,
    to: str | None,
    limit: int,
    dry_run: bool,
    data_dir: Path,
    token: str | None,
    as_json: bool,
) -> None:
    """Deliver dead letters of this subscription again, to it alone.

    They are chosen as they lie in the dead-letter topic: the headers that begin with dead- are
    listed in docs/CONSUMING.md, timestamp is when they were given up.
    """
    found: dict[str, Any] = {
        "records": 0,
        "scanned": 0,
        "unverified": 0,
        "dry_run": dry_run,
        "tokens": [],
    }
    after = None
    while found["records"] < limit:
        page = ask(
            data_dir,
            token,
            "redrive",
            pattern=topic,
            name=name,
            reason=reason,
            key=key,
            where=where,
            to=to,
            limit=min(limit - found["records"], REDRIVE_PAGE),
            dry_run=dry_run,
            after=after,
        )
        for field in ("records", "scanned", "unverified", "tokens"):
            found[field] += page[field]
        del found["tokens"][TOKENS_SHOWN_MAX:]
        after = page["next"]
        if after is None:
            break
    found["next"] = after
    verb = "would be delivered" if dry_run else "are delivered"
    text = f"{found['records']} records {verb} again"
    if found["unverified"]:
        text += f"; {found['unverified']} letters are left out: no engine vouches for their headers"
    _done(as_json, found, text)


@subscription.command()
@_named
@click.option("--limit", type=click.IntRange(1, 1000), default=10, help="Records.")
def peek(
    topic: str, name: str, limit: int, data_dir: Path, token: str | None, as_json: bool
) -> None:
    """The next records that are not acked; delivers nothing."""
    rows = ask(data_dir, token, "peek", pattern=topic, name=name, limit=limit)
    if as_json:
        echo_json(rows)
        return
    table(
        ("topic", "queue", "token", "key", "bytes", "payload"),
        [
            (
                r["topic"],
                r["queue"],
                r["token"],
                _text(r["key"]),
                r["size"],
                _text(r["payload"][:60]),
            )
            for r in rows
        ],
    )


def _start(where: Start, option: str, queue: int | None = None) -> dict[str, Any]:
    """A place as the actions take it; ``queue``: of a bare sequence."""
    from tidecast.client.consumer.core import start_options

    return start_options(of_queue(where, [] if queue is None else [queue], option))


def _text(raw: bytes | None) -> str:
    return "" if raw is None else raw.decode(errors="replace")


def _done(as_json: bool, value: Any, text: str) -> None:
    if as_json:
        echo_json(value)
    else:
        console().print(text)


def table(columns: tuple[str, ...], rows: list[tuple[Any, ...]]) -> None:
    """Print rows below the names of their columns."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column)
    for row in rows:
        table.add_row(*(str(cell) for cell in row))
    console().print(table)
